//! Congestion control: notifications of marked packets, and the rate of the queue pair that gets them.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::{QPS_RESET, QPT_RC, QPT_UC};
use faultline_abi::wqe as wr;
use faultline_nic::{Dcqcn, Nanos, TURN_WORK};
use faultline_simulation::Send;
use faultline_simulator::{Pair, World, expect_cqe, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Ip, parse};

use crate::common::counter;

const MICROSECOND: u64 = 1000;
/// The NIC hands over all packets of a message at once, so a sender that is to notice something needs many messages.
const LEN: u32 = 16 << 10;
const MESSAGES: u32 = 64;

/// A link of 8 Gb/s: a packet of 1 KiB in about a microsecond.
const CONFIG: Dcqcn = Dcqcn {
    line_rate_mbps: 8000,
    min_rate_mbps: 80,
    cnp_interval: Nanos(50 * MICROSECOND),
    cnp_dscp: 48,
    g_shift: 8,
    alpha_interval: Nanos(55 * MICROSECOND),
    increase_interval: Nanos(55 * MICROSECOND),
    increase_bytes: 10_000_000,
    fast_recovery_rounds: 5,
    additive_mbps: 40,
    hyper_mbps: 200,
};

fn world(congestion: Option<Dcqcn>, marking: u32) -> World {
    let world = World::with_config(2, 1, |config| config.congestion = congestion);
    world.pace(MICROSECOND);
    world.mark(marking);
    world
}

