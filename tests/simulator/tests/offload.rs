//! Offloads of the NIC: checksums, and segmentation of large TCP packets.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_simulation::{Cq, Mr, Qp, QpConfig, Rng, Send, Sge};
use faultline_simulator::pager::run as run_pagers;
use faultline_simulator::{HostPager, World, expect_cqe};

const LEN: u64 = 1 << 20;
const SLOT: u64 = 2048;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A raw queue pair at each of two hosts; frames to the second one are stored in slots of its region.
struct Ends {
    world: World,
    cq: [Cq; 2],
    qp: [Qp; 2],
    mr: [Mr; 2],
    posted: u32,
}

impl Ends {
    fn new(by_reference: bool) -> Self {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
        let qp = [0, 1].map(|i| world.hosts[i].qp(QPT_RAW, &cq[i]).unwrap());
        let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
        for (host, qp) in qp.iter().enumerate() {
            let mac = world.hosts[host].mac;
            let driver = &mut world.hosts[host].driver;
            driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
            driver.set_netdev(mac, 1500, qp.qpn).unwrap();
        }
        Self {
            world,
            cq,
            qp,
            mr,
            posted: 0,
        }
    }

    fn receive(&mut self, count: u32) {
        for _ in 0..count {
            let (va, key) = (
                self.mr[1].va + u64::from(self.posted) * SLOT,
                self.mr[1].key,
            );
            let driver = &mut self.world.hosts[1].driver;
            driver.post_recv(&mut self.qp[1], self.posted, &[(va, SLOT as u32, key)]);
            self.posted += 1;
        }
    }

    /// Posts a frame in pieces of odd sizes.
    fn post(&mut self, frame: &[u8], flags: u8, offload: [u16; 4]) {
        let mr = self.mr[0];
        self.world.hosts[0].driver.write_mr(&mr, 0, frame);
        let len = frame.len() as u32;
        let cut = [len.min(7), len.min(61), len.min(1333)];
        let sges: Vec<Sge> = [
            (0, cut[0]),
            (cut[0], cut[1]),
            (cut[1], cut[2]),
            (cut[2], len),
        ]
        .into_iter()
        .filter(|(from, to)| to > from)
        .map(|(from, to)| (mr.va + u64::from(from), to - from, mr.key))
        .collect();
        self.post_from(&sges, flags, offload);
    }

    fn post_from(&mut self, sges: &[Sge], flags: u8, offload: [u16; 4]) {
        let [a, b, c, d] = offload.map(u64::from);
        let send = Send {
            opcode: wr::WR_RAW,
            flags,
            sges,
            compare_add: a | b << 16 | c << 32 | d << 48,
            ..Send::default()
        };
        self.world.hosts[0].driver.post_send(&mut self.qp[0], &send);
        self.world.run_for(1_000_000);
    }

    /// Received frames, and the flags of each.
    fn arrived(&mut self) -> Vec<(Vec<u8>, u8)> {
        let found = self.world.completions(1, &mut self.cq[1]);
        let mr = self.mr[1];
        found
            .into_iter()
            .map(|cqe| {
                assert_eq!(cqe.status, cqe::SUCCESS);
                let at = u64::from(cqe.wqe.get()) * SLOT;
                let driver = &mut self.world.hosts[1].driver;
                let bytes = driver.read_mr(&mr, at, cqe.byte_len.get() as usize);
                (bytes, cqe.flags)
            })
            .collect()
    }

    fn count(&mut self, host: usize, counter: Counter) -> u64 {
        self.world.hosts[host].driver.counter(counter).unwrap()
    }

    fn sent(&mut self, status: u8) {
        expect_cqe(&mut self.world, 0, &mut self.cq[0], status);
    }
}

/// The sum of RFC 1071, the plain way.
fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    v6: bool,
    vlan: bool,
    /// Bytes of options, of IPv4 and of TCP.
    options: (usize, usize),
    protocol: u8,
}

impl Shape {
    fn ip_at(self) -> usize {
        if self.vlan { 18 } else { 14 }
    }

    fn ip_len(self) -> usize {
        if self.v6 { 40 } else { 20 + self.options.0 }
    }

