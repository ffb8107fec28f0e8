//! BTH opcodes (IBTA volume 1, table 38; XRC from annex A14, CNP from annex A17.9, FLUSH and
//! ATOMIC WRITE from release 1.5) and the headers of their packets.
//!
//! Reliable datagram (0x40..=0x5f) is absent: RoCEv2 implementations do not support it. Its
//! opcodes are unknown. Of the manufacturers' range (0xc0..=0xff) there is READY, an operation of
//! Faultline; the others are unknown.
//!
//! # Panics
//!
//! Nothing here panics.

use bitflags::bitflags;

/// Length of the base transport header in bytes; every packet has one.
pub(crate) const BTH_LEN: usize = 12;

/// The transport service that an opcode belongs to: its three high bits, or one of the operations that have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification packet; it has no service.
    Cnp,
    /// An operation in the range that the specification leaves to manufacturers (0xc0..=0xff). Queue pairs of all
    /// reliable services use it.
    Manufacturer,
}

/// Operation of an opcode, without its position in the message and its immediate or invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response; also the response to FLUSH and ATOMIC WRITE (release 1.5).
    ReadResponse,
    /// ACK or NAK.
    Ack,
    /// Atomic acknowledge.
    AtomicAck,
    /// Compare-and-swap request.
    CompareSwap,
    /// Fetch-and-add request.
    FetchAdd,
    /// FLUSH request.
    Flush,
    /// ATOMIC WRITE request.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
    /// Tells a requester that a request that got an RNR NAK would now be accepted. Sent between Faultlines only.
    Ready,
}

impl OpKind {
    /// True for operations that a requester sends.
    #[inline]
    pub const fn is_request(self) -> bool {
        match self {
            Self::Send
            | Self::Write
            | Self::ReadRequest
            | Self::CompareSwap
            | Self::FetchAdd
            | Self::Flush
            | Self::AtomicWrite => true,
            Self::ReadResponse | Self::Ack | Self::AtomicAck | Self::Cnp | Self::Ready => false,
        }
    }

    /// True for operations that a responder sends in reply to a request. CNP is neither request nor response.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponse | Self::Ack | Self::AtomicAck | Self::Ready
        )
    }

    /// True for requests whose response is more than an acknowledgement. A responder stores these requests and limits
    /// their number (IBTA 9.7.5.1.2, A19.4).
    #[inline]
    pub const fn is_answered(self) -> bool {
        match self {
            Self::ReadRequest
            | Self::CompareSwap
            | Self::FetchAdd
            | Self::Flush
            | Self::AtomicWrite => true,
            Self::Send
            | Self::Write
            | Self::ReadResponse
            | Self::Ack
            | Self::AtomicAck
            | Self::Cnp
            | Self::Ready => false,
        }
    }

    /// True for requests that change eight octets and return their old value in an ATOMIC Acknowledge.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        match self {
            Self::CompareSwap | Self::FetchAdd => true,
            Self::Send
            | Self::Write
            | Self::ReadRequest
            | Self::ReadResponse
            | Self::Ack
            | Self::AtomicAck
            | Self::Flush
            | Self::AtomicWrite
            | Self::Cnp
            | Self::Ready => false,
        }
    }
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several packets.
    Last,
    /// The only packet of its message.
    Only,
}

bitflags! {
    /// A set of extended headers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Headers: u16 {
        /// Datagram.
        const DETH = 1 << 0;
        /// RDMA.
        const RETH = 1 << 1;
        /// ACK.
        const AETH = 1 << 2;
        /// Atomic request.
        const ATOMIC_ETH = 1 << 3;
        /// Atomic acknowledgment.
        const ATOMIC_ACK_ETH = 1 << 4;
        /// Immediate data.
        const IMM = 1 << 5;
        /// Invalidate.
        const IETH = 1 << 6;
        /// Extended reliable connection.
        const XRCETH = 1 << 7;
        /// Flush.
        const FETH = 1 << 8;
    }
}

