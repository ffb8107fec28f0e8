//! Rules that one packet alone can violate.

use faultline_wire::field::{self, Strength};
use faultline_wire::packet::{Parsed, RoceHeader};
use faultline_wire::{CNP_PAYLOAD_LEN, Headers, MULTICAST_QPN, OpKind, PathMtu, Position, Service};

use crate::rule::Rule;

/// A violated rule and the text of a [`Finding`](crate::Finding).
pub(crate) type Report = (Rule, String);

/// Knowledge at the place where a packet is seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The time.
    pub at: u64,
    /// All arriving packets of the connection are known.
    pub is_exact: bool,
    /// Packets of the same sender may have been lost before they were seen, so gaps are no violations.
    pub may_have_gaps: bool,
}

/// Longest payload of a packet.
pub(crate) const MAX_PAYLOAD: usize = PathMtu::Mtu4096.bytes();

/// Calls `report` for each rule that the packet violates.
pub(crate) fn check(parsed: &Parsed<'_>, frame: &[u8], report: &mut dyn FnMut(Report)) {
    if !parsed.icrc_ok {
        let icrc = parsed.icrc;
        report((
            Rule::InvariantCrc,
            format!("the invariant CRC {icrc:#010x} is wrong"),
        ));
    }
    fields(&parsed.header, frame, report);
    groups(&parsed.header, report);
    padding(parsed, frame, report);
    payload_length(&parsed.header, parsed.payload.len(), report);
}

fn fields(header: &RoceHeader, frame: &[u8], report: &mut dyn FnMut(Report)) {
    field::check(header, frame, |misfit| {
        let rule = match misfit.limit.strength {
            Strength::Required => Rule::FixedField,
            Strength::Expected => Rule::UnusualField,
        };
        report((rule, misfit.to_string()));
    });
}

/// Group addresses and the queue pair number of groups are used together, in datagrams only.
fn groups(header: &RoceHeader, report: &mut dyn FnMut(Report)) {
    let mut wrong = |what: String| report((Rule::Multicast, what));
    let (from, to) = (header.ip.src_gid(), header.ip.dst_gid());
    let is_datagram = header.bth.opcode.info().service == Service::Ud;
    let is_to_members = is_datagram && header.bth.dest_qp == MULTICAST_QPN;
    if from.is_multicast() {
        wrong(format!("the source {from} is a group"));
    }
    if to.is_multicast() && !is_datagram {
        wrong(format!("a packet of a connection goes to the group {to}"));
    } else if to.is_multicast() != is_to_members {
        let qpn = header.bth.dest_qp;
        let kind = if to.is_multicast() {
            "a group"
        } else {
            "one adapter"
        };
        wrong(format!("{to} is {kind}, and the queue pair is {qpn:#x}"));
    }
    let mac = header.ethernet.dst;
    if mac.is_multicast() != to.is_multicast() {
        let kind = if mac.is_multicast() {
            "a group"
        } else {
            "one adapter"
        };
        wrong(format!(
            "{to} is sent to the Ethernet address {mac} of {kind}"
        ));
    }
}

fn padding(parsed: &Parsed<'_>, frame: &[u8], report: &mut dyn FnMut(Report)) {
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

/// True if `len` is a path MTU.
pub(crate) fn is_mtu(len: usize) -> bool {
    (0..=7).any(|code| PathMtu::from_code(code).is_ok_and(|mtu| mtu.bytes() == len))
}

fn payload_length(header: &RoceHeader, len: usize, report: &mut dyn FnMut(Report)) {
    let info = header.bth.opcode.info();
    let mut wrong = |what: String| report((Rule::PayloadLength, what));
    match info.kind {
        OpKind::Cnp if len != CNP_PAYLOAD_LEN => {
            wrong(format!("a CNP has {len} octets after its BTH"));
        }
        OpKind::Cnp => {}
        OpKind::AtomicWrite if len != 8 => wrong(format!("an ATOMIC WRITE has {len} bytes")),
        _ if !info.payload && len > 0 => wrong(format!("{len} bytes follow, none may")),
        _ if len > MAX_PAYLOAD => wrong(format!("{len} bytes are more than the largest MTU")),
        _ if matches!(info.position, Position::First | Position::Middle) && !is_mtu(len) => {
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
