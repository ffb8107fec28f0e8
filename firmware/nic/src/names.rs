//! Numbers in traces and in the API, by the names that logs and scenarios have for them: `RETRY_EXC_ERR` instead of 12.
//!
//! A number without a name is written as a number. Numbers are accepted, too.

use std::borrow::Cow;

use faultline_abi::{ConstantGroup, cqe, event, iwarp, regs, status};
use faultline_wire::aeth::NakCode;
use faultline_wire::rdmap::TerminateCode;
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// A name or number.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Named<'a> {
    Number(u64),
    Name(Cow<'a, str>),
}

/// Writes a number by its name, or without one as a number.
///
/// # Errors
/// Those of the serializer.
pub fn write<S: Serializer>(
    name: Option<&str>,
    number: impl Serialize,
    to: S,
) -> Result<S::Ok, S::Error> {
    match name {
        Some(name) => to.serialize_str(name),
        None => number.serialize(to),
    }
}

/// Reads a number, or the number that `value` has for a name.
///
/// # Errors
/// Neither name nor number, an unknown name, or a number that is too large for the type.
pub fn read<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    from: D,
    value: impl Fn(&str) -> Option<u64>,
) -> Result<T, D::Error> {
    let number = match Named::deserialize(from)? {
        Named::Number(number) => number,
        Named::Name(name) => {
            value(&name).ok_or_else(|| D::Error::custom(format!("unknown name {name}")))?
        }
    };
    T::try_from(number).map_err(|_| D::Error::custom(format!("{number} is too large")))
}

fn value_in(group: &ConstantGroup, name: &str) -> Option<u64> {
    let mut names = group.names();
    names.find(|(of, _)| *of == name).map(|(_, value)| value)
}

/// Modules for `serde(with = …)`: the type of the numbers and the group with their names.
macro_rules! named {
    ($($(#[doc = $doc:literal])* $module:ident: $number:ty = $group:expr;)*) => {$(
        $(#[doc = $doc])*
        pub(crate) mod $module {
            use super::*;

            pub(crate) fn serialize<S: Serializer>(number: &$number, to: S) -> Result<S::Ok, S::Error> {
                write($group.name(*number), number, to)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$number, D::Error> {
                read(from, |name| value_in(&$group, name))
            }
        }
    )*};
}

named! {
    /// Why the device has stopped.
    fatal: u32 = regs::FATAL_CODES;
    /// Kinds of asynchronous events.
    event_kind: u8 = event::KINDS;
    /// Status of a completion.
    work_status: u8 = cqe::STATUSES;
    /// Vendor error of a completion.
    vendor_err: u8 = cqe::VENDOR_ERRS;
    /// Status of a command.
    command_status: u16 = status::STATUSES;
    /// How a connection of iWARP has ended.
    close_reason: u8 = iwarp::CLOSE_REASONS;
}

/// NAK codes.
pub(crate) mod nak {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(code: &u8, to: S) -> Result<S::Ok, S::Error> {
        write(NakCode::from_u8(*code).map(NakCode::name), code, to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
        let value = |name: &str| {
            let mut codes = (0..=u8::MAX).filter_map(NakCode::from_u8);
            codes.find(|code| code.name() == name)
        };
        read(from, |name| value(name).map(|code| code.to_u8().into()))
    }
}

/// Codes of Terminate messages: the name, or the number of [`TerminateCode::to_u16`].
pub(crate) mod terminate {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(code: &TerminateCode, to: S) -> Result<S::Ok, S::Error> {
        write(code.name(), code.to_u16(), to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<TerminateCode, D::Error> {
        let value = |name: &str| {
            let mut codes = TerminateCode::ALL.iter();
            codes.find(|(of, _)| *of == name)
        };
        let number = read(from, |name| {
            value(name).map(|(_, code)| code.to_u16().into())
        })?;
        Ok(TerminateCode::from_u16(number))
    }
}
