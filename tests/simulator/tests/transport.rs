//! The transport in each situation that the specification names, with explicit times.

use faultline_abi::admin::{Counter, DESTROY_QP, QP_FLAG_SIG_ALL};
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::event;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32};
use faultline_fabric::link_model::LinkModel;
use faultline_nic::Nanos;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Error, Qp, QpConfig, Send, Sge};
use faultline_simulator::{Pair, World, expect_cqe, gid6};
use faultline_wire::aeth::Syndrome;
use faultline_wire::opcode::OpKind;

use crate::common::counter;

const LEN: u64 = 64 << 10;
const ALL_LOST: LinkModel = LinkModel {
    loss: 1_000_000,
    ..LinkModel::PLAIN
};

fn rc_pair(world: &mut World) -> Pair {
    world.connect(QPT_RC, LEN, |_| {})
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn verified_write(world: &mut World, pair: &mut Pair) {
    let bytes = data(5000);
    world.hosts[0].driver.write_mr(&pair.mr[0], 0, &bytes);
    world.post_write(pair, 5000);
    world.run();
    expect_cqe(world, 0, &mut pair.cq[0], cqe::SUCCESS);
    assert!(world.hosts[1].driver.read_mr(&pair.mr[1], 0, 5000) == bytes);
}

fn state_of(world: &mut World, host: usize, qp: &Qp) -> u8 {
    world.hosts[host].driver.query_qp(qp.qpn).unwrap().state
}

#[test]
fn ipv6_and_psn_wrap() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| {
        c.sgid_index = 1;
        (c.sq_psn, c.rq_psn) = (0xff_fffd, 0xff_fffd);
    });
    verified_write(&mut world, &mut pair);
    // proves: IBV_QP_SQ_PSN
    assert_eq!(
        world.hosts[0]
            .driver
            .query_qp(pair.qp[0].qpn)
            .unwrap()
            .sq_psn
            .get(),
        2
    );
    // proves: IBV_QP_RQ_PSN
    assert_eq!(
        world.hosts[1]
            .driver
            .query_qp(pair.qp[1].qpn)
            .unwrap()
            .rq_psn
            .get(),
        2
    );
}

#[test]
fn rnr_timer_is_honoured_to_the_nanosecond() {
    let mut world = World::new(2, 1);
    // Code 14 is 1.28 ms (IBTA table 45).
    let mut pair = world.connect(QPT_RC, LEN, |c| c.min_rnr_timer = 14);
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"hello"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    let start = world.now();
    world.start_trace();
    // Out, NAK back, wait, out again.
    world.run_for(2_000 + 1_280_000 - 1);
    let sent = |world: &World| {
        world
            .take_trace()
            .iter()
            .filter(|(from, _)| *from == 0)
            .count()
    };
    // proves: IBV_QP_MIN_RNR_TIMER
    assert_eq!(sent(&world), 0, "waits out the timer");
    let mr = pair.mr[1];
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 9, &[(mr.va, 100, mr.key)]);
    world.run_for(1);
    assert_eq!(sent(&world), 1);
    world.run_for(1_999);
    assert_eq!(world.completions(0, &mut pair.cq[0]), []);
    world.run_for(1);
    assert_eq!(world.now() - start, 2_000 + 1_280_000 + 2_000);
    assert_eq!(
        expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS)
            .wqe
            .get(),
        9
    );
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    assert_eq!(counter(&mut world, 1, Counter::rnr_nak_sent), 1);
    assert_eq!(counter(&mut world, 0, Counter::rnr_nak_received), 1);
}

#[test]
fn rnr_retries_run_out() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| {
        c.rnr_retry = 3;
        c.min_rnr_timer = 1;
    });
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"hello"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    // proves: IBV_WC_RNR_RETRY_EXC_ERR
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::RNR_RETRY_EXC_ERR);
    // proves: IBV_QP_RNR_RETRY
    assert_eq!(counter(&mut world, 1, Counter::rnr_nak_sent), 4);
    assert_eq!(state_of(&mut world, 0, &pair.qp[0]), QPS_ERR);
    assert_eq!(state_of(&mut world, 1, &pair.qp[1]), QPS_RTS);
}

