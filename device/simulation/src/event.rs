//! Events of a run as values, for programs that describe the run.

pub use faultline_fabric::Fate;
use faultline_nic::{Diagnostic, Nanos};
use faultline_scenario::trigger::Direction;
pub use faultline_wire::{Opcode, Syndrome};

/// Most events that a run keeps.
pub const MAX_EVENTS: usize = 100_000;

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time since the start of the traffic.
    pub at: Nanos,
    /// Index of the NIC or its host.
    pub nic: usize,
    /// What has happened.
    pub what: What,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A program has posted a message.
    Posted {
        /// Its number on the connection, from 0.
        message: u32,
        /// Bytes of the message.
        bytes: u32,
    },
    /// A RoCE packet at the interface of the NIC.
    Packet(Packet),
    /// The NIC reports a diagnostic.
    Diagnostic(Diagnostic),
    /// The driver has read an asynchronous event, of a kind in `faultline_abi::event::KINDS`.
    Asynchronous(u8),
    /// A program has read a completion.
    Completed {
        /// Its status (`enum ib_wc_status`).
        status: u8,
        /// Time since the message was posted; `None` for receives.
        after: Option<Nanos>,
    },
}

/// A RoCE packet at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sent or received by the NIC.
    pub dir: Direction,
    /// BTH opcode.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: u32,
    /// Syndrome of its AETH, if it has one.
    pub syndrome: Option<Syndrome>,
    /// The fate of the packet at this interface.
    pub fate: Fate,
    /// Index of the scenario's rule that has changed it, here or before.
    pub rule: Option<usize>,
}
