//! UD, GSI and raw Ethernet: sent and dropped frames, and the errors that stop a queue.

use faultline_abi::admin::{
    Counter, NETDEV_ALLMULTI, NETDEV_PROMISC, NETDEV_UP, SET_NETDEV, SetNetdev,
};
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U16, U32};
use faultline_simulation::{Cq, Error, Mr, Qp, QpConfig, Send, Sge};
use faultline_simulator::{World, expect_cqe, gid6, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::deth::Deth;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;

use crate::common::{counter, state};

const LEN: u64 = 64 << 10;
const QKEY: u32 = 0x1111_2222;
const GSI_QKEY: u32 = 0x8001_0000;

struct Ends {
    cq: [Cq; 2],
    qp: [Qp; 2],
    mr: [Mr; 2],
    ah: u32,
}

fn ends(world: &mut World, kind: u8) -> Ends {
    let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[i].qp(kind, &cq[i]).unwrap());
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    let qkey = if kind == QPT_GSI { GSI_QKEY } else { QKEY };
    for (host, qp) in qp.iter().enumerate() {
        world.hosts[host]
            .driver
            .activate(qp.qpn, kind, qkey)
            .unwrap();
    }
    let pd = world.hosts[0].pd;
    let av = world.path(1, 0).av();
    let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
    Ends { cq, qp, mr, ah }
}

impl Ends {
    fn send(&mut self, world: &mut World, qkey: u32, len: u32) {
        let a = self.mr[0];
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(a.va, len, a.key)],
            ah: self.ah,
            remote_qpn: self.qp[1].qpn,
            qkey,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut self.qp[0], &send);
        world.run();
    }

    fn receive_into(&mut self, world: &mut World, tag: u32, len: u32) {
        let b = self.mr[1];
        let sge: Sge = (b.va, len, b.key);
        world.hosts[1]
            .driver
            .post_recv(&mut self.qp[1], tag, &[sge]);
    }

    /// A datagram by hand.
    fn forged(&self, world: &World) -> RoceHeader {
        let (from, to) = (&world.hosts[0], &world.hosts[1]);
        let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        let bth = Bth::new(Opcode::UdSendOnly, self.qp[1].qpn, Psn::new(0));
        let mut header = RoceHeader::new(to.mac, from.mac, ip, bth);
        header.deth = Some(Deth {
            qkey: QKEY,
            src_qp: 5,
        });
        header
    }
}

#[test]
fn a_datagram_longer_than_the_mtu_fails_and_the_queue_comes_back() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_UD);
    e.receive_into(&mut world, 1, 5000);
    e.send(&mut world, QKEY, 4096);
    expect_cqe(&mut world, 0, &mut e.cq[0], cqe::SUCCESS);
    let found = expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
    assert_eq!(found.byte_len.get(), 4096 + 40);
    e.send(&mut world, QKEY, 4097);
    e.send(&mut world, QKEY, 1);
    let found = world.completions(0, &mut e.cq[0]);
    let statuses: Vec<u8> = found.iter().map(|cqe| cqe.status).collect();
    assert_eq!(statuses, [cqe::LOC_LEN_ERR, cqe::WR_FLUSH_ERR]);
    assert_eq!(state(&mut world, 0, &e.qp[0]), QPS_SQE);
    // Receives continue meanwhile, and so do sends afterwards.
    let qpn = e.qp[0].qpn;
    world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
    e.receive_into(&mut world, 2, 5000);
    e.send(&mut world, QKEY, 1);
    expect_cqe(&mut world, 0, &mut e.cq[0], cqe::SUCCESS);
    expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
    // A small port has small datagrams.
    let mac = world.hosts[0].mac;
    world.hosts[0].driver.set_netdev(mac, 1500, 0).unwrap();
    e.send(&mut world, QKEY, 1025);
    expect_cqe(&mut world, 0, &mut e.cq[0], cqe::LOC_LEN_ERR);
}