#[test]
fn silent_peer_costs_exactly_the_retries() {
    let mut world = World::new(2, 1);
    // 4.096 us * 2^10 = 4.194304 ms.
    let mut pair = world.connect(QPT_RC, LEN, |c| {
        c.timeout = 10;
        c.retry_cnt = 3;
    });
    world.impair(ALL_LOST);
    world.start_trace();
    let start = world.now();
    world.post_write(&mut pair, 8);
    world.run();
    // proves: IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT
    assert_eq!(world.now() - start, 4 * 4_194_304);
    assert_eq!(world.take_trace().len(), 4);
    // proves: IBV_WC_RETRY_EXC_ERR
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::RETRY_EXC_ERR);
    assert_eq!(counter(&mut world, 0, Counter::local_ack_timeout_err), 4);
    assert_eq!(counter(&mut world, 0, Counter::retransmitted_packets), 3);
}

/// A receiver ends the connection as soon as it has the message, as many programs do: the sender's message has
/// arrived, and its earlier requests have been executed.
#[test]
fn received_messages_are_acknowledged() {
    let ends = [Some(QPS_ERR), Some(QPS_RESET), None];
    let before = [wr::WR_WRITE, wr::WR_FETCH_ADD, wr::WR_ATOMIC_WRITE];
    for (end, first) in ends
        .iter()
        .flat_map(|end| before.map(|first| (*end, first)))
    {
        // The look-up for a buffer takes longer than the receiver does.
        let mut world = World::with_config(2, 1, |config| config.lookup = Nanos::from_millis(1));
        let mut pair = rc_pair(&mut world);
        // The sender knows its buffer already.
        world.post_write(&mut pair, 8);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        let (from, to) = (pair.mr[0], pair.mr[1]);
        let receiver = &mut world.hosts[1].driver;
        let buffer = (to.va + 0x1000, 64, to.key);
        receiver.post_recv(&mut pair.qp[1], 0, &[buffer]);
        for opcode in [first, wr::WR_SEND] {
            let send = Send {
                opcode,
                sges: &[(from.va, 8, from.key)],
                // Aligned, as an atomic operation must be.
                remote_addr: (to.va + 0x2000).next_multiple_of(8),
                rkey: to.key,
                compare_add: 1,
                ..Send::default()
            };
            world.hosts[0].driver.write_send(&mut pair.qp[0], &send);
        }
        world.start_trace();
        world.hosts[0].driver.ring_sends(&pair.qp[0]);
        let received = world.hosts[1].driver.await_cqe(&mut pair.cq[1]).unwrap();
        assert_eq!(received.status, cqe::SUCCESS, "{end:?} {first}");
        let sent = world.take_trace();
        let packets: Vec<_> = sent
            .iter()
            .map(|(host, header)| (*host, header.bth.opcode))
            .collect();
        assert!(
            packets.iter().all(|(host, _)| *host == 0),
            "{end:?} {first}: {packets:?}"
        );
        let (receiver, qpn) = (&mut world.hosts[1].driver, pair.qp[1].qpn);
        match end {
            Some(state) => receiver.set_state(qpn, state).unwrap(),
            None => drop(receiver.command(DESTROY_QP, qpn, &()).unwrap()),
        }
        world.run();
        let done = world.completions(0, &mut pair.cq[0]);
        let statuses: Vec<u8> = done.iter().map(|cqe| cqe.status).collect();
        assert_eq!(statuses, [cqe::SUCCESS; 2], "{end:?} {first}");
        let sent = world.take_trace();
        assert!(sent.iter().all(|(host, _)| *host == 1), "{end:?} {first}");
    }
}

#[test]
fn a_hole_is_asked_for_at_once() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.timeout = 20);
    world.impair(ALL_LOST);
    world.post_write(&mut pair, 8);
    world.run_for(1000);
    world.impair(LinkModel::PLAIN);
    world.post_write(&mut pair, 8);
    // Out, NAK back, both out, acknowledgement back.
    world.run_for(4_000);
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 2);
    assert_eq!(counter(&mut world, 0, Counter::packet_seq_err), 1);
    assert_eq!(counter(&mut world, 0, Counter::local_ack_timeout_err), 0);
}

