//! The fields of a packet, bit by bit, and the values that each may have by opcode and service: a table for checkers.
//!
//! The table has the rules for one header by itself. Values that depend on other packets or on other headers of the
//! same packet (PSNs, lengths, addresses) have no limit here, except the Q_Key, which depends on the destination queue
//! pair. Parsing uses none of this: a receiver ignores reserved bits.
//!
//! # Panics
//!
//! Nothing here panics, whatever the bytes are.

use core::fmt;

use crate::packet::RoceHeader;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, CNP_PAYLOAD_LEN, Deth, Feth, GSI_QKEY, GSI_QPN, Headers,
    Ieth, ImmDt, Ip, Ipv4, Ipv6, MULTICAST_QPN, NakCode, OpKind, Reth, Service, Syndrome, Udp,
    VlanTag, XrcEth,
};

/// Longest message: 2^31 bytes (IBTA volume 1, chapter 9.7.7).
const MAX_MESSAGE: u128 = 1 << 31;

/// A header, or another part of a packet with fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Ethernet addresses.
    Ethernet,
    /// 802.1Q tag with its EtherType.
    Vlan,
    /// EtherType of the IP header.
    EtherType,
    /// IPv4 header.
    Ipv4,
    /// IPv6 header.
    Ipv6,
    /// UDP header.
    Udp,
    /// Base transport header.
    Bth,
    /// XRC header.
    XrcEth,
    /// Datagram header.
    Deth,
    /// Flush header.
    Feth,
    /// RDMA header.
    Reth,
    /// Atomic request.
    AtomicEth,
    /// ACK header.
    Aeth,
    /// Atomic acknowledgment.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// R_Key to invalidate.
    Ieth,
    /// Reserved octets of a CNP.
    Cnp,
}

impl Part {
    /// All parts, in the order in which they are in a packet.
    pub const ALL: [Self; 17] = [
        Self::Ethernet,
        Self::Vlan,
        Self::EtherType,
        Self::Ipv4,
        Self::Ipv6,
        Self::Udp,
        Self::Bth,
        Self::XrcEth,
        Self::Deth,
        Self::Feth,
        Self::Reth,
        Self::AtomicEth,
        Self::Aeth,
        Self::AtomicAckEth,
        Self::ImmDt,
        Self::Ieth,
        Self::Cnp,
    ];

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::EtherType => "EtherType",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Udp => "UDP",
            Self::Bth => "BTH",
            Self::XrcEth => "XRCETH",
            Self::Deth => "DETH",
            Self::Feth => "FETH",
            Self::Reth => "RETH",
            Self::AtomicEth => "AtomicETH",
            Self::Aeth => "AETH",
            Self::AtomicAckEth => "AtomicAckETH",
            Self::ImmDt => "ImmDt",
            Self::Ieth => "IETH",
            Self::Cnp => "CNP",
        }
    }

    /// Its length in octets.
    pub const fn octets(self) -> usize {
        match self {
            Self::Ethernet => 12,
            Self::Vlan => VlanTag::LEN,
            Self::EtherType => 2,
            Self::Ipv4 => Ipv4::LEN,
            Self::Ipv6 => Ipv6::LEN,
            Self::Udp => Udp::LEN,
            Self::Bth => Bth::LEN,
            Self::XrcEth => XrcEth::LEN,
            Self::Deth => Deth::LEN,
            Self::Feth => Feth::LEN,
            Self::Reth => Reth::LEN,
            Self::AtomicEth => AtomicEth::LEN,
            Self::Aeth => Aeth::LEN,
            Self::AtomicAckEth => AtomicAckEth::LEN,
            Self::ImmDt => ImmDt::LEN,
            Self::Ieth => Ieth::LEN,
            Self::Cnp => CNP_PAYLOAD_LEN,
        }
    }

    /// True if a packet with this header has the part.
    const fn is_in(self, header: &RoceHeader) -> bool {
        let opcode = header.bth.opcode;
        match self {
            Self::Ethernet | Self::EtherType | Self::Udp | Self::Bth => true,
            Self::Vlan => header.ethernet.vlan.is_some(),
            Self::Ipv4 => matches!(header.ip, Ip::V4(_)),
            Self::Ipv6 => matches!(header.ip, Ip::V6(_)),
            Self::XrcEth => opcode.has(Headers::XRCETH),
            Self::Deth => opcode.has(Headers::DETH),
            Self::Feth => opcode.has(Headers::FETH),
            Self::Reth => opcode.has(Headers::RETH),
            Self::AtomicEth => opcode.has(Headers::ATOMIC_ETH),
            Self::Aeth => opcode.has(Headers::AETH),
            Self::AtomicAckEth => opcode.has(Headers::ATOMIC_ACK_ETH),
            Self::ImmDt => opcode.has(Headers::IMM),
            Self::Ieth => opcode.has(Headers::IETH),
            Self::Cnp => matches!(opcode.info().kind, OpKind::Cnp),
        }
    }

    /// Its fields, which have all of its bits.
    pub const fn fields(self) -> &'static [Field] {
        match self {
            Self::Ethernet => ETHERNET,
            Self::Vlan => VLAN,
            Self::EtherType => ETHER_TYPE,
            Self::Ipv4 => IPV4,
            Self::Ipv6 => IPV6,
            Self::Udp => UDP,
            Self::Bth => BTH,
            Self::XrcEth => XRCETH,
            Self::Deth => DETH,
            Self::Feth => FETH,
            Self::Reth => RETH,
            Self::AtomicEth => ATOMIC_ETH,
            Self::Aeth => AETH,
            Self::AtomicAckEth => ATOMIC_ACK_ETH,
            Self::ImmDt => IMM_DT,
            Self::Ieth => IETH,
            Self::Cnp => CNP,
        }
    }
}

