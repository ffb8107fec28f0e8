//! Input of the checker: frames, their senders, and the places where they are seen.

use faultline_wire::WireError;
use faultline_wire::packet::{self, Parsed};

/// A frame from its Ethernet header to the end of its data: to the invariant CRC of a RoCE packet.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    octets: &'a [u8],
    /// Number of its first octets that are known.
    known: usize,
}

impl<'a> Frame<'a> {
    /// A frame whose first `known` octets are known, with all headers. The others are zeros. Payload, pad bytes and CRC are not
    /// judged.
    pub fn cut(octets: &'a [u8], known: usize) -> Self {
        let known = known.min(octets.len().saturating_sub(1));
        Self { octets, known }
    }

    /// Its octets.
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// True if its payload is not known.
    pub(crate) fn has_only_headers(&self) -> bool {
        self.known < self.octets.len()
    }

    /// Number of its first octets that are known.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    pub(crate) fn parse(self) -> Result<Parsed<'a>, WireError> {
        match self.has_only_headers() {
            true => packet::parse_trusted(self.octets),
            false => packet::parse(self.octets),
        }
    }
}

impl<'a> From<&'a [u8]> for Frame<'a> {
    fn from(octets: &'a [u8]) -> Self {
        Self {
            octets,
            known: octets.len(),
        }
    }
}

impl<'a> From<&'a Vec<u8>> for Frame<'a> {
    fn from(octets: &'a Vec<u8>) -> Self {
        octets.as_slice().into()
    }
}

/// The sender of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// Its number.
    pub qpn: u32,
    /// Its path MTU, if that is known.
    pub mtu: Option<u32>,
    /// READs, atomics, FLUSHes and ATOMIC WRITEs that it may have outstanding (attribute `max_rd_atomic`), if that is known.
    pub read_limit: Option<u32>,
}

/// Where packets are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At adapters: all that they receive is known.
    Adapter,
    /// On a link: packets may be lost later, and the time of their arrival is not known.
    Link,
}
