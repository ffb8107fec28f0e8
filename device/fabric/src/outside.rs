//! Calls of a fabric to its owner, and events for observers.
//!
//! The owner is an engine thread of the emulator, or a world in virtual time.

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, Dma, Instant, Nic, TxFrame};
use faultline_scenario::rules::ByRule;
use faultline_scenario::trigger::Direction;
use faultline_wire::MacAddr;

use crate::fate::Fate;
use crate::frame::Frame;
use crate::link_model::Effects;
use crate::nics::Nics;
use crate::switch::PortId;

/// An interface: a port, and the direction of frames there. `Tx` is away from the NIC, and to the peer of an external port.
pub type Place = (PortId, Direction);

/// The owner of a fabric.
pub trait Outside {
    /// Memory that a NIC accesses.
    type Memory: Dma;
    /// The rings between an external port and its peer.
    type Peer: Peer;

    /// A NIC raises an interrupt.
    fn interrupt(&mut self, now: Instant, nic: PortId, vector: u16);

    /// True if the process has other fabrics.
    fn has_others(&self) -> bool;

    /// Sends a frame to the fabric of port `to`; `None`: to all others. `sender`: the queue pair that has sent it; 0: not known.
    /// `memory`: that of the payload of a frame by reference. Returns false if the frame is lost because its payload cannot be read.
    fn cross(
        &mut self,
        now: Instant,
        from: (PortId, u32),
        to: Option<PortId>,
        frame: Frame<'_>,
        memory: Option<&Self::Memory>,
    ) -> bool;

    /// Returns true if a NIC must not send, because its frames have filled the link to another fabric.
    fn is_held(&self, nic: PortId) -> bool;

    /// Returns true if a link to another fabric is full. Sources with frames of several ports wait then.
    fn is_any_full(&self) -> bool;

    /// Returns true if work outside of the fabric waits for the end of a sending NIC's turns: a doorbell of one of these NICs, a request,
    /// a frame of another fabric, or another fabric that must be woken for new frames.
    fn is_awaited(&self, nics: &Nics) -> bool;

    /// Returns true if there are observers of frames at interfaces: [`Seen::Frame`] and [`Seen::Arriving`].
    fn watches_frames(&self) -> bool;

    /// Returns true if page faults must be reported before the frame that has caused them.
    fn names_faults(&self) -> bool;

    /// Reports an event.
    fn seen(&mut self, now: Instant, seen: Seen<'_, Self::Memory>);
}

/// Two bounded rings to and from the peer of an external port.
pub trait Peer {
    /// Longest frame that the rings take, in octets without FCS.
    const MAX_FRAME: usize;

    /// Sends a frame. Returns false if there is no room.
    fn send(&mut self, frame: &[u8]) -> bool;
    /// Takes the next frame of the peer into `frame`. Returns false if there is none.
    fn take(&mut self, frame: &mut Vec<u8>) -> bool;
    /// Copies the beginning of the next frame of the peer. Returns its length there; `None` if there is no frame.
    fn peek(&mut self, first: &mut [u8]) -> Option<usize>;
    /// True if the peer has sent a frame that was not taken.
    fn has_frame(&self) -> bool;
    /// True if there is a peer.
    fn is_connected(&self) -> bool;
    /// Peers since the start.
    fn connections(&self) -> u64;
    /// True if at least half of the ring to the peer is free.
    fn has_half_of_room(&self) -> bool;
    /// True if at least three quarters of it are free.
    fn has_most_of_room(&self) -> bool;
    /// Octets that the peer has taken since the start.
    fn taken(&self) -> u64;
    /// Octets in a quarter of the ring.
    fn quarter(&self) -> u64;
    /// Sets whether the fabric waits for room.
    fn await_room(&mut self, awaits: bool);
    /// Wakes the peer if it waits for a frame sent, or room made, since the last call.
    fn flush(&mut self);
}

/// An event in a fabric.
#[derive(Debug)]
pub enum Seen<'a, M> {
    /// A frame at an interface. Only with observers of frames.
    Frame(Sight<'a, M>),
    /// A NIC is about to receive a frame: the page faults that it reports until the next [`Seen::Frame`] are those of this frame. Only
    /// with observers of frames.
    Arriving(PortId),
    /// A NIC has sent a frame, of this length.
    Sent {
        /// The NIC.
        nic: PortId,
        /// Its queue pair.
        sender: u32,
        /// The frame.
        frame: &'a TxFrame,
        /// Its [length](TxFrame::len), which was calculated before.
        len: usize,
        /// The NIC of this fabric that has received it, if it had one destination.
        to: Option<PortId>,
    },
    /// A NIC receives a frame without a [`Seen::Sent`] of this fabric that names this NIC.
    Received {
        /// The NIC.
        nic: PortId,
        /// The queue pair that has sent it; 0: not known.
        sender: u32,
        /// The frame.
        frame: Frame<'a>,
    },
    /// A NIC reports a diagnostic.
    Diagnostic {
        /// The NIC.
        nic: PortId,
        /// The diagnostic.
        diagnostic: &'a Diagnostic,
        /// Its state.
        device: &'a Nic,
    },
    /// A NIC has discarded this number of diagnostics.
    LostDiagnostics(PortId, u64),
    /// A doorbell that a rule has kept is rung now.
    LateDoorbell {
        /// The NIC.
        nic: PortId,
        /// Its page.
        page: u32,
        /// The doorbell.
        bell: Doorbell,
    },
    /// A NIC has sent a frame with the source address of another port, and it was dropped.
    ForgedSource(PortId, MacAddr),
    /// The peer of an external port uses the address of a NIC. Reported once for each peer and NIC.
    AddressInUse {
        /// The NIC.
        nic: PortId,
        /// The address.
        address: MacAddr,
        /// Name of the external port.
        port: &'a str,
    },
}

/// A frame at an interface.
#[derive(Debug)]
pub struct Sight<'a, M> {
    /// The interface.
    pub place: Place,
    /// The fate of the frame there.
    pub fate: Fate,
    /// The frame was shown at this interface when it entered the link there. It is lost only now.
    pub is_again: bool,
    /// Effects of links on it until here.
    pub effects: Effects,
    /// The change by a rule, here or before.
    pub rule: Option<ByRule>,
    /// The queue pair that has sent it; 0: not known.
    pub sender: u32,
    /// The frame, or a packet of it.
    pub frame: Frame<'a>,
    /// The NIC's frame that contains this packet, if it has arrived by reference.
    pub sent: Option<&'a TxFrame>,
    /// The memory of the payload of a frame by reference; `None`: it does not exist any more.
    pub memory: Option<&'a M>,
    /// The NIC at the interface; `None`: an external port.
    pub device: Option<&'a Nic>,
}
