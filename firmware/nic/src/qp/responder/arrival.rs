//! Packets and frames that arrive for a queue pair, and those that are parked in the device.

use std::collections::VecDeque;

use faultline_wire::packet::RoceHeader;

/// A packet or frame that arrives for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival<'a> {
    /// The headers of a packet. Its payload is passed separately.
    Packet(&'a RoceHeader),
    /// A whole frame, the tag of the flow that it matched, whether its checksums are known to be right, and its hash.
    Frame {
        tag: u32,
        checked: bool,
        hash: Option<u32>,
    },
}

/// A packet that waits in the device until its page is present.
#[derive(Debug)]
pub(super) struct Parked {
    /// `None`: a whole frame.
    pub header: Option<RoceHeader>,
    pub tag: u32,
    pub bytes: Vec<u8>,
}

impl Parked {
    /// The packet or frame, to be handled as when it arrived.
    pub(crate) fn arrival(&self) -> Arrival<'_> {
        match &self.header {
            Some(header) => Arrival::Packet(header),
            None => Arrival::Frame {
                tag: self.tag,
                checked: false,
                hash: None,
            },
        }
    }

    /// Its bytes in the park. An empty packet counts too.
    pub(crate) fn cost(bytes: usize) -> usize {
        bytes.saturating_add(size_of::<Self>())
    }
}

/// Packets that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct ParkedPackets(pub VecDeque<Parked>);