/// The result of an invalid request: status at the requester, state of the responder.
fn refused(change: impl Fn(&mut Send<'_>, &Pair), access: u32) -> (u8, u8) {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.access = access);
    let (a, b) = (pair.mr[0], pair.mr[1]);
    let sges: [Sge; 1] = [(a.va, 8, a.key)];
    let mut send = Send {
        opcode: wr::WR_WRITE,
        sges: &sges,
        remote_addr: b.va,
        rkey: b.key,
        ..Send::default()
    };
    change(&mut send, &pair);
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    assert_eq!(found.len(), 1);
    (found[0].status, state_of(&mut world, 1, &pair.qp[1]))
}

#[test]
fn remote_errors_have_their_status() {
    const ALL: u32 = ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC;
    let access = (cqe::REM_ACCESS_ERR, QPS_ERR);
    let invalid = (cqe::REM_INV_REQ_ERR, QPS_ERR);
    assert_eq!(refused(|_, _| {}, ALL), (cqe::SUCCESS, QPS_RTS));
    assert_eq!(refused(|s, _| s.rkey ^= 1, ALL), access, "key variant");
    assert_eq!(refused(|s, _| s.rkey = 0, ALL), access);
    assert_eq!(
        refused(|s, p| s.remote_addr = p.mr[1].va + LEN - 7, ALL),
        access,
        "beyond the end"
    );
    assert_eq!(
        refused(|s, p| s.remote_addr = p.mr[1].va - 1, ALL),
        access,
        "before the start"
    );
    assert_eq!(
        refused(|s, _| s.remote_addr = u64::MAX - 3, ALL),
        access,
        "wraps"
    );
    assert_eq!(
        refused(|_, _| {}, ACCESS_REMOTE_READ),
        invalid,
        "QP forbids WRITE"
    );
    let read = |s: &mut Send<'_>| s.opcode = wr::WR_READ;
    assert_eq!(refused(|s, _| read(s), ALL), (cqe::SUCCESS, QPS_RTS));
    // proves: IBV_QP_ACCESS_FLAGS, IBV_WC_REM_INV_REQ_ERR
    assert_eq!(
        refused(|s, _| read(s), ACCESS_REMOTE_WRITE),
        invalid,
        "QP forbids READ"
    );
    let add = |s: &mut Send<'_>, p: &Pair| {
        s.opcode = wr::WR_FETCH_ADD;
        s.remote_addr = (p.mr[1].va + 8) & !7;
    };
    assert_eq!(refused(|s, p| add(s, p), ALL), (cqe::SUCCESS, QPS_RTS));
    assert_eq!(
        refused(|s, p| add(s, p), ACCESS_REMOTE_WRITE),
        invalid,
        "QP forbids atomics"
    );
    let unaligned = |s: &mut Send<'_>, p: &Pair| {
        add(s, p);
        s.remote_addr += 4;
    };
    assert_eq!(refused(unaligned, ALL), invalid);
}

#[test]
fn keys_of_another_domain_are_refused() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    for host in 0..2 {
        let pd = world.hosts[host].driver.alloc_pd().unwrap();
        let va = pair.mr[host].va;
        pair.mr[host] = world.hosts[host]
            .driver
            .reg_mr(pd, va, LEN, ALL_ACCESS)
            .unwrap();
    }
    let mut other = rc_pair(&mut world);
    let own = other.mr[0];
    let foreign = pair.mr[1];
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(own.va, 8, own.key)],
        remote_addr: foreign.va,
        rkey: foreign.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut other.qp[0], &send);
    world.run();
    expect_cqe(&mut world, 0, &mut other.cq[0], cqe::REM_ACCESS_ERR);
    // Locally, too.
    world.post_write(&mut pair, 8);
    world.run();
    assert_eq!(
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::LOC_PROT_ERR).vendor_err,
        cqe::LKEY
    );
}

#[test]
fn zero_length_requests_need_no_key_but_the_right() {
    const ALL: u32 = ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE;
    for opcode in [wr::WR_WRITE, wr::WR_READ] {
        let empty = |s: &mut Send<'_>, _: &Pair| {
            s.opcode = opcode;
            s.sges = &[];
            s.rkey = 0xdead_beef;
        };
        assert_eq!(refused(empty, ALL).0, cqe::SUCCESS);
        assert_eq!(refused(empty, 0).0, cqe::REM_INV_REQ_ERR);
    }
}

#[test]
fn a_message_longer_than_the_buffer_fails_on_both_sides() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    let (a, b) = (pair.mr[0], pair.mr[1]);
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 1, &[(b.va, 3000, b.key)]);
    let send = Send {
        opcode: wr::WR_SEND,
        sges: &[(a.va, 3001, a.key)],
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    // proves: IBV_WC_LOC_LEN_ERR
    expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::LOC_LEN_ERR);
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_INV_REQ_ERR);
}

