//! Diagnostics: typed events that a NIC reports for logs, metrics, traces and tests.
//!
//! A counter has the number of events; a diagnostic has the queue pair, the key and the page of one event. The NIC itself reads no
//! diagnostics. They are kept in a ring of fixed size: a caller that does not poll loses the oldest, and the NIC works as before.

use std::collections::VecDeque;

use crate::injection::point::Point;
use crate::qp::{State, StateCause};
use crate::time::{Instant, Nanos};

/// Diagnostics that are kept for the caller.
const CAPACITY: usize = 8192;

/// Queues of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CommandQueue {
    /// Admin commands: objects are created, changed and destroyed.
    Admin,
    /// Translation commands: page entries, invalidations, answers to faults.
    Translation,
}

/// Which queue has overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OverrunQueue {
    /// A completion queue is full, or its memory can't be written.
    Completion,
    /// An event queue can't be written. The device stops.
    Event,
    /// The queue of fault records: the fault has no record, and is raised again later.
    Fault,
    /// The frames that wait for a NIC whose ingress is stopped.
    Ingress,
    /// The packets that wait for a page (services that do not retransmit).
    Parked,
}

/// Why a requester sends packets again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RetryCause {
    /// No acknowledgement in time (IBTA 9.7.6.1).
    Timeout,
    /// A NAK for a PSN sequence error.
    SequenceNak,
}

/// The kind of access that a memory key has refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum KeyUse {
    /// As the local key of a work request.
    Local,
    /// As the remote key of a packet.
    Remote,
}

/// Why a packet does not pass the port of its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DropCause {
    /// The interface is down.
    InterfaceDown,
    /// The packet is longer than the MTU of the interface.
    OverMtu,
    /// The entry of the GID table from which it is sent has changed since its path was set.
    SourceGid {
        /// Number of the entry.
        index: u16,
    },
    /// No entry of the GID table has its destination, in its VLAN.
    DestinationGid,
    /// Software has built the frame, with an address that the guest may not use.
    SourceAddress,
}

/// Durations that the driver reports for a fault, in nanoseconds of the guest's clock. All zero if it reports none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DriverTimes {
    /// From reading the fault record until its service begins.
    pub wait_ns: u32,
    /// From then until the pages are mapped.
    pub map_ns: u32,
    /// From then until the RESUME command is posted.
    pub post_ns: u32,
}

