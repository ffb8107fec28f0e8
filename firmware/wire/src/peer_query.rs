//! Peer query: a queue pair asks the other end of its connection whether that is a Faultline, and answers the same question.
//!
//! It is a frame of its own EtherType (IEEE Std 802, Local Experimental EtherType 2) to the MAC address of the peer, because other
//! adapters and hosts drop unknown EtherTypes without an answer, and a switch forwards the frame like any other. One frame can ask and
//! answer. `docs/wire.md` has the layout.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes or the field values are.

use crate::cursor::{Reader, Writer};
use crate::{EtherType, Ethernet, Gid, WireError};

/// The first octets behind the EtherType: the protocol, and its version.
const MAGIC: [u8; 8] = *b"faultln\x01";

/// An end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryEnd {
    /// GID of its path.
    pub gid: Gid,
    /// Number of its queue pair, 24 bits.
    pub qpn: u32,
}

/// The contents of a peer query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerQuery {
    /// The end that sends it.
    pub from: QueryEnd,
    /// The other end.
    pub to: QueryEnd,
    /// A number that the other end must return; 0: this frame does not ask.
    pub nonce: u64,
    /// The nonce of the query that this frame answers; 0: it answers none.
    pub echo: u64,
}

impl PeerQuery {
    /// Length behind the Ethernet header in bytes.
    pub const LEN: usize = 64;

    /// Reads a frame without FCS. `None`: it is no peer query. Octets behind it are ignored.
    pub fn parse(frame: &[u8]) -> Option<(Ethernet, Self)> {
        let (ethernet, at) = Ethernet::parse(frame).ok()?;
        if ethernet.ethertype != EtherType::LOCAL_EXPERIMENTAL_2 {
            return None;
        }
        let query = Self::read(frame.get(at..)?).ok()?;
        Some((ethernet, query?))
    }

    fn read(octets: &[u8]) -> Result<Option<Self>, WireError> {
        let mut r = Reader::new(octets, Self::LEN)?;
        if r.take()? != MAGIC {
            return Ok(None);
        }
        let gids = [Gid(r.take()?), Gid(r.take()?)];
        let [from, to] = [r.u32()?, r.u32()?];
        let end = |gid, qpn| QueryEnd { gid, qpn };
        let [from_gid, to_gid] = gids;
        Ok(Some(Self {
            from: end(from_gid, from),
            to: end(to_gid, to),
            nonce: r.u64()?,
            echo: r.u64()?,
        }))
    }

    /// Writes the part behind the Ethernet header.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let mut w = Writer::new(out, Self::LEN)?;
        w.put(MAGIC)?;
        w.put(self.from.gid.0)?;
        w.put(self.to.gid.0)?;
        w.u32(self.from.qpn)?;
        w.u32(self.to.qpn)?;
        w.put(self.nonce.to_be_bytes())?;
        w.put(self.echo.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MacAddr, VlanTag};

    fn frame(vlan: Option<VlanTag>) -> (Ethernet, PeerQuery, std::vec::Vec<u8>) {
        let ethernet = Ethernet {
            dst: MacAddr([2, 0, 0, 0, 0, 1]),
            src: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan,
            ethertype: EtherType::LOCAL_EXPERIMENTAL_2,
        };
        let end = |last, qpn| QueryEnd {
            gid: Gid::from_ipv4([10, 0, 0, last]),
            qpn,
        };
        let query = PeerQuery {
            from: end(2, 0x12_3456),
            to: end(1, 17),
            nonce: 0x0102_0304_0506_0708,
            echo: u64::MAX,
        };
        let mut octets = std::vec![0; ethernet.header_len() + PeerQuery::LEN];
        let at = ethernet.emit(&mut octets).unwrap();
        assert_eq!(query.emit(&mut octets[at..]), Ok(PeerQuery::LEN));
        (ethernet, query, octets)
    }

    #[test]
    fn a_query_is_read_as_it_was_written() {
        let tag = VlanTag {
            vid: 10,
            ..VlanTag::default()
        };
        for vlan in [None, Some(tag)] {
            let (ethernet, query, mut octets) = frame(vlan);
            assert_eq!(PeerQuery::parse(&octets), Some((ethernet, query)));
            octets.extend([1; 4]);
            assert_eq!(PeerQuery::parse(&octets), Some((ethernet, query)));
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let (_, _, octets) = frame(None);
        assert_eq!(octets[12..22], *b"\x88\xb6faultln\x01");
        assert_eq!(octets[34..38], [10, 0, 0, 2]);
        assert_eq!(octets[50..54], [10, 0, 0, 1]);
        assert_eq!(octets[54..62], [0, 0x12, 0x34, 0x56, 0, 0, 0, 17]);
        assert_eq!(octets[62..70], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(octets[70..], [0xff; 8]);
    }

    #[test]
    fn other_frames_are_no_queries() {
        let (_, _, octets) = frame(None);
        for cut in 0..octets.len() {
            assert_eq!(PeerQuery::parse(&octets[..cut]), None);
        }
        // EtherType, protocol and version.
        for at in 12..22 {
            let mut other = octets.clone();
            other[at] ^= 2;
            assert_eq!(PeerQuery::parse(&other), None, "{at}");
        }
    }
}
