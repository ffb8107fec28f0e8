//! Raw frames, the checksums and segments that their descriptors request, and the frames that the manual requires.

use faultline_abi::cqe;
use faultline_abi::qp::{QPS_RTS, QPT_RAW};
use faultline_abi::wqe as wr;
use faultline_simulation::{Cq, Mr, Qp, Send};
use faultline_simulator::World;
use faultline_wire::packet::is_roce;

use crate::input::{Input, pattern};

const MTU: u16 = 1500;
/// Bytes of the longest frame (manual: MTU + 22), and of the longest headers.
const LONGEST: usize = MTU as usize + 22;
const MAX_HEADERS: usize = wr::MAX_RAW_HEADERS as usize;
const MAX_TSO: usize = 1 << 16;
/// Requests of one input, bytes of memory for each, and segments of one: with an MSS of 1, 65536 would be possible.
const POSTS: u8 = 4;
const SLOT: u64 = 72 << 10;
const MAX_SEGMENTS: usize = 100;
const RECEIVES: u32 = 32;
const RECEIVE_LEN: u32 = 2048;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A raw queue pair and a region with frames.
struct Raw {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

/// What a work request says.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    flags: u8,
    csum_start: u16,
    csum_offset: u16,
    mss: u16,
    header_len: u16,
    /// Bytes of the frame.
    len: usize,
}

/// Frames with valid and invalid descriptors. Each request completes, in order; one that is valid by [`expected`] succeeds,
/// and exactly the frames leave that are expected of it; no other succeeds. What arrives is what has left, and is called
/// right only if it is.
pub fn offload(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(2, 1);
    let by_reference = input.u8() & 1 != 0;
    if by_reference {
        world.hand_over_by_reference();
    }
    let [mut a, mut b] = [0, 1].map(|i| {
        let cq = world.hosts[i].cq(6).unwrap();
        let qp = world.hosts[i].qp(QPT_RAW, &cq).unwrap();
        let mr = world.hosts[i]
            .mr([SLOT * u64::from(POSTS), u64::from(RECEIVES * RECEIVE_LEN)][i])
            .unwrap();
        let mac = world.hosts[i].mac;
        let driver = &mut world.hosts[i].driver;
        driver
            .activate(qp.qpn, QPT_RAW, 0)
            .expect("a change of state");
        driver.set_netdev(mac, MTU, qp.qpn).expect("a netdev");
        Raw { cq, qp, mr }
    });
    for tag in 0..RECEIVES {
        let at = b.mr.va + u64::from(tag * RECEIVE_LEN);
        let sge = (at, RECEIVE_LEN, b.mr.key);
        world.hosts[1].driver.post_recv(&mut b.qp, tag, &[sge]);
    }
    world.start_capture();
    let macs = [world.hosts[1].mac.0, world.hosts[0].mac.0].concat();
    let mut left = Vec::new();
    for slot in 0..POSTS {
        if input.is_empty() {
            break;
        }
        let (frame, descriptor) = request(&mut input, &macs);
        post(&mut world, &mut a, slot, &frame, &descriptor, input.u8());
        world.run_for(1_000_000);
        let sent = world.take_capture().into_iter().map(|(_, frame)| frame);
        let sent: Vec<_> = sent.collect();
        let found = world.completions(0, &mut a.cq);
        assert_eq!(found.len(), 1, "{descriptor:?}: {found:?}");
        assert_eq!(found[0].wqe.get(), u32::from(slot));
        match expected(&frame, &descriptor) {
            Some(frames) => {
                assert_eq!(found[0].status, cqe::SUCCESS, "{descriptor:?}: {found:?}");
                assert!(sent == frames, "{descriptor:?}: {sent:x?}, not {frames:x?}");
            }
            None => {
                assert_ne!(found[0].status, cqe::SUCCESS, "{descriptor:?}: {found:?}");
                assert!(sent.is_empty(), "{descriptor:?}: {sent:x?}");
                // It has stopped the queue.
                let driver = &mut world.hosts[0].driver;
                let resumed = driver.set_state(a.qp.qpn, QPS_RTS);
                resumed.expect("a change of state");
            }
        }
        left.extend(sent);
    }
    // RoCE packets are no business of the netdev's.
    left.retain(|frame| !is_roce(frame));
    left.truncate(RECEIVES as usize);
    let received = world.completions(1, &mut b.cq);
    assert_eq!(received.len(), left.len());
    for (cqe, frame) in received.iter().zip(&left) {
        assert_eq!(cqe.status, cqe::SUCCESS, "{cqe:?}");
        let at = u64::from(cqe.wqe.get() * RECEIVE_LEN);
        let len = cqe.byte_len.get() as usize;
        let bytes = world.hosts[1].driver.read_mr(&b.mr, at, len);
        assert!(bytes == *frame, "{bytes:x?}, not {frame:x?}");
        let right = cqe.flags & cqe::CQE_CSUM_OK != 0;
        assert_eq!(right, is_right(frame), "{frame:x?}");
    }
}