#[test]
fn every_illegal_opcode_gives_a_completion() {
    for kind in [QPT_UD, QPT_GSI, QPT_RAW] {
        let legal: &[u8] = match kind {
            QPT_RAW => &[wr::WR_RAW],
            _ => &[wr::WR_SEND, wr::WR_SEND_IMM],
        };
        let mut world = World::new(2, 1);
        let mut e = ends(&mut world, kind);
        for opcode in (0..=255).filter(|opcode| !legal.contains(opcode)) {
            let send = Send {
                opcode,
                inline: Some(&[0; 60]),
                ah: e.ah,
                remote_qpn: 9,
                qkey: QKEY,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut e.qp[0], &send);
            world.run();
            let found = expect_cqe(&mut world, 0, &mut e.cq[0], cqe::LOC_QP_OP_ERR);
            assert_eq!(found.vendor_err, cqe::OPCODE, "{opcode}");
            assert_eq!(state(&mut world, 0, &e.qp[0]), QPS_SQE);
            let qpn = e.qp[0].qpn;
            world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
        }
        assert_eq!(counter(&mut world, 0, Counter::tx_packets), 0);
    }
}

/// A peer that knows the Q_Key must not be able to stop a queue or to use up its buffers (IBTA 9.9.6.3, class D).
#[test]
fn a_datagram_longer_than_the_buffer_leaves_no_trace() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_UD);
    e.receive_into(&mut world, 1, 139);
    e.receive_into(&mut world, 2, 140);
    world.hosts[1].driver.async_events();
    for _ in 0..3 {
        e.send(&mut world, QKEY, 100);
    }
    assert_eq!(world.completions(1, &mut e.cq[1]), []);
    let dropped = counter(&mut world, 1, Counter::resp_local_length_error);
    assert_eq!(dropped, 3);
    e.send(&mut world, QKEY, 99);
    e.send(&mut world, QKEY, 100);
    let found = world.completions(1, &mut e.cq[1]);
    let found: Vec<_> = found
        .iter()
        .map(|cqe| (cqe.wqe.get(), cqe.status, cqe.byte_len.get()))
        .collect();
    assert_eq!(found, [(1, cqe::SUCCESS, 139), (2, cqe::SUCCESS, 140)]);
    assert_eq!(state(&mut world, 1, &e.qp[1]), QPS_RTS);
    assert_eq!(world.hosts[1].driver.async_events(), []);
}

/// A taken buffer of a shared queue can't be returned: it completes in error, and the queue pair continues (class E).
#[test]
fn a_datagram_longer_than_a_shared_buffer_completes_in_error() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_UD);
    let host = &mut world.hosts[1];
    let mut srq = host.driver.create_srq(host.pd, 0, 4, 1, 0).unwrap();
    let config = QpConfig {
        srqn: Some(srq.srqn),
        ..host.qp_config(QPT_UD, &e.cq[1])
    };
    e.qp[1] = host.driver.create_qp(&config).unwrap();
    host.driver.activate(e.qp[1].qpn, QPT_UD, QKEY).unwrap();
    let mr = e.mr[1];
    for (tag, len) in [(7, 139), (8, 140)] {
        host.driver
            .post_srq_recv(&mut srq, tag, &[(mr.va, len, mr.key)]);
    }
    for (tag, status) in [(7, cqe::LOC_LEN_ERR), (8, cqe::SUCCESS)] {
        e.send(&mut world, QKEY, 100);
        let found = expect_cqe(&mut world, 1, &mut e.cq[1], status);
        assert_eq!(found.wqe.get(), tag);
    }
    assert_eq!(state(&mut world, 1, &e.qp[1]), QPS_RTS);
}

