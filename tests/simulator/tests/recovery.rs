//! Costs of a lost, late or repeated packet: the packets that are sent again, and the time.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_simulation::{Send, Sge};
use faultline_simulator::{Pair, World, expect_cqe, packet};
use faultline_wire::aeth::{Aeth, Syndrome};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::{OpKind, Opcode};
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;

use crate::common::counter;

const LEN: u64 = 256 << 10;

fn data(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + salt) as u8).collect()
}

fn rc_pair(world: &mut World) -> Pair {
    // Half a second: a timeout shows on the clock.
    world.connect(QPT_RC, LEN, |c| c.timeout = 17)
}

fn post(world: &mut World, pair: &mut Pair, opcode: u8, local: u64, remote: u64, len: u32) {
    let (a, b) = (pair.mr[0], pair.mr[1]);
    let sges: [Sge; 1] = [(a.va + local, len, a.key)];
    let send = Send {
        opcode,
        sges: &sges,
        remote_addr: b.va + remote,
        rkey: b.key,
        compare_add: 1,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
}

fn statuses(world: &mut World, pair: &mut Pair) -> Vec<u8> {
    let found = world.completions(0, &mut pair.cq[0]);
    assert!(
        found
            .windows(2)
            .all(|w| w[1].wqe.get() == w[0].wqe.get() + 1)
    );
    found.iter().map(|cqe| cqe.status).collect()
}

/// Loses the first packet from `host` for which `which` holds.
fn lose_one(world: &World, host: usize, which: impl Fn(&RoceHeader) -> bool + 'static) {
    let mut lost = false;
    world.lose(move |from, header| {
        let hit = !lost && from == host && which(header);
        lost |= hit;
        hit
    });
}

#[test]
fn a_lost_read_response_is_asked_for_once_and_at_once() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.pace(50);
    let bytes = data(100 << 10, 3);
    world.hosts[1].driver.write_mr(&pair.mr[1], 0, &bytes);
    lose_one(&world, 1, |h| {
        h.bth.opcode.info().kind == OpKind::ReadResponse && h.bth.psn.get() == 10
    });
    world.start_trace();
    post(&mut world, &mut pair, wr::WR_READ, 0, 0, 100 << 10);
    // Behind it, so that going back costs something.
    for _ in 0..10 {
        post(
            &mut world,
            &mut pair,
            wr::WR_WRITE,
            150 << 10,
            150 << 10,
            1024,
        );
    }
    world.run_for(100_000);
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS; 11]);
    assert!(world.hosts[0].driver.read_mr(&pair.mr[0], 0, 100 << 10) == bytes);
    let trace = world.take_trace();
    let asked: Vec<u32> = trace
        .iter()
        .filter(|(_, h)| h.bth.opcode.info().kind == OpKind::ReadRequest)
        .map(|(_, h)| h.bth.psn.get())
        .collect();
    assert_eq!(asked, [0, 10], "89 responses behind the gap ask once");
}

#[test]
fn a_lost_first_response_does_not_cost_a_timeout_for_those_behind() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.pace(50);
    let bytes = data(80 << 10, 3);
    world.hosts[1].driver.write_mr(&pair.mr[1], 0, &bytes);
    lose_one(&world, 1, |h| {
        h.bth.opcode.info().kind == OpKind::ReadResponse
    });
    for n in 0..8 {
        post(
            &mut world,
            &mut pair,
            wr::WR_READ,
            n * 10_000,
            n * 10_000,
            10_000,
        );
    }
    world.run_for(100_000);
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS; 8]);
    assert!(world.hosts[0].driver.read_mr(&pair.mr[0], 0, 80_000) == bytes[..80_000]);
    assert_eq!(counter(&mut world, 0, Counter::local_ack_timeout_err), 0);
}

