//! Frames that leave the NIC, and frames that are no RoCE packets.
//!
//! Inside a process a frame is handed over by reference: typed headers, and the payload as a list of segments of the
//! sender's guest memory, so that the bytes are copied once, to their destination. [`TxFrame::packet_bytes`] is for
//! wires that need octets.
//!
//! # Runs
//!
//! Where both ends are in the process, several packets of one message may be handed over as one frame, a *run*,
//! as a host does with segmentation and receive offload: the header is that of the first packet, the others are
//! MIDDLE packets with the PSNs that follow, and every packet carries the same number of bytes. No run holds the
//! last packet of a message. A receiver that does not expect the whole run next takes it apart, so a run is always
//! equivalent to its packets.
//!
//! # Trains
//!
//! Successive messages of a queue pair that have one packet each may be handed over as one frame, too, a *train*: SENDs or
//! WRITEs of equal length, without immediate data. The header is that of the first packet, the others have the PSNs that
//! follow, and each WRITE has its own [`Target`]. A receiver executes a train packet by packet, so a train is always
//! equivalent to its packets.
//!
//! The opcode tells which: a frame of several packets with an ONLY opcode is a train.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "a run has at most as many packets and bytes as one turn sends"
)]

use faultline_wire::packet::RoceHeader;
use faultline_wire::{Ethernet, MacAddr, Opcode, VlanTag, priority};
use smallvec::{Array, SmallVec};

use crate::dma::{Dma, DmaError};
use crate::headers::Head;
use crate::number::len32;
use crate::origin::Origin;
use crate::payload::Payload;
use crate::segments::{Segments, truncate_segments};
use crate::tag::message::HEADERS;

/// Bytes of the two addresses, which precede the VLAN tag.
const ADDRESSES: usize = 2 * size_of::<MacAddr>();

/// The kind of a frame.
// Nearly all frames are RoCE; a box for their headers would be an allocation for each.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameKind {
    /// A RoCE packet; the payload is the part between the headers and the padding.
    Roce(RoceHeader),
    /// Any other frame, without FCS: the head, then the payload.
    Raw {
        /// Destination address.
        dst: MacAddr,
        /// Source address.
        src: MacAddr,
        /// Private copy of the headers, some of which the NIC may have written: at least all headers that switches and
        /// receivers read.
        head: Head,
        /// The NIC has filled in its checksums, so they are right.
        checked: bool,
    },
}

impl FrameKind {
    /// Priority of its packets.
    #[inline]
    pub(crate) fn priority(&self) -> u8 {
        match self {
            Self::Roce(header) => priority::of_packet(header),
            Self::Raw { head, .. } => priority::of_frame(head),
        }
    }
}

/// Memory of the peer that a WRITE of a train names in its RETH. The length is that of each payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// A payload that the NIC has made itself.
pub(crate) type Own = SmallVec<[u8; HEADERS]>;

/// A frame that leaves the NIC.
///
/// A caller keeps one, and the NIC writes each frame into it, because moving a structure of this size has a cost.
#[derive(Clone, Debug, PartialEq)]
pub struct TxFrame {
    /// Headers.
    pub kind: FrameKind,
    /// Payload in the memory of the sender's guest; valid until the sender is called again.
    pub payload: Segments,
    /// Sum of the segments.
    pub payload_len: usize,
    /// Packets in the run or train; 1 for all other frames.
    pub packets: u32,
    /// Targets of a train of WRITEs, one for each packet; else empty.
    pub targets: Vec<Target>,
    /// Octets that the NIC has made itself, instead of some in the memory of a guest: the payload, of a raw frame the whole frame with its
    /// head. Empty: it has made none.
    pub own: Own,
}

/// RoCE packets of one frame: a packet, a run, or a train.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packets<'a> {
    /// Header of the first.
    pub first: &'a RoceHeader,
    /// Their number.
    pub count: u32,
    /// Targets of a train of WRITEs.
    pub targets: &'a [Target],
}

impl<'a> Packets<'a> {
    /// One packet.
    #[inline]
    pub(crate) fn one(header: &'a RoceHeader) -> Self {
        Self {
            first: header,
            count: 1,
            targets: &[],
        }
    }