    fn l4_at(self) -> usize {
        self.ip_at() + self.ip_len()
    }

    fn l4_len(self) -> usize {
        if self.protocol == TCP {
            20 + self.options.1
        } else {
            8
        }
    }

    fn payload_at(self) -> usize {
        self.l4_at() + self.l4_len()
    }

    fn sum_at(self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }

    /// A frame to host 1, without checksums.
    fn frame(self, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if self.vlan {
            out.extend([0x81, 0, 0, 5]);
        }
        let l4 = (self.l4_len() + payload.len()) as u16;
        if self.v6 {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend(l4.to_be_bytes());
            out.extend([self.protocol, 64]);
            out.extend((0..32).map(|n| n * 5 + 1));
        } else {
            let words = (self.ip_len() / 4) as u8;
            out.extend([8, 0, 0x40 | words, 0]);
            out.extend((l4 + self.ip_len() as u16).to_be_bytes());
            out.extend([0x12, 0xfe, 0x40, 0, 64, self.protocol, 0, 0]);
            out.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            out.extend(vec![1; self.options.0]);
        }
        out.extend([0x12, 0x34, 0x56, 0x78]);
        if self.protocol == TCP {
            out.extend([0xff, 0xff, 0xff, 0x00, 0, 0, 0, 9]);
            let words = (self.l4_len() / 4) as u8;
            // CWR, ACK, PSH and FIN.
            out.extend([words << 4, 0x99, 1, 2, 0, 0, 0, 0]);
            out.extend(vec![1; self.options.1]);
        } else {
            out.extend(l4.to_be_bytes());
            out.extend([0, 0]);
        }
        out.extend(payload);
        out
    }

    /// The pseudo header.
    fn pseudo(self, frame: &[u8]) -> Vec<u8> {
        let at = self.ip_at();
        let mut out = match self.v6 {
            true => frame[at + 8..at + 40].to_vec(),
            false => frame[at + 12..at + 20].to_vec(),
        };
        let len = (frame.len() - self.l4_at()) as u16;
        out.extend([0, self.protocol]);
        out.extend(len.to_be_bytes());
        out
    }

    /// As Linux passes it: with the sum of the pseudo header in the checksum field, and with a complete IPv4 header
    /// checksum.
    fn partial(self, payload: &[u8]) -> Vec<u8> {
        let mut frame = self.frame(payload);
        self.fill_ipv4(&mut frame);
        let field = self.l4_at() + self.sum_at();
        let pseudo = sum(&[&self.pseudo(&frame)]);
        frame[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        frame
    }

    fn fill_ipv4(self, frame: &mut [u8]) {
        if !self.v6 {
            let header = &mut frame[self.ip_at()..self.l4_at()];
            let value = !sum(&[header]);
            header[10..12].copy_from_slice(&value.to_be_bytes());
        }
    }

    #[track_caller]
    fn expect_right(self, frame: &[u8]) {
        if !self.v6 {
            assert_eq!(
                sum(&[&frame[self.ip_at()..self.l4_at()]]),
                0xffff,
                "{self:?}"
            );
        }
        let all = sum(&[&self.pseudo(frame), &frame[self.l4_at()..]]);
        assert_eq!(all, 0xffff, "{self:?}");
    }

    fn start(self) -> [u16; 4] {
        [self.l4_at() as u16, self.sum_at() as u16, 0, 0]
    }
}

fn shapes() -> Vec<Shape> {
    let mut out = Vec::new();
    for v6 in [false, true] {
        for vlan in [false, true] {
            for protocol in [TCP, UDP] {
                for options in [(0, 0), (8, 12), (40, 40)] {
                    out.push(Shape {
                        v6,
                        vlan,
                        options: (if v6 { 0 } else { options.0 }, options.1),
                        protocol,
                    });
                }
            }
        }
    }
    out
}

fn data(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n * n / 11 + n) as u8).collect()
}

