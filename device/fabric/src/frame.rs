//! A frame on its way through a fabric, from the port at which it comes in to the ports that receive it.
//!
//! The functions of the data path take a [`Frame`], whatever its form. This file does not decide where a frame goes.

use crate::link_model::Effects;
use crate::vlan;
use faultline_nic::{Dma, FrameKind, Origin, TxFrame};
use faultline_scenario::rules::ByRule;
use faultline_wire::ethernet::VlanTag;
use faultline_wire::packet::{RoceHeader, parse_trusted};
use faultline_wire::{Ethernet, MacAddr, Syndrome};

/// Properties of a frame as octets that are not in the octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Known properties of its sender.
    pub origin: Origin,
    /// Changes by link models.
    pub effects: Effects,
    /// Change by a rule.
    pub rule: Option<ByRule>,
}

/// A frame on its way. Functions that are not inlined take it by value: with a reference the compiler would not know its form in their
/// callers.
#[derive(Clone, Copy, Debug)]
pub enum Frame<'a> {
    /// A frame of a NIC of the process: typed headers, and a payload in the memory that the fabric has for the port at which the frame
    /// came in. It may be several packets.
    ByReference(&'a TxFrame),
    /// One packet as octets.
    Octets(Octets<'a>),
}

/// A frame whose VLAN tag the switch may replace for a destination.
#[derive(Debug)]
pub enum FrameMut<'a> {
    /// See [`Frame::ByReference`].
    ByReference(&'a mut TxFrame),
    /// See [`Frame::Octets`].
    Octets(Octets<'a>),
}

/// A packet as octets.
#[derive(Clone, Copy, Debug)]
pub struct Octets<'a> {
    /// Properties that are not in the octets.
    pub mark: Mark,
    /// From the Ethernet header on, without FCS.
    pub bytes: &'a [u8],
}

impl<'a> Octets<'a> {
    /// A packet that neither a link model nor a rule has changed.
    pub fn new(origin: Origin, bytes: &'a [u8]) -> Self {
        let mark = Mark {
            origin,
            effects: Effects::NONE,
            rule: None,
        };
        Self { mark, bytes }
    }

    /// Writes a packet of a NIC's frame into `buffer`. Returns `None` if its payload cannot be read.
    pub fn of_packet(
        frame: &TxFrame,
        packet: u32,
        memory: &impl Dma,
        buffer: &'a mut Vec<u8>,
    ) -> Option<Self> {
        frame.write_packet(packet, memory, buffer).ok()?;
        Some(Self::new(frame.origin(), buffer))
    }
}

impl FrameMut<'_> {
    /// The frame, to be read.
    #[inline(always)]
    pub fn as_frame(&self) -> Frame<'_> {
        match self {
            Self::ByReference(frame) => Frame::ByReference(frame),
            Self::Octets(octets) => Frame::Octets(*octets),
        }
    }

    /// The same for a function that is not inlined.
    #[inline(always)]
    pub fn reborrow(&mut self) -> FrameMut<'_> {
        match self {
            Self::ByReference(frame) => FrameMut::ByReference(frame),
            Self::Octets(octets) => FrameMut::Octets(*octets),
        }
    }

    /// The frame with another VLAN tag. Octets are copied into `buffer`. A frame by reference keeps the tag until it is replaced again.
    pub fn with_vlan_tag<'b>(
        &'b mut self,
        tag: Option<VlanTag>,
        buffer: &'b mut Vec<u8>,
    ) -> Frame<'b> {
        match self {
            Self::ByReference(frame) => {
                frame.set_vlan_tag(tag);
                Frame::ByReference(frame)
            }
            Self::Octets(Octets { mark, bytes }) => {
                vlan::write_with_tag(bytes, tag, buffer);
                Frame::Octets(Octets {
                    mark: *mark,
                    bytes: buffer,
                })
            }
        }
    }
}

impl<'a> Frame<'a> {
    /// Source and destination address; `None` if the frame is too short to have them.
    #[inline(always)]
    pub fn addresses(self) -> Option<(MacAddr, MacAddr)> {
        match self {
            Self::ByReference(frame) => Some((frame.src(), frame.dst())),
            Self::Octets(Octets { bytes, .. }) => {
                let dst = bytes.first_chunk::<6>()?;
                let src = bytes.get(6..)?.first_chunk::<6>()?;
                Some((MacAddr(*src), MacAddr(*dst)))
            }
        }
    }

    /// The VLAN tag of its packets.
    #[inline(always)]
    pub fn vlan_tag(self) -> Option<VlanTag> {
        match self {
            Self::ByReference(frame) => frame.vlan_tag(),
            Self::Octets(Octets { bytes, .. }) => vlan::tag_of(bytes),
        }
    }

    /// Packets of the frame.
    #[inline(always)]
    pub fn packets(self) -> u32 {
        match self {
            Self::ByReference(frame) => frame.packets,
            Self::Octets(_) => 1,
        }
    }

    /// Length of all its packets, without FCS.
    pub fn length(self) -> usize {
        match self {
            Self::ByReference(frame) => frame.len(),
            Self::Octets(Octets { bytes, .. }) => bytes.len(),
        }
    }

    /// Length of its longest packet without Ethernet header and VLAN tag, which an MTU limits.
    pub fn length_for_mtu(self) -> usize {
        match self {
            Self::ByReference(frame) => match &frame.kind {
                FrameKind::Roce(header) => {
                    let packets = frame.packets.max(1) as usize;
                    let each = frame.payload_len.checked_div(packets).unwrap_or(0);
                    after_ethernet(header.frame_len(each), header.ethernet.vlan.is_some())
                }
                FrameKind::Raw { head, .. } => octets_for_mtu(frame.len(), head),
            },
            Self::Octets(Octets { bytes, .. }) => octets_for_mtu(bytes.len(), bytes),
        }
    }

