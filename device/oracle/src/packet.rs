//! Rules that one packet alone can violate.

use faultline_wire::packet::{Parsed, RoceHeader};
use faultline_wire::{CNP_PAYLOAD_LEN, Headers, Ip, OpKind, PathMtu, Position, Syndrome};

use crate::rule::Rule;

/// A rule with what is wrong.
pub(crate) type Finding = (Rule, String);

/// What is known where a packet is seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The time.
    pub at: u64,
    /// All packets of the connection that arrive are known.
    pub is_exact: bool,
    /// Packets of the same sender may have been lost before they could be seen: what a gap explains violates nothing.
    pub may_have_gaps: bool,
}

/// Longest message: 2^31 bytes (IBTA 9.7.7).
const MAX_MESSAGE: u32 = 1 << 31;

/// Longest payload of a packet.
const MAX_PAYLOAD: usize = PathMtu::Mtu4096.bytes();

/// Calls `report` for each rule that the packet violates.
pub(crate) fn check(parsed: &Parsed<'_>, frame: &[u8], report: &mut dyn FnMut(Finding)) {
    if !parsed.icrc_ok {
        let icrc = parsed.icrc;
        report((
            Rule::InvariantCrc,
            format!("the invariant CRC {icrc:#010x} is wrong"),
        ));
    }
    fixed_fields(&parsed.header, report);
    padding(parsed, frame, report);
    payload_length(&parsed.header, parsed.payload.len(), report);
}

fn fixed_fields(header: &RoceHeader, report: &mut dyn FnMut(Finding)) {
    let mut wrong = |what: String| report((Rule::FixedField, what));
    let bth = &header.bth;
    if header.ethernet.src.is_multicast() {
        let src = header.ethernet.src;
        wrong(format!("the source address {src} is a group address"));
    }
    if header.ip.hop_limit() == 0 {
        wrong("the hop limit is 0".to_owned());
    }
    if let Ip::V4(ip) = &header.ip
        && !ip.dont_fragment
    {
        wrong("the IPv4 header permits fragments".to_owned());
    }
    if bth.pkey & 0x7fff == 0 {
        wrong(format!("the P_Key {:#06x} is invalid", bth.pkey));
    }
    let is_cnp = bth.opcode.info().kind == OpKind::Cnp;
    if bth.becn != is_cnp {
        let kind = if is_cnp { "a" } else { "no" };
        let value = u8::from(bth.becn);
        wrong(format!("BECN is {value} in {kind} CNP"));
    }
    if is_cnp && (bth.ack_req || bth.solicited) {
        wrong("a CNP asks for an acknowledgement or an event".to_owned());
    }
    if bth.opcode.is_response() && bth.ack_req {
        wrong("a response asks for an acknowledgement".to_owned());
    }
    if let Some(aeth) = &header.aeth
        && let Syndrome::Reserved(syndrome) = aeth.syndrome
    {
        wrong(format!("the syndrome {syndrome:#04x} is reserved"));
    }
    // An RNR NAK or a NAK is an ACKNOWLEDGE packet: responses with data have the syndrome of an ACK.
    if let Some(aeth) = &header.aeth
        && bth.opcode.info().kind == OpKind::ReadResponse
        && !matches!(aeth.syndrome, Syndrome::Ack { .. })
    {
        wrong("a READ response has the syndrome of a NAK".to_owned());
    }
    if let Some(reth) = &header.reth
        && reth.len > MAX_MESSAGE
    {
        wrong(format!("the RETH asks for {} bytes", reth.len));
    }
}

fn padding(parsed: &Parsed<'_>, frame: &[u8], report: &mut dyn FnMut(Finding)) {
    let at = parsed
        .header
        .header_len()
        .saturating_add(parsed.payload.len());
    let end = at.saturating_add(usize::from(parsed.header.bth.pad));
    let pad = frame.get(at..end).unwrap_or_default();
    if pad.iter().any(|octet| *octet != 0) {
        report((Rule::Padding, format!("the pad octets are {pad:02x?}")));
    }
}

fn payload_length(header: &RoceHeader, len: usize, report: &mut dyn FnMut(Finding)) {
    let info = header.bth.opcode.info();
    let mut wrong = |what: String| report((Rule::PayloadLength, what));
    let is_whole_mtu =
        || (0..=7).any(|code| PathMtu::from_code(code).is_ok_and(|m| m.bytes() == len));
    match info.kind {
        OpKind::Cnp if len != CNP_PAYLOAD_LEN => {
            wrong(format!("a CNP has {len} octets after its BTH"));
        }
        OpKind::Cnp => {}
        OpKind::AtomicWrite if len != 8 => wrong(format!("an ATOMIC WRITE has {len} bytes")),
        _ if !info.payload && len > 0 => wrong(format!("{len} bytes follow, none may")),
        _ if len > MAX_PAYLOAD => wrong(format!("{len} bytes are more than the largest MTU")),
        _ if matches!(info.position, Position::First | Position::Middle) && !is_whole_mtu() => {
            wrong(format!("{len} bytes in the middle of a message are no MTU"));
        }
        _ if info.position == Position::Last && len == 0 => {
            wrong("the last packet of a message is empty".to_owned());
        }
        _ => {}
    }
    if info.position == Position::Only
        && info.headers.contains(Headers::RETH)
        && info.payload
        && let Some(reth) = &header.reth
        && usize::try_from(reth.len) != Ok(len)
    {
        let said = reth.len;
        report((
            Rule::MessageLength,
            format!("{len} bytes follow, the RETH says {said}"),
        ));
    }
}