#[test]
fn checksums_are_filled_in() {
    for by_reference in [false, true] {
        let mut ends = Ends::new(by_reference);
        ends.receive(200);
        let mut many = 0;
        for shape in shapes() {
            for len in [0, 1, 100, 1301] {
                let wanted = shape.partial(&data(len));
                ends.post(&wanted, wr::WR_FLAG_CSUM, shape.start());
                ends.sent(cqe::SUCCESS);
                let plain = shape.frame(&data(len));
                ends.post(&plain, wr::WR_FLAG_CSUM, [0; 4]);
                ends.sent(cqe::SUCCESS);
                let got = ends.arrived();
                assert_eq!(got.len(), 2);
                for (frame, flags) in &got {
                    // proves: IBV_SEND_IP_CSUM, raw_packet_caps, IBV_RAW_PACKET_CAP_IP_CSUM
                    shape.expect_right(frame);
                    assert_eq!(*flags, cqe::CQE_CSUM_OK);
                    assert_eq!(frame[shape.payload_at()..], data(len));
                }
                assert_eq!(got[0].0, got[1].0);
                many += 2;
                if many % 100 == 0 {
                    ends.posted = 0;
                    ends.receive(100);
                }
            }
        }
    }
}

#[test]
fn wrong_checksums_are_noticed_and_right_ones_too() {
    let shape = Shape {
        v6: false,
        vlan: false,
        options: (0, 0),
        protocol: UDP,
    };
    for by_reference in [false, true] {
        let mut ends = Ends::new(by_reference);
        ends.receive(8);
        let mut frame = shape.frame(&data(99));
        shape.fill_ipv4(&mut frame);
        let field = shape.l4_at() + shape.sum_at();
        let value = !sum(&[&shape.pseudo(&frame), &frame[shape.l4_at()..]]);
        frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
        let mut without = frame.clone();
        without[field..field + 2].fill(0);
        let mut bad_payload = frame.clone();
        bad_payload[90] ^= 4;
        let mut bad_header = frame.clone();
        bad_header[shape.ip_at() + 8] ^= 1;
        let mut fragment = frame.clone();
        fragment[shape.ip_at() + 6] = 0x20;
        shape_header_again(shape, &mut fragment);
        for (frame, flags, errors) in [
            (&frame, cqe::CQE_CSUM_OK, 0),
            (&without, cqe::CQE_CSUM_OK, 0),
            (&bad_payload, 0, 1),
            (&bad_header, 0, 2),
            (&fragment, 0, 2),
        ] {
            ends.post(frame, 0, [0; 4]);
            ends.sent(cqe::SUCCESS);
            let got = ends.arrived();
            // proves: IBV_WC_IP_CSUM_OK, IBV_RAW_PACKET_CAP_IP_CSUM
            assert_eq!((&got[0].0, got[0].1), (frame, flags));
            assert_eq!(ends.count(1, Counter::rx_csum_errors), errors);
        }
    }
}

fn shape_header_again(shape: Shape, frame: &mut [u8]) {
    let at = shape.ip_at();
    frame[at + 10..at + 12].fill(0);
    shape.fill_ipv4(frame);
}

/// The NIC does not confirm a checksum that it has not computed itself.
#[test]
fn a_sum_somewhere_else_is_no_promise() {
    let shape = Shape {
        v6: false,
        vlan: false,
        options: (0, 0),
        protocol: UDP,
    };
    let mut ends = Ends::new(true);
    ends.receive(4);
    let mut frame = shape.frame(&data(100));
    shape.fill_ipv4(&mut frame);
    ends.post(&frame, wr::WR_FLAG_CSUM, [50, 10, 0, 0]);
    ends.sent(cqe::SUCCESS);
    let got = ends.arrived();
    // The former value of the field is part of the sum, as a pseudo header is.
    let all = sum(&[&got[0].0[50..], &frame[60..62]]);
    assert_eq!(all, 0xffff, "it did what it was told");
    let at = shape.l4_at();
    assert_ne!(sum(&[&shape.pseudo(&got[0].0), &got[0].0[at..]]), 0xffff);
    // UDP without a checksum of its own is right.
    assert_eq!(got[0].1, cqe::CQE_CSUM_OK);
    // A pseudo header that is wrong does no harm.
    let mut frame = shape.partial(&data(100));
    frame[at + 6] ^= 0x55;
    ends.post(&frame, wr::WR_FLAG_CSUM, shape.start());
    let got = ends.arrived();
    shape.expect_right(&got[0].0);
}