    /// True if they are messages of one packet each.
    #[inline]
    pub(crate) fn is_train(&self) -> bool {
        self.count > 1 && is_only(self.first.bth.opcode)
    }

    /// Header of packet `index`.
    pub(crate) fn header(&self, index: u32) -> RoceHeader {
        let mut header = *self.first;
        if self.is_train() {
            self.set_place(&mut header, index);
            return header;
        }
        // Only the last packet of a run may request an acknowledgement.
        header.bth.ack_req &= index + 1 == self.count;
        if index > 0 {
            header.bth.psn = self.first.bth.psn.add(index);
            header.bth.opcode = following(self.first.bth.opcode);
            header.reth = None;
            header.aeth = None;
        }
        header
    }

    /// Changes the header of a train into that of packet `index`.
    #[inline]
    pub(crate) fn set_place(&self, header: &mut RoceHeader, index: u32) {
        header.bth.psn = self.first.bth.psn.add(index);
        if let (Some(reth), Some(target)) = (&mut header.reth, self.targets.get(index as usize)) {
            (reth.addr, reth.rkey) = (target.addr, target.rkey);
        }
    }
}

/// True for the opcode of a message of one packet.
#[inline]
fn is_only(opcode: Opcode) -> bool {
    opcode.is_first_or_only() && opcode.is_last_or_only()
}

/// Opcode of the packets of a run behind the first.
pub(crate) fn following(first: Opcode) -> Opcode {
    first.middle().unwrap_or(first)
}

impl Default for TxFrame {
    /// An empty frame, to be filled by [`Nic::poll_transmit`](crate::Nic::poll_transmit).
    fn default() -> Self {
        Self {
            kind: FrameKind::Raw {
                dst: MacAddr([0; 6]),
                src: MacAddr([0; 6]),
                head: Head::new(),
                checked: false,
            },
            payload: Segments::new(),
            payload_len: 0,
            packets: 1,
            targets: Vec::new(),
            own: Own::new(),
        }
    }
}

impl TxFrame {
    /// Makes this frame a RoCE packet without payload.
    #[inline]
    pub(crate) fn set_packet(&mut self, header: RoceHeader) {
        self.set_whole(FrameKind::Roce(header));
    }

    /// Makes this frame one of this kind, without payload.
    #[inline]
    pub(crate) fn set_whole(&mut self, kind: FrameKind) {
        self.clear_payload();
        self.kind = kind;
    }

    /// Makes this frame a RoCE packet with a payload that is in no guest's memory.
    pub(crate) fn set_own_packet(&mut self, header: RoceHeader, payload: &[u8]) {
        self.set_packet(header);
        self.payload_len = payload.len();
        self.own.extend_from_slice(payload);
    }

    /// Makes this frame one packet without payload.
    #[inline]
    pub(crate) fn clear_payload(&mut self) {
        self.payload.clear();
        self.payload_len = 0;
        self.packets = 1;
        self.targets.clear();
        self.own.clear();
    }

    /// Keeps the first packets of a run.
    pub fn keep_packets(&mut self, packets: u32) {
        let each = self.payload_len / self.packets.max(1) as usize;
        if packets < self.packets
            && let FrameKind::Roce(header) = &mut self.kind
        {
            // Only the last packet of a run may request an acknowledgement.
            header.bth.ack_req = false;
            self.packets = packets;
            self.payload_len = packets as usize * each;
            truncate_segments(&mut self.payload, len32(self.payload_len));
        }
    }

    /// Destination MAC address.
    pub fn dst(&self) -> MacAddr {
        match &self.kind {
            FrameKind::Roce(header) => header.ethernet.dst,
            FrameKind::Raw { dst, .. } => *dst,
        }
    }

    /// Source MAC address.
    pub fn src(&self) -> MacAddr {
        match &self.kind {
            FrameKind::Roce(header) => header.ethernet.src,
            FrameKind::Raw { src, .. } => *src,
        }
    }

    /// The VLAN tag of all its packets.
    pub fn vlan_tag(&self) -> Option<VlanTag> {
        match &self.kind {
            FrameKind::Roce(header) => header.ethernet.vlan,
            FrameKind::Raw { head, .. } => Ethernet::parse(head).ok()?.0.vlan,
        }
    }