/// An event in a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Diagnostic {
    /// The device has stopped; `cause` is a FAULTLINE_FATAL_* value.
    Fatal {
        /// Why.
        #[cfg_attr(feature = "serde", serde(with = "crate::names::fatal"))]
        cause: u32,
    },
    /// The device was reset.
    Reset,
    /// A queue pair has changed its state by MODIFY_QP or by an error.
    QpState {
        /// QP number.
        qpn: u32,
        /// State before.
        from: State,
        /// State now.
        to: State,
        /// Why.
        cause: StateCause,
    },
    /// A queue pair or work queue has failed, or a part of it: an asynchronous event tells the driver.
    QpFailed {
        /// QP number.
        qpn: u32,
        /// Kind of the asynchronous event (`faultline_abi::event`).
        #[cfg_attr(feature = "serde", serde(with = "crate::names::event_kind"))]
        event: u8,
    },
    /// A work request has completed in error (not: flushed).
    WorkFailed {
        /// QP number.
        qpn: u32,
        /// Status of the completion (`enum ib_wc_status`).
        #[cfg_attr(feature = "serde", serde(with = "crate::names::work_status"))]
        status: u8,
        /// FAULTLINE_VENDOR_ERR_*.
        #[cfg_attr(feature = "serde", serde(with = "crate::names::vendor_err"))]
        vendor: u8,
        /// It was a receive.
        receive: bool,
    },
    /// A page is missing, and the driver gets a record of it, unless an injection prevents that.
    FaultRaised {
        /// Token of the fault.
        token: u64,
        /// QP number.
        qpn: u32,
        /// Memory key.
        key: u32,
        /// First missing byte.
        va: u64,
        /// Bytes that are demanded.
        bytes: u32,
        /// PSN of the packet.
        psn: u32,
        /// The access writes.
        write: bool,
        /// True: a buffer of the requester. False: memory that a received packet needs.
        requester: bool,
    },
    /// A page is missing whose fault is outstanding.
    FaultJoined {
        /// Token of the fault.
        token: u64,
        /// QP number.
        qpn: u32,
        /// First missing byte.
        va: u64,
        /// PSN of the packet.
        psn: u32,
    },
    /// The driver has repaired a fault.
    FaultResumed {
        /// Token of the fault.
        token: u64,
        /// When it was raised.
        raised: Instant,
        /// Queue pairs that waited.
        waiters: u32,
        /// From the miss until the driver could read the record, in nanoseconds: 0 unless the record had to wait.
        record_ns: u32,
        /// Durations in the guest.
        driver: DriverTimes,
    },
    /// The driver has answered a fault with an error.
    FaultFailed {
        /// Token of the fault.
        token: u64,
        /// When it was raised.
        raised: Instant,
        /// The queue pair that has waited longest; 0: none.
        qpn: u32,
        /// Memory key.
        key: u32,
        /// Address of the first missing page.
        va: u64,
    },
    /// The driver has not answered a fault in time.
    FaultExpired {
        /// Token of the fault.
        token: u64,
        /// When it was raised.
        raised: Instant,
        /// The queue pair that has waited longest; 0: none.
        qpn: u32,
        /// Memory key.
        key: u32,
        /// Address of the first missing page.
        va: u64,
    },
    /// The region of a fault was destroyed or has changed; the access is repeated.
    FaultCancelled {
        /// Token of the fault.
        token: u64,
        /// When it was raised.
        raised: Instant,
        /// The queue pair that has waited longest; 0: none.
        qpn: u32,
        /// Memory key.
        key: u32,
        /// Address of the first missing page.
        va: u64,
    },
    /// A queue pair that waited for a fault was called.
    FaultContinued {
        /// Token of the fault.
        token: u64,
        /// QP number.
        qpn: u32,
    },
    /// The access that caused the fault was executed.
    FaultDone {
        /// Token of the fault.
        token: u64,
        /// QP number.
        qpn: u32,
        /// When the driver resumed it.
        resumed: Instant,
        /// When it was raised.
        raised: Instant,
    },
    /// Fault policy `stall` has stopped the ingress of the NIC.
    Stalled {
        /// QP number.
        qpn: u32,
    },
    /// The ingress continues.
    StallEnded {
        /// How long it was stopped.
        after: Nanos,
    },
    /// The ingress was stopped for too long; its first packet is dropped.
    StallTimedOut {
        /// QP number.
        qpn: u32,
    },
    /// A request was refused for now.
    RnrNakSent {
        /// QP number.
        qpn: u32,
        /// PSN of the request.
        psn: u32,
        /// The fault for which it waits; 0: there was no receive work request, or no room for a fault.
        token: u64,
    },
    /// A request of this queue pair was refused for now.
    RnrNakReceived {
        /// QP number.
        qpn: u32,
        /// PSN of the request.
        psn: u32,
        /// How long to wait.
        delay: Nanos,
    },
    /// Packets from `psn` on are sent again.
    Retried {
        /// QP number.
        qpn: u32,
        /// First PSN.
        psn: u32,
        /// Why.
        cause: RetryCause,
    },
    /// The responder has requested packets again (NAK, PSN sequence error).
    SequenceNakSent {
        /// QP number.
        qpn: u32,
        /// Expected PSN.
        psn: u32,
    },
    /// The retries of a queue pair are used up.
    RetriesExhausted {
        /// QP number.
        qpn: u32,
        /// PSN that was not acknowledged.
        psn: u32,
        /// The peer sent an RNR NAK each time; else it did not answer or sent sequence NAKs.
        rnr: bool,
    },
    /// A memory key does not allow an access.
    KeyRefused {
        /// QP number.
        qpn: u32,
        /// Memory key.
        key: u32,
        /// Address.
        va: u64,
        /// The kind of access.
        by: KeyUse,
    },
    /// A request was refused for good.
    RequestRefused {
        /// QP number.
        qpn: u32,
        /// PSN of the request.
        psn: u32,
        /// NAK code (IBTA table 45).
        #[cfg_attr(feature = "serde", serde(with = "crate::names::nak"))]
        nak: u8,
    },
    /// Packets do not pass the port. Reported once for each sending queue pair, and once for all received packets, until the configuration
    /// of the interface or of its addresses changes.
    PacketDropped {
        /// QP number of the sender, or the destination of a packet that arrives; 0: not known.
        qpn: u32,
        /// The NIC does not send the packet; else it does not receive it.
        sent: bool,
        /// Why.
        cause: DropCause,
    },
    /// A queue has overrun.
    Overrun {
        /// Kind of the queue.
        queue: OverrunQueue,
        /// Number of the queue, or of the queue pair.
        object: u32,
    },
    /// A command was executed.
    Command {
        /// Queue.
        queue: CommandQueue,
        /// Opcode.
        opcode: u16,
        /// Status (`faultline_abi::Status`); 0: well.
        #[cfg_attr(feature = "serde", serde(with = "crate::names::command_status"))]
        status: u16,
        /// Translation: the memory key. Admin: the object that was created, or that the command names.
        object: u32,
    },
    /// An injection had an effect.
    Injected {
        /// The injection's id.
        id: u32,
        /// Where.
        point: Point,
        /// QP number; 0: the point has none.
        qpn: u32,
        /// Number of another object, or else the memory key; 0: the point has none.
        object: u32,
    },
    /// A doorbell was refused.
    DoorbellRefused {
        /// Doorbell page.
        page: u32,
        /// Object.
        object: u32,
    },
}