#[test]
fn large_packets_are_cut_into_pieces() {
    for by_reference in [false, true] {
        for shape in shapes().into_iter().filter(|shape| shape.protocol == TCP) {
            let mut ends = Ends::new(by_reference);
            ends.receive(60);
            let mss = 1500 - shape.ip_len() - shape.l4_len();
            let payload = data(20 * mss + 321);
            let large = shape.partial(&payload);
            let offload = [
                shape.l4_at() as u16,
                16,
                mss as u16,
                shape.payload_at() as u16,
            ];
            ends.post(&large, wr::WR_FLAG_CSUM, offload);
            ends.sent(cqe::SUCCESS);
            // The next posted frame follows.
            let small = shape.partial(b"last");
            ends.post(&small, wr::WR_FLAG_CSUM, shape.start());
            ends.sent(cqe::SUCCESS);
            let got = ends.arrived();
            assert_eq!(got.len(), 22);
            let (_, pieces) = got.split_last().unwrap();
            let mut joined: Vec<u8> = Vec::new();
            for (n, (frame, flags)) in pieces.iter().enumerate() {
                let part = &frame[shape.payload_at()..];
                shape.expect_right(frame);
                assert_eq!(*flags, cqe::CQE_CSUM_OK);
                let (at, l4) = (shape.ip_at(), shape.l4_at());
                let be16 = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                match shape.v6 {
                    true => assert_eq!(usize::from(be16(at + 4)), shape.l4_len() + part.len()),
                    false => {
                        assert_eq!(usize::from(be16(at + 2)), frame.len() - at);
                        assert_eq!(be16(at + 4), 0x12fe + n as u16);
                    }
                }
                let sequence = u32::from(be16(l4 + 4)) << 16 | u32::from(be16(l4 + 6));
                assert_eq!(sequence, 0xffff_ff00u32.wrapping_add((n * mss) as u32));
                let last = n == 20;
                let wanted = match n {
                    0 => 0x90,
                    _ if last => 0x19,
                    _ => 0x10,
                };
                assert_eq!(frame[l4 + 13], wanted, "flags of piece {n}");
                assert_eq!(part.len(), if last { 321 } else { mss });
                joined.extend(part);
            }
            assert!(joined == payload);
            assert_eq!(ends.count(0, Counter::tx_segmented), 1);
        }
    }
}

#[test]
fn segments_wait_for_pages_and_continue() {
    let shape = shapes()[0];
    let mut ends = Ends::new(true);
    ends.receive(60);
    let mut pager = HostPager::new(&mut ends.world, 0, 64, 5);
    let region = pager.register(&mut ends.world, 0x10_0000, 64 << 10);
    let payload = data(30_000);
    let large = shape.partial(&payload);
    pager.write(&ends.world, region, 100, &large);
    let sges = [pager.sge(region, 100, large.len() as u32)];
    let offload = [0, 0, 1448, shape.payload_at() as u16];
    ends.post_from(&sges, 0, offload);
    run_pagers(&mut ends.world, &mut [&mut pager]);
    ends.sent(cqe::SUCCESS);
    assert!(pager.records.len() > 1, "pages were missing");
    let got = ends.arrived();
    let joined: Vec<u8> = got
        .iter()
        .flat_map(|(frame, _)| frame[shape.payload_at()..].to_vec())
        .collect();
    assert!(joined == payload);
    got.iter().for_each(|(frame, _)| shape.expect_right(frame));
}