    /// Priority of its packets.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.kind.priority()
    }

    /// Replaces the VLAN tag of all its packets, as a switch does; `None`: they have no tag afterwards. Checksums and invariant CRC
    /// do not cover it.
    pub fn set_vlan_tag(&mut self, tag: Option<VlanTag>) {
        let was = self.vlan_tag();
        match &mut self.kind {
            FrameKind::Roce(header) => header.ethernet.vlan = tag,
            FrameKind::Raw { head, .. } if head.len() >= Ethernet::LEN => {
                replace_tag(head, was, tag);
                if !self.own.is_empty() {
                    replace_tag(&mut self.own, was, tag);
                }
            }
            // Shorter than an Ethernet header.
            FrameKind::Raw { .. } => {}
        }
    }

    /// Origin of the frame: a Faultline for a RoCE packet, software of a guest for a raw frame, even if that holds a
    /// RoCE packet.
    pub fn origin(&self) -> Origin {
        match &self.kind {
            FrameKind::Roce(_) => Origin::Faultline,
            FrameKind::Raw { .. } => Origin::Guest,
        }
    }

    /// Octets on the wire, without FCS, of all packets.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.kind {
            FrameKind::Roce(header) if self.packets > 1 => {
                let each = self.payload_len / self.packets as usize;
                let others = self.packets as usize - 1;
                let first = header.frame_len(each);
                // Only the first may have headers that the others do not have.
                if is_only(header.bth.opcode) || !header.bth.opcode.is_first_or_only() {
                    return first * self.packets as usize;
                }
                let other = following(header.bth.opcode).info();
                let saved = header.transport_len() - other.transport_len;
                first + others * (first - saved)
            }
            FrameKind::Roce(header) => header.frame_len(self.payload_len),
            FrameKind::Raw { head, .. } => head.len() + self.payload_len,
        }
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part that a receiver copies: the payload, or all of a raw frame.
    #[inline]
    pub(crate) fn view<'a, M: Dma>(&'a self, mem: &'a M) -> Payload<'a, M> {
        if !self.own.is_empty() {
            return Payload::Bytes(&self.own);
        }
        let head: &[u8] = match &self.kind {
            FrameKind::Roce(_) => &[],
            FrameKind::Raw { head, .. } => head,
        };
        Payload::guest(head, mem, &self.payload, self.payload_len)
    }

    /// Packet `index` as octets, with padding and invariant CRC.
    pub fn packet_bytes<M: Dma>(&self, index: u32, mem: &M) -> Result<Vec<u8>, DmaError> {
        let mut bytes = Vec::new();
        self.write_packet(index, mem, &mut bytes)?;
        Ok(bytes)
    }

    /// As [`packet_bytes`](Self::packet_bytes), into a buffer, whose contents it replaces.
    pub fn write_packet<M: Dma>(
        &self,
        index: u32,
        mem: &M,
        bytes: &mut Vec<u8>,
    ) -> Result<(), DmaError> {
        bytes.clear();
        self.append_start(index, usize::MAX, mem, bytes).map(drop)
    }

    /// Its packets; `None` if the frame is not RoCE.
    #[inline]
    pub(crate) fn roce_packets(&self) -> Option<Packets<'_>> {
        match &self.kind {
            FrameKind::Roce(first) => Some(Packets {
                first,
                count: self.packets,
                targets: &self.targets,
            }),
            FrameKind::Raw { .. } => None,
        }
    }

    /// True if its packets are messages of one packet each: a train.
    pub fn is_train(&self) -> bool {
        self.roce_packets()
            .is_some_and(|packets| packets.is_train())
    }

    /// The headers of packet `index`; `None` if the frame is not RoCE.
    pub fn packet_header(&self, index: u32) -> Option<RoceHeader> {
        Some(self.roce_packets()?.header(index))
    }

    /// Appends the first octets of packet `index` to a buffer, `most` at most, and returns the length of the whole
    /// packet. Only these octets are read. The invariant CRC is appended only with a whole packet.
    pub fn append_start<M: Dma>(
        &self,
        index: u32,
        most: usize,
        mem: &M,
        bytes: &mut Vec<u8>,
    ) -> Result<usize, DmaError> {
        let all = self.view(mem);
        let each = all.len() / self.packets.max(1) as usize;
        let payload = all.part(index as usize * each, each);
        let begin = bytes.len();
        let Some(header) = self.packet_header(index) else {
            bytes.resize(begin + each.min(most), 0);
            let to = bytes.get_mut(begin..).unwrap_or_default();
            payload.read(0, to)?;
            return Ok(each);
        };
        let length = header.frame_len(each);
        let kept = length.min(most);
        bytes.resize(begin + kept.max(header.header_len()), 0);
        let frame = bytes.get_mut(begin..).unwrap_or_default();
        // The buffer has room for the headers.
        let at = header.emit(each, frame).unwrap_or(0);
        let end = kept.min(at + each);
        if let Some(to) = frame.get_mut(at..end) {
            payload.read(0, to)?;
        }
        if kept == length {
            let _ = header.seal(each, frame);
        }
        bytes.truncate(begin + kept);
        Ok(length)
    }
}

