//! Fields whose values are not judged, neither in a single packet nor in relation to others of the connection.

use faultline_wire::field::Part;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Headers, OpKind, Opcode, Position, Service};

/// A packet with another value in one of its fields.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The original header.
    pub header: &'a RoceHeader,
    /// It is the first packet of its side of the connection.
    pub is_first: bool,
    /// It is sent more than once.
    pub is_repeated: bool,
    /// The value of the field.
    pub value: u128,
}

/// Changes of a field that violate no rule.
#[derive(Clone, Copy, Debug)]
pub struct Unjudged {
    /// Where the field is.
    pub part: Part,
    /// Its name in the table of fields.
    pub field: &'static str,
    /// The packets in which the field is not judged.
    pub packets: &'static str,
    /// Returns true for changes of these packets. Some of these changes may cause findings.
    pub applies: fn(&Change<'_>) -> bool,
    /// Why it is not judged.
    pub reason: &'static str,
}

impl Unjudged {
    const fn new(
        (part, field): (Part, &'static str),
        (packets, applies): Packets,
        reason: &'static str,
    ) -> Self {
        Self {
            part,
            field,
            packets,
            applies,
            reason,
        }
    }
}

type Packets = (&'static str, fn(&Change<'_>) -> bool);

fn kind(change: &Change<'_>) -> OpKind {
    change.header.bth.opcode.info().kind
}

fn service(change: &Change<'_>) -> Service {
    change.header.bth.opcode.info().service
}

fn is_response(change: &Change<'_>) -> bool {
    change.header.bth.opcode.is_response()
}

/// The opcode after a change of it.
fn changed_opcode(change: &Change<'_>) -> Option<Opcode> {
    Opcode::from_u8(u8::try_from(change.value).ok()?)
}

const EACH: Packets = ("each", |_| true);
const FIRST: Packets = ("the first one of a side", |c| c.is_first);
const DATAGRAMS: Packets = ("UD", |c| service(c) == Service::Ud);
const CNPS: Packets = ("CNP", |c| kind(c) == OpKind::Cnp);
/// Later requests show that a request is missing.
const NOT_MISSED: Packets = (
    "responses, UD, CNP, the first one of a side, repeated ones",
    |c| {
        c.is_first
            || c.is_repeated
            || is_response(c)
            || service(c) == Service::Ud
            || kind(c) == OpKind::Cnp
    },
);
const RELIABLE_REQUESTS: Packets = ("requests of RC and XRC", |c| {
    c.header.bth.opcode.is_request() && matches!(service(c), Service::Rc | Service::Xrc)
});
const WITH_EVENT: Packets = (
    "the last ones of messages that take a receive request",
    |c| {
        let opcode = c.header.bth.opcode;
        let takes = kind(c) == OpKind::Send || opcode.has(Headers::IMM);
        takes && opcode.is_last_or_only()
    },
);
const ENDS_OF_SENDS: Packets = ("the last ones of SENDs", |c| {
    kind(c) == OpKind::Send && c.header.bth.opcode.is_last_or_only()
});
const MEMBERSHIP: Packets = ("each, the bit of membership", |c| c.value == 0x7fff);
const ACKNOWLEDGES: Packets = ("ACKNOWLEDGE", |c| kind(c) == OpKind::Ack);
const WITH_DATA: Packets = ("responses with data", |c| {
    matches!(kind(c), OpKind::ReadResponse | OpKind::AtomicAck)
});
const CREDITS: Packets = ("responses with data, the credits", |c| {
    (WITH_DATA.1)(c) && c.value < 0x20
});
const FLUSHES: Packets = ("FLUSH", |c| kind(c) == OpKind::Flush);
const ALIGNED: Packets = ("each", |c| {
    let needs = matches!(
        kind(c),
        OpKind::CompareSwap | OpKind::FetchAdd | OpKind::AtomicWrite
    );
    !needs || c.value % 8 == 0
});
const SINGLE: Packets = ("XRC requests of one packet", |c| {
    c.header.bth.opcode.info().position == Position::Only
});
const OTHER_END: Packets = (
    "the last ones of messages, another one of the same service",
    |c| {
        let was = c.header.bth.opcode.info();
        let is = changed_opcode(c).map(Opcode::info);
        let is_end =
            matches!(was.position, Position::Last | Position::Only) && was.kind.is_request();
        is_end && is.is_some_and(|is| is.service == was.service && is.position == was.position)
    },
);
const OF_OTHER_SIDE: Packets = ("responses, a request", |c| {
    is_response(c) && changed_opcode(c).is_some_and(Opcode::is_request)
});
const OTHER_DATAGRAM: Packets = ("UD, any", |c| service(c) == Service::Ud);
const TO_OTHERS: Packets = ("UD, but for queue pair 1", |c| {
    service(c) == Service::Ud && c.header.bth.dest_qp != faultline_wire::GSI_QPN
});

const NO_ROCE: &str = "the frame is not a RoCE packet; only later requests show the gap";
const NETWORK: &str = "set by the network's configuration";
const CHOICE: &str = "the requester's choice";
const MEMORY: &str = "depends on the memory of the responder";
const OTHER_CONNECTION: &str =
    "the packet belongs to another connection, which has no other packet in the capture";

/// All of them.
pub const UNJUDGED: &[Unjudged] = &[
    Unjudged::new(
        (Part::Ethernet, "destination"),
        EACH,
        "routers change it; only the group bit is judged",
    ),
    Unjudged::new(
        (Part::Ethernet, "source"),
        EACH,
        "routers change it; only the group bit is judged",
    ),
    Unjudged::new((Part::Vlan, "tag protocol"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Vlan, "priority"), EACH, NETWORK),
    Unjudged::new((Part::Vlan, "drop eligible"), EACH, NETWORK),
    Unjudged::new((Part::Vlan, "VLAN"), EACH, NETWORK),
    Unjudged::new((Part::EtherType, "EtherType"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv4, "version"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv4, "header length"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv4, "DSCP"), EACH, NETWORK),
    Unjudged::new((Part::Ipv4, "ECN"), EACH, NETWORK),
    Unjudged::new(
        (Part::Ipv4, "identification"),
        EACH,
        "has no meaning without fragments (RFC 6864)",
    ),
    Unjudged::new((Part::Ipv4, "more fragments"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv4, "fragment offset"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv4, "time to live"), EACH, "any but 0"),
    Unjudged::new((Part::Ipv4, "protocol"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv4, "source"), NOT_MISSED, OTHER_CONNECTION),
    Unjudged::new((Part::Ipv4, "destination"), NOT_MISSED, OTHER_CONNECTION),
    Unjudged::new((Part::Ipv6, "version"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv6, "DSCP"), EACH, NETWORK),
    Unjudged::new((Part::Ipv6, "ECN"), EACH, NETWORK),
    Unjudged::new(
        (Part::Ipv6, "flow label"),
        EACH,
        "selects a path; has no meaning for the receiver",
    ),
    Unjudged::new((Part::Ipv6, "next header"), NOT_MISSED, NO_ROCE),
    Unjudged::new((Part::Ipv6, "hop limit"), EACH, "any but 0"),
    Unjudged::new((Part::Ipv6, "source"), NOT_MISSED, OTHER_CONNECTION),
    Unjudged::new((Part::Ipv6, "destination"), NOT_MISSED, OTHER_CONNECTION),
    Unjudged::new(
        (Part::Udp, "source port"),
        EACH,
        "selects a path; has no meaning for the receiver",
    ),
    Unjudged::new((Part::Udp, "destination port"), NOT_MISSED, NO_ROCE),
    Unjudged::new(
        (Part::Bth, "opcode"),
        FIRST,
        "the packet before it is not in the capture",
    ),
    Unjudged::new(
        (Part::Bth, "opcode"),
        OTHER_END,
        "payload can be read as immediate data, key or RETH, and vice versa",
    ),
    Unjudged::new(
        (Part::Bth, "opcode"),
        OF_OTHER_SIDE,
        "may be the first packet of another connection; a later acknowledgement covers the missing response",
    ),
    Unjudged::new(
        (Part::Bth, "opcode"),
        OTHER_DATAGRAM,
        "belongs to no connection; may be the first packet of one",
    ),
    Unjudged::new((Part::Bth, "solicited event"), WITH_EVENT, CHOICE),
    Unjudged::new((Part::Bth, "MigReq"), EACH, "adapters send both values"),
    Unjudged::new(
        (Part::Bth, "pad count"),
        ENDS_OF_SENDS,
        "no header has the length of the message",
    ),
    Unjudged::new(
        (Part::Bth, "P_Key"),
        MEMBERSHIP,
        "both ends but one may be limited members",
    ),
    Unjudged::new(
        (Part::Bth, "P_Key"),
        DATAGRAMS,
        "the queue pair's or the request's choice",
    ),
    Unjudged::new((Part::Bth, "P_Key"), CNPS, "no header names its connection"),
    Unjudged::new(
        (Part::Bth, "destination queue pair"),
        NOT_MISSED,
        OTHER_CONNECTION,
    ),
    Unjudged::new((Part::Bth, "AckReq"), RELIABLE_REQUESTS, CHOICE),
    Unjudged::new(
        (Part::Bth, "PSN"),
        FIRST,
        "a connection may begin with any PSN",
    ),
    Unjudged::new(
        (Part::Bth, "PSN"),
        DATAGRAMS,
        "has no meaning for the receiver",
    ),
    Unjudged::new(
        (Part::Bth, "PSN"),
        ACKNOWLEDGES,
        "the last one may be repeated; a later one acknowledges the same requests",
    ),
    Unjudged::new(
        (Part::XrcEth, "XRCSRQ"),
        SINGLE,
        "each message may be for another one",
    ),
    Unjudged::new(
        (Part::Deth, "Q_Key"),
        TO_OTHERS,
        "packets do not contain the Q_Keys of queue pairs",
    ),
    Unjudged::new(
        (Part::Deth, "source queue pair"),
        DATAGRAMS,
        "any queue pair",
    ),
    Unjudged::new((Part::Feth, "selectivity"), FLUSHES, CHOICE),
    Unjudged::new((Part::Feth, "placement"), FLUSHES, CHOICE),
    Unjudged::new((Part::Reth, "virtual address"), ALIGNED, MEMORY),
    Unjudged::new((Part::Reth, "R_Key"), EACH, MEMORY),
    Unjudged::new(
        (Part::Reth, "DMA length"),
        FLUSHES,
        "its response has no data",
    ),
    Unjudged::new((Part::AtomicEth, "virtual address"), ALIGNED, MEMORY),
    Unjudged::new((Part::AtomicEth, "R_Key"), EACH, MEMORY),
    Unjudged::new((Part::AtomicEth, "swap or add data"), EACH, CHOICE),
    Unjudged::new((Part::AtomicEth, "compare data"), EACH, CHOICE),
    Unjudged::new(
        (Part::Aeth, "syndrome"),
        ACKNOWLEDGES,
        "credits, RNR times and the reason of a NAK are the responder's choice",
    ),
    Unjudged::new((Part::Aeth, "syndrome"), CREDITS, "the responder's choice"),
    Unjudged::new(
        (Part::Aeth, "MSN"),
        WITH_DATA,
        "may or may not include the message itself",
    ),
    Unjudged::new((Part::AtomicAckEth, "original data"), EACH, MEMORY),
    Unjudged::new((Part::ImmDt, "immediate data"), EACH, CHOICE),
    Unjudged::new((Part::Ieth, "R_Key"), EACH, CHOICE),
];