/// The parts of a packet with this header, each with its offset in the frame in bytes.
pub fn parts(header: &RoceHeader) -> impl Iterator<Item = (Part, usize)> {
    let present = Part::ALL.into_iter().filter(|part| part.is_in(header));
    present.scan(0_usize, |at, part| {
        let start = *at;
        *at = at.saturating_add(part.octets());
        Some((part, start))
    })
}

/// How much a limit binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strength {
    /// The specification does not permit other values.
    Required,
    /// Other values mean nothing, or the receiver must refuse them: no sender has a reason for them.
    Expected,
}

/// The values that a field may have.
#[derive(Clone, Copy)]
pub enum Permitted {
    /// This one.
    Is(u128),
    /// Those for which the function returns true.
    Where(fn(u128) -> bool, &'static str),
}

impl Permitted {
    /// True if the field may have this value.
    pub fn holds(&self, value: u128) -> bool {
        match self {
            Self::Is(only) => value == *only,
            Self::Where(holds, _) => holds(value),
        }
    }
}

impl fmt::Display for Permitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(only) => write!(f, "must be {only:#x}"),
            Self::Where(_, what) => write!(f, "must {what}"),
        }
    }
}

impl fmt::Debug for Permitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The values that a field may have in some packets.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The packets.
    pub packets: &'static str,
    /// True for these packets.
    pub applies: fn(&RoceHeader) -> bool,
    /// The values.
    pub permitted: Permitted,
    /// How much it binds.
    pub strength: Strength,
}

/// A field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, as in the specification.
    pub name: &'static str,
    /// Its first bit in its part.
    pub at: usize,
    /// Number of bits.
    pub width: usize,
    /// The values that it may have. Without a limit for a packet: any.
    pub limits: &'static [Limit],
}

impl Field {
    const fn any(name: &'static str, at: usize, width: usize) -> Self {
        Self::limited(name, at, width, &[])
    }

    const fn limited(
        name: &'static str,
        at: usize,
        width: usize,
        limits: &'static [Limit],
    ) -> Self {
        Self {
            name,
            at,
            width,
            limits,
        }
    }

    /// Bits that are sent as zero and ignored by the receiver.
    const fn reserved(name: &'static str, at: usize, width: usize) -> Self {
        const ZERO: &[Limit] = &[Limit::required(EVERY, Permitted::Is(0))];
        Self::limited(name, at, width, ZERO)
    }

    /// Reads the field from the octets of its part. Bits that are not there are zero.
    pub fn read(&self, part: &[u8]) -> u128 {
        let end = self.at.saturating_add(self.width);
        let octets = (self.at / 8)..end.div_ceil(8);
        let octets = part.get(octets).unwrap_or_default();
        let all = octets
            .iter()
            .fold(0_u128, |all, octet| all << 8 | u128::from(*octet));
        // Bits of the last octet behind the field.
        let behind = end.next_multiple_of(8).saturating_sub(end);
        all >> behind & self.mask()
    }