/// UC has no way to say so: the message is lost, and the buffer is for the next one.
#[test]
fn an_unreliable_message_longer_than_the_buffer_is_lost() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_UC, LEN, |_| {});
    let (a, b) = (pair.mr[0], pair.mr[1]);
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 1, &[(b.va, 9000, b.key)]);
    // Too long from the first packet on, in the middle, and by a byte.
    for len in [20_000, 9001, 9000] {
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(a.va, len, a.key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        let found = world.completions(1, &mut pair.cq[1]);
        let lens: Vec<_> = found.iter().map(|cqe| cqe.byte_len.get()).collect();
        assert_eq!(lens, if len == 9000 { vec![9000] } else { vec![] });
    }
    let driver = &mut world.hosts[1].driver;
    let dropped = driver.counter(Counter::resp_local_length_error).unwrap();
    assert_eq!(dropped, 2);
}

#[test]
fn every_illegal_opcode_gives_a_completion() {
    let legal = |kind, opcode| match kind {
        QPT_RC => opcode <= wr::WR_ATOMIC_WRITE,
        // Keys are changed on any connected QP.
        QPT_UC => {
            [wr::WR_SEND, wr::WR_SEND_IMM, wr::WR_WRITE, wr::WR_WRITE_IMM].contains(&opcode)
                || (wr::WR_LOCAL_INV..=wr::WR_BIND_MW).contains(&opcode)
        }
        _ => false,
    };
    for kind in [QPT_RC, QPT_UC] {
        for opcode in 0..=255u8 {
            if legal(kind, opcode) {
                continue;
            }
            let mut world = World::new(2, 1);
            let mut pair = world.connect(kind, 4096, |_| {});
            let send = Send {
                opcode,
                ..Send::default()
            };
            world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
            world.run();
            let found = expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::LOC_QP_OP_ERR);
            assert_eq!(found.vendor_err, cqe::OPCODE);
            let state = if kind == QPT_RC { QPS_ERR } else { QPS_SQE };
            assert_eq!(state_of(&mut world, 0, &pair.qp[0]), state);
        }
    }
}

#[test]
fn an_error_flushes_both_queues_in_order_and_later_posts_too() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    let mr = pair.mr[0];
    for tag in 0..5 {
        world.hosts[0]
            .driver
            .post_recv(&mut pair.qp[0], tag, &[(mr.va, 100, mr.key)]);
    }
    world.impair(ALL_LOST);
    for _ in 0..3 {
        world.post_write(&mut pair, 8);
    }
    world.hosts[0]
        .driver
        .set_state(pair.qp[0].qpn, QPS_ERR)
        .unwrap();
    world.hosts[0].driver.post_recv(&mut pair.qp[0], 5, &[]);
    world.post_write(&mut pair, 8);
    let found = world.completions(0, &mut pair.cq[0]);
    // proves: IBV_QPS_ERR
    assert!(found.iter().all(|cqe| cqe.status == cqe::WR_FLUSH_ERR));
    let of = |receive: bool| {
        let mine = |cqe: &&Cqe| (cqe.opcode & cqe::RECV != 0) == receive;
        found
            .iter()
            .filter(mine)
            .map(|cqe| cqe.wqe.get())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of(false), of(true)),
        (vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4, 5])
    );
}

#[test]
fn unsignaled_requests_complete_silently_unless_flushed() {
    let mut world = World::new(2, 1);
    let cq = [0, 1].map(|i| world.hosts[i].cq(6).unwrap());
    let qp = [0, 1].map(|i| {
        let config = QpConfig {
            flags: 0,
            ..world.hosts[i].qp_config(QPT_RC, &cq[i])
        };
        world.hosts[i].driver.create_qp(&config).unwrap()
    });
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    let mut pair = Pair { cq, qp, mr };
    for i in 0..2 {
        let path = world.path(1 - i, pair.qp[1 - i].qpn);
        world.hosts[i]
            .driver
            .connect(pair.qp[i].qpn, QPT_RC, &path)
            .unwrap();
    }
    for _ in 0..3 {
        world.post_write(&mut pair, 8);
    }
    world.run();
    // proves: IBV_SEND_SIGNALED
    assert_eq!(world.completions(0, &mut pair.cq[0]), []);
    world.impair(ALL_LOST);
    world.post_write(&mut pair, 8);
    world.hosts[0]
        .driver
        .set_state(pair.qp[0].qpn, QPS_ERR)
        .unwrap();
    assert_eq!(
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::WR_FLUSH_ERR)
            .wqe
            .get(),
        3
    );
}