/// The sender of a large packet need not register the memory of its headers.
#[test]
fn headers_may_be_in_the_request_and_the_rest_elsewhere() {
    for shape in [shapes()[0], shapes()[2]] {
        let mut ends = Ends::new(true);
        ends.receive(60);
        // With room for the longest headers.
        let host = &mut ends.world.hosts[0];
        let config = QpConfig {
            max_sge: 10,
            ..host.qp_config(QPT_RAW, &ends.cq[0])
        };
        ends.qp[0] = host.driver.create_qp(&config).unwrap();
        host.driver.activate(ends.qp[0].qpn, QPT_RAW, 0).unwrap();
        let payload = data(30_000);
        let large = shape.partial(&payload);
        let (header, rest) = large.split_at(shape.payload_at());
        let mr = ends.mr[0];
        ends.world.hosts[0].driver.write_mr(&mr, 500, rest);
        let mut send = Send {
            opcode: wr::WR_RAW,
            inline: Some(header),
            sges: &[(mr.va + 500, 30_000, mr.key)],
            compare_add: 1300 << 32 | (header.len() as u64) << 48,
            ..Send::default()
        };
        let post = |ends: &mut Ends, send: &Send<'_>| {
            let driver = &mut ends.world.hosts[0].driver;
            driver.post_send(&mut ends.qp[0], send);
            ends.world.run_for(1_000_000);
            expect_cqe(&mut ends.world, 0, &mut ends.cq[0], cqe::SUCCESS).opcode
        };
        // proves: IBV_WC_TSO
        assert_eq!(post(&mut ends, &send), cqe::TSO);
        let got = ends.arrived();
        assert_eq!(got.len(), 24);
        got.iter().for_each(|(frame, _)| shape.expect_right(frame));
        let parts = got.iter().map(|(frame, _)| &frame[shape.payload_at()..]);
        // proves: IBV_WR_TSO, tso_caps, IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_EX_WITH_TSO
        // proves: wr_send_tso
        assert!(parts.flatten().copied().collect::<Vec<u8>>() == payload);
        // The same of a frame that is not cut, wherever the border is.
        for border in [1, 13, 16, 17, 54] {
            let (head, rest) = large[..1000].split_at(border);
            ends.world.hosts[0].driver.write_mr(&mr, 0, rest);
            send.inline = Some(head);
            let sge = [(mr.va, rest.len() as u32, mr.key)];
            let send = Send {
                sges: &sge,
                compare_add: 0,
                ..send
            };
            assert_eq!(post(&mut ends, &send), cqe::SEND);
            assert!(ends.arrived()[0].0 == large[..1000]);
        }
    }
}

#[test]
fn requests_that_make_no_sense_fail_and_the_queue_comes_back() {
    let tcp = shapes()[0];
    let udp = Shape {
        protocol: UDP,
        ..tcp
    };
    let header_len = tcp.payload_at() as u16;
    let large = tcp.partial(&data(5000));
    let small = tcp.partial(&data(50));
    let csum = wr::WR_FLAG_CSUM;
    let mut fragment = large.clone();
    fragment[tcp.ip_at() + 6] = 0x20;
    let mut cut = large.clone();
    cut[tcp.l4_at() + 12] = 0xf0;
    let deep = tcp.partial(&data(500));
    let udp_large = udp.partial(&data(5000));
    let cases: &[(&[u8], u8, [u16; 4], u8)] = &[
        // Fields without the flag, or with the wrong one.
        (&small, 0, [34, 16, 0, 0], cqe::OFFLOAD),
        (&small, 0, [0, 0, 0, 54], cqe::OFFLOAD),
        (&small, csum, [0, 16, 0, 0], cqe::OFFLOAD),
        (&small, csum, [34, 16, 0, 54], cqe::OFFLOAD),
        // Sums before the headers, beyond the headers that the NIC reads, behind the frame.
        (&small, csum, [13, 16, 0, 0], cqe::OFFLOAD),
        (&deep, csum, [136, 2, 0, 0], cqe::OFFLOAD),
        (&small, csum, [u16::MAX, u16::MAX, 0, 0], cqe::OFFLOAD),
        (&small, csum, [103, 1, 0, 0], cqe::OFFLOAD),
        // Too long for a frame.
        (&large, csum, [34, 16, 0, 0], cqe::LENGTH),
        (&large, 0, [0, 0, 1469, header_len], cqe::LENGTH),
        (&large, 0, [0, 0, u16::MAX, header_len], cqe::LENGTH),
        // Headers that are not there, or not as long as said.
        (&large, 0, [0, 0, 1000, 0], cqe::OFFLOAD),
        (&large, 0, [0, 0, 1000, header_len - 1], cqe::OFFLOAD),
        (&large, 0, [0, 0, 1000, header_len + 1], cqe::OFFLOAD),
        (&large, 0, [0, 0, 1000, 139], cqe::OFFLOAD),
        (&large, 0, [0, 0, 1000, u16::MAX], cqe::OFFLOAD),
        (&small[..54], 0, [0, 0, 1000, 54], cqe::OFFLOAD),
        (&fragment, 0, [0, 0, 1000, header_len], cqe::OFFLOAD),
        (&cut, 0, [0, 0, 1000, header_len], cqe::OFFLOAD),
        (&udp_large, 0, [0, 0, 1000, 42], cqe::OFFLOAD),
    ];
    for by_reference in [false, true] {
        let mut ends = Ends::new(by_reference);
        ends.receive(4);
        for (n, (frame, flags, offload, vendor)) in cases.iter().enumerate() {
            ends.post(frame, *flags, *offload);
            let found = ends.world.completions(0, &mut ends.cq[0]);
            assert_eq!(found.len(), 1, "case {n}");
            assert_ne!(found[0].status, cqe::SUCCESS, "case {n}");
            assert_eq!(found[0].vendor_err, *vendor, "case {n}");
            let qpn = ends.qp[0].qpn;
            ends.world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
        }
        assert_eq!(ends.count(0, Counter::tx_packets), 0);
        ends.post(&small, csum, tcp.start());
        ends.sent(cqe::SUCCESS);
        assert_eq!(ends.arrived().len(), 1);
    }
}

