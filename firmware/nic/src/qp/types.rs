//! Types that all parts of a queue pair use: its type, its state, its configuration, and failures of work requests.

use faultline_abi::cqe;
use faultline_abi::qp as abi;
use faultline_wire::Psn;
use faultline_wire::opcode::{Opcode, Service};

use crate::mkey::{Absent, Miss};
use crate::payload::CopyError;

/// Number that no completion queue has.
const NO_CQ: u32 = u32::MAX;

/// Transport of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpType {
    /// General services, QP1: a datagram QP with a fixed number and Q_Key.
    Gsi,
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Ethernet frames.
    Raw,
    /// XRC initiator: sends to the SRQs of a domain (IBTA annex A14).
    XrcIni,
    /// XRC target: receives for the SRQs of its domain.
    XrcTgt,
}

impl QpType {
    /// The type with this number in the ABI.
    pub fn from_abi(value: u8) -> Option<Self> {
        Some(match value {
            abi::QPT_GSI => Self::Gsi,
            abi::QPT_RC => Self::Rc,
            abi::QPT_UC => Self::Uc,
            abi::QPT_UD => Self::Ud,
            abi::QPT_RAW => Self::Raw,
            abi::QPT_XRC_INI => Self::XrcIni,
            abi::QPT_XRC_TGT => Self::XrcTgt,
            _ => return None,
        })
    }

    /// The service in the opcodes of its packets; raw frames have none.
    pub fn service(self) -> Option<Service> {
        match self {
            Self::Rc => Some(Service::Rc),
            Self::Uc => Some(Service::Uc),
            Self::Ud | Self::Gsi => Some(Service::Ud),
            Self::Raw => None,
            Self::XrcIni | Self::XrcTgt => Some(Service::Xrc),
        }
    }

    /// True if its packets have this opcode.
    #[inline]
    pub(crate) fn has(self, opcode: Opcode) -> bool {
        match opcode.info().service {
            // READY.
            Service::Manufacturer => self.is_reliable(),
            service => self.service() == Some(service),
        }
    }

    /// Whether lost packets are sent again.
    #[inline]
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// Whether there is one peer.
    #[inline]
    pub fn is_connected(self) -> bool {
        self.is_reliable() || self == Self::Uc
    }
}

/// Why a queue pair has changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StateCause {
    /// A command of the driver.
    Command,
    /// A work request of the send queue has failed with this status (`enum ib_wc_status`).
    SendFailed {
        /// The status.
        #[cfg_attr(feature = "serde", serde(with = "crate::names::work_status"))]
        status: u8,
    },
    /// An error for which there is this asynchronous event (`faultline_abi::event`).
    Event {
        /// Kind of the event.
        #[cfg_attr(feature = "serde", serde(with = "crate::names::event_kind"))]
        event: u8,
    },
    /// A completion in error says why.
    Completion,
}

/// State of a QP (IBTA 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "UPPERCASE")
)]
#[repr(u8)]
pub enum State {
    /// No packets are sent or received.
    Reset = abi::QPS_RESET,
    /// Receives may be posted.
    Init = abi::QPS_INIT,
    /// Ready to receive.
    Rtr = abi::QPS_RTR,
    /// Ready to send.
    Rts = abi::QPS_RTS,
    /// Sends that have begun continue, no others begin.
    Sqd = abi::QPS_SQD,
    /// The send queue has failed (UC, UD).
    Sqe = abi::QPS_SQE,
    /// Everything is flushed.
    Err = abi::QPS_ERR,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }

    /// The state with this number in the ABI.
    pub fn from_abi(value: u8) -> Option<Self> {
        Some(match value {
            abi::QPS_RESET => Self::Reset,
            abi::QPS_INIT => Self::Init,
            abi::QPS_RTR => Self::Rtr,
            abi::QPS_RTS => Self::Rts,
            abi::QPS_SQD => Self::Sqd,
            abi::QPS_SQE => Self::Sqe,
            abi::QPS_ERR => Self::Err,
            _ => return None,
        })
    }

    /// True if packets are received.
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether requests are sent.
    pub fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