    /// Writes the field into the octets of its part. Bits beyond its width are dropped.
    pub fn write(&self, part: &mut [u8], value: u128) {
        for bit in 0..self.width {
            let from_end = self.width.saturating_sub(bit).saturating_sub(1);
            let is_set = value >> from_end & 1 == 1;
            let place = self.at.saturating_add(bit);
            let mask = 0x80_u8 >> (place % 8);
            if let Some(octet) = part.get_mut(place / 8) {
                *octet = if is_set {
                    *octet | mask
                } else {
                    *octet & !mask
                };
            }
        }
    }

    /// Its largest value.
    pub fn mask(&self) -> u128 {
        let unused = u32::try_from(self.width).map_or(0, |width| 128_u32.saturating_sub(width));
        u128::MAX.checked_shr(unused).unwrap_or(0)
    }
}

/// A field with a value that it may not have.
#[derive(Clone, Copy, Debug)]
pub struct Misfit {
    /// Where the field is.
    pub part: Part,
    /// The field.
    pub field: &'static Field,
    /// Its value.
    pub value: u128,
    /// What it violates.
    pub limit: &'static Limit,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (part, name, value) = (self.part.name(), self.field.name, self.value);
        let Limit {
            packets, permitted, ..
        } = self.limit;
        write!(
            f,
            "{part} {name} is {value:#x}, and {permitted} in {packets}"
        )
    }
}

/// Compares all fields of a frame with this header with the table.
pub fn check(header: &RoceHeader, frame: &[u8], mut report: impl FnMut(Misfit)) {
    for (part, at) in parts(header) {
        let octets = frame.get(at..).unwrap_or_default();
        for field in part.fields() {
            let applies = |limit: &&Limit| (limit.applies)(header);
            let mut limits = field.limits.iter().filter(applies).peekable();
            if limits.peek().is_none() {
                continue;
            }
            let value = field.read(octets);
            for limit in limits.filter(|limit| !limit.permitted.holds(value)) {
                report(Misfit {
                    part,
                    field,
                    value,
                    limit,
                });
            }
        }
    }
}