#[test]
fn reset_and_use_again() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    verified_write(&mut world, &mut pair);
    for i in 0..2 {
        world.hosts[i]
            .driver
            .set_state(pair.qp[i].qpn, QPS_RESET)
            .unwrap();
        pair.qp[i].reset();
        let path = world.path(1 - i, pair.qp[1 - i].qpn);
        world.hosts[i]
            .driver
            .connect(pair.qp[i].qpn, QPT_RC, &path)
            .unwrap();
    }
    verified_write(&mut world, &mut pair);
}

#[test]
fn sqd_drains_reports_it_and_continues() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.hosts[0].driver.async_events();
    world.post_write(&mut pair, 20_000);
    let drain = QpAttr {
        mask: U32::new(QP_ATTR_STATE | QP_ATTR_EN_SQD_ASYNC_NOTIFY),
        state: QPS_SQD,
        sqd_notify: 1,
        ..QpAttr::default()
    };
    let qpn = pair.qp[0].qpn;
    world.hosts[0].driver.modify_qp(qpn, &drain).unwrap();
    assert_eq!(world.hosts[0].driver.query_qp(qpn).unwrap().sq_draining, 1);
    world.post_write(&mut pair, 8);
    world.run();
    assert_eq!(
        world.hosts[0].driver.async_events(),
        [(event::SQ_DRAINED, qpn)]
    );
    assert_eq!(
        world.completions(0, &mut pair.cq[0]).len(),
        1,
        "the second waits"
    );
    world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
    world.run();
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 1);
}

#[test]
fn a_send_queue_in_error_comes_back() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_UC, LEN, |_| {});
    let bad = Send {
        opcode: wr::WR_WRITE,
        sges: &[(0, 8, 0)],
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &bad);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::LOC_PROT_ERR);
    // proves: IBV_QPS_SQE
    assert_eq!(state_of(&mut world, 0, &pair.qp[0]), QPS_SQE);
    world.hosts[0]
        .driver
        .set_state(pair.qp[0].qpn, QPS_RTS)
        .unwrap();
    verified_write(&mut world, &mut pair);
}

#[test]
fn outstanding_reads_stay_within_the_agreed_number() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.rd_atomic = 2);
    let (a, b) = (pair.mr[0], pair.mr[1]);
    world.start_trace();
    for _ in 0..10 {
        let read = Send {
            opcode: wr::WR_READ,
            sges: &[(a.va, 5000, a.key)],
            remote_addr: b.va,
            rkey: b.key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &read);
    }
    let mut outstanding = 0i32;
    world.run();
    for (_, header) in world.take_trace() {
        match header.bth.opcode.info().kind {
            OpKind::ReadRequest => outstanding += 1,
            OpKind::ReadResponse if header.bth.opcode.is_last_or_only() => outstanding -= 1,
            _ => {}
        }
        // proves: IBV_QP_MAX_QP_RD_ATOMIC
        assert!(outstanding <= 2);
    }
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 10);
}

#[test]
fn a_fence_waits_for_reads() {
    for (flags, waits) in [(0, false), (wr::WR_FLAG_FENCE, true)] {
        let mut world = World::new(2, 1);
        let mut pair = rc_pair(&mut world);
        let (a, b) = (pair.mr[0], pair.mr[1]);
        world.start_trace();
        let read = Send {
            opcode: wr::WR_READ,
            sges: &[(a.va, 8, a.key)],
            remote_addr: b.va,
            rkey: b.key,
            ..Send::default()
        };
        world.hosts[0].driver.write_send(&mut pair.qp[0], &read);
        let write = Send {
            opcode: wr::WR_WRITE,
            flags,
            ..read
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &write);
        world.run();
        let kinds: Vec<OpKind> = world
            .take_trace()
            .iter()
            .map(|(_, h)| h.bth.opcode.info().kind)
            .collect();
        let write_at = kinds.iter().position(|kind| *kind == OpKind::Write);
        let response_at = kinds.iter().position(|kind| *kind == OpKind::ReadResponse);
        // proves: IBV_SEND_FENCE, IB_SEND_FENCE
        assert_eq!(write_at > response_at, waits, "{kinds:?}");
        assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 2);
    }
}

#[test]
fn acknowledgements_are_coalesced() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.start_trace();
    world.post_write(&mut pair, 48 << 10);
    world.run();
    let trace = world.take_trace();
    let acks = trace.iter().filter(|(from, _)| *from == 1).count();
    assert_eq!(trace.len() - acks, 48);
    assert!(acks <= 2, "{acks}");
}

