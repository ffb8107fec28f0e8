//! Where rules see and change what happens at the boundary of a NIC.

use std::cell::RefCell;
use std::rc::Rc;

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Instant, Nanos, Nic, Origin};
use faultline_scenario::trigger::Direction;
use faultline_simulator::Memory;
use faultline_wire::packet::RoceHeader;

/// A frame at a NIC.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Headers of a RoCE packet; `None` for other frames and for packets that can't be parsed.
    pub header: Option<&'a RoceHeader>,
    /// What is known of its sender.
    pub origin: Origin,
    /// Octets from the Ethernet header to the iCRC.
    pub bytes: &'a [u8],
}

/// A frame that an observer has taken and that goes on now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedFrame {
    /// Index of the NIC at which it was taken.
    pub nic: usize,
    /// Its direction there: `Tx` goes on to the wire, `Rx` to the NIC.
    pub dir: Direction,
    /// What is known of its sender.
    pub origin: Origin,
    /// Octets from the Ethernet header to the iCRC.
    pub bytes: Vec<u8>,
}

/// A doorbell or an interrupt that is passed later than its source wanted, or once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// An interrupt.
    Interrupt {
        /// Index of the NIC.
        nic: usize,
        /// MSI-X vector.
        vector: u16,
    },
    /// A doorbell.
    Doorbell {
        /// Index of the NIC.
        nic: usize,
        /// Doorbell page.
        page: u32,
        /// The doorbell.
        bell: Doorbell,
    },
}

/// What an operator does to a NIC. An error is a problem of the scenario.
pub type OnNic = Box<dyn FnOnce(&mut Nic, Instant, &Memory) -> Result<(), String>>;

/// What an observer wants to be done to a NIC.
pub enum Operation {
    /// Something that the NIC does.
    Nic(OnNic),
    /// The link goes up or down.
    Link(bool),
    /// The driver moves the entries of the GID table by one place.
    MoveGids,
    /// The port drops longer packets, without their Ethernet header; `None`: no limit of its own.
    Mtu(Option<u16>),
    /// The port has this speed in Mb/s; `None`: frames take no time beside that of the wire.
    Speed(Option<u32>),
    /// All NICs and their clock stand still for so long, while the software of the hosts goes on.
    Pause(Nanos),
    /// The device is reset without the driver's knowledge.
    Reset,
    /// The device is removed.
    Remove,
}

/// Sees a run and changes it. All calls are in the order of virtual time. The default changes nothing.
pub trait Observer {
    /// The traffic begins: times of the scenario count from now on. Before, the drivers of the hosts have started.
    fn start(&mut self, _now: Instant, _nics: &[&Nic]) {}

    /// A packet leaves a NIC (`Tx`, from queue pair `qpn`) or arrives at it (`Rx`, for `qpn`). Returns true if it is passed; else
    /// the observer has taken it.
    fn frame(
        &mut self,
        _now: Instant,
        _nic: usize,
        _dir: Direction,
        _qpn: u32,
        _frame: &Frame<'_>,
    ) -> bool {
        true
    }

    /// The next frame that goes on now. It is not shown to the observer again at this NIC.
    fn next_frame(&mut self, _now: Instant) -> Option<PassedFrame> {
        None
    }

    /// A NIC sends an interrupt. Returns true if it is passed.
    fn interrupt(&mut self, _now: Instant, _nic: usize, _vector: u16) -> bool {
        true
    }

    /// A driver rings a doorbell. Returns true if it is passed.
    fn doorbell(&mut self, _now: Instant, _nic: usize, _page: u32, _bell: Doorbell) -> bool {
        true
    }

    /// The next doorbell or interrupt to be passed now. The observer is not asked about it again.
    fn next_late(&mut self, _now: Instant) -> Option<Late> {
        None
    }

    /// A NIC reports something.
    fn diagnostic(&mut self, _now: Instant, _nic: usize, _diagnostic: &Diagnostic, _device: &Nic) {}

    /// Diagnostics of a NIC were lost.
    fn lost_diagnostics(&mut self, _nic: usize, _lost: u64) {}

    /// The next operation on a NIC.
    fn next_operation(&mut self, _now: Instant) -> Option<(usize, Operation)> {
        None
    }

    /// An operation was not possible.
    fn note_problem(&mut self, _problem: String) {}

    /// The next time at which the observer wants to be called.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The time of [`Observer::deadline`] has come.
    fn handle_deadline(&mut self, _now: Instant) {}

    /// True if the run is to end now.
    fn has_ended(&self) -> bool {
        false
    }
}

/// Rules or another observer, shared with the caller of a run.
pub type SharedObserver = Rc<RefCell<dyn Observer>>;

/// Changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl Observer for Nothing {}
