//! Owners of connections: streams of octets that depend on their position, and packets.

use std::collections::{BTreeMap, VecDeque};

use faultline_tcp::{Data, Receiver, Segment, Source, Transmit, Verdict};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::{Ip, Ipv4, Tcp};

/// The octet at an offset of a stream.
pub(crate) fn octet(stream: u8, offset: u64) -> u8 {
    let mixed = (offset ^ u64::from(stream) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

pub(crate) fn octets(stream: u8, from: u64, len: u64) -> Vec<u8> {
    (from..from + len).map(|at| octet(stream, at)).collect()
}

/// The owner of received data. It verifies each octet, and keeps copies.
#[derive(Default)]
pub(crate) struct Owner {
    /// The stream of the peer.
    pub(crate) stream: u8,
    /// Octets taken.
    pub(crate) taken: u64,
    /// Copies of octets that are not taken.
    kept: BTreeMap<u64, u8>,
    /// The data of the segment that is being received.
    pub(crate) segment: Vec<u8>,
    /// Decisions that come first. Otherwise all octets are taken.
    pub(crate) verdicts: VecDeque<Verdict>,
    /// Octets out of order are refused.
    pub(crate) keeps_nothing: bool,
    /// The most octets that were kept at a time.
    pub(crate) most_kept: usize,
}

impl Owner {
    pub(crate) fn new(stream: u8) -> Self {
        Self {
            stream,
            ..Self::default()
        }
    }

    fn copy(&mut self, data: Data, at: u32) {
        let octets = &self.segment[at as usize..][..data.len as usize];
        for (offset, octet) in (data.offset..).zip(octets) {
            let before = self.kept.insert(offset, *octet);
            assert_eq!(before, None, "octet {offset} is kept twice");
        }
        self.most_kept = self.most_kept.max(self.kept.len());
    }

    /// Verifies octets that are taken.
    fn take(&mut self, data: Data, len: u32) {
        for n in 0..u64::from(len) {
            let offset = data.offset + n;
            let arrived = match data.source {
                Source::Segment { at } => self.segment[at as usize + n as usize],
                Source::Kept => self.kept.remove(&offset).expect("a copy"),
            };
            assert_eq!(arrived, octet(self.stream, offset), "octet {offset}");
        }
        self.taken += u64::from(len);
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }
}

impl Receiver for Owner {
    fn deliver(&mut self, data: Data) -> Verdict {
        assert_eq!(data.offset, self.taken, "in order");
        assert!(data.len > 0);
        let verdict = self.verdicts.pop_front();
        let verdict = verdict.unwrap_or(Verdict::Taken(data.len));
        match (verdict, data.source) {
            (Verdict::Taken(len), _) => self.take(data, len.min(data.len)),
            (Verdict::Held, Source::Segment { at }) => self.copy(data, at),
            (Verdict::Held | Verdict::Refused, _) => (),
        }
        verdict
    }

    fn keep(&mut self, data: Data) -> bool {
        let Source::Segment { at } = data.source else {
            panic!("kept twice");
        };
        assert!(data.len > 0 && data.offset >= self.taken);
        if !self.keeps_nothing {
            self.copy(data, at);
        }
        !self.keeps_nothing
    }
}

/// An IPv4 packet with a segment between two hosts, 10.0.0.`from` and 10.0.0.`to`.
pub(crate) fn packet(from: u8, to: u8, transmit: &Transmit) -> Vec<u8> {
    let data = octets(from, transmit.offset, transmit.len.into());
    let mut segment = vec![0; transmit.header.header_len()];
    transmit.header.emit(&mut segment).unwrap();
    let ip = Ip::V4(Ipv4 {
        src: [10, 0, 0, from],
        dst: [10, 0, 0, to],
        ecn: if transmit.ecn_capable { 2 } else { 0 },
        ttl: 64,
        dont_fragment: true,
        protocol: PROTOCOL_TCP,
        total_len: (Ipv4::LEN + segment.len() + data.len()) as u16,
        ..Ipv4::default()
    });
    let checksum = Tcp::checksum(&ip, &segment, std::iter::once(&data[..]));
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = vec![0; Ipv4::LEN];
    ip.emit(&mut packet).unwrap();
    packet.extend_from_slice(&segment);
    packet.extend_from_slice(&data);
    packet
}

/// Reads a packet: the segment and its data.
pub(crate) fn parse(packet: &[u8]) -> (Segment, Vec<u8>) {
    let (ip, at) = Ip::parse(packet).unwrap();
    let l4 = &packet[at..][..ip.payload_len()];
    assert!(Tcp::is_intact(&ip, l4), "checksum");
    let (header, len) = Tcp::parse(l4).unwrap();
    let data = l4[len..].to_vec();
    let segment = Segment {
        header,
        len: data.len() as u32,
        congestion_experienced: ip.ecn() == 3,
    };
    (segment, data)
}