impl Diagnostic {
    /// The queue pair that it is about.
    pub const fn queue_pair(&self) -> Option<u32> {
        let qpn = match *self {
            Self::QpState { qpn, .. }
            | Self::QpFailed { qpn, .. }
            | Self::WorkFailed { qpn, .. }
            | Self::FaultRaised { qpn, .. }
            | Self::FaultJoined { qpn, .. }
            | Self::FaultFailed { qpn, .. }
            | Self::FaultExpired { qpn, .. }
            | Self::FaultCancelled { qpn, .. }
            | Self::FaultContinued { qpn, .. }
            | Self::FaultDone { qpn, .. }
            | Self::Stalled { qpn }
            | Self::StallTimedOut { qpn }
            | Self::RnrNakSent { qpn, .. }
            | Self::RnrNakReceived { qpn, .. }
            | Self::Retried { qpn, .. }
            | Self::SequenceNakSent { qpn, .. }
            | Self::RetriesExhausted { qpn, .. }
            | Self::KeyRefused { qpn, .. }
            | Self::RequestRefused { qpn, .. }
            | Self::PacketDropped { qpn, .. }
            | Self::Injected { qpn, .. } => qpn,
            Self::Fatal { .. }
            | Self::Reset
            | Self::FaultResumed { .. }
            | Self::StallEnded { .. }
            | Self::Overrun { .. }
            | Self::Command { .. }
            | Self::DoorbellRefused { .. } => 0,
        };
        // 0 means that the diagnostic has no queue pair.
        if qpn == 0 { None } else { Some(qpn) }
    }
}

/// The ring of diagnostics that the caller has not taken.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    ring: VecDeque<(Instant, Diagnostic)>,
    lost: u64,
}

impl Default for Diagnostics {
    fn default() -> Self {
        Self {
            ring: VecDeque::with_capacity(CAPACITY),
            lost: 0,
        }
    }
}

impl Diagnostics {
    /// Keeps a diagnostic, in place of the oldest if there is no room.
    #[inline]
    pub(crate) fn push(&mut self, now: Instant, diagnostic: Diagnostic) {
        if self.ring.len() >= CAPACITY {
            self.ring.pop_front();
            self.lost = self.lost.wrapping_add(1);
        }
        self.ring.push_back((now, diagnostic));
    }

    /// True if there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// All, the oldest first.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Instant, Diagnostic)> {
        self.ring.iter()
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.ring.clear();
    }

    /// Takes the oldest.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Instant, Diagnostic)> {
        let oldest = self.ring.pop_front();
        if self.ring.is_empty() {
            // The next one is written to the beginning again: a ring that is read often stays in the cache.
            self.ring.clear();
        }
        oldest
    }

    /// Number of diagnostics that were lost since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way() {
        let mut kept = Diagnostics::default();
        for at in 0..CAPACITY as u64 + 3 {
            kept.push(Instant(at), Diagnostic::Reset);
        }
        assert_eq!(kept.take_lost(), 3);
        assert_eq!(kept.take_lost(), 0);
        assert_eq!(kept.pop(), Some((Instant(3), Diagnostic::Reset)));
        let rest = std::iter::from_fn(|| kept.pop()).count();
        assert_eq!(rest, CAPACITY - 1);
    }

    /// Each is copied into a ring with a record for every packet.
    #[test]
    fn a_diagnostic_is_small() {
        assert!(size_of::<Diagnostic>() <= 40, "{}", size_of::<Diagnostic>());
    }
}
