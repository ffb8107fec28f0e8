//! Names of opcodes and doorbells. Traces have them in place of the numbers, as `faultline_nic::names` describes.

use std::sync::LazyLock;

use faultline_abi::{ConstantGroup, doorbell as bell};
use faultline_wire::opcode::Opcode;

/// In place of an opcode: not a RoCE packet.
pub(crate) const RAW: u8 = u8::MAX;

/// Changes CamelCase to snake_case.
pub(crate) fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len().saturating_add(4));
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// The name of a BTH opcode, such as `rc_send_only`; `raw` for [`crate::FrameEvent::RAW`]; `unknown` for other values that no packet
/// has.
pub fn opcode_name(opcode: u8) -> String {
    match Opcode::from_u8(opcode) {
        Some(opcode) => snake_case(&format!("{opcode:?}")),
        None if opcode == RAW => "raw".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The name of a constant in a group of the ABI, in small letters and without the prefix of the group.
pub(crate) fn constant_name(group: &ConstantGroup, prefix: &str, value: u64) -> Option<String> {
    let constant = group.constants.iter().find(|c| c.value == value)?;
    let name = constant.name.strip_prefix(prefix)?;
    Some(name.to_ascii_lowercase())
}

/// The name of a type of doorbells (`faultline_abi::doorbell`); `None` if it has none.
pub fn doorbell_name(kind: u8) -> Option<String> {
    constant_name(&bell::TYPES, "FAULTLINE_DB_", u64::from(kind))
}

/// The names of all numbers that have one.
type Names = Vec<Option<String>>;

/// BTH opcodes: `rc_send_only`; `raw` of a frame that is not RoCE.
static OPCODES: LazyLock<Names> = LazyLock::new(|| {
    let is_known = |opcode: &u8| *opcode == RAW || Opcode::from_u8(*opcode).is_some();
    let opcodes = (0..=u8::MAX).map(|opcode| is_known(&opcode).then(|| opcode_name(opcode)));
    opcodes.collect()
});

/// Types of doorbells: `sq`.
static DOORBELLS: LazyLock<Names> = LazyLock::new(|| (0..=u8::MAX).map(doorbell_name).collect());

/// Modules for `serde(with = …)`: numbers with these names.
macro_rules! named {
    ($($module:ident = $names:ident;)*) => {$(
        pub(crate) mod $module {
            use faultline_nic::names::{read, write};
            use serde::{Deserializer, Serializer};

            pub(crate) fn serialize<S: Serializer>(number: &u8, to: S) -> Result<S::Ok, S::Error> {
                let name = super::$names.get(usize::from(*number));
                write(name.and_then(Option::as_deref), number, to)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
                read(from, |name| {
                    let mut names = super::$names.iter().zip(0u64..);
                    let found = names.find(|(of, _)| of.as_deref() == Some(name));
                    found.map(|(_, number)| number)
                })
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