/// A peer that has refused a request answers nothing any more. A response that was lost before will not come again.
#[test]
fn a_response_that_was_lost_before_a_refusal_is_not_asked_for() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    lose_one(&world, 1, |h| h.atomic_ack.is_some());
    let (a, b) = (pair.mr[0], pair.mr[1]);
    world.start_trace();
    for (opcode, rkey) in [(wr::WR_FETCH_ADD, b.key), (wr::WR_WRITE, b.key ^ 0x100)] {
        let send = Send {
            opcode,
            sges: &[(a.va, 8, a.key)],
            remote_addr: b.va.next_multiple_of(8),
            rkey,
            compare_add: 1,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    }
    world.run();
    let expected = [cqe::RETRY_EXC_ERR, cqe::WR_FLUSH_ERR];
    assert_eq!(statuses(&mut world, &mut pair), expected);
    assert_eq!(counter(&mut world, 0, Counter::local_ack_timeout_err), 0);
    let trace = world.take_trace();
    assert_eq!(trace.iter().filter(|(from, _)| *from == 0).count(), 2);
}

#[test]
fn answers_before_a_refused_request_still_arrive() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        let mut pair = rc_pair(&mut world);
        if by_reference {
            world.hand_over_by_reference();
        }
        let bytes = data(5000, 9);
        world.hosts[1].driver.write_mr(&pair.mr[1], 0, &bytes);
        let (a, b) = (pair.mr[0], pair.mr[1]);
        for (opcode, rkey) in [(wr::WR_READ, b.key), (wr::WR_WRITE, b.key ^ 0x100)] {
            let send = Send {
                opcode,
                sges: &[(a.va, 5000, a.key)],
                remote_addr: b.va,
                rkey,
                ..Send::default()
            };
            world.hosts[0].driver.write_send(&mut pair.qp[0], &send);
        }
        world.hosts[0].driver.ring_sends(&pair.qp[0]);
        world.run();
        assert_eq!(
            statuses(&mut world, &mut pair),
            [cqe::SUCCESS, cqe::REM_ACCESS_ERR]
        );
        assert!(world.hosts[0].driver.read_mr(&a, 0, 5000) == bytes);
    }
}

/// A request packet from host 0 to the QP of host 1, made by hand.
fn forged(world: &World, pair: &Pair, opcode: Opcode, psn: u32) -> RoceHeader {
    let (from, to) = (&world.hosts[0], &world.hosts[1]);
    let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
    let bth = Bth::new(opcode, pair.qp[1].qpn, Psn::new(psn));
    RoceHeader::new(to.mac, from.mac, ip, bth)
}

/// An acknowledgement or NAK from host 1 to the QP of host 0, made by hand.
fn forged_answer(world: &World, pair: &Pair, psn: u32, syndrome: u8, msn: u32) -> RoceHeader {
    let (from, to) = (&world.hosts[1], &world.hosts[0]);
    let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
    let bth = Bth::new(Opcode::RcAcknowledge, pair.qp[0].qpn, Psn::new(psn));
    let mut header = RoceHeader::new(to.mac, from.mac, ip, bth);
    header.aeth = Some(Aeth {
        syndrome: Syndrome::from_u8(syndrome),
        msn,
    });
    header
}

#[test]
fn a_flood_of_repeated_reads_is_answered_in_bounded_work() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    // Executed once; 200 packets.
    post(&mut world, &mut pair, wr::WR_READ, 0, 0, 200 << 10);
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS]);
    world.start_trace();
    for n in 0..2000u32 {
        let offset = n % 200;
        let mut header = forged(&world, &pair, Opcode::RcReadRequest, offset);
        header.reth = Some(Reth {
            addr: pair.mr[1].va + u64::from(offset) * 1024,
            rkey: pair.mr[1].key,
            len: (200 - offset) * 1024,
        });
        world.inject(0, packet(&header, &[]));
    }
    world.run();
    let answers = world
        .take_trace()
        .iter()
        .filter(|(from, _)| *from == 1)
        .count();
    assert!(
        answers <= 200,
        "{answers} packets for what arrived at one time"
    );
    // The connection goes on.
    post(&mut world, &mut pair, wr::WR_WRITE, 0, 0, 3000);
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS]);
}

