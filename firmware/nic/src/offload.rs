//! Offloads for the network stack of the guest: checksums (RFC 1071), and TCP segmentation.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "offsets and lengths are in a frame; ParsedHeaders::parse has compared them with each other and with its length"
)]

use faultline_wire::checksum::InternetSum;

use crate::dma::{Dma, DmaError};
use crate::headers::{Head, IpVersion, ParsedHeaders, Transport, be16};
use crate::number::len16;
use crate::payload::Payload;

/// TCP flags that only the last of the segments carries: FIN and PSH.
const LAST_ONLY: u8 = 0x09;
/// TCP flag that only the first carries: CWR (RFC 3168).
const FIRST_ONLY: u8 = 0x80;

/// Adds the bytes from `at` to `end` of a frame.
fn add_frame<M: Dma>(
    sum: &mut InternetSum,
    frame: &Payload<'_, M>,
    mut at: usize,
    end: usize,
) -> Result<(), DmaError> {
    let mut buf = [0; 2048];
    while at < end {
        let want = (end - at).min(buf.len());
        let Some(part) = buf.get_mut(..want) else {
            break;
        };
        let n = frame.read(at, part)?;
        if n == 0 {
            break;
        }
        sum.add(part.get(..n).unwrap_or(&[]));
        at += n;
    }
    Ok(())
}

/// The value of a TCP or UDP checksum field. In UDP zero means that there is no checksum (RFC 768); for TCP both are the
/// same.
fn transport_checksum(sum: InternetSum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value.to_be_bytes()) {
        *to = from;
    }
}

/// The pseudo header (RFC 9293 3.1, RFC 8200 8.1) of a packet whose transport has `len` bytes.
fn pseudo_header(
    head: &[u8],
    headers: &ParsedHeaders,
    transport: Transport,
    len: usize,
) -> InternetSum {
    let addresses = match headers.ip {
        Some(IpVersion::V6) => headers.ip_at + 8..headers.ip_at + 40,
        _ => headers.ip_at + 12..headers.ip_at + 20,
    };
    let mut sum = InternetSum::default();
    sum.add(head.get(addresses).unwrap_or(&[]));
    sum.add_number(u64::from(transport.protocol()) + len as u64);
    sum
}

/// The sum over the header of an IPv4 packet.
fn ipv4_header(head: &[u8], headers: &ParsedHeaders) -> Option<InternetSum> {
    let mut sum = InternetSum::default();
    sum.add(head.get(headers.ip_at..headers.transport_at).unwrap_or(&[]));
    (headers.ip == Some(IpVersion::V4)).then_some(sum)
}

fn fill_ipv4(head: &mut [u8], headers: &ParsedHeaders) {
    if headers.ip == Some(IpVersion::V4) {
        put16(head, headers.ip_at + 10, 0);
    }
    if let Some(sum) = ipv4_header(head, headers) {
        put16(head, headers.ip_at + 10, sum.checksum());
    }
}

/// Fills in the checksums of a frame. `head` is the beginning of `frame`, with all headers at least.
pub(crate) fn fill_checksums<M: Dma>(
    head: &mut [u8],
    headers: &ParsedHeaders,
    frame: &Payload<'_, M>,
) -> Result<(), DmaError> {
    fill_ipv4(head, headers);
    let Some(transport) = whole_transport(headers, frame.len()) else {
        return Ok(());
    };
    let field = headers.transport_at + transport.checksum_at();
    put16(head, field, 0);
    let len = headers.ip_end - headers.transport_at;
    let mut sum = pseudo_header(head, headers, transport, len);
    let in_head = head.len().min(headers.ip_end);
    sum.add(head.get(headers.transport_at..in_head).unwrap_or(&[]));
    add_frame(&mut sum, frame, in_head, headers.ip_end)?;
    put16(head, field, transport_checksum(sum));
    Ok(())
}

/// The transport of a frame that holds all that its checksum covers.
pub(crate) fn whole_transport(headers: &ParsedHeaders, frame_len: usize) -> Option<Transport> {
    let whole = !headers.is_fragment && headers.ip_end <= frame_len;
    headers.transport.filter(|_| whole)
}