#[test]
fn shared_receive_queue_limit_and_last_request() {
    let mut world = World::new(2, 1);
    let mut cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let pd = world.hosts[1].pd;
    let mr = world.hosts[1].mr(LEN).unwrap();
    let mut srq = world.hosts[1].driver.create_srq(pd, 0, 4, 2, 3).unwrap();
    let config = QpConfig {
        srqn: Some(srq.srqn),
        ..world.hosts[1].qp_config(QPT_RC, &cq[1])
    };
    let responder = world.hosts[1].driver.create_qp(&config).unwrap();
    let mut requester = world.hosts[0].qp(QPT_RC, &cq[0]).unwrap();
    let path = world.path(1, responder.qpn);
    world.hosts[0]
        .driver
        .connect(requester.qpn, QPT_RC, &path)
        .unwrap();
    let path = world.path(0, requester.qpn);
    world.hosts[1]
        .driver
        .connect(responder.qpn, QPT_RC, &path)
        .unwrap();
    world.hosts[1].driver.async_events();
    for tag in 0..4 {
        world.hosts[1]
            .driver
            .post_srq_recv(&mut srq, 100 + tag, &[(mr.va, 64, mr.key)]);
    }
    for n in 0..4u32 {
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(b"shared"),
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut requester, &send);
        world.run();
        assert_eq!(
            expect_cqe(&mut world, 1, &mut cq[1], cqe::SUCCESS)
                .wqe
                .get(),
            100 + n
        );
        let events = world.hosts[1].driver.async_events();
        let expected: &[_] = if n == 1 {
            &[(event::SRQ_LIMIT, srq.srqn)]
        } else {
            &[]
        };
        assert_eq!(events, expected, "after {n}");
    }
    world.hosts[1]
        .driver
        .set_state(responder.qpn, QPS_ERR)
        .unwrap();
    assert_eq!(
        world.hosts[1].driver.async_events(),
        [(event::LAST_WQE_REACHED, responder.qpn)]
    );
    let destroyed = world.hosts[1]
        .driver
        .command(faultline_abi::admin::DESTROY_SRQ, srq.srqn, &());
    assert_eq!(destroyed.map(drop), Err(Error::Refused(Status::InUse)));
}

#[test]
fn the_first_packet_establishes_the_connection() {
    let mut world = World::new(2, 1);
    let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[i].qp(QPT_RC, &cq[i]).unwrap());
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    let mut pair = Pair { cq, qp, mr };
    let path = world.path(1, pair.qp[1].qpn);
    world.hosts[0]
        .driver
        .connect(pair.qp[0].qpn, QPT_RC, &path)
        .unwrap();
    let path = world.path(0, pair.qp[0].qpn);
    let qpn = pair.qp[1].qpn;
    world.hosts[1].driver.to_init(qpn, path.access).unwrap();
    world.hosts[1].driver.to_rtr(qpn, QPT_RC, &path).unwrap();
    world.hosts[1].driver.async_events();
    verified_write(&mut world, &mut pair);
    verified_write(&mut world, &mut pair);
    assert_eq!(
        world.hosts[1].driver.async_events(),
        [(event::COMM_ESTABLISHED, qpn)]
    );
}

#[test]
fn every_attribute_can_be_read_back() {
    let mut world = World::new(2, 1);
    let pair = world.connect(QPT_RC, 4096, |c| {
        c.path_mtu = 2;
        c.timeout = 17;
        c.retry_cnt = 5;
        c.rnr_retry = 6;
        c.min_rnr_timer = 21;
        c.rd_atomic = 3;
        (c.sq_psn, c.rq_psn) = (77, 77);
    });
    let attr = world.hosts[0].driver.query_qp(pair.qp[0].qpn).unwrap();
    let av = world.path(1, 0).av();
    assert_eq!(attr.av, av);
    assert_eq!((attr.state, attr.path_mtu, attr.port), (QPS_RTS, 2, 1));
    assert_eq!(
        (
            attr.timeout,
            attr.retry_cnt,
            attr.rnr_retry,
            attr.min_rnr_timer
        ),
        (17, 5, 6, 21)
    );
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (3, 3));
    assert_eq!((attr.sq_psn.get(), attr.rq_psn.get()), (77, 77));
    assert_eq!(attr.dest_qpn.get(), pair.qp[1].qpn);
    assert_eq!(
        attr.access.get(),
        ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_ATOMIC
    );
}

