//! Points of the NIC for injections, with their facts and outcomes.

use faultline_abi::{Status, cqe};
use faultline_wire::aeth::NakCode;

use crate::time::Nanos;

/// [`Outcome::Fail`] with this number at [`Point::Request`] sends an RNR NAK. No NAK code has this number.
pub const RNR_NAK: u16 = 0x20;

/// A place in the NIC for injections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Point {
    /// A fault record is about to be written.
    FaultRecord,
    /// A RESUME command for an outstanding fault is executed.
    FaultAnswer,
    /// A completion is about to be written.
    Completion,
    /// An event that is not a fault record is about to be written.
    Event,
    /// A command of the admin queue is about to be executed.
    AdminCommand,
    /// A command of the translation queue is about to be executed.
    TranslationCommand,
    /// A look-up in a page table.
    Lookup,
    /// A reliable responder is about to execute a request packet.
    Request,
}

/// A fact that a [`Filter`](super::Filter) compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Fact {
    /// QP number.
    Qpn,
    /// Number of another object.
    Object,
    /// Memory key.
    Key,
    /// Address.
    Va,
    /// Opcode, status or kind.
    Code,
    /// Fill level of a queue.
    Level,
}

/// The effect of an injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Outcome {
    /// No effect except the diagnostic.
    Report,
    /// The operation is not executed.
    Drop,
    /// The operation is executed later.
    Delay(Nanos),
    /// The operation is executed twice.
    Duplicate,
    /// The operation is executed with wrong data.
    Corrupt,
    /// The operation fails with this status or code.
    Fail(u16),
    /// As if a queue were full.
    Overrun,
}

impl Point {
    /// All points.
    pub const ALL: [Self; 8] = [
        Self::FaultRecord,
        Self::FaultAnswer,
        Self::Completion,
        Self::Event,
        Self::AdminCommand,
        Self::TranslationCommand,
        Self::Lookup,
        Self::Request,
    ];

    /// True if the point has this outcome, with this number if it has one.
    pub fn allows(self, outcome: Outcome) -> bool {
        use Outcome::{Corrupt, Delay, Drop, Duplicate, Fail, Overrun, Report};
        match (self, outcome) {
            (_, Report) => true,
            (Self::FaultRecord, _) => true,
            (Self::FaultAnswer, outcome) => outcome != Overrun,
            (Self::Completion, Fail(status)) => {
                let last = cqe::STATUSES.constants.last();
                status > 0 && last.is_some_and(|last| u64::from(status) <= last.value)
            }
            (Self::Completion, _) => true,
            (Self::Event, outcome) => matches!(outcome, Drop | Delay(_) | Duplicate | Overrun),
            (Self::AdminCommand | Self::TranslationCommand, outcome) => match outcome {
                Drop | Delay(_) => true,
                Fail(status) => status != 0 && Status::from_u16(status).is_some(),
                Duplicate | Corrupt | Overrun | Report => false,
            },
            (Self::Lookup, outcome) => matches!(outcome, Delay(_)),
            (Self::Request, Drop) => true,
            (Self::Request, Fail(code)) => code == RNR_NAK || nak_code(code).is_some(),
            (Self::Request, _) => false,
        }
    }

    /// True if filters of this point may name the fact.
    pub fn has(self, fact: Fact) -> bool {
        use Fact::{Code, Key, Level, Object, Qpn, Va};
        match self {
            Self::FaultRecord => fact != Object,
            Self::FaultAnswer => matches!(fact, Qpn | Key | Va | Code),
            Self::Completion => matches!(fact, Qpn | Object | Code | Level),
            Self::Event => matches!(fact, Object | Code | Level),
            Self::AdminCommand => fact == Code,
            Self::TranslationCommand => matches!(fact, Code | Key),
            Self::Lookup => matches!(fact, Qpn | Key | Va),
            Self::Request => matches!(fact, Qpn | Code | Key | Va),
        }
    }

    pub(super) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The NAK code of an [`Outcome::Fail`] at [`Point::Request`].
pub(crate) fn nak_code(code: u16) -> Option<NakCode> {
    NakCode::from_u8(u8::try_from(code).ok()?)
}