/// Frames that are nearly right, and requests that are nearly possible: one completion each, and nothing too long.
#[test]
fn nothing_that_is_asked_for_does_harm() {
    let shapes = shapes();
    for seed in 0..8 {
        let mut ends = Ends::new(seed % 2 == 0);
        let mut rng = Rng::new(seed);
        for _ in 0..200 {
            ends.posted = 0;
            ends.receive(4);
            let shape = shapes[rng.below(shapes.len() as u64) as usize];
            let mut frame = shape.partial(&data(rng.below(4000) as usize));
            for _ in 0..rng.below(4) {
                let at = rng.below(frame.len().min(120) as u64) as usize;
                frame[at] = rng.next_u64() as u8;
            }
            let mss = rng.below(1600).max(60) as u16;
            let header_len = shape.payload_at() as u16;
            let mut offload = match rng.below(3) {
                0 => shape.start(),
                1 => [0, 0, mss, header_len],
                _ => [0; 4],
            };
            if rng.chance(200) {
                offload[rng.below(4) as usize] = rng.next_u64() as u16 >> rng.below(16);
            }
            // Unless it would be cut into thousands.
            if (1..60).contains(&offload[2]) {
                offload[2] = 60;
            }
            let flags = if rng.chance(700) { wr::WR_FLAG_CSUM } else { 0 };
            ends.post(&frame, flags, offload);
            let found = ends.world.completions(0, &mut ends.cq[0]);
            assert_eq!(found.len(), 1, "{offload:?}");
            if found[0].status != cqe::SUCCESS {
                let qpn = ends.qp[0].qpn;
                ends.world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
            }
            for (frame, _) in ends.arrived() {
                assert!(frame.len() <= 1518, "{offload:?}");
            }
        }
    }
}

/// A receiver gets "checksums correct" only if those of the delivered bytes are, even if the sender changes them on
/// their way.
#[test]
fn a_sender_that_races_forges_no_checksum() {
    const AT: usize = 500;
    let shape = Shape {
        v6: false,
        vlan: false,
        options: (0, 0),
        protocol: UDP,
    };
    let mut frame = shape.partial(&data(600));
    let field = shape.l4_at() + shape.sum_at();
    let value = !sum(&[&frame[shape.l4_at()..]]);
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
    let changed = [!frame[AT]];
    // The device's reads that still find the right byte.
    for reads in 0..6 {
        let mut ends = Ends::new(true);
        ends.receive(1);
        let at = ends.mr[0].addr + AT as u64;
        ends.world.change_after(0, at, &changed, reads);
        ends.post(&frame, 0, [0; 4]);
        let arrived = ends.arrived();
        let [(bytes, flags)] = &arrived[..] else {
            panic!("{} frames", arrived.len());
        };
        let right = flags & cqe::CQE_CSUM_OK != 0;
        assert_eq!(right, *bytes == frame, "after {reads} reads");
        assert_eq!(right, reads > 0);
    }
}