#[test]
fn the_general_services_interface_cannot_be_stopped_from_outside() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_GSI);
    assert_eq!((e.qp[0].qpn, e.qp[1].qpn), (1, 1));
    e.receive_into(&mut world, 1, 40 + 256);
    e.send(&mut world, GSI_QKEY, 257);
    e.send(&mut world, GSI_QKEY, 4096);
    assert_eq!(world.completions(1, &mut e.cq[1]), []);
    let dropped = counter(&mut world, 1, Counter::resp_local_length_error);
    assert_eq!(dropped, 2);
    // The buffer that they would have used is still there.
    e.send(&mut world, GSI_QKEY, 256);
    let found = expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
    assert_eq!((found.wqe.get(), found.src_qp.get()), (1, 1));
    // QP1 has its own Q_Key, independent of the one that it was given.
    let mut header = e.forged(&world);
    e.receive_into(&mut world, 2, 300);
    world.inject(0, packet(&header, &[1; 256]));
    world.run();
    assert_eq!(counter(&mut world, 1, Counter::rx_bad_qkey), 1);
    header.deth = Some(Deth {
        qkey: GSI_QKEY,
        src_qp: 1,
    });
    world.inject(0, packet(&header, &[1; 256]));
    world.run();
    expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
    // There is one.
    let config = world.hosts[0].qp_config(QPT_GSI, &e.cq[0]);
    let second = world.hosts[0].driver.create_qp(&config).map(drop);
    assert_eq!(second, Err(Error::Refused(Status::InUse)));
}

#[test]
fn a_process_cannot_send_with_a_privileged_key() {
    let mut world = World::new(2, 1);
    let page = world.hosts[0].driver.alloc_uctx().unwrap();
    let host = &mut world.hosts[0];
    let config = faultline_simulation::CqConfig {
        log_depth: 4,
        eqn: host.eq.eqn,
        uctx: page,
    };
    let cq = host.driver.create_cq(config).unwrap();
    let config = faultline_simulation::QpConfig {
        uctx: page,
        ..host.qp_config(QPT_UD, &cq)
    };
    let qp = host.driver.create_qp(&config).unwrap();
    host.driver.activate(qp.qpn, QPT_UD, QKEY).unwrap();
    let mut e = ends(&mut world, QPT_GSI);
    e.qp[0] = qp;
    e.receive_into(&mut world, 1, 4096);
    world.start_trace();
    e.send(&mut world, GSI_QKEY, 256);
    let (_, header) = world.take_trace()[0];
    assert_eq!(header.deth.unwrap().qkey, QKEY, "its own instead");
    assert_eq!(world.completions(1, &mut e.cq[1]), []);
    assert_eq!(counter(&mut world, 1, Counter::rx_bad_qkey), 1);
}

#[test]
fn foreign_datagrams_are_dropped_and_counted() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_UD);
    e.receive_into(&mut world, 1, 4096);
    let good = e.forged(&world);
    let arrives = |world: &mut World, e: &mut Ends, header: &RoceHeader, what: Counter| {
        let before = counter(world, 1, what);
        world.inject(0, packet(header, b"payload"));
        world.run();
        assert_eq!(counter(world, 1, what) - before, 1, "{}", what.name());
        assert_eq!(world.completions(1, &mut e.cq[1]), []);
    };
    let mut pkey = good;
    pkey.bth.pkey = 0x1234;
    arrives(&mut world, &mut e, &pkey, Counter::rx_bad_pkey);
    let mut unknown_qp = good;
    unknown_qp.bth.dest_qp = 0x12_3456;
    arrives(&mut world, &mut e, &unknown_qp, Counter::rx_bad_qp);
    let mut other = good;
    other.bth.opcode = Opcode::RcSendOnly;
    other.deth = None;
    arrives(&mut world, &mut e, &other, Counter::rx_bad_qp);
    let mut key = good;
    key.deth = Some(Deth {
        qkey: QKEY ^ 1,
        src_qp: 5,
    });
    arrives(&mut world, &mut e, &key, Counter::rx_bad_qkey);
    let mut bytes = packet(&good, b"payload");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    world.inject(0, bytes);
    world.run();
    assert_eq!(counter(&mut world, 1, Counter::rx_icrc_errors), 1);
    assert_eq!(world.completions(1, &mut e.cq[1]), []);
    world.inject(0, packet(&good, b"payload"));
    world.run();
    expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
}