    /// Headers of its first packet; `None` if it is not RoCE.
    pub fn header(self) -> Option<RoceHeader> {
        match self {
            Self::ByReference(frame) => match &frame.kind {
                FrameKind::Roce(header) => Some(*header),
                FrameKind::Raw { .. } => None,
            },
            Self::Octets(Octets { bytes, .. }) => Some(parse_trusted(bytes).ok()?.header),
        }
    }

    /// Properties that are not in the octets.
    pub fn mark(self) -> Mark {
        match self {
            Self::ByReference(frame) => Octets::new(frame.origin(), &[]).mark,
            Self::Octets(Octets { mark, .. }) => mark,
        }
    }

    /// The frame of a NIC, if it is by reference.
    pub(crate) fn by_reference(self) -> Option<&'a TxFrame> {
        match self {
            Self::ByReference(sent) => Some(sent),
            Self::Octets(_) => None,
        }
    }

    /// A copy of its first packet. `memory`: that of the payload of a frame by reference. Returns `None` if it cannot be read.
    pub fn to_vec(self, memory: Option<&impl Dma>) -> Option<Vec<u8>> {
        match self {
            Self::ByReference(frame) => frame.packet_bytes(0, memory?).ok(),
            Self::Octets(Octets { bytes, .. }) => Some(bytes.to_vec()),
        }
    }
}

/// True for an RNR NAK of a NIC. It may let its requester wait for a page fault.
pub fn is_rnr_nak(frame: &TxFrame) -> bool {
    match &frame.kind {
        FrameKind::Roce(header) => {
            let syndrome = header.aeth.map(|aeth| aeth.syndrome);
            matches!(syndrome, Some(Syndrome::RnrNak { .. }))
        }
        FrameKind::Raw { .. } => false,
    }
}

/// Length of a packet, given its whole length, without Ethernet header and VLAN tag. `head` has at least these.
pub fn octets_for_mtu(length: usize, head: &[u8]) -> usize {
    after_ethernet(length, head.get(12..14) == Some(&[0x81, 0x00]))
}

fn after_ethernet(length: usize, tagged: bool) -> usize {
    let tag = if tagged { 4 } else { 0 };
    length.saturating_sub(Ethernet::LEN).saturating_sub(tag)
}

#[cfg(test)]
mod tests {
    use faultline_simulation::Memory;
    use faultline_wire::{Bth, Gid, Ip, Opcode, Psn};

    use super::*;

    const TAG: VlanTag = VlanTag {
        pcp: 3,
        dei: false,
        vid: 7,
    };

    fn roce(vlan: Option<VlanTag>) -> TxFrame {
        let ip = Ip::from_gids(Gid([1; 16]), Gid([2; 16]), 0, 0, 64);
        let bth = Bth::new(Opcode::RcSendOnly, 5, Psn::new(9));
        let mut header = RoceHeader::new(MacAddr([2; 6]), MacAddr([4; 6]), ip, bth);
        header.ethernet.vlan = vlan;
        let mut frame = TxFrame {
            kind: FrameKind::Roce(header),
            payload_len: 12,
            ..TxFrame::default()
        };
        frame.own.extend_from_slice(b"twelve bytes");
        frame
    }

    fn raw(vlan: Option<VlanTag>) -> TxFrame {
        let (dst, src) = (MacAddr([6; 6]), MacAddr([8; 6]));
        let mut frame = TxFrame::default();
        if let FrameKind::Raw {
            dst: to,
            src: from,
            head,
            ..
        } = &mut frame.kind
        {
            (*to, *from) = (dst, src);
            head.extend_from_slice(&dst.0);
            head.extend_from_slice(&src.0);
            head.extend_from_slice(&[0x88, 0xb5]);
            head.extend_from_slice(&[9; 46]);
        }
        frame.set_vlan_tag(vlan);
        frame
    }

    #[test]
    fn both_forms_of_a_packet_have_the_same_properties() {
        // No frame of these refers to it.
        let memory = Memory::new(4096);
        for sent in [roce(None), roce(Some(TAG)), raw(None), raw(Some(TAG))] {
            let mut buffer = Vec::new();
            let octets = Octets::of_packet(&sent, 0, &memory, &mut buffer).unwrap();
            let forms = [Frame::ByReference(&sent), Frame::Octets(octets)];
            let [by_reference, as_octets] = forms.map(|form| {
                let bytes = form.to_vec(Some(&memory)).unwrap();
                let lengths = (form.packets(), form.length(), form.length_for_mtu());
                // Lengths in headers are filled in when they are written.
                let header = form.header().map(|header| (header.ethernet, header.bth));
                (form.addresses(), form.vlan_tag(), lengths, header, bytes)
            });
            assert_eq!(by_reference, as_octets);
            assert_eq!(by_reference.2.1, by_reference.4.len());
            for tag in [None, Some(TAG), Some(VlanTag { vid: 8, ..TAG })] {
                let mut copy = Vec::new();
                let mut frame = FrameMut::Octets(octets);
                let tagged = frame.with_vlan_tag(tag, &mut copy).to_vec(None::<&Memory>);
                let mut changed = sent.clone();
                let mut frame = FrameMut::ByReference(&mut changed);
                let mut unused = Vec::new();
                let frame = frame.with_vlan_tag(tag, &mut unused);
                assert_eq!(tagged, frame.to_vec(Some(&memory)));
            }
        }
    }

    #[test]
    fn octets_without_addresses_have_none() {
        for length in 0..12 {
            let octets = Octets::new(Origin::Unknown, &[1; 12][..length]);
            assert_eq!(Frame::Octets(octets).addresses(), None);
        }
    }
}