/// A requester may not survive acknowledgements before it has repeated its last packet, as `rdma_rxe` of Linux 6.12 does not.
#[test]
fn a_repeated_message_is_acknowledged_where_it_asks_for_it() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    post(&mut world, &mut pair, wr::WR_WRITE, 0, 0, 4096);
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS]);
    let repeated = [
        Opcode::RcWriteFirst,
        Opcode::RcWriteMiddle,
        Opcode::RcWriteMiddle,
        Opcode::RcWriteLast,
    ];
    for attempt in 0..2 {
        world.start_trace();
        let mut acknowledged = [false; 4];
        for (psn, opcode) in (0..).zip(repeated) {
            let mut header = forged(&world, &pair, opcode, psn);
            header.bth.ack_req = psn == 3;
            header.reth = (psn == 0).then_some(Reth {
                addr: pair.mr[1].va,
                rkey: pair.mr[1].key,
                len: 4096,
            });
            world.inject(0, packet(&header, &[0; 1024]));
            world.run();
            let answers = world.take_trace();
            world.start_trace();
            acknowledged[psn as usize] = answers.iter().any(|(from, _)| *from == 1);
        }
        assert_eq!(
            acknowledged,
            [false, false, false, true],
            "attempt {attempt}"
        );
    }
    assert_eq!(counter(&mut world, 1, Counter::duplicate_request), 8);
}

#[test]
fn repeated_atomics_are_answered_from_memory_and_not_executed() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.timeout = 5);
    // Aligned: the region's first address is odd.
    let at = 8 - pair.mr[1].va % 8;
    let mut lost = 0;
    world.lose(move |from, h| {
        let hit = from == 1 && lost < 3 && h.bth.opcode.info().kind == OpKind::AtomicAck;
        lost += u32::from(hit);
        hit
    });
    for _ in 0..3 {
        post(&mut world, &mut pair, wr::WR_FETCH_ADD, 0, at, 8);
    }
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS; 3]);
    let sum = world.hosts[1].driver.read_mr(&pair.mr[1], at, 8);
    assert_eq!(sum, 3u64.to_le_bytes());
    assert_eq!(
        world.hosts[0].driver.read_mr(&pair.mr[0], 0, 8),
        2u64.to_le_bytes(),
        "the last one saw the two before it"
    );
    assert!(counter(&mut world, 1, Counter::duplicate_request) >= 3);
}

/// Repeated requests do not count against the agreed number.
#[test]
fn a_repeated_read_is_not_counted_as_an_additional_one() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    for _ in 0..8 {
        post(&mut world, &mut pair, wr::WR_READ, 0, 0, 1024);
    }
    world.run();
    // All of them again, from a slow switch, and with them the first that is new.
    for psn in 0..8 {
        let mut header = forged(&world, &pair, Opcode::RcReadRequest, psn);
        header.reth = Some(Reth {
            addr: pair.mr[1].va,
            rkey: pair.mr[1].key,
            len: 1024,
        });
        world.inject(0, packet(&header, &[]));
    }
    post(&mut world, &mut pair, wr::WR_READ, 0, 0, 1024);
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS; 9]);
}

#[test]
fn acknowledgements_of_packets_that_were_never_sent_are_ignored() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.lose(|from, _| from == 1);
    post(&mut world, &mut pair, wr::WR_WRITE, 0, 0, 3000);
    for syndrome in [0x1f, 0x60, 0x61, 0x62, 0x63, 0x2a, 0x40, 0xff] {
        for psn in [3, 4, 1000, 0x7f_ffff, 0x80_0003, 0xff_ffff] {
            let header = forged_answer(&world, &pair, psn, syndrome, 1);
            world.inject(1, packet(&header, &[]));
        }
    }
    world.run_for(10_000);
    assert!(statuses(&mut world, &mut pair).is_empty());
    let attr = world.hosts[0].driver.query_qp(pair.qp[0].qpn).unwrap();
    assert_eq!(attr.state, QPS_RTS);
    world.lose_nothing();
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS]);
}