/// Sums from `start` to the end of the frame, and writes the sum `offset` bytes behind `start`. The earlier value of
/// that field is included, because software has written the sum of the pseudo header there.
pub(crate) fn fill_partial<M: Dma>(
    head: &mut [u8],
    (start, offset): (usize, usize),
    frame: &Payload<'_, M>,
) -> Result<(), DmaError> {
    let mut sum = InternetSum::default();
    sum.add(head.get(start..).unwrap_or(&[]));
    add_frame(&mut sum, frame, head.len(), frame.len())?;
    put16(head, start + offset, transport_checksum(sum));
    Ok(())
}

/// The result of checking the checksums of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// IPv4 header, if there is one, and TCP or UDP are right.
    Right,
    Wrong,
    /// The frame has no checksum that the NIC can verify.
    Unknown,
}

/// Checks the checksums of a frame.
pub(crate) fn check<M: Dma>(frame: &Payload<'_, M>) -> Checked {
    let Ok(head) = frame.head() else {
        return Checked::Unknown;
    };
    match ParsedHeaders::parse(&head) {
        Some(headers) => check_parsed(&head, &headers, frame),
        None => Checked::Unknown,
    }
}

fn check_parsed<M: Dma>(head: &[u8], headers: &ParsedHeaders, frame: &Payload<'_, M>) -> Checked {
    if ipv4_header(head, headers).is_some_and(|sum| !sum.is_right()) {
        return Checked::Wrong;
    }
    let Some(transport) = whole_transport(headers, frame.len()) else {
        return Checked::Unknown;
    };
    let field = headers.transport_at + transport.checksum_at();
    if transport == Transport::Udp && be16(head, field) == Some(0) {
        // No checksum, which IPv6 does not allow (RFC 8200 8.1).
        return match headers.ip {
            Some(IpVersion::V4) => Checked::Right,
            _ => Checked::Wrong,
        };
    }
    let len = headers.ip_end - headers.transport_at;
    let mut sum = pseudo_header(head, headers, transport, len);
    match add_frame(&mut sum, frame, headers.transport_at, headers.ip_end) {
        Ok(()) if sum.is_right() => Checked::Right,
        Ok(()) => Checked::Wrong,
        Err(_) => Checked::Unknown,
    }
}

/// The headers of segment `index` of a packet that is segmented into pieces of `mss` bytes, without the TCP checksum.
/// `len`: bytes of payload in this segment.
pub(crate) fn segment_head(
    template: &[u8],
    headers: &ParsedHeaders,
    mss: u16,
    index: u32,
    len: usize,
    last: bool,
) -> Head {
    let get16 = |at: usize| be16(template, at).unwrap_or(0);
    let mut head = Head::from_slice(template);
    let packet_len = headers.payload_at - headers.ip_at + len;
    match headers.ip {
        Some(IpVersion::V6) => {
            let payload_len = packet_len - (headers.transport_at - headers.ip_at);
            put16(&mut head, headers.ip_at + 4, len16(payload_len));
        }
        _ => {
            put16(&mut head, headers.ip_at + 2, len16(packet_len));
            let id = get16(headers.ip_at + 4).wrapping_add((index & 0xffff) as u16);
            put16(&mut head, headers.ip_at + 4, id);
        }
    }
    let at = headers.transport_at + 4;
    let sequence = u32::from(get16(at)) << 16 | u32::from(get16(at + 2));
    let sequence = sequence.wrapping_add(index.wrapping_mul(u32::from(mss)));
    put16(&mut head, at, (sequence >> 16) as u16);
    put16(&mut head, at + 2, (sequence & 0xffff) as u16);
    if let Some(flags) = head.get_mut(headers.transport_at + 13) {
        if !last {
            *flags &= !LAST_ONLY;
        }
        if index > 0 {
            *flags &= !FIRST_ONLY;
        }
    }
    fill_ipv4(&mut head, headers);
    head
}

/// Completes the headers of a segment, whose packet has another length than that of the template.
pub(crate) fn finish_segment<M: Dma>(
    head: &mut [u8],
    headers: &ParsedHeaders,
    frame: &Payload<'_, M>,
) -> Result<(), DmaError> {
    let headers = ParsedHeaders {
        ip_end: frame.len(),
        ..*headers
    };
    fill_checksums(head, &headers, frame)
}