/// The failure of a work request: status and vendor error of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// `enum ib_wc_status`.
    pub status: u8,
    /// FAULTLINE_VENDOR_ERR_*.
    pub vendor: u8,
}

impl Failure {
    /// The failure of all work requests of a queue pair in error.
    pub(crate) const FLUSHED: Self = Self::new(cqe::WR_FLUSH_ERR, cqe::NONE);

    /// A failure.
    pub(crate) const fn new(status: u8, vendor: u8) -> Self {
        Self { status, vendor }
    }

    /// A local buffer that can't be used.
    pub(crate) fn local(miss: Miss) -> Self {
        let vendor = match miss {
            Miss::Key | Miss::Pd | Miss::Access => cqe::LKEY,
            Miss::Bounds => cqe::BOUNDS,
            Miss::NotPresent(_) | Miss::Absent(_) => cqe::DMA,
        };
        Self::new(cqe::LOC_PROT_ERR, vendor)
    }
}

/// The queue pair goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal {
    /// The asynchronous event that says why.
    pub event: Option<u8>,
}

impl Fatal {
    /// Without an event, because completions report the reason.
    pub(crate) const SILENT: Self = Self { event: None };

    /// With this asynchronous event.
    pub(crate) const fn with(event: u8) -> Self {
        Self { event: Some(event) }
    }

    /// The same for diagnostics.
    pub(crate) const fn cause(self) -> StateCause {
        match self.event {
            Some(event) => StateCause::Event { event },
            None => StateCause::Completion,
        }
    }
}

/// Why a payload was not written to the buffers of a receive work request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceError {
    /// The sender's memory can't be read: the packet counts as lost.
    Lost,
    /// The local buffer can't be used.
    Failed(Failure),
    /// A page of the buffer is missing; with the number of bytes of the buffer from there on.
    Absent(Absent, u64),
}

impl From<CopyError> for PlaceError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Source => Self::Lost,
            CopyError::Destination => Self::Failed(Failure::new(cqe::LOC_PROT_ERR, cqe::DMA)),
        }
    }
}

impl PlaceError {
    /// A miss in a buffer. `left`: bytes of the message from `va` on.
    pub(crate) fn new(miss: Miss, va: u64, left: u32) -> Self {
        match miss {
            Miss::Absent(absent) => {
                let before = absent.named.wrapping_sub(va);
                Self::Absent(absent, u64::from(left).saturating_sub(before))
            }
            _ => Self::Failed(Failure::local(miss)),
        }
    }
}

/// The configuration that CREATE_QP fixes.
#[derive(Debug)]
pub(crate) struct QpConfig {
    /// Transport.
    pub kind: QpType,
    /// Protection domain.
    pub pd: u32,
    /// User context whose doorbell page it uses.
    pub uctx: u32,
    /// CQ of sends.
    pub send_cqn: u32,
    /// CQ of receives.
    pub recv_cqn: u32,
    /// SRQ, if receives come from one.
    pub srqn: Option<u32>,
    /// Every send generates a completion.
    pub sig_all: bool,
    /// Largest number of SGEs in a send.
    pub max_send_sge: u8,
    /// Largest number of inline bytes in a send.
    pub max_inline: u32,
    /// XRC target: its domain.
    pub xrcd: Option<u32>,
}

impl QpConfig {
    /// The configuration of a QP that has neither queues nor completion queues.
    pub(crate) fn without_queues(kind: QpType, pd: u32, uctx: u32) -> Self {
        Self {
            kind,
            pd,
            uctx,
            send_cqn: NO_CQ,
            recv_cqn: NO_CQ,
            srqn: None,
            sig_all: false,
            max_send_sge: 0,
            max_inline: 0,
            xrcd: None,
        }
    }
}

/// The most that a frame of a queue pair may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRoom {
    /// Packets of a run.
    pub run: u32,
    /// Bytes of payload of a train. 0: no train.
    pub train: u32,
}

impl FrameRoom {
    /// Each frame is one packet.
    pub(crate) const ONE_PACKET: Self = Self { run: 1, train: 0 };
}

/// The next PSNs of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Psns {
    /// PSN of the next new request.
    pub next_sent: Psn,
    /// PSN of the expected request.
    pub next_received: Psn,
}