#[test]
fn a_queue_pair_may_talk_to_its_own_nic() {
    let mut world = World::new(1, 1);
    let cq = [0, 1].map(|_| world.hosts[0].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[0].qp(QPT_RC, &cq[i]).unwrap());
    let mr = [0, 1].map(|_| world.hosts[0].mr(LEN).unwrap());
    let mut pair = Pair { cq, qp, mr };
    for i in 0..2 {
        let path = world.path(0, pair.qp[1 - i].qpn);
        world.hosts[0]
            .driver
            .connect(pair.qp[i].qpn, QPT_RC, &path)
            .unwrap();
    }
    let bytes = data(5000);
    world.hosts[0].driver.write_mr(&pair.mr[0], 0, &bytes);
    world.post_write(&mut pair, 5000);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    assert!(world.hosts[0].driver.read_mr(&pair.mr[1], 0, 5000) == bytes);
}

#[test]
fn duplicate_reads_do_not_pile_up() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.impair(LinkModel {
        duplicate: 1_000_000,
        ..LinkModel::PLAIN
    });
    let (a, b) = (pair.mr[0], pair.mr[1]);
    for _ in 0..50 {
        let read = Send {
            opcode: wr::WR_READ,
            sges: &[(a.va, 30_000, a.key)],
            remote_addr: b.va,
            rkey: b.key,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &read);
    }
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    assert_eq!(found.len(), 50);
    assert!(found.iter().all(|cqe| cqe.status == cqe::SUCCESS));
}

#[test]
fn naks_have_the_codes_of_the_specification() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.min_rnr_timer = 25);
    world.start_trace();
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"x"),
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run_for(5_000);
    let trace = world.take_trace();
    let (_, nak) = trace.iter().find(|(from, _)| *from == 1).unwrap();
    assert_eq!(nak.bth.psn.get(), 0);
    assert_eq!(nak.aeth.unwrap().syndrome, Syndrome::RnrNak { timer: 25 });
}

/// Two UD queue pairs, with an address handle of host 0 for host 1.
struct Datagrams {
    pair: Pair,
    ah: u32,
}

const QKEY: u32 = 0x1111_2222;

fn datagrams(world: &mut World, v6: bool) -> Datagrams {
    let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[i].qp(QPT_UD, &cq[i]).unwrap());
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    for (host, qp) in qp.iter().enumerate() {
        world.hosts[host]
            .driver
            .activate(qp.qpn, QPT_UD, QKEY)
            .unwrap();
    }
    let mut path = world.path(1, 0);
    if v6 {
        path.sgid_index = 1;
        path.dgid = gid6(&world.hosts[1]);
    }
    let pd = world.hosts[0].pd;
    let ah = world.hosts[0].driver.create_ah(pd, path.av()).unwrap();
    Datagrams {
        pair: Pair { cq, qp, mr },
        ah,
    }
}

fn send_datagram(world: &mut World, d: &mut Datagrams, qkey: u32, payload: &[u8]) {
    let send = Send {
        opcode: wr::WR_SEND_IMM,
        imm: [1, 2, 3, 4],
        inline: Some(payload),
        ah: d.ah,
        remote_qpn: d.pair.qp[1].qpn,
        qkey,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut d.pair.qp[0], &send);
    world.run();
}

#[test]
fn datagrams_come_with_their_header() {
    for v6 in [false, true] {
        let mut world = World::new(2, 1);
        let mut d = datagrams(&mut world, v6);
        let mr = d.pair.mr[1];
        world.hosts[1]
            .driver
            .post_recv(&mut d.pair.qp[1], 5, &[(mr.va, 100, mr.key)]);
        send_datagram(&mut world, &mut d, QKEY, b"datagram");
        expect_cqe(&mut world, 0, &mut d.pair.cq[0], cqe::SUCCESS);
        let found = expect_cqe(&mut world, 1, &mut d.pair.cq[1], cqe::SUCCESS);
        assert_eq!((found.byte_len.get(), found.wqe.get()), (48, 5));
        assert_eq!(found.src_qp.get(), d.pair.qp[0].qpn);
        assert_eq!(
            found.flags & (cqe::CQE_GRH | cqe::CQE_IMM),
            cqe::CQE_GRH | cqe::CQE_IMM
        );
        assert_eq!(found.imm.to_bytes(), [1, 2, 3, 4]);
        assert_eq!(found.smac, world.hosts[0].mac.0);
        let bytes = world.hosts[1].driver.read_mr(&mr, 0, 48);
        assert_eq!(&bytes[40..], b"datagram");
        if v6 {
            assert_eq!(bytes[0] >> 4, 6);
            assert_eq!(
                (&bytes[8..24], &bytes[24..40]),
                (&gid6(&world.hosts[0]).0[..], &gid6(&world.hosts[1]).0[..])
            );
        } else {
            assert_eq!(bytes[20], 0x45);
            assert_eq!(
                (&bytes[32..36], &bytes[36..40]),
                (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..])
            );
        }
    }
}