impl Headers {
    /// Length of these headers on the wire in bytes.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the lengths of all headers are below 2^8"
    )]
    pub const fn wire_len(self) -> usize {
        const fn one(set: Headers, header: Headers, len: usize) -> usize {
            if set.contains(header) { len } else { 0 }
        }
        one(self, Self::DETH, crate::Deth::LEN)
            + one(self, Self::RETH, crate::Reth::LEN)
            + one(self, Self::AETH, crate::Aeth::LEN)
            + one(self, Self::ATOMIC_ETH, crate::AtomicEth::LEN)
            + one(self, Self::ATOMIC_ACK_ETH, crate::AtomicAckEth::LEN)
            + one(self, Self::IMM, crate::ImmDt::LEN)
            + one(self, Self::IETH, crate::Ieth::LEN)
            + one(self, Self::XRCETH, crate::XrcEth::LEN)
            + one(self, Self::FETH, crate::Feth::LEN)
    }
}

/// Properties of the packets of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The transport service.
    pub service: Service,
    /// The operation.
    pub kind: OpKind,
    /// The position in the message.
    pub position: Position,
    /// The extended headers of every packet with this opcode.
    pub headers: Headers,
    /// Length of BTH and extended headers in bytes.
    pub transport_len: usize,
    /// True if a payload may follow. ATOMIC WRITE has 8 bytes, CNP 16 reserved bytes.
    pub payload: bool,
}

/// In the table of properties, for bytes that are no opcode.
const UNKNOWN: OpcodeInfo = OpcodeInfo {
    service: Service::Cnp,
    kind: OpKind::Cnp,
    position: Position::Only,
    headers: Headers::empty(),
    transport_len: BTH_LEN,
    payload: false,
};

macro_rules! opcodes {
    ($($(#[doc = $doc:literal])* $name:ident = $value:literal,
        $service:ident $kind:ident $position:ident [$($header:ident)*] $payload:ident;)*) => {
        /// A BTH opcode (IBTA volume 1, table 38).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $(
                #[doc = concat!(
                    "Opcode ", stringify!($value), ": service ", stringify!($service), ", operation ",
                    stringify!($kind), ", position ", stringify!($position), "."
                )]
                ///
                $(#[doc = $doc])*
                $name = $value,
            )*
        }

        impl Opcode {
            /// Every opcode, in ascending order of its value.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The opcode of a byte; `None` if reserved or of an unsupported service.
            #[inline]
            pub const fn from_u8(byte: u8) -> Option<Self> {
                Some(match byte {
                    $($value => Self::$name,)*
                    _ => return None,
                })
            }

            /// Properties by the byte of the opcode. Those of bytes that are no opcode are of no use.
            const INFO: &'static [OpcodeInfo; 256] = &{
                let mut table = [UNKNOWN; 256];
                $(
                    let headers = Headers::empty()$(.union(Headers::$header))*;
                    table[$value] = OpcodeInfo {
                        service: Service::$service,
                        kind: OpKind::$kind,
                        position: Position::$position,
                        headers,
                        transport_len: BTH_LEN + headers.wire_len(),
                        payload: $payload,
                    };
                )*
                table
            };

            /// Properties of the packets of this opcode.
            // Asked several times for each packet, so it is a look-up without a branch.
            #[inline(always)]
            #[expect(clippy::indexing_slicing, reason = "the table has an entry for each byte")]
            pub const fn info(self) -> &'static OpcodeInfo {
                &Self::INFO[self as usize]
            }
        }
    };
}