#[test]
fn a_connection_listens_to_its_peer_alone() {
    for kind in [QPT_RC, QPT_UC] {
        let mut world = World::new(3, 1);
        let mut pair = world.connect(kind, LEN, |_| {});
        let mr = pair.mr[1];
        world.hosts[1]
            .driver
            .post_recv(&mut pair.qp[1], 1, &[(mr.va, 100, mr.key)]);
        let opcode = if kind == QPT_RC {
            Opcode::RcSendOnly
        } else {
            Opcode::UcSendOnly
        };
        let to = &world.hosts[1];
        let from = |host: usize, other: usize| {
            let ip = Ip::from_gids(world.hosts[host].gid, world.hosts[other].gid, 0, 0, 64);
            let bth = Bth::new(opcode, pair.qp[1].qpn, Psn::new(0));
            RoceHeader::new(to.mac, world.hosts[host].mac, ip, bth)
        };
        // To another address of this host than that of the connection.
        let mut other = from(0, 1);
        other.ip = Ip::from_gids(gid6(&world.hosts[0]), gid6(to), 0, 0, 64);
        world.inject(2, packet(&from(2, 1), b"stranger"));
        world.inject(0, packet(&other, b"not for this connection"));
        world.inject(0, packet(&from(0, 2), b"not for this host"));
        world.run();
        assert_eq!(counter(&mut world, 1, Counter::rx_bad_source), 2);
        assert_eq!(counter(&mut world, 1, Counter::rx_bad_gid), 1);
        assert_eq!(world.completions(1, &mut pair.cq[1]), []);
        let (from, to) = (&world.hosts[0], &world.hosts[1]);
        let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
        let bth = Bth::new(opcode, pair.qp[1].qpn, Psn::new(0));
        let header = RoceHeader::new(to.mac, from.mac, ip, bth);
        world.inject(0, packet(&header, b"peer"));
        world.run();
        expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
    }
}

fn raw_frame(dst: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = dst.to_vec();
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend((14..len).map(|i| i as u8));
    frame
}

#[test]
fn an_interface_receives_the_requested_frames() {
    let own = [2, 0, 0, 0, 0, 2];
    let multicast = [0x33, 0x33, 0, 0, 0, 5];
    let filtered = [2, 0, 0, 0, 1, 2];
    let group = [0x01, 0, 0x5e, 0, 0, 1];
    let cases = [
        (NETDEV_UP, own, true),
        (NETDEV_UP, [0xff; 6], true),
        (NETDEV_UP, multicast, false),
        (NETDEV_UP, [2, 7, 7, 7, 7, 7], false),
        (NETDEV_UP | NETDEV_ALLMULTI, multicast, true),
        (NETDEV_UP | NETDEV_ALLMULTI, [2, 7, 7, 7, 7, 7], false),
        (NETDEV_UP | NETDEV_PROMISC, [2, 7, 7, 7, 7, 7], true),
        (0, own, false),
        (NETDEV_UP, filtered, true),
        (NETDEV_UP, group, true),
        (0, filtered, false),
    ];
    for by_reference in [false, true] {
        for (flags, dst, wanted) in cases {
            let mut world = World::new(2, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut e = ends(&mut world, QPT_RAW);
            let body = SetNetdev {
                mac: own,
                mtu: U16::new(1500),
                flags: U32::new(flags),
                qpn: U32::new(e.qp[1].qpn),
            };
            let driver = &mut world.hosts[1].driver;
            driver.set_mac_filter(&[filtered, group, group]).unwrap();
            driver.command(SET_NETDEV, 0, &body).unwrap();
            e.receive_into(&mut world, 1, 2000);
            let frame = raw_frame(dst, 300);
            world.hosts[0].driver.write_mr(&e.mr[0], 0, &frame);
            let a = e.mr[0];
            let send = Send {
                opcode: wr::WR_RAW,
                sges: &[(a.va, 5, a.key), (a.va + 5, 295, a.key)],
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut e.qp[0], &send);
            world.run();
            expect_cqe(&mut world, 0, &mut e.cq[0], cqe::SUCCESS);
            let found = world.completions(1, &mut e.cq[1]);
            assert_eq!(found.len(), usize::from(wanted), "{flags} {dst:x?}");
            if wanted {
                assert_eq!(found[0].byte_len.get(), 300);
                assert!(world.hosts[1].driver.read_mr(&e.mr[1], 0, 300) == frame);
            }
        }
    }
}

#[test]
fn a_filter_replaces_the_one_before() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_RAW);
    let (mac, qpn) = (world.hosts[1].mac, e.qp[1].qpn);
    world.hosts[1].driver.set_netdev(mac, 1500, qpn).unwrap();
    let [first, second] = [[2, 0, 0, 0, 1, 2], [0x01, 0, 0x5e, 0, 0, 1]];
    let arrives = |world: &mut World, e: &mut Ends, dst| {
        e.receive_into(world, 1, 2000);
        let frame = raw_frame(dst, 100);
        world.hosts[0].driver.write_mr(&e.mr[0], 0, &frame);
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(e.mr[0].va, 100, e.mr[0].key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut e.qp[0], &send);
        world.run();
        world.completions(1, &mut e.cq[1]).len() == 1
    };
    for (filter, expected) in [
        (&[first][..], [true, false]),
        (&[second, first], [true, true]),
        (&[second], [false, true]),
        (&[], [false, false]),
    ] {
        world.hosts[1].driver.set_mac_filter(filter).unwrap();
        let found = [first, second].map(|dst| arrives(&mut world, &mut e, dst));
        assert_eq!(found, expected, "{filter:x?}");
    }
    // Later commands to the interface change nothing.
    world.hosts[1].driver.set_mac_filter(&[first]).unwrap();
    world.hosts[1].driver.set_netdev(mac, 1500, qpn).unwrap();
    assert!(arrives(&mut world, &mut e, first));
    // More than the limit: the present ones stay.
    let many = vec![second; 129];
    let refused = world.hosts[1].driver.set_mac_filter(&many);
    assert_eq!(refused, Err(Error::Refused(Status::NoResources)));
    assert!(arrives(&mut world, &mut e, first));
    assert!(!arrives(&mut world, &mut e, second));
    world.hosts[1].driver.set_mac_filter(&many[1..]).unwrap();
    assert!(arrives(&mut world, &mut e, second));
}

