//! The events of a trace.

use faultline_abi::doorbell::Doorbell;
use faultline_nic::{Diagnostic, FrameKind, Instant, TxFrame};
use faultline_wire::packet::RoceHeader;
use serde::{Deserialize, Serialize};

use crate::names;

/// An event of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Device clock: nanoseconds since the process started.
    pub at: Instant,
    /// Index of the NIC in the process.
    pub nic: u16,
    /// What has happened.
    pub event: TraceEvent,
}

/// The path by which a doorbell has come to the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DoorbellPath {
    /// From the ring in its doorbell page. A scenario may delay or lose it then.
    #[default]
    Page,
    /// By a write to its kick page, which wakes the device. The doorbell is in the page, too, unless its ring was full.
    Kick,
    /// After a scenario has delayed it.
    Late,
}

impl DoorbellPath {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::Page, Self::Kick, Self::Late];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Kick => "kick",
            Self::Late => "late",
        }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TraceEvent {
    /// A frame of this NIC was delivered, or dropped on its way.
    Frame(FrameEvent),
    /// A doorbell has come.
    Doorbell {
        /// Doorbell page.
        page: u32,
        /// `faultline_abi::doorbell` kind.
        #[serde(with = "names::doorbell")]
        kind: u8,
        /// How it has come.
        #[serde(default)]
        path: DoorbellPath,
        /// Number of the object.
        object: u32,
        /// Index.
        value: u32,
    },
    /// An interrupt was sent.
    Interrupt {
        /// MSI-X vector.
        vector: u16,
    },
    /// The NIC reports something.
    Nic(Diagnostic),
}

/// A frame: a packet, or several packets of a queue pair (see `faultline_nic::TxFrame`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameEvent {
    /// Index of the NIC that has taken it; [`FrameEvent::NO_NIC`] if none has, or if it was sent to all.
    pub to: u16,
    /// BTH opcode; [`FrameEvent::RAW`] of a frame that is not RoCE.
    #[serde(with = "names::opcode")]
    pub opcode: u8,
    /// AETH syndrome, if there is an AETH, else [`FrameEvent::NO_SYNDROME`].
    pub syndrome: u8,
    /// Queue pair that has sent it; 0 if none did.
    pub src_qpn: u32,
    /// Destination queue pair.
    pub dst_qpn: u32,
    /// PSN of the first packet.
    pub psn: u32,
    /// Its packets.
    pub packets: u16,
    /// Bytes on the wire, without FCS, of all packets.
    pub bytes: u32,
}

impl TraceEvent {
    /// The record of a doorbell.
    #[inline]
    pub fn doorbell(page: u32, bell: Doorbell, path: DoorbellPath) -> Self {
        Self::Doorbell {
            page,
            kind: bell.kind,
            path,
            object: bell.object,
            value: bell.value,
        }
    }
}

impl FrameEvent {
    /// No NIC of the process, or several.
    pub const NO_NIC: u16 = u16::MAX;
    /// Not a RoCE packet.
    pub const RAW: u8 = names::RAW;
    /// No AETH.
    pub const NO_SYNDROME: u8 = u8::MAX;

    /// A PSN has 24 bits.
    const PSN_MASK: u32 = 0xff_ffff;

    /// The record of a frame of `len` bytes from queue pair `src_qpn` that no NIC has taken yet.
    #[inline]
    pub fn new(frame: &TxFrame, src_qpn: u32, len: usize) -> Self {
        let packets = u16::try_from(frame.packets).unwrap_or(u16::MAX);
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        let raw = Self {
            to: Self::NO_NIC,
            opcode: Self::RAW,
            syndrome: Self::NO_SYNDROME,
            src_qpn,
            dst_qpn: 0,
            psn: 0,
            packets,
            bytes,
        };
        match &frame.kind {
            FrameKind::Raw { .. } => raw,
            FrameKind::Roce(header) => Self {
                opcode: header.bth.opcode.to_u8(),
                syndrome: header
                    .aeth
                    .map_or(Self::NO_SYNDROME, |aeth| aeth.syndrome.to_u8()),
                dst_qpn: header.bth.dest_qp,
                psn: header.bth.psn.get(),
                ..raw
            },
        }
    }

    /// True if only the PSN can differ. Without branches: most frames of a busy queue pair are alike.
    #[inline]
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.to == other.to)
            & (self.opcode == other.opcode)
            & (self.syndrome == other.syndrome)
            & (self.src_qpn == other.src_qpn)
            & (self.dst_qpn == other.dst_qpn)
            & (self.packets == other.packets)
            & (self.bytes == other.bytes)
    }

    /// The frame that follows this one by `place` in a burst of equal frames with consecutive PSNs.
    #[inline]
    pub(crate) fn later(&self, place: u16) -> Self {
        let packets = u32::from(self.packets).wrapping_mul(place.into());
        Self {
            psn: self.psn.wrapping_add(packets) & Self::PSN_MASK,
            ..*self
        }
    }

    /// The record of a packet that is received as bytes.
    pub fn of_packet(header: Option<&RoceHeader>, len: usize) -> Self {
        Self {
            to: Self::NO_NIC,
            opcode: header.map_or(Self::RAW, |header| header.bth.opcode.to_u8()),
            syndrome: Self::NO_SYNDROME,
            src_qpn: 0,
            dst_qpn: header.map_or(0, |header| header.bth.dest_qp),
            psn: header.map_or(0, |header| header.bth.psn.get()),
            packets: 1,
            bytes: u32::try_from(len).unwrap_or(u32::MAX),
        }
    }
}