/// A frame with a descriptor. Most have TCP or UDP, and a descriptor that fits, or nearly so.
fn request(input: &mut Input<'_>, macs: &[u8]) -> (Vec<u8>, Descriptor) {
    let shape = input.u8();
    let (mut frame, place, payload_at) = headers(shape, macs, input);
    let how = input.u8();
    let wanted = match how & 0xf0 {
        0 => usize::from(input.u16()),
        _ => usize::from(input.u8()) * 8,
    };
    let mss = match how & 8 {
        0 => u16::from(input.u8()) + 1,
        _ => input.u16(),
    };
    let mut descriptor = match how % 8 {
        0 => Descriptor::of(0, [0; 4]),
        1 => Descriptor::of(wr::WR_FLAG_CSUM, [0; 4]),
        2 => Descriptor::of(wr::WR_FLAG_CSUM, [place.0, place.1, 0, 0]),
        3 => Descriptor::of(wr::WR_FLAG_CSUM, [u16::from(input.u8()), place.1, 0, 0]),
        4 | 5 => Descriptor::of(wr::WR_FLAG_CSUM, [0, 0, mss, payload_at]),
        6 => Descriptor::of(0, [place.0, place.1, mss, payload_at]),
        _ => {
            let flags = input.u8() & wr::WR_FLAG_CSUM;
            Descriptor::of(flags, [(); 4].map(|()| small(input)))
        }
    };
    let most = MAX_SEGMENTS * usize::from(descriptor.mss);
    let payload = match descriptor.mss {
        0 => wanted,
        _ => wanted.min(most),
    };
    let len = frame.len() + payload;
    set_lengths(&mut frame, shape, len);
    frame.extend(pattern(0, payload));
    for _ in 0..input.u8() % 8 {
        let at = 12 + usize::from(input.u8());
        if let Some(byte) = frame.get_mut(at) {
            *byte = input.u8();
        }
    }
    if input.u8().is_multiple_of(16) {
        frame.truncate(usize::from(input.u8()));
    }
    descriptor.len = frame.len();
    (frame, descriptor)
}

fn small(input: &mut Input<'_>) -> u16 {
    match input.u8() {
        255 => input.u16(),
        short => u16::from(short),
    }
}

impl Descriptor {
    fn of(flags: u8, [csum_start, csum_offset, mss, header_len]: [u16; 4]) -> Self {
        Self {
            flags,
            csum_start,
            csum_offset,
            mss,
            header_len,
            len: 0,
        }
    }
}

/// Headers: where the transport begins and its checksum is behind that, and where the payload begins.
fn headers(shape: u8, macs: &[u8], input: &mut Input<'_>) -> (Vec<u8>, (u16, u16), u16) {
    let (v6, vlan, udp) = (shape & 1 != 0, shape & 2 != 0, shape & 4 != 0);
    let options = usize::from(shape >> 4) % 11 * 4;
    let mut out = macs.to_vec();
    if vlan {
        out.extend([0x81, 0, 0, 5]);
    }
    let protocol = if udp { UDP } else { TCP };
    if v6 {
        out.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, protocol, 64]);
        out.extend((0..32).map(|n| n * 5 + 1));
    } else {
        let words = (5 + options / 4) as u8;
        out.extend([
            8,
            0,
            0x40 | words,
            0,
            0,
            0,
            0x12,
            0xfe,
            0x40,
            0,
            64,
            protocol,
        ]);
        out.extend([0x11, 0x22, 10, 0, 0, 1, 10, 0, 0, 2]);
        out.extend(vec![1; options]);
    }
    let transport = out.len() as u16;
    // Ports, and of TCP the sequence number, which may wrap, and flags.
    out.extend([0x12, 0x34, 0x56, 0x78]);
    if udp {
        out.extend([0, 0, 0x33, 0x44]);
    } else {
        out.extend(input.bytes::<4>());
        let words = (5 + options / 4) as u8;
        out.extend([0, 0, 0, 9, words << 4, input.u8(), 1, 2, 0x55, 0x66, 0, 0]);
        out.extend(vec![1; options]);
    }
    let field = if udp { 6 } else { 16 };
    let payload_at = out.len() as u16;
    (out, (transport, field), payload_at)
}