/// Some responders send several NAKs for one gap. Each arrives when the packets have been sent again because of the one before.
#[test]
fn further_sequence_naks_for_a_gap_use_no_retry() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    // Nothing arrives until the last NAK.
    world.lose(|from, _| from == 0);
    world.post_write(&mut pair, 3000);
    world.run_for(10_000);
    let nak = forged_answer(&world, &pair, 0, 0x60, 0);
    for _ in 0..20 {
        world.inject(1, packet(&nak, &[]));
        world.run_for(10_000);
    }
    assert_eq!(counter(&mut world, 0, Counter::packet_seq_err), 20);
    assert_eq!(counter(&mut world, 0, Counter::retransmitted_packets), 3);
    world.lose_nothing();
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    let timeouts = counter(&mut world, 0, Counter::local_ack_timeout_err);
    assert_eq!(timeouts, 1, "it does not go back again before");
}

/// Some responders send sequence NAKs for requests behind one without a receive buffer. They request packets that are
/// sent next anyway.
#[test]
fn sequence_naks_behind_an_rnr_nak_use_no_retry() {
    let mut world = World::new(2, 1);
    // Code 14 is 1.28 ms (IBTA table 45).
    let mut pair = world.connect(QPT_RC, LEN, |c| c.min_rnr_timer = 14);
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"hello"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run_for(10_000);
    assert_eq!(counter(&mut world, 0, Counter::rnr_nak_received), 1);
    let nak = forged_answer(&world, &pair, 0, 0x60, 0);
    for _ in 0..20 {
        world.inject(1, packet(&nak, &[]));
    }
    world.start_trace();
    world.run_for(10_000);
    assert_eq!(counter(&mut world, 0, Counter::packet_seq_err), 20);
    let sent = world.take_trace();
    assert!(sent.iter().all(|(from, _)| *from == 1), "it still waits");
    let mr = pair.mr[1];
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 9, &[(mr.va, 100, mr.key)]);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
}

#[test]
fn waiting_for_a_receiver_takes_no_memory() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| {
        c.timeout = 31;
        c.min_rnr_timer = 1;
    });
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"x"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run_for(100_000_000);
    assert!(counter(&mut world, 0, Counter::rnr_nak_received) > 5000);
    assert!(
        world.with_nic(0, |nic| nic.object_counts().timers) <= 1,
        "timers pile up"
    );
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 0, &[(pair.mr[1].va, 8, pair.mr[1].key)]);
    world.run_for(1_000_000);
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}

/// Reading from a QP does not keep it from sending.
#[test]
fn answers_and_requests_take_turns() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    let (a, b) = (pair.mr[0], pair.mr[1]);
    // More than the window: the rest waits for acknowledgements, which come with the READ.
    for _ in 0..6 {
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(b.va, 200 << 10, b.key)],
            remote_addr: a.va,
            rkey: a.key,
            ..Send::default()
        };
        world.hosts[1].driver.write_send(&mut pair.qp[1], &write);
    }
    world.hosts[1].driver.ring_sends(&pair.qp[1]);
    world.run_for(1000);
    world.start_trace();
    post(&mut world, &mut pair, wr::WR_READ, 0, 0, 100 << 10);
    world.run();
    assert_eq!(statuses(&mut world, &mut pair), [cqe::SUCCESS]);
    assert_eq!(world.completions(1, &mut pair.cq[1]).len(), 6);
    let kinds: Vec<OpKind> = world
        .take_trace()
        .iter()
        .filter(|(from, _)| *from == 1)
        .map(|(_, h)| h.bth.opcode.info().kind)
        .collect();
    let first_half = &kinds[..100];
    let requests = first_half
        .iter()
        .filter(|kind| **kind == OpKind::Write)
        .count();
    assert!((40..=60).contains(&requests), "{requests} of 100");
}
