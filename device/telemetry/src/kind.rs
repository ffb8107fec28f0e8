//! Names for metrics and pictures: kinds of diagnostics, opcodes, doorbells, directions.
//!
//! All of them are finite sets, so a guest cannot make new names.

use faultline_abi::{admin, doorbell, translation};
use faultline_nic::{CommandQueue, Diagnostic};
use faultline_wire::{Opcode, Syndrome};

use crate::event::FrameEvent;

macro_rules! diagnostic_kinds {
    ($($variant:ident $name:literal,)*) => {
        /// Kinds of diagnostics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DiagnosticKind {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl DiagnosticKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Number of kinds.
            pub const COUNT: usize = Self::ALL.len();

            /// The kind of a diagnostic.
            #[inline]
            pub const fn of(diagnostic: &Diagnostic) -> Self {
                match diagnostic {
                    $(Diagnostic::$variant { .. } => Self::$variant,)*
                }
            }

            /// The name in metrics, logs and traces.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

diagnostic_kinds! {
    Fatal "fatal",
    Reset "reset",
    QpState "qp_state",
    QpFailed "qp_failed",
    WorkFailed "work_failed",
    FaultRaised "fault_raised",
    FaultJoined "fault_joined",
    FaultResumed "fault_resumed",
    FaultFailed "fault_failed",
    FaultExpired "fault_expired",
    FaultCancelled "fault_cancelled",
    FaultContinued "fault_continued",
    FaultDone "fault_done",
    Stalled "stalled",
    StallEnded "stall_ended",
    StallTimedOut "stall_timed_out",
    RnrNakSent "rnr_nak_sent",
    RnrNakReceived "rnr_nak_received",
    Retried "retried",
    SequenceNakSent "sequence_nak_sent",
    RetriesExhausted "retries_exhausted",
    KeyRefused "key_refused",
    RequestRefused "request_refused",
    Overrun "overrun",
    Command "command",
    DoorbellRefused "doorbell_refused",
    Injected "injected",
    PacketDropped "packet_dropped",
}

/// Direction of a frame, as its NIC sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The NIC has sent it.
    Tx,
    /// The NIC has received it.
    Rx,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Tx, Self::Rx];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        }
    }
}

/// Changes CamelCase to snake_case.
fn snake_case(name: &str) -> String {
    let mut text = String::with_capacity(name.len().saturating_add(4));
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// The name of a BTH opcode, such as `rc_send_only`; `raw` for [`FrameEvent::RAW`]; `unknown` for other values that no packet
/// has.
pub fn opcode_name(opcode: u8) -> String {
    match Opcode::from_u8(opcode) {
        Some(opcode) => snake_case(&format!("{opcode:?}")),
        None if opcode == FrameEvent::RAW => "raw".to_owned(),
        None => "unknown".to_owned(),
    }
}

/// The name of a constant in a group of the ABI, in small letters and without the prefix of the group.
fn constant_name(group: &faultline_abi::ConstantGroup, prefix: &str, value: u64) -> Option<String> {
    let constant = group.constants.iter().find(|c| c.value == value)?;
    let name = constant.name.strip_prefix(prefix)?;
    Some(name.to_ascii_lowercase())
}

/// The name of a type of doorbells (`faultline_abi::doorbell`); `None` if it has none.
pub fn doorbell_name(kind: u8) -> Option<String> {
    constant_name(&doorbell::TYPES, "FAULTLINE_DB_", u64::from(kind))
}

/// The name of a command; its number if it has none.
pub fn command_name(queue: CommandQueue, opcode: u64) -> String {
    let name = match queue {
        CommandQueue::Admin => constant_name(&admin::OPCODES, "FAULTLINE_ADMIN_", opcode),
        CommandQueue::Translation => constant_name(&translation::OPCODES, "FAULTLINE_TQ_", opcode),
    };
    name.unwrap_or_else(|| format!("command_{opcode}"))
}

/// The name of a frame: that of its opcode, or of its AETH.
pub fn frame_name(frame: &FrameEvent) -> String {
    if frame.syndrome != FrameEvent::NO_SYNDROME {
        match Syndrome::from_u8(frame.syndrome) {
            Syndrome::RnrNak { .. } => return "rnr_nak".to_owned(),
            Syndrome::Nak(code) => return format!("nak_{}", snake_case(&format!("{code:?}"))),
            Syndrome::Ack { .. } | Syndrome::Reserved(_) => {}
        }
    }
    opcode_name(frame.opcode)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_a_number_and_a_name_of_its_own() {
        let names: BTreeSet<_> = DiagnosticKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), DiagnosticKind::COUNT);
        for (number, kind) in DiagnosticKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
        let kind = DiagnosticKind::of(&Diagnostic::Fatal { cause: 1 });
        assert_eq!(kind.name(), "fatal");
    }

    #[test]
    fn opcodes_and_doorbells_have_names() {
        assert_eq!(opcode_name(0x04), "rc_send_only");
        assert_eq!(opcode_name(FrameEvent::RAW), "raw");
        assert_eq!(opcode_name(0x5f), "unknown");
        let names: BTreeSet<_> = Opcode::ALL.iter().map(|o| opcode_name(o.to_u8())).collect();
        assert_eq!(names.len(), Opcode::ALL.len());
        assert_eq!(doorbell_name(doorbell::SQ).as_deref(), Some("sq"));
        assert_eq!(doorbell_name(99), None);
        assert_eq!(
            command_name(CommandQueue::Admin, u64::from(admin::CREATE_QP)),
            "create_qp"
        );
        assert_eq!(command_name(CommandQueue::Translation, 3), "resume");
        assert_eq!(command_name(CommandQueue::Translation, 99), "command_99");
    }
}