#[test]
fn raw_frames_have_limits_and_an_interface_survives_bad_ones() {
    let mut world = World::new(2, 1);
    let mut e = ends(&mut world, QPT_RAW);
    for host in 0..2 {
        let (mac, qpn) = (world.hosts[host].mac, e.qp[host].qpn);
        world.hosts[host].driver.set_netdev(mac, 1500, qpn).unwrap();
    }
    let frame = raw_frame(world.hosts[1].mac.0, 1600);
    world.hosts[0].driver.write_mr(&e.mr[0], 0, &frame);
    let a = e.mr[0];
    let post = |world: &mut World, e: &mut Ends, len: u32| {
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(a.va, len, a.key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut e.qp[0], &send);
        world.run();
    };
    for len in [0, 13, 1523] {
        post(&mut world, &mut e, len);
        expect_cqe(&mut world, 0, &mut e.cq[0], cqe::LOC_LEN_ERR);
        let qpn = e.qp[0].qpn;
        world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
    }
    // No buffer for a frame with two VLAN tags, then a small one, then a good one.
    post(&mut world, &mut e, 1522);
    assert_eq!(counter(&mut world, 1, Counter::rx_no_buffer), 1);
    e.receive_into(&mut world, 1, 1513);
    e.receive_into(&mut world, 2, 1514);
    post(&mut world, &mut e, 1514);
    expect_cqe(&mut world, 1, &mut e.cq[1], cqe::LOC_LEN_ERR);
    assert_eq!(state(&mut world, 1, &e.qp[1]), QPS_RTS);
    post(&mut world, &mut e, 1514);
    let found = expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
    assert_eq!((found.wqe.get(), found.byte_len.get()), (2, 1514));
    assert_eq!(world.completions(0, &mut e.cq[0]).len(), 3);
}