fn post(world: &mut World, pair: &mut Pair, opcode: u8) {
    let [from, to] = pair.mr;
    let send = Send {
        opcode,
        sges: &[(from.va, LEN, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
}

/// Virtual time of requests on a new connection, each after the completion of the one before, with their data checked.
fn time(world: &mut World, opcode: u8) -> u64 {
    let mut pair = world.connect(QPT_RC, LEN.into(), |_| {});
    let from = usize::from(opcode == wr::WR_READ);
    let data: Vec<u8> = (0..LEN).map(|n| ((n * 7) >> 3) as u8).collect();
    let at = pair.mr[from];
    world.hosts[from].driver.write_mr(&at, 0, &data);
    let before = world.now();
    for _ in 0..MESSAGES {
        post(world, &mut pair, opcode);
        while world.completions(0, &mut pair.cq[0]).is_empty() {
            assert!(world.step(u64::MAX), "it never completes");
        }
    }
    let end = world.now();
    world.run();
    let at = pair.mr[1 - from];
    let seen = world.hosts[1 - from].driver.read_mr(&at, 0, data.len());
    assert!(seen == data);
    end - before
}

/// The sender of marked packets sends more slowly: of WRITEs the requester, of READs the responder.
#[test]
fn marked_packets_slow_their_sender_down() {
    for (opcode, sender) in [(wr::WR_WRITE, 0), (wr::WR_READ, 1)] {
        let free = time(&mut world(Some(CONFIG), 0), opcode);
        let mut marked = world(Some(CONFIG), 1000);
        let slow = time(&mut marked, opcode);
        assert!(slow > 4 * free, "{slow} ns, without marks {free} ns");
        // One in 50 us, and each has an effect.
        let sent = counter(&mut marked, 1 - sender, Counter::np_cnp_sent);
        let most = marked.now() / (50 * MICROSECOND) + 1;
        assert!((10..=most).contains(&sent), "{sent} of {most}");
        let handled = counter(&mut marked, sender, Counter::rp_cnp_handled);
        assert_eq!(handled, sent);
    }
}

/// A queue pair whose wait is over sends; its timer does not begin anew, which would take a whole turn.
#[test]
fn the_end_of_a_wait_is_handled_once() {
    let mut marked = world(Some(CONFIG), 1000);
    time(&mut marked, wr::WR_WRITE);
    let longest = marked.longest_call();
    assert!(longest < TURN_WORK / 4, "{longest} in one call");
}

#[test]
fn without_it_marks_are_only_counted() {
    let mut off = world(None, 1000);
    let mut pair = off.connect(QPT_RC, LEN.into(), |c| c.traffic_class = 2);
    post(&mut off, &mut pair, wr::WR_WRITE);
    off.run();
    expect_cqe(&mut off, 0, &mut pair.cq[0], cqe::SUCCESS);
    let marked = counter(&mut off, 1, Counter::np_ecn_marked_roce_packets);
    assert_eq!(marked, 16);
    assert_eq!(counter(&mut off, 1, Counter::np_cnp_sent), 0);
    // It takes as long as without marks.
    let free = time(&mut world(None, 0), wr::WR_WRITE);
    assert_eq!(time(&mut world(None, 1000), wr::WR_WRITE), free);
}

#[test]
fn packets_are_marked_as_those_of_a_sender_that_reacts() {
    // Traffic class of the address vector, and of the packets.
    for (on, class, expected) in [
        (false, 0, 0),
        (true, 0, 2),
        (true, 0xb8, 0xba),
        (true, 1, 1),
    ] {
        for sgid_index in [0, 1] {
            let mut world = world(on.then_some(CONFIG), 0);
            let mut pair = world.connect(QPT_RC, LEN.into(), |c| {
                (c.traffic_class, c.sgid_index) = (class, sgid_index);
            });
            world.start_trace();
            world.post_write(&mut pair, 8);
            world.run();
            let trace = world.take_trace();
            assert_eq!(trace.len(), 2);
            let seen = trace.iter().map(|(_, header)| header.ip.traffic_class());
            assert!(seen.eq([expected; 2]), "{class:#x}");
        }
    }
}

/// IBTA volume 1, annex A17.9.3.
#[test]
fn a_notification_is_as_the_specification_says() {
    let mut world = world(Some(CONFIG), 1000);
    let mut pair = world.connect(QPT_RC, LEN.into(), |c| c.traffic_class = 0x28);
    world.start_capture();
    world.post_write(&mut pair, 8);
    world.run();
    let frames = world.take_capture();
    let mut notifications = 0;
    for (from, frame) in &frames {
        let packet = parse(frame).unwrap();
        let bth = packet.header.bth;
        if bth.opcode != Opcode::Cnp {
            continue;
        }
        notifications += 1;
        assert!(packet.icrc_ok && bth.becn && !bth.fecn && !bth.ack_req);
        // To the queue pair that has sent the marked packet: the WRITE, and the acknowledgement, which was marked, too.
        assert_eq!(bth.dest_qp, pair.qp[1 - from].qpn);
        assert_eq!(bth.psn, Psn::new(0));
        assert_eq!(packet.payload, [0; 16]);
        // DSCP 48; not capable of marks.
        assert_eq!(packet.header.ip.traffic_class(), 0xc0);
    }
    assert_eq!(notifications, 2);
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}

/// The rate does not delay packets for which the peer waits.
#[test]
fn acknowledgements_are_sent_at_once() {
    let slow = Dcqcn {
        min_rate_mbps: 1,
        increase_interval: Nanos::from_millis(1000),
        ..CONFIG
    };
    let mut world = world(Some(slow), 0);
    let mut pair = world.connect(QPT_RC, LEN.into(), |_| {});
    let cnp = notification(&world, &pair, (0, 0));
    for _ in 0..40 {
        world.inject(1, cnp.clone());
    }
    world.run_for(100 * MICROSECOND);
    post(&mut world, &mut pair, wr::WR_WRITE);
    world.run_for(50 * MICROSECOND);
    // Host 0 may send its second packet only after milliseconds.
    assert!(world.completions(0, &mut pair.cq[0]).is_empty());
    let [to, from] = pair.mr;
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(from.va, 8, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[1].driver.post_send(&mut pair.qp[1], &send);
    world.run_for(20 * MICROSECOND);
    expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
}

/// A CNP as host 1 sends it to the queue pair of host 0, but for offsets of its IP and MAC address.
fn notification(world: &World, pair: &Pair, (offset, mac_offset): (u8, u8)) -> Vec<u8> {
    let [to, from] = [0, 1].map(|host| &world.hosts[host]);
    let mut source = from.gid;
    source.0[15] ^= offset;
    let bth = Bth {
        becn: true,
        ..Bth::new(Opcode::Cnp, pair.qp[0].qpn, Psn::new(0))
    };
    let ip = Ip::from_gids(source, to.gid, 0xc0, 0, 64);
    let mut mac = from.mac;
    mac.0[5] ^= mac_offset;
    packet(&RoceHeader::new(to.mac, mac, ip, bth), &[0; 16])
}

/// Of both kinds of connections.
#[test]
fn a_notification_that_is_not_from_the_peer_has_no_effect() {
    for kind in [QPT_RC, QPT_UC] {
        let wrong_mac = (kind == QPT_RC).then_some(((0, 0x10), false));
        let cases = [((0x10, 0), false), ((0, 0), true)];
        for (offsets, slowed) in cases.into_iter().chain(wrong_mac) {
            let mut world = world(Some(CONFIG), 0);
            let mut pair = world.connect(kind, LEN.into(), |_| {});
            // From an acknowledgement it knows its peer as a NIC of this process, whose MAC address is true.
            world.post_write(&mut pair, 8);
            world.run();
            expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
            let cnp = notification(&world, &pair, offsets);
            for _ in 0..10 {
                world.inject(1, cnp.clone());
            }
            world.run_for(100 * MICROSECOND);
            let before = world.now();
            post(&mut world, &mut pair, wr::WR_WRITE);
            while world.completions(0, &mut pair.cq[0]).is_empty() {
                assert!(world.step(u64::MAX), "it never completes");
            }
            // 16 packets, of a microsecond each at the rate of the link.
            let time = world.now() - before;
            assert_eq!(time > 100 * MICROSECOND, slowed, "{time} ns");
        }
    }
}

/// A queue pair that is used for another connection begins at the rate of the link.
#[test]
fn a_reset_forgets_the_rate() {
    let mut world = world(Some(CONFIG), 0);
    let mut pair = world.connect(QPT_RC, LEN.into(), |_| {});
    let cnp = notification(&world, &pair, (0, 0));
    for _ in 0..10 {
        world.inject(1, cnp.clone());
    }
    world.run_for(100 * MICROSECOND);
    for host in 0..2 {
        let path = world.path(1 - host, pair.qp[1 - host].qpn);
        let driver = &mut world.hosts[host].driver;
        driver.set_state(pair.qp[host].qpn, QPS_RESET).unwrap();
        pair.qp[host].reset();
        driver.connect(pair.qp[host].qpn, QPT_RC, &path).unwrap();
    }
    let before = world.now();
    post(&mut world, &mut pair, wr::WR_WRITE);
    while world.completions(0, &mut pair.cq[0]).is_empty() {
        assert!(world.step(u64::MAX), "it never completes");
    }
    assert!(world.now() - before < 50 * MICROSECOND);
}
