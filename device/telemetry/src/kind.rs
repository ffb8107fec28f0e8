//! Names for metrics and pictures: kinds of diagnostics, opcodes, doorbells, directions.
//!
//! All of them are finite sets, so a guest cannot make new names.

use faultline_abi::{admin, translation};
use faultline_nic::{CommandQueue, Diagnostic};
use faultline_wire::Syndrome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::event::FrameEvent;
use crate::names::{constant_name, opcode_name, snake_case};

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
    TerminateSent "terminate_sent",
    TerminateReceived "terminate_received",
    ConnectionEnded "connection_ended",
}

/// Direction of packets, as the NIC sees it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// It sends them.
    Tx,
    /// It receives them.
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

/// The fields of a diagnostic, by name; no fields: an empty object.
pub fn diagnostic_fields(diagnostic: &Diagnostic) -> Value {
    // An enum is an object with its name as the only key, or its name if there are no fields.
    let fields = match serde_json::to_value(diagnostic) {
        Ok(Value::Object(kinds)) => kinds.into_iter().next().map(|(_, fields)| fields),
        _ => None,
    };
    fields.unwrap_or_else(|| Value::Object(serde_json::Map::new()))
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

    use faultline_abi::doorbell;
    use faultline_wire::Opcode;

    use super::*;
    use crate::names::doorbell_name;

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