/// Lengths of the headers that [`headers`] has made, for a frame of `len` bytes.
fn set_lengths(frame: &mut [u8], shape: u8, len: usize) {
    let ip = if shape & 2 != 0 { 18 } else { 14 };
    let (at, value) = match shape & 1 {
        0 => (ip + 2, len - ip),
        _ => (ip + 4, len - ip - 40),
    };
    put16(frame, at, value as u16);
}

fn post(world: &mut World, a: &mut Raw, slot: u8, frame: &[u8], descriptor: &Descriptor, cut: u8) {
    let offset = u64::from(slot) * SLOT;
    let driver = &mut world.hosts[0].driver;
    driver.write_mr(&a.mr, offset, frame);
    let (va, len) = (a.mr.va + offset, frame.len() as u32);
    let cut = u32::from(cut).min(len);
    let sges = [
        (va, cut, a.mr.key),
        (va + u64::from(cut), len - cut, a.mr.key),
    ];
    let fields = [
        descriptor.csum_start,
        descriptor.csum_offset,
        descriptor.mss,
        descriptor.header_len,
    ];
    let [start, offset, mss, header_len] = fields.map(u64::from);
    let send = Send {
        opcode: wr::WR_RAW,
        flags: descriptor.flags,
        sges: &sges,
        compare_add: start | offset << 16 | mss << 32 | header_len << 48,
        ..Send::default()
    };
    driver.post_send(&mut a.qp, &send);
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of RFC 1071, of bytes that follow each other.
fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let (words, odd) = bytes.as_chunks::<2>();
    let words = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)));
    let last = odd.first().map_or(0, |byte| u64::from(*byte) << 8);
    let mut sum = words.sum::<u64>() + last;
    while sum >> 16 != 0 {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The layers of a frame, as far as they are there and whole.
#[derive(Clone, Copy, Debug, Default)]
struct Layers {
    ip: usize,
    v4: bool,
    v6: bool,
    /// Where the IP header ends, and the packet.
    transport: usize,
    end: usize,
    /// Protocol of the transport, and where its header ends.
    protocol: Option<u8>,
    payload: usize,
    fragment: bool,
}

/// None: not even an Ethernet header.
fn layers(frame: &[u8]) -> Option<Layers> {
    let tagged = frame.len() >= 14 && be16(frame, 12) == 0x8100;
    let ip = if tagged { 18 } else { 14 };
    if frame.len() < ip {
        return None;
    }
    let mut found = Layers {
        ip,
        ..Layers::default()
    };
    let rest = &frame[ip..];
    match be16(frame, ip - 2) {
        0x0800 if rest.len() >= 20 && rest[0] >> 4 == 4 => {
            let len = usize::from(rest[0] & 15) * 4;
            let total = be16(rest, 2);
            if len < 20 || rest.len() < len || total < len {
                return Some(found);
            }
            found.v4 = true;
            found.transport = ip + len;
            found.end = ip + total;
            let fragment = be16(rest, 6);
            found.fragment = fragment & 0x3fff != 0;
            if fragment & 0x1fff == 0 {
                find_transport(frame, &mut found, rest[9]);
            }
        }
        0x86dd if rest.len() >= 40 && rest[0] >> 4 == 6 => {
            found.v6 = true;
            found.transport = ip + 40;
            found.end = ip + 40 + be16(rest, 4);
            find_transport(frame, &mut found, rest[6]);
        }
        _ => {}
    }
    Some(found)
}

fn find_transport(frame: &[u8], found: &mut Layers, protocol: u8) {
    let rest = &frame[found.transport..];
    let len = match protocol {
        UDP => 8,
        TCP if rest.len() >= 20 => usize::from(rest[12] >> 4) * 4,
        _ => return,
    };
    let least = if protocol == UDP { 8 } else { 20 };
    let payload = found.transport + len;
    if len >= least && rest.len() >= len && found.end >= payload {
        (found.protocol, found.payload) = (Some(protocol), payload);
    }
}

impl Layers {
    /// The transport, if all that its checksum covers is in a frame of this length.
    fn whole(&self, len: usize) -> Option<u8> {
        self.protocol.filter(|_| !self.fragment && self.end <= len)
    }

    /// Where the checksum of the transport is, behind its beginning.
    fn field(protocol: u8) -> usize {
        if protocol == UDP { 6 } else { 16 }
    }

    /// The sum of all that the transport's checksum covers.
    fn sum(&self, frame: &[u8], protocol: u8) -> u16 {
        let addresses = match self.v4 {
            true => &frame[self.ip + 12..self.ip + 20],
            false => &frame[self.ip + 8..self.ip + 40],
        };
        let len = ((self.end - self.transport) as u32).to_be_bytes();
        let covered = &frame[self.transport..self.end];
        sum(&[addresses, &len, &[0, protocol], covered])
    }

    fn fill(&self, frame: &mut [u8]) {
        if self.v4 {
            put16(frame, self.ip + 10, 0);
            let value = !sum(&[&frame[self.ip..self.transport]]);
            put16(frame, self.ip + 10, value);
        }
        if let Some(protocol) = self.whole(frame.len()) {
            let field = self.transport + Self::field(protocol);
            put16(frame, field, 0);
            let value = nonzero(!self.sum(frame, protocol));
            put16(frame, field, value);
        }
    }
}

/// UDP's zero says that there is no checksum (RFC 768).
fn nonzero(sum: u16) -> u16 {
    if sum == 0 { 0xffff } else { sum }
}

/// Whether a frame has checksums of TCP or UDP, and they are right.
fn is_right(frame: &[u8]) -> bool {
    let Some(layers) = layers(frame) else {
        return false;
    };
    if layers.v4 && sum(&[&frame[layers.ip..layers.transport]]) != 0xffff {
        return false;
    }
    let Some(protocol) = layers.whole(frame.len()) else {
        return false;
    };
    if protocol == UDP && be16(frame, layers.transport + 6) == 0 {
        return layers.v4;
    }
    layers.sum(frame, protocol) == 0xffff
}

/// The frames that leave for a request ("Checksums and segmentation" in the hardware manual); `None`: it is refused.
fn expected(frame: &[u8], descriptor: &Descriptor) -> Option<Vec<Vec<u8>>> {
    let wants_sum = descriptor.flags & wr::WR_FLAG_CSUM != 0;
    let [start, offset, header_len] = [
        descriptor.csum_start,
        descriptor.csum_offset,
        descriptor.header_len,
    ]
    .map(usize::from);
    if descriptor.mss > 0 {
        return segments(frame, usize::from(descriptor.mss), header_len);
    }
    if header_len > 0 || !(14..=LONGEST).contains(&frame.len()) {
        return None;
    }
    let mut out = frame.to_vec();
    match (wants_sum, start) {
        (false, _) => {
            if (start, offset) != (0, 0) {
                return None;
            }
        }
        (true, 0) => {
            if offset > 0 {
                return None;
            }
            layers(frame)?.fill(&mut out);
        }
        (true, _) => {
            let found = layers(frame);
            let own = found.and_then(|layers| {
                let protocol = layers.whole(frame.len())?;
                Some((layers.transport, Layers::field(protocol)))
            });
            if own == Some((start, offset)) {
                found?.fill(&mut out);
            } else {
                let field = start + offset;
                if start < 14 || field + 2 > frame.len().min(MAX_HEADERS) {
                    return None;
                }
                let value = nonzero(!sum(&[&frame[start..]]));
                put16(&mut out, field, value);
            }
        }
    }
    Some(vec![out])
}

/// The frames of a TCP packet that is cut into pieces of `mss` bytes.
fn segments(frame: &[u8], mss: usize, header_len: usize) -> Option<Vec<Vec<u8>>> {
    let payload = frame.get(header_len..)?;
    let fits = header_len <= MAX_HEADERS && (1..=MAX_TSO).contains(&payload.len());
    if !fits || header_len + mss.min(payload.len()) > LONGEST {
        return None;
    }
    let template = &frame[..header_len];
    let found = layers(template)?;
    if found.protocol != Some(TCP) || found.fragment || found.payload != header_len {
        return None;
    }
    let count = payload.len().div_ceil(mss);
    let cut = |(index, part): (usize, &[u8])| {
        let mut out = [template, part].concat();
        let len = out.len();
        match found.v4 {
            true => {
                let id = be16(template, found.ip + 4) as u16;
                put16(&mut out, found.ip + 2, (len - found.ip) as u16);
                put16(&mut out, found.ip + 4, id.wrapping_add(index as u16));
            }
            false => put16(&mut out, found.ip + 4, (len - found.transport) as u16),
        }
        let at = found.transport + 4;
        let first = u32::from_be_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]]);
        let sequence = first.wrapping_add((index * mss) as u32);
        out[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        // FIN and PSH are the last one's, CWR is the first one's.
        if index + 1 < count {
            out[found.transport + 13] &= !0x09;
        }
        if index > 0 {
            out[found.transport + 13] &= !0x80;
        }
        Layers { end: len, ..found }.fill(&mut out);
        out
    };
    Some(payload.chunks(mss).enumerate().map(cut).collect())
}
