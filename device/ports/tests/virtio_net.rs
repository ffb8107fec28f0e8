//! Checksums and segments of the frames of guests and of the host's kernel, compared byte by byte with those that `etherparse` makes.
#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "test data is cut to the width of a field"
)]

use etherparse::{PacketBuilder, TcpHeader};
use faultline_ports::virtio_net::{HEADER, LEGACY_HEADER, Malformed, Transmission, flow};
use proptest::prelude::*;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP_L4: u8 = 5;
const ECN: u8 = 0x80;

/// Fields of the header that the device reads.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    flags: u8,
    gso_type: u8,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl Header {
    fn octets(self) -> [u8; HEADER] {
        let mut octets = [0; HEADER];
        octets[0] = self.flags;
        octets[1] = self.gso_type;
        // The length of the headers is only a hint, and wrong here.
        octets[2..4].copy_from_slice(&0xffffu16.to_le_bytes());
        octets[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        octets[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        octets[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        octets
    }
}

/// The frames that leave for a frame of a guest.
fn sent(header: Header, frame: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut transmission = Transmission::default();
    let buffer = transmission.buffer();
    buffer.extend_from_slice(&header.octets());
    buffer.extend_from_slice(frame);
    let started = transmission.start(HEADER);
    let mut frames = Vec::new();
    while let Some(frame) = transmission.next_frame() {
        frames.push(frame.to_vec());
        assert!(frames.len() < 70_000, "it never ends");
    }
    assert!(!transmission.is_pending());
    assert!(started.is_ok() || frames.is_empty());
    started.map(|()| frames)
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8) as u8).collect()
}

/// A TCP frame, and how to make others of the same connection.
#[derive(Clone, Debug)]
struct Flow {
    is_v6: bool,
    tags: usize,
    options: usize,
    id: u16,
    sequence: u32,
    fin: bool,
    cwr: bool,
}

impl Flow {
    /// The frame with these octets of a stream, from `offset` on, as segment number `count`.
    fn frame(&self, stream: &[u8], offset: usize, count: u16, is_last: bool) -> Vec<u8> {
        let sequence = self.sequence.wrapping_add(offset as u32);
        let mut tcp = TcpHeader::new(4791, 80, sequence, 4000);
        tcp.acknowledgment_number = 77;
        tcp.ack = true;
        tcp.psh = is_last;
        tcp.fin = is_last && self.fin;
        tcp.cwr = offset == 0 && self.cwr;
        tcp.set_options_raw(&vec![1; self.options]).unwrap();
        let ip = match self.is_v6 {
            true => etherparse::IpHeaders::Ipv6(
                etherparse::Ipv6Header {
                    traffic_class: 0x2a,
                    hop_limit: 9,
                    source: [0x11; 16],
                    destination: [0xfe; 16],
                    ..Default::default()
                },
                Default::default(),
            ),
            false => {
                let mut header =
                    etherparse::Ipv4Header::new(0, 64, 0.into(), [10, 0, 0, 1], [10, 9, 8, 7])
                        .unwrap();
                header.identification = self.id.wrapping_add(count);
                header.dont_fragment = true;
                etherparse::IpHeaders::Ipv4(header, Default::default())
            }
        };
        let ethernet = PacketBuilder::ethernet2(A, B);
        let vlan = |id: u16| etherparse::VlanId::try_new(id).unwrap();
        let builder = match self.tags {
            0 => ethernet.ip(ip),
            1 => ethernet.single_vlan(vlan(5)).ip(ip),
            _ => ethernet.double_vlan(vlan(5), vlan(6)).ip(ip),
        };
        let mut frame = Vec::new();
        builder.tcp_header(tcp).write(&mut frame, stream).unwrap();
        frame
    }

    fn transport(&self) -> usize {
        14 + 4 * self.tags + if self.is_v6 { 40 } else { 20 }
    }

    fn header(&self, mss: u16) -> Header {
        Header {
            flags: 1,
            gso_type: if self.is_v6 { TCPV6 } else { TCPV4 } | if self.cwr { ECN } else { 0 },
            gso_size: mss,
            csum_start: self.transport() as u16,
            csum_offset: 16,
        }
    }
}

/// A UDP datagram with this payload; over IPv4, its identification is 0.
fn datagram(is_v6: bool, data: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(A, B);
    let builder = match is_v6 {
        true => ethernet.ipv6([3; 16], [4; 16], 5),
        false => ethernet.ipv4([1, 2, 3, 4], [5, 6, 7, 8], 9),
    };
    let mut frame = Vec::new();
    builder.udp(7, 8).write(&mut frame, data).unwrap();
    frame
}

/// Changes the identification, and the header's checksum.
fn set_ipv4_id(frame: &mut [u8], id: u16) {
    let mut header = etherparse::Ipv4Header::from_slice(&frame[14..34])
        .unwrap()
        .0;
    header.identification = id;
    header.header_checksum = header.calc_header_checksum();
    frame[14..34].copy_from_slice(&header.to_bytes());
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let bits = (any::<bool>(), any::<bool>(), any::<bool>());
    (bits, 0..3usize, 0..=10usize, any::<u16>(), any::<u32>()).prop_map(
        |((is_v6, fin, cwr), tags, options, id, sequence)| Flow {
            is_v6,
            tags,
            options: 4 * options,
            id,
            sequence,
            fin,
            cwr,
        },
    )
}

proptest! {
    /// Each segment is equal to the frame of a stack without the offload, so the payloads in sequence are the original
    /// one.
    #[test]
    fn segments_are_the_frames_of_a_stack_without_offload(
        flow in any_flow(),
        length in 0..65_000usize,
        mss in 500..9000u16,
    ) {
        let stream = payload(length);
        let frame = flow.frame(&stream, 0, 0, true);
        let frames = sent(flow.header(mss), &frame).unwrap();
        let chunks: Vec<&[u8]> = match stream.is_empty() {
            true => vec![&[]],
            false => stream.chunks(usize::from(mss)).collect(),
        };
        prop_assert_eq!(frames.len(), chunks.len());
        for (count, (frame, chunk)) in frames.iter().zip(&chunks).enumerate() {
            let is_last = count + 1 == chunks.len();
            let offset = count * usize::from(mss);
            let expected = flow.frame(chunk, offset, count as u16, is_last);
            prop_assert!(*frame == expected, "segment {} of {}", count, chunks.len());
        }
    }

    /// The same of UDP: each segment is a datagram.
    #[test]
    fn segments_of_udp_are_datagrams(
        is_v6 in any::<bool>(),
        length in 1..65_000usize,
        size in 500..9000u16,
    ) {
        let data = payload(length);
        let header = Header {
            flags: 1,
            gso_type: UDP_L4,
            gso_size: size,
            csum_start: if is_v6 { 54 } else { 34 },
            csum_offset: 6,
        };
        let frames = sent(header, &datagram(is_v6, &data)).unwrap();
        let chunks: Vec<&[u8]> = data.chunks(usize::from(size)).collect();
        prop_assert_eq!(frames.len(), chunks.len());
        for (count, (frame, chunk)) in frames.iter().zip(&chunks).enumerate() {
            let mut expected = datagram(is_v6, chunk);
            if !is_v6 {
                set_ipv4_id(&mut expected, count as u16);
            }
            prop_assert!(*frame == expected, "segment {} of {}", count, chunks.len());
        }
    }

    /// Any header and any octets: no panic, bounded work, and no frame longer than the guest's.
    #[test]
    fn anything_is_sent_or_refused(
        flow in any_flow(),
        octets in prop::array::uniform12(any::<u8>()),
        kind in prop::sample::select(vec![0, 1, 3, 4, 5, 0x81, 0x84]),
        changes in prop::collection::vec((0..80usize, any::<u8>()), 0..6),
        keep in 0..200usize,
    ) {
        let mut frame = flow.frame(&payload(90), 0, 0, true);
        for (at, value) in changes {
            if let Some(to) = frame.get_mut(at) {
                *to = value;
            }
        }
        frame.truncate(keep);
        let mut transmission = Transmission::default();
        let buffer = transmission.buffer();
        buffer.extend_from_slice(&octets);
        buffer[1] = kind;
        buffer.extend_from_slice(&frame);
        let _ = transmission.start(HEADER);
        let mut count = 0;
        while let Some(segment) = transmission.next_frame() {
            prop_assert!(segment.len() <= frame.len());
            count += 1;
        }
        prop_assert!(count <= frame.len().max(1));
    }
}

/// The example of RFC 1071 section 3, as the data of a UDP datagram, summed by hand.
#[test]
fn a_checksum_that_was_summed_by_hand() {
    let mut frame = vec![0; 14];
    // Sum of the pseudo header: 0a00 + 0001 + 0a00 + 0002 + 0011 + 0010 = 1424.
    let udp = [
        0x12, 0xb7, 0x12, 0xb7, 0x00, 0x10, 0x14, 0x24, //
        0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7,
    ];
    frame.extend_from_slice(&udp);
    let header = Header {
        flags: 1,
        csum_start: 14,
        csum_offset: 6,
        ..Header::default()
    };
    let frames = sent(header, &frame).unwrap();
    // Data: ddf2 (RFC 1071). 12b7 + 12b7 + 0010 + 1424 = 39a2. Together 1_1794, folded 1795, complement e86a.
    assert_eq!(frames[0][20..22], [0xe8, 0x6a]);
    frame[20..22].copy_from_slice(&[0xe8, 0x6a]);
    assert_eq!(frames, [frame]);
}

/// In UDP, 0 would mean that there is no checksum.
#[test]
fn a_checksum_of_zero_is_sent_as_ffff() {
    let mut frame = vec![0; 24];
    frame[14..16].copy_from_slice(&[0xff, 0xff]);
    let header = Header {
        flags: 1,
        csum_start: 14,
        csum_offset: 6,
        ..Header::default()
    };
    assert_eq!(sent(header, &frame).unwrap()[0][20..22], [0xff, 0xff]);
}

#[test]
fn checksums_of_tcp_and_udp_are_completed() {
    for is_v6 in [false, true] {
        for length in [0, 1, 2, 1399, 1400] {
            let right = datagram(is_v6, &payload(length));
            let start = if is_v6 { 54 } else { 34 };
            let mut frame = right.clone();
            let addresses = if is_v6 {
                &right[22..54]
            } else {
                &right[26..34]
            };
            let octets = (8 + length) as u32;
            let pseudo = addresses
                .chunks(2)
                .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum::<u32>()
                + octets
                + 17;
            let folded = (pseudo & 0xffff) + (pseudo >> 16);
            frame[start + 6..start + 8].copy_from_slice(&(folded as u16).to_be_bytes());
            let header = Header {
                flags: 1,
                csum_start: start as u16,
                csum_offset: 6,
                ..Header::default()
            };
            assert_eq!(sent(header, &frame).unwrap(), [right]);
        }
    }
}

#[test]
fn a_frame_without_offloads_is_sent_unchanged() {
    let frame = payload(1514);
    assert_eq!(
        sent(Header::default(), &frame).unwrap(),
        std::slice::from_ref(&frame)
    );
    let mut transmission = Transmission::default();
    let buffer = transmission.buffer();
    buffer.extend_from_slice(&[0; LEGACY_HEADER]);
    buffer.extend_from_slice(&frame);
    transmission.start(LEGACY_HEADER).unwrap();
    assert_eq!(transmission.next_frame(), Some(&frame[..]));
}

#[test]
fn impossible_offloads_are_refused_with_the_value() {
    let flow = Flow {
        is_v6: false,
        tags: 0,
        options: 0,
        id: 1,
        sequence: 2,
        fin: false,
        cwr: false,
    };
    let frame = flow.frame(&payload(3000), 0, 0, true);
    let good = flow.header(1000);
    assert_eq!(sent(good, &frame).unwrap().len(), 3);
    let refused = |header: Header, frame: &[u8]| sent(header, frame).unwrap_err();

    let outside = |start: u16, offset: u16| {
        let header = Header {
            flags: 1,
            csum_start: start,
            csum_offset: offset,
            ..Header::default()
        };
        let length = frame.len();
        assert_eq!(
            refused(header, &frame),
            Malformed::Checksum {
                start,
                offset,
                length
            }
        );
    };
    outside(13, 6);
    outside(34, frame.len() as u16 - 35);
    outside(frame.len() as u16 + 1, 0);
    outside(u16::MAX, u16::MAX);

    let change = |change: fn(&mut Header)| {
        let mut header = good;
        change(&mut header);
        refused(header, &frame)
    };
    assert_eq!(change(|h| h.gso_size = 0), Malformed::SegmentSize(0));
    assert_eq!(change(|h| h.gso_type = 3), Malformed::Kind(3));
    assert_eq!(change(|h| h.gso_type = 6), Malformed::Kind(6));
    assert_eq!(change(|h| h.gso_type = UDP_L4), Malformed::Headers);
    assert_eq!(change(|h| h.gso_type = TCPV6), Malformed::Headers);
    assert_eq!(change(|h| h.flags = 0), Malformed::Headers);
    assert_eq!(change(|h| h.csum_start = 33), Malformed::Headers);

    let with = |at: usize, value: u8| {
        let mut frame = frame.clone();
        frame[at] = value;
        refused(good, &frame)
    };
    assert_eq!(with(23, 17), Malformed::Headers, "UDP");
    assert_eq!(
        with(14, 0x44),
        Malformed::Headers,
        "16 octets of IPv4 header"
    );
    assert_eq!(with(20, 0x20), Malformed::Headers, "a fragment");
    assert_eq!(
        with(46, 0x40),
        Malformed::Headers,
        "16 octets of TCP header"
    );
    assert_eq!(refused(good, &frame[..50]), Malformed::Headers, "cut off");
    assert_eq!(refused(good, &frame[..13]), Malformed::TooShort(13));
}

/// One segment would be longer than the length field of IP permits.
#[test]
fn a_segment_that_ip_cannot_carry_is_refused() {
    let flow = Flow {
        is_v6: false,
        tags: 0,
        options: 0,
        id: 0,
        sequence: 0,
        fin: false,
        cwr: false,
    };
    let mut frame = flow.frame(&[], 0, 0, true);
    frame.extend_from_slice(&payload(65_535 - 40 + 1));
    let size = u16::MAX;
    assert_eq!(
        sent(flow.header(size), &frame).unwrap_err(),
        Malformed::SegmentSize(size)
    );
    frame.pop();
    assert_eq!(sent(flow.header(size), &frame).unwrap().len(), 1);
}

#[test]
fn flows_are_kept_together_and_divided() {
    let of = |source: u16, is_v6: bool| {
        let ethernet = PacketBuilder::ethernet2(A, B);
        let builder = match is_v6 {
            true => ethernet.ipv6([3; 16], [4; 16], 5),
            false => ethernet.ipv4([1, 2, 3, 4], [5, 6, 7, 8], 9),
        };
        let mut frame = Vec::new();
        builder.udp(source, 4791).write(&mut frame, b"x").unwrap();
        frame
    };
    for is_v6 in [false, true] {
        let mut queues = [0; 2];
        for source in 49152..49252 {
            let mut frame = of(source, is_v6);
            let queue = flow(&frame) % 2;
            queues[queue as usize] += 1;
            *frame.last_mut().unwrap() = b'y';
            assert_eq!(flow(&frame) % 2, queue, "same flow");
        }
        assert!(queues.iter().all(|count| *count > 20), "{queues:?}");
    }
    for length in 0..60 {
        flow(&of(1, true)[..length]);
    }
}