opcodes! {
    RcSendFirst = 0x00, Rc Send First [] true;
    RcSendMiddle = 0x01, Rc Send Middle [] true;
    RcSendLast = 0x02, Rc Send Last [] true;
    RcSendLastWithImmediate = 0x03, Rc Send Last [IMM] true;
    RcSendOnly = 0x04, Rc Send Only [] true;
    RcSendOnlyWithImmediate = 0x05, Rc Send Only [IMM] true;
    RcWriteFirst = 0x06, Rc Write First [RETH] true;
    RcWriteMiddle = 0x07, Rc Write Middle [] true;
    RcWriteLast = 0x08, Rc Write Last [] true;
    RcWriteLastWithImmediate = 0x09, Rc Write Last [IMM] true;
    RcWriteOnly = 0x0a, Rc Write Only [RETH] true;
    RcWriteOnlyWithImmediate = 0x0b, Rc Write Only [RETH IMM] true;
    RcReadRequest = 0x0c, Rc ReadRequest Only [RETH] false;
    RcReadResponseFirst = 0x0d, Rc ReadResponse First [AETH] true;
    /// The only READ response without an AETH.
    RcReadResponseMiddle = 0x0e, Rc ReadResponse Middle [] true;
    RcReadResponseLast = 0x0f, Rc ReadResponse Last [AETH] true;
    RcReadResponseOnly = 0x10, Rc ReadResponse Only [AETH] true;
    RcAcknowledge = 0x11, Rc Ack Only [AETH] false;
    RcAtomicAcknowledge = 0x12, Rc AtomicAck Only [AETH ATOMIC_ACK_ETH] false;
    RcCompareSwap = 0x13, Rc CompareSwap Only [ATOMIC_ETH] false;
    RcFetchAdd = 0x14, Rc FetchAdd Only [ATOMIC_ETH] false;
    RcSendLastWithInvalidate = 0x16, Rc Send Last [IETH] true;
    RcSendOnlyWithInvalidate = 0x17, Rc Send Only [IETH] true;
    RcFlush = 0x1c, Rc Flush Only [FETH RETH] false;
    RcAtomicWrite = 0x1d, Rc AtomicWrite Only [RETH] true;

    UcSendFirst = 0x20, Uc Send First [] true;
    UcSendMiddle = 0x21, Uc Send Middle [] true;
    UcSendLast = 0x22, Uc Send Last [] true;
    UcSendLastWithImmediate = 0x23, Uc Send Last [IMM] true;
    UcSendOnly = 0x24, Uc Send Only [] true;
    UcSendOnlyWithImmediate = 0x25, Uc Send Only [IMM] true;
    UcWriteFirst = 0x26, Uc Write First [RETH] true;
    UcWriteMiddle = 0x27, Uc Write Middle [] true;
    UcWriteLast = 0x28, Uc Write Last [] true;
    UcWriteLastWithImmediate = 0x29, Uc Write Last [IMM] true;
    UcWriteOnly = 0x2a, Uc Write Only [RETH] true;
    UcWriteOnlyWithImmediate = 0x2b, Uc Write Only [RETH IMM] true;

    UdSendOnly = 0x64, Ud Send Only [DETH] true;
    UdSendOnlyWithImmediate = 0x65, Ud Send Only [DETH IMM] true;

    /// Congestion notification packet (annex A17.9).
    Cnp = 0x81, Cnp Cnp Only [] true;

    XrcSendFirst = 0xa0, Xrc Send First [XRCETH] true;
    XrcSendMiddle = 0xa1, Xrc Send Middle [XRCETH] true;
    XrcSendLast = 0xa2, Xrc Send Last [XRCETH] true;
    XrcSendLastWithImmediate = 0xa3, Xrc Send Last [XRCETH IMM] true;
    XrcSendOnly = 0xa4, Xrc Send Only [XRCETH] true;
    XrcSendOnlyWithImmediate = 0xa5, Xrc Send Only [XRCETH IMM] true;
    XrcWriteFirst = 0xa6, Xrc Write First [XRCETH RETH] true;
    XrcWriteMiddle = 0xa7, Xrc Write Middle [XRCETH] true;
    XrcWriteLast = 0xa8, Xrc Write Last [XRCETH] true;
    XrcWriteLastWithImmediate = 0xa9, Xrc Write Last [XRCETH IMM] true;
    XrcWriteOnly = 0xaa, Xrc Write Only [XRCETH RETH] true;
    XrcWriteOnlyWithImmediate = 0xab, Xrc Write Only [XRCETH RETH IMM] true;
    XrcReadRequest = 0xac, Xrc ReadRequest Only [XRCETH RETH] false;
    XrcReadResponseFirst = 0xad, Xrc ReadResponse First [AETH] true;
    XrcReadResponseMiddle = 0xae, Xrc ReadResponse Middle [] true;
    XrcReadResponseLast = 0xaf, Xrc ReadResponse Last [AETH] true;
    XrcReadResponseOnly = 0xb0, Xrc ReadResponse Only [AETH] true;
    XrcAcknowledge = 0xb1, Xrc Ack Only [AETH] false;
    XrcAtomicAcknowledge = 0xb2, Xrc AtomicAck Only [AETH ATOMIC_ACK_ETH] false;
    XrcCompareSwap = 0xb3, Xrc CompareSwap Only [XRCETH ATOMIC_ETH] false;
    XrcFetchAdd = 0xb4, Xrc FetchAdd Only [XRCETH ATOMIC_ETH] false;
    XrcSendLastWithInvalidate = 0xb6, Xrc Send Last [XRCETH IETH] true;
    XrcSendOnlyWithInvalidate = 0xb7, Xrc Send Only [XRCETH IETH] true;
    /// Defined by analogy with RC; no implementation is known to send it.
    XrcFlush = 0xbc, Xrc Flush Only [XRCETH FETH RETH] false;
    /// Defined by analogy with RC; no implementation is known to send it.
    XrcAtomicWrite = 0xbd, Xrc AtomicWrite Only [XRCETH RETH] true;

    /// READY, an operation of Faultline: the PSN is that of a request that got an RNR NAK. It acknowledges nothing.
    Ready = 0xc0, Manufacturer Ready Only [] false;
}