/// Replaces the VLAN tag in the first octets of a frame, which are at least an Ethernet header.
fn replace_tag<A: Array<Item = u8>>(
    octets: &mut SmallVec<A>,
    was: Option<VlanTag>,
    tag: Option<VlanTag>,
) {
    if was.is_some() {
        drop(octets.drain(ADDRESSES..ADDRESSES + VlanTag::LEN));
    }
    if let Some(tag) = tag {
        octets.insert_from_slice(ADDRESSES, &tag.to_bytes());
    }
}

/// A frame that is no RoCE packet.
#[derive(Debug)]
pub(crate) struct Frame<'a, M> {
    pub payload: Payload<'a, M>,
    /// A NIC of this process has filled in its checksums.
    pub checked: bool,
    /// Hash of its addresses and ports, if an RSS queue pair has made one.
    pub hash: Option<u32>,
}

impl<M> Clone for Frame<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Frame<'_, M> {}

impl<'a, M> From<Payload<'a, M>> for Frame<'a, M> {
    fn from(payload: Payload<'a, M>) -> Self {
        Self {
            payload,
            checked: false,
            hash: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::MAX_HEADERS;

    const TAG: VlanTag = VlanTag {
        pcp: 3,
        dei: false,
        vid: 0x123,
    };

    fn raw(head: &[u8]) -> TxFrame {
        TxFrame {
            kind: FrameKind::Raw {
                dst: MacAddr([2; 6]),
                src: MacAddr([4; 6]),
                head: Head::from_slice(head),
                checked: true,
            },
            ..TxFrame::default()
        }
    }

    #[test]
    fn the_tag_of_a_raw_frame_is_pushed_replaced_and_removed() {
        let mut octets: Vec<u8> = (0..=u8::MAX).cycle().take(MAX_HEADERS).collect();
        octets[12..14].copy_from_slice(&[0x08, 0x00]);
        let untagged = raw(&octets);
        let mut frame = untagged.clone();
        assert_eq!(frame.vlan_tag(), None);
        frame.set_vlan_tag(None);
        assert_eq!(frame, untagged);
        for tag in [TAG, VlanTag { vid: 7, ..TAG }] {
            frame.set_vlan_tag(Some(tag));
            assert_eq!(frame.vlan_tag(), Some(tag));
            let FrameKind::Raw { head, .. } = &frame.kind else {
                panic!("the kind of the frame has changed");
            };
            assert_eq!(head[..12], octets[..12]);
            assert_eq!(head[12..16], tag.to_bytes());
            assert_eq!(head[16..], octets[12..]);
            assert!(!head.spilled(), "a tag does not allocate");
        }
        frame.set_vlan_tag(None);
        assert_eq!(frame, untagged);
        // A frame that the NIC has made itself has its octets twice.
        frame.own.extend_from_slice(&octets);
        let own = frame.clone();
        for tag in [Some(TAG), None] {
            frame.set_vlan_tag(tag);
            let FrameKind::Raw { head, .. } = &frame.kind else {
                panic!("the kind of the frame has changed");
            };
            assert_eq!(frame.own[..], head[..]);
            assert_eq!(frame.vlan_tag(), tag);
        }
        assert_eq!(frame, own);
        for length in 0..Ethernet::LEN {
            let short = raw(&octets[..length]);
            let mut frame = short.clone();
            frame.set_vlan_tag(Some(TAG));
            assert_eq!(frame, short, "too short for a tag");
        }
    }
}