#[test]
fn unwanted_datagrams_are_dropped_and_counted() {
    let mut world = World::new(2, 1);
    let mut d = datagrams(&mut world, false);
    send_datagram(&mut world, &mut d, QKEY + 1, b"x");
    assert_eq!(counter(&mut world, 1, Counter::rx_bad_qkey), 1);
    send_datagram(&mut world, &mut d, QKEY, b"x");
    assert_eq!(counter(&mut world, 1, Counter::out_of_buffer), 1);
    assert_eq!(world.completions(1, &mut d.pair.cq[1]), []);
    assert_eq!(world.completions(0, &mut d.pair.cq[0]).len(), 2);
}

#[test]
fn address_handles_belong_to_a_domain() {
    let mut world = World::new(2, 1);
    let mut d = datagrams(&mut world, false);
    let pd = world.hosts[0].driver.alloc_pd().unwrap();
    let av = world.path(1, 0).av();
    d.ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
    send_datagram(&mut world, &mut d, QKEY, b"x");
    let found = expect_cqe(&mut world, 0, &mut d.pair.cq[0], cqe::LOC_QP_OP_ERR);
    assert_eq!(found.vendor_err, cqe::AH);
}

#[test]
fn raw_frames_reach_the_netdev() {
    let mut world = World::new(2, 1);
    let mut cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let mut qp = [0, 1].map(|i| world.hosts[i].qp(QPT_RAW, &cq[i]).unwrap());
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    for (host, qp) in world.hosts.iter_mut().zip(&qp) {
        host.driver.activate(qp.qpn, QPT_RAW, 0).unwrap();
        host.driver.set_netdev(host.mac, 1500, qp.qpn).unwrap();
    }
    let mut frame = world.hosts[1].mac.0.to_vec();
    frame.extend(world.hosts[0].mac.0);
    frame.extend([0x88, 0xb5]);
    frame.extend(data(1000));
    world.hosts[0].driver.write_mr(&mr[0], 3, &frame);
    for stranger in [false, true] {
        if stranger {
            world.hosts[0]
                .driver
                .write_mr(&mr[0], 3, &[2, 9, 9, 9, 9, 9]);
        }
        world.hosts[1]
            .driver
            .post_recv(&mut qp[1], 1, &[(mr[1].va, 2000, mr[1].key)]);
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[
                (mr[0].va + 3, 500, mr[0].key),
                (mr[0].va + 503, 514, mr[0].key),
            ],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
        world.run();
        expect_cqe(&mut world, 0, &mut cq[0], cqe::SUCCESS);
        if !stranger {
            assert_eq!(
                expect_cqe(&mut world, 1, &mut cq[1], cqe::SUCCESS)
                    .byte_len
                    .get(),
                1014
            );
            assert!(world.hosts[1].driver.read_mr(&mr[1], 0, 1014) == frame);
        } else {
            assert_eq!(world.completions(1, &mut cq[1]), [], "not its address");
        }
    }
}

#[test]
fn a_busy_queue_pair_does_not_starve_another() {
    let mut world = World::new(2, 1);
    let mut busy = rc_pair(&mut world);
    let mut other = rc_pair(&mut world);
    world.start_trace();
    for _ in 0..20 {
        world.post_write(&mut busy, 60_000);
    }
    world.post_write(&mut other, 8);
    world.run();
    let trace = world.take_trace();
    let requests: Vec<u32> = trace
        .iter()
        .filter(|(from, _)| *from == 0)
        .map(|(_, h)| h.bth.dest_qp)
        .collect();
    assert_eq!(requests.len(), 20 * 59 + 1);
    assert_eq!(world.completions(0, &mut other.cq[0]).len(), 1);
    assert_eq!(QP_FLAG_SIG_ALL, 1);
}
