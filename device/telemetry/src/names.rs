//! Numbers in traces by the names that metrics and scenarios have for them. A number without a name is written as a number; numbers
//! are accepted, too, as in traces of earlier versions.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use faultline_wire::opcode::Opcode;
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use crate::event::FrameEvent;
use crate::kind::{doorbell_name, opcode_name};

/// A name or number.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Named<'a> {
    Number(u8),
    #[serde(borrow)]
    Name(Cow<'a, str>),
}

/// Names by number, and back.
#[derive(Debug)]
struct Table {
    names: Vec<Option<String>>,
    numbers: HashMap<String, u8>,
}

impl Table {
    fn new(name: impl Fn(u8) -> Option<String>) -> Self {
        let names: Vec<_> = (0..=u8::MAX).map(name).collect();
        let named = names.iter().zip(0u8..=u8::MAX);
        let numbers = named.filter_map(|(name, number)| Some((name.clone()?, number)));
        Self {
            numbers: numbers.collect(),
            names,
        }
    }

    fn write<S: Serializer>(&self, number: u8, to: S) -> Result<S::Ok, S::Error> {
        match self.names.get(usize::from(number)) {
            Some(Some(name)) => to.serialize_str(name),
            _ => number.serialize(to),
        }
    }

    fn read<'de, D: Deserializer<'de>>(&self, from: D) -> Result<u8, D::Error> {
        match Named::deserialize(from)? {
            Named::Number(number) => Ok(number),
            Named::Name(name) => self
                .numbers
                .get(name.as_ref())
                .copied()
                .ok_or_else(|| D::Error::custom(format!("unknown name {name}"))),
        }
    }
}

/// BTH opcodes: `rc_send_only`; `raw` of a frame that is not RoCE.
static OPCODES: LazyLock<Table> = LazyLock::new(|| {
    Table::new(|opcode| {
        let is_known = opcode == FrameEvent::RAW || Opcode::from_u8(opcode).is_some();
        is_known.then(|| opcode_name(opcode))
    })
});

/// Types of doorbells: `sq`.
static DOORBELLS: LazyLock<Table> = LazyLock::new(|| Table::new(doorbell_name));

/// Modules for `serde(with = …)`: the numbers of a table.
macro_rules! named {
    ($($module:ident = $table:ident;)*) => {$(
        pub(crate) mod $module {
            use super::{Deserializer, Serializer};

            pub(crate) fn serialize<S: Serializer>(number: &u8, to: S) -> Result<S::Ok, S::Error> {
                super::$table.write(*number, to)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
                super::$table.read(from)
            }
        }
    )*};
}

named! {
    opcode = OPCODES;
    doorbell = DOORBELLS;
}

#[cfg(test)]
mod tests {
    use crate::event::{DoorbellPath, FrameEvent, TraceEvent};

    #[test]
    fn numbers_of_a_trace_have_names() {
        let frame = |opcode| {
            TraceEvent::Frame(FrameEvent {
                to: 0,
                opcode,
                syndrome: FrameEvent::NO_SYNDROME,
                src_qpn: 0,
                dst_qpn: 0,
                psn: 0,
                packets: 1,
                bytes: 64,
            })
        };
        let doorbell = |kind| TraceEvent::Doorbell {
            page: 0,
            kind,
            path: DoorbellPath::Page,
            object: 0,
            value: 0,
        };
        for (event, wanted) in [
            (frame(4), r#""opcode":"rc_send_only""#),
            (frame(FrameEvent::RAW), r#""opcode":"raw""#),
            (frame(0xfe), r#""opcode":254"#),
            (doorbell(faultline_abi::doorbell::SQ), r#""kind":"sq""#),
            (doorbell(0xfe), r#""kind":254"#),
        ] {
            let text = serde_json::to_string(&event).unwrap();
            assert!(text.contains(wanted), "{text}");
            assert_eq!(serde_json::from_str::<TraceEvent>(&text).unwrap(), event);
        }
        let number = r#"{"Doorbell":{"page":0,"kind":1,"object":0,"value":0}}"#;
        assert_eq!(
            serde_json::from_str::<TraceEvent>(number).unwrap(),
            doorbell(1)
        );
        let unknown = r#"{"Doorbell":{"page":0,"kind":"SEND","object":0,"value":0}}"#;
        assert!(serde_json::from_str::<TraceEvent>(unknown).is_err());
    }
}