/// Someone makes a RoCE packet by hand and sends it as a frame; it is judged as one.
#[test]
fn a_handmade_packet_is_a_packet() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut datagrams = ends(&mut world, QPT_UD);
        let mut raw = ends(&mut world, QPT_RAW);
        datagrams.receive_into(&mut world, 1, 1000);
        let good = packet(&datagrams.forged(&world), b"by hand");
        let mut bad = good.clone();
        let last = bad.len() - 1;
        bad[last] ^= 0x40;
        for frame in [bad, good] {
            world.hosts[0].driver.write_mr(&raw.mr[0], 0, &frame);
            let a = raw.mr[0];
            let send = Send {
                opcode: wr::WR_RAW,
                sges: &[(a.va, frame.len() as u32, a.key)],
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut raw.qp[0], &send);
            world.run();
        }
        let found = expect_cqe(&mut world, 1, &mut datagrams.cq[1], cqe::SUCCESS);
        assert_eq!((found.byte_len.get(), found.src_qp.get()), (47, 5));
        assert_eq!(counter(&mut world, 1, Counter::rx_icrc_errors), 1);
    }
}

/// The header in front of a received datagram is the packet's own, with its length (IBTA A17.4.5.2), whether the packet
/// has been on a wire or not.
#[test]
fn the_header_in_front_of_a_datagram_is_that_of_its_packet() {
    for by_reference in [false, true] {
        for sgid_index in [0, 1] {
            let mut world = World::new(2, 1);
            if by_reference {
                world.hand_over_by_reference();
            }
            let mut e = ends(&mut world, QPT_UD);
            let (from, to) = (&world.hosts[0], &world.hosts[1]);
            let gids = match sgid_index {
                0 => (from.gid, to.gid),
                _ => (gid6(from), gid6(to)),
            };
            let (smac, pd) = (from.mac, from.pd);
            let mut path = world.path(1, 0);
            (path.sgid_index, path.dgid) = (sgid_index, gids.1);
            let av = AddressVector {
                traffic_class: 0x2c,
                flow_label: U32::new(0x12345),
                hop_limit: 9,
                ..path.av()
            };
            let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
            for (len, opcode) in [
                (0, wr::WR_SEND),
                (1, wr::WR_SEND_IMM),
                (2, wr::WR_SEND),
                (7, wr::WR_SEND_IMM),
                (1000, wr::WR_SEND),
                (4096, wr::WR_SEND_IMM),
            ] {
                e.receive_into(&mut world, 1, 5000);
                let (a, b) = (e.mr[0], e.mr[1]);
                let data: Vec<u8> = (0..len).map(|i| (i * 3 + i / 256) as u8).collect();
                world.hosts[0].driver.write_mr(&a, 0, &data);
                world.hosts[1].driver.write_mr(&b, 0, &[0xee; 40]);
                let send = Send {
                    opcode,
                    sges: &[(a.va, len, a.key)],
                    ah,
                    remote_qpn: e.qp[1].qpn,
                    qkey: QKEY,
                    ..Send::default()
                };
                world.hosts[0].driver.post_send(&mut e.qp[0], &send);
                world.run();
                let found = expect_cqe(&mut world, 1, &mut e.cq[1], cqe::SUCCESS);
                assert_eq!((found.byte_len.get(), found.smac), (len + 40, smac.0));
                let got = world.hosts[1].driver.read_mr(&b, 0, 40 + len as usize);
                assert!(got[40..] == data);
                // UDP, BTH, DETH, payload to a multiple of four, iCRC.
                let imm = if opcode == wr::WR_SEND_IMM { 4 } else { 0 };
                let behind = 8 + 12 + 8 + imm + (len as u16).next_multiple_of(4) + 4;
                // The parser verifies the checksum, and that there are as many bytes as the header says.
                let start = if sgid_index == 0 { 20 } else { 0 };
                let mut bytes = got[start..40].to_vec();
                bytes.resize(40 + usize::from(behind), 0);
                let (ip, _) = Ip::parse(&bytes).unwrap();
                assert_eq!((ip.src_gid(), ip.dst_gid()), gids);
                match ip {
                    Ip::V4(ip) => {
                        assert_eq!(ip.total_len, 20 + behind, "{len} bytes");
                        assert_eq!((ip.protocol, ip.ttl, ip.dscp), (17, 9, 0x2c >> 2));
                    }
                    Ip::V6(ip) => {
                        assert_eq!(ip.payload_len, behind, "{len} bytes");
                        assert_eq!((ip.next_header, ip.hop_limit), (17, 9));
                        assert_eq!((ip.traffic_class, ip.flow_label), (0x2c, 0x12345));
                    }
                }
            }
        }
    }
}