impl Opcode {
    /// The byte on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// True if the packet starts a message.
    #[inline]
    pub const fn is_first_or_only(self) -> bool {
        matches!(self.info().position, Position::First | Position::Only)
    }

    /// True if the packet ends a message.
    #[inline]
    pub const fn is_last_or_only(self) -> bool {
        matches!(self.info().position, Position::Last | Position::Only)
    }

    /// True if a requester sends the packet.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.info().kind.is_request()
    }

    /// True if a responder sends the packet in reply to a request. CNP is neither request nor response.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.info().kind.is_response()
    }

    /// True if the packet has all of `headers`.
    #[inline]
    pub const fn has(self, headers: Headers) -> bool {
        self.info().headers.contains(headers)
    }

    /// The opcode of a packet in the middle of the same message; `None` if the message always has one packet.
    pub const fn middle(self) -> Option<Self> {
        let middle = match self.info().kind {
            OpKind::Send => Self::RcSendMiddle,
            OpKind::Write => Self::RcWriteMiddle,
            OpKind::ReadResponse => Self::RcReadResponseMiddle,
            _ => return None,
        };
        middle.with_service(self.info().service)
    }

    /// The same operation in another service; `None` if that service does not have it (READ over
    /// UC, anything but SEND ONLY over UD) and for a CNP. An operation of a manufacturer is the same in
    /// all reliable services.
    #[inline]
    pub const fn with_service(self, service: Service) -> Option<Self> {
        use Service::{Cnp, Manufacturer, Rc, Uc, Ud, Xrc};
        let base = match (self.info().service, service) {
            (Cnp, Cnp) | (Manufacturer, Manufacturer | Rc | Xrc) => return Some(self),
            (Cnp | Manufacturer, _) | (_, Cnp | Manufacturer) => return None,
            (Rc | Uc | Ud | Xrc, Rc) => 0x00,
            (Rc | Uc | Ud | Xrc, Uc) => 0x20,
            (Rc | Uc | Ud | Xrc, Ud) => 0x60,
            (Rc | Uc | Ud | Xrc, Xrc) => 0xa0,
        };
        Self::from_u8(base | self.to_u8() & 0x1f)
    }
}

impl TryFrom<u8> for Opcode {
    type Error = crate::WireError;

    fn try_from(byte: u8) -> Result<Self, Self::Error> {
        Self::from_u8(byte).ok_or(crate::WireError::UnknownOpcode(byte))
    }
}