/// The packets to which a limit applies: their name, and a predicate.
type Packets = (&'static str, fn(&RoceHeader) -> bool);

impl Limit {
    const fn required((packets, applies): Packets, permitted: Permitted) -> Self {
        Self {
            packets,
            applies,
            permitted,
            strength: Strength::Required,
        }
    }

    const fn expected(packets: Packets, permitted: Permitted) -> Self {
        Self {
            strength: Strength::Expected,
            ..Self::required(packets, permitted)
        }
    }
}

fn kind(header: &RoceHeader) -> OpKind {
    header.bth.opcode.info().kind
}

fn service(header: &RoceHeader) -> Service {
    header.bth.opcode.info().service
}

fn syndrome(value: u128) -> Option<Syndrome> {
    u8::try_from(value).ok().map(Syndrome::from_u8)
}

const EVERY: Packets = ("each packet", |_| true);
const CNPS: Packets = ("a CNP", |h| kind(h) == OpKind::Cnp);
const NO_CNPS: Packets = ("a packet that is no CNP", |h| kind(h) != OpKind::Cnp);
const RESPONSES: Packets = ("a response", |h| h.bth.opcode.is_response());
const UNRELIABLE: Packets = ("a packet of an unreliable service", |h| {
    matches!(service(h), Service::Uc | Service::Ud)
});
/// All but congestion notifications. A notification answers any marked packet, also a datagram, even of queue pair 1,
/// and then goes to the queue pair that has sent it. Linux does so (`hfi1_process_ecn_slowpath` in
/// `drivers/infiniband/hw/hfi1`).
const CONNECTED: Packets = ("a packet of a connection", |h| {
    !matches!(service(h), Service::Ud | Service::Cnp)
});
const DATAGRAMS: Packets = ("a datagram", |h| service(h) == Service::Ud);
const TO_GSI: Packets = ("a packet to queue pair 1", |h| {
    service(h) == Service::Ud && h.bth.dest_qp == GSI_QPN
});
/// Only a message that takes a receive request can cause a solicited event, with its last packet (IBTA 9.2.3).
const WITHOUT_EVENT: Packets = ("a packet that completes no receive request", |h| {
    let opcode = h.bth.opcode;
    let takes_receive = match kind(h) {
        OpKind::Send => true,
        OpKind::Write => opcode.has(Headers::IMM),
        _ => false,
    };
    !(takes_receive && opcode.is_last_or_only())
});
const ACKNOWLEDGES: Packets = ("an ACKNOWLEDGE", |h| kind(h) == OpKind::Ack);
/// An RNR NAK or a NAK is an ACKNOWLEDGE packet (IBTA 9.7.5.1).
const WITH_DATA: Packets = ("a response with data", |h| {
    matches!(kind(h), OpKind::ReadResponse | OpKind::AtomicAck)
});
const ATOMIC_WRITES: Packets = ("an ATOMIC WRITE", |h| kind(h) == OpKind::AtomicWrite);
const ATOMICS: Packets = ("an atomic", |h| kind(h).is_atomic());

const OF_ONE_QUEUE_PAIR: Permitted = Permitted::Where(
    |qpn| qpn != 0 && qpn != MULTICAST_QPN as u128,
    "be that of a queue pair",
);
const ALIGNED: Permitted = Permitted::Where(
    |address| address.trailing_zeros() >= 3,
    "be a multiple of 8",
);
const IS_SYNDROME: Permitted = Permitted::Where(
    |value| !matches!(syndrome(value), None | Some(Syndrome::Reserved(_))),
    "be that of an ACK, an RNR NAK or a NAK",
);
const IS_NOT_OF_RD: Permitted = Permitted::Where(
    |value| syndrome(value) != Some(Syndrome::Nak(NakCode::InvalidRdRequest)),
    "not be the NAK of reliable datagrams",
);
const IS_ACK: Permitted = Permitted::Where(|value| value < 0x20, "be that of an ACK");

const ETHERNET: &[Field] = &[
    Field::any("destination", 0, 48),
    Field::limited(
        "source",
        48,
        48,
        &[Limit::required(
            EVERY,
            Permitted::Where(|mac| mac >> 40 & 1 == 0, "be no group address"),
        )],
    ),
];

const VLAN: &[Field] = &[
    Field::any("tag protocol", 0, 16),
    Field::any("priority", 16, 3),
    Field::any("drop eligible", 19, 1),
    Field::any("VLAN", 20, 12),
];

const ETHER_TYPE: &[Field] = &[Field::any("EtherType", 0, 16)];

const IPV4: &[Field] = &[
    Field::any("version", 0, 4),
    Field::any("header length", 4, 4),
    Field::any("DSCP", 8, 6),
    Field::any("ECN", 14, 2),
    Field::any("total length", 16, 16),
    Field::any("identification", 32, 16),
    Field::reserved("reserved flag", 48, 1),
    Field::limited(
        "don't fragment",
        49,
        1,
        &[Limit::required(EVERY, Permitted::Is(1))],
    ),
    Field::any("more fragments", 50, 1),
    Field::any("fragment offset", 51, 13),
    Field::limited("time to live", 64, 8, NOT_ZERO),
    Field::any("protocol", 72, 8),
    Field::any("header checksum", 80, 16),
    Field::any("source", 96, 32),
    Field::any("destination", 128, 32),
];

const IPV6: &[Field] = &[
    Field::any("version", 0, 4),
    Field::any("DSCP", 4, 6),
    Field::any("ECN", 10, 2),
    Field::any("flow label", 12, 20),
    Field::any("payload length", 32, 16),
    Field::any("next header", 48, 8),
    Field::limited("hop limit", 56, 8, NOT_ZERO),
    Field::any("source", 64, 128),
    Field::any("destination", 192, 128),
];

/// Routers discard packets whose count reaches zero.
const NOT_ZERO: &[Limit] = &[Limit::required(
    EVERY,
    Permitted::Where(|value| value != 0, "not be 0"),
)];

const UDP: &[Field] = &[
    Field::any("source port", 0, 16),
    Field::any("destination port", 16, 16),
    Field::any("length", 32, 16),
    Field::any("checksum", 48, 16),
];

const BTH: &[Field] = &[
    Field::any("opcode", 0, 8),
    Field::limited(
        "solicited event",
        8,
        1,
        &[Limit::required(WITHOUT_EVENT, Permitted::Is(0))],
    ),
    Field::any("MigReq", 9, 1),
    Field::any("pad count", 10, 2),
    Field::any("transport version", 12, 4),
    Field::limited(
        "P_Key",
        16,
        16,
        &[Limit::required(
            EVERY,
            Permitted::Where(|pkey| pkey & 0x7fff != 0, "name a partition"),
        )],
    ),
    // RoCEv2 marks congestion in the IP header.
    Field::limited("FECN", 32, 1, &[Limit::expected(EVERY, Permitted::Is(0))]),
    Field::limited(
        "BECN",
        33,
        1,
        &[
            Limit::required(CNPS, Permitted::Is(1)),
            Limit::required(NO_CNPS, Permitted::Is(0)),
        ],
    ),
    Field::reserved("resv6", 34, 6),
    Field::limited(
        "destination queue pair",
        40,
        24,
        &[
            Limit::required(
                CONNECTED,
                Permitted::Where(
                    |qpn| qpn > GSI_QPN as u128 && qpn != MULTICAST_QPN as u128,
                    "be that of a connection",
                ),
            ),
            Limit::required(
                DATAGRAMS,
                Permitted::Where(|qpn| qpn != 0, "not be 0, which RoCE has not"),
            ),
            Limit::required(CNPS, OF_ONE_QUEUE_PAIR),
        ],
    ),
    Field::limited(
        "AckReq",
        64,
        1,
        &[
            Limit::required(RESPONSES, Permitted::Is(0)),
            Limit::required(CNPS, Permitted::Is(0)),
            Limit::expected(UNRELIABLE, Permitted::Is(0)),
        ],
    ),
    Field::reserved("resv7", 65, 7),
    Field::limited("PSN", 72, 24, &[Limit::expected(CNPS, Permitted::Is(0))]),
];

const XRCETH: &[Field] = &[
    Field::reserved("reserved", 0, 8),
    Field::any("XRCSRQ", 8, 24),
];

const DETH: &[Field] = &[
    Field::limited(
        "Q_Key",
        0,
        32,
        // The adapter sends the value of a process; the receiver drops it.
        &[Limit::expected(TO_GSI, Permitted::Is(GSI_QKEY as u128))],
    ),
    Field::reserved("reserved", 32, 8),
    Field::limited(
        "source queue pair",
        40,
        24,
        &[Limit::required(EVERY, OF_ONE_QUEUE_PAIR)],
    ),
];

const FETH: &[Field] = &[
    Field::reserved("reserved", 0, 26),
    Field::limited(
        "selectivity",
        26,
        2,
        &[Limit::required(
            EVERY,
            Permitted::Where(
                |level| level <= Feth::MR as u128,
                "be 0 (range) or 1 (memory region)",
            ),
        )],
    ),
    Field::limited(
        "placement",
        28,
        4,
        &[Limit::required(
            EVERY,
            Permitted::Where(
                |types| types != 0 && types <= (Feth::GLOBAL | Feth::PERSISTENT) as u128,
                "be global visibility, persistence or both",
            ),
        )],
    ),
];

const RETH: &[Field] = &[
    Field::limited(
        "virtual address",
        0,
        64,
        &[Limit::expected(ATOMIC_WRITES, ALIGNED)],
    ),
    Field::any("R_Key", 64, 32),
    Field::limited(
        "DMA length",
        96,
        32,
        &[
            Limit::required(
                EVERY,
                Permitted::Where(|len| len <= MAX_MESSAGE, "be at most 2^31"),
            ),
            Limit::required(ATOMIC_WRITES, Permitted::Is(8)),
        ],
    ),
];

const ATOMIC_ETH: &[Field] = &[
    Field::limited(
        "virtual address",
        0,
        64,
        &[Limit::expected(ATOMICS, ALIGNED)],
    ),
    Field::any("R_Key", 64, 32),
    Field::any("swap or add data", 96, 64),
    Field::any("compare data", 160, 64),
];

const AETH: &[Field] = &[
    Field::limited(
        "syndrome",
        0,
        8,
        &[
            Limit::required(ACKNOWLEDGES, IS_SYNDROME),
            Limit::expected(ACKNOWLEDGES, IS_NOT_OF_RD),
            Limit::required(WITH_DATA, IS_ACK),
        ],
    ),
    Field::any("MSN", 8, 24),
];

const ATOMIC_ACK_ETH: &[Field] = &[Field::any("original data", 0, 64)];

const IMM_DT: &[Field] = &[Field::any("immediate data", 0, 32)];

const IETH: &[Field] = &[Field::any("R_Key", 0, 32)];

const CNP: &[Field] = &[Field::reserved("reserved", 0, 128)];
