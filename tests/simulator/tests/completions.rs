//! Completion queues: their events, the effects of an overrun, and the move to another ring.

use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, cqe, event};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::{Error, Send};
use faultline_simulator::{Pair, World, expect_cqe};
use faultline_wire::packet::RoceHeader;

fn rc_pair(world: &mut World) -> Pair {
    world.connect(QPT_RC, 4096, |_| {})
}

#[test]
fn notices_come_once_per_arming_and_solicited_only_if_asked() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    let mr = pair.mr[1];
    let notices = |world: &mut World| {
        let host = &mut world.hosts[1];
        std::iter::from_fn(|| host.driver.poll_event(&mut host.eq)).count()
    };
    let send = |world: &mut World, pair: &mut Pair, flags| {
        world.hosts[1]
            .driver
            .post_recv(&mut pair.qp[1], 0, &[(mr.va, 64, mr.key)]);
        let send = Send {
            opcode: wr::WR_SEND,
            flags,
            inline: Some(b"x"),
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
    };
    send(&mut world, &mut pair, 0);
    assert_eq!(notices(&mut world), 0, "not armed");
    // Armed with an unread entry: due at once.
    world.hosts[1].driver.arm_cq(&pair.cq[1], false);
    assert_eq!(notices(&mut world), 1);
    world.completions(1, &mut pair.cq[1]);
    world.hosts[1].driver.arm_cq(&pair.cq[1], false);
    assert_eq!(notices(&mut world), 0);
    send(&mut world, &mut pair, 0);
    send(&mut world, &mut pair, 0);
    assert_eq!(notices(&mut world), 1, "once");
    world.completions(1, &mut pair.cq[1]);
    world.hosts[1].driver.arm_cq(&pair.cq[1], true);
    send(&mut world, &mut pair, 0);
    // proves: IBV_SEND_SOLICITED, IB_SEND_SOLICITED
    assert_eq!(notices(&mut world), 0, "not solicited");
    send(&mut world, &mut pair, wr::WR_FLAG_SOLICITED);
    assert_eq!(notices(&mut world), 1);
}

#[test]
fn one_interrupt_per_arming_of_an_event_queue() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    world.hosts[0].driver.arm_cq(&pair.cq[0], false);
    let host = &mut world.hosts[0];
    host.driver.arm_eq(&host.eq);
    assert_eq!(world.take_interrupts(0), [0_u16; 0]);
    world.post_write(&mut pair, 8);
    world.run();
    assert_eq!(world.take_interrupts(0), [1]);
    // The event is unread, so arming again raises at once.
    let host = &mut world.hosts[0];
    host.driver.arm_eq(&host.eq);
    world.run();
    assert_eq!(world.take_interrupts(0), [1]);
}

#[test]
fn an_overrun_completion_queue_is_reported() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    let small = world.hosts[0].cq(1).unwrap();
    let qp = world.hosts[0].qp(QPT_RC, &small).unwrap();
    let path = world.path(1, pair.qp[1].qpn);
    world.hosts[1]
        .driver
        .set_state(pair.qp[1].qpn, QPS_RESET)
        .unwrap();
    pair.qp[1].reset();
    let back = world.path(0, qp.qpn);
    world.hosts[1]
        .driver
        .connect(pair.qp[1].qpn, QPT_RC, &back)
        .unwrap();
    world.hosts[0]
        .driver
        .connect(qp.qpn, QPT_RC, &path)
        .unwrap();
    let (cqn, qpn) = (small.cqn, qp.qpn);
    pair.qp[0] = qp;
    pair.cq[0] = small;
    world.hosts[0].driver.async_events();
    for _ in 0..3 {
        world.post_write(&mut pair, 8);
        world.run();
    }
    // A queue pair that cannot report its work must not continue (IBTA 9.9.6.3, class G).
    // proves: IBV_EVENT_CQ_ERR
    assert_eq!(
        world.hosts[0].driver.async_events(),
        [(event::CQ_ERROR, cqn), (event::QP_FATAL, qpn)]
    );
    assert_eq!(world.hosts[0].driver.query_qp(qpn).unwrap().state, QPS_ERR);
    // One that begins anew, with another CQ, has nothing to do with it.
    let other = world.hosts[0].cq(4).unwrap();
    let mut again = world.hosts[0].qp(QPT_RC, &other).unwrap();
    std::mem::swap(&mut again, &mut pair.qp[0]);
    pair.cq[0] = other;
    let driver = &mut world.hosts[1].driver;
    driver.set_state(pair.qp[1].qpn, QPS_RESET).unwrap();
    pair.qp[1].reset();
    for (host, own, to, peer) in [(0, 0, 1, 1), (1, 1, 0, 0)] {
        let path = world.path(to, pair.qp[peer].qpn);
        let driver = &mut world.hosts[host].driver;
        driver.connect(pair.qp[own].qpn, QPT_RC, &path).unwrap();
    }
    world.post_write(&mut pair, 8);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}

/// The same on the side that receives, where many share the queue that overruns.
#[test]
fn all_queue_pairs_that_lose_completions_fail() {
    let mut world = World::new(2, 1);
    let mut pairs: Vec<_> = (0..5).map(|_| rc_pair(&mut world)).collect();
    let small = world.hosts[1].cq(1).unwrap();
    let mut receivers = Vec::new();
    for pair in &mut pairs {
        let qp = world.hosts[1].qp(QPT_RC, &small).unwrap();
        let sender = pair.qp[0].qpn;
        let driver = &mut world.hosts[0].driver;
        driver.set_state(sender, QPS_RESET).unwrap();
        pair.qp[0].reset();
        for (host, own, to, peer) in [(0, sender, 1, qp.qpn), (1, qp.qpn, 0, sender)] {
            let path = world.path(to, peer);
            let driver = &mut world.hosts[host].driver;
            driver.connect(own, QPT_RC, &path).unwrap();
        }
        receivers.push(qp);
    }
    world.hosts[1].driver.async_events();
    for (pair, receiver) in pairs.iter_mut().zip(&mut receivers) {
        let to = pair.mr[1];
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(receiver, 1, &[(to.va, 64, to.key)]);
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(b"one more"),
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
    }
    let states: Vec<u8> = receivers
        .iter()
        .map(|qp| world.hosts[1].driver.query_qp(qp.qpn).unwrap().state)
        .collect();
    assert_eq!(states, [QPS_RTS, QPS_RTS, QPS_ERR, QPS_ERR, QPS_ERR]);
    let events = world.hosts[1].driver.async_events();
    let fatal = events.iter().filter(|event| event.0 == event::QP_FATAL);
    assert_eq!(fatal.count(), 3, "{events:?}");
    // No sender is told of the arrival of a message that the receiver will never hear of.
    let statuses = pairs.iter_mut().map(|pair| {
        let done = world.completions(0, &mut pair.cq[0]);
        done.iter().map(|cqe| cqe.status).collect::<Vec<_>>()
    });
    let (well, lost) = ([cqe::SUCCESS], [cqe::RETRY_EXC_ERR]);
    assert_eq!(statuses.collect::<Vec<_>>(), [well, well, lost, lost, lost]);
}

#[test]
fn resizing_a_queue_loses_nothing() {
    let mut world = World::new(2, 1);
    let mut pair = rc_pair(&mut world);
    let mut seen = 0;
    for log_depth in [4, 7, 3, 10, 2] {
        for _ in 0..3 {
            world.post_write(&mut pair, 8);
            world.run();
        }
        world.hosts[0]
            .driver
            .resize_cq(&mut pair.cq[0], log_depth)
            .unwrap();
        for found in world.completions(0, &mut pair.cq[0]) {
            assert_eq!(found.wqe.get(), seen);
            seen += 1;
        }
    }
    assert_eq!(seen, 15);
    // Five entries do not fit into four.
    for _ in 0..4 {
        world.post_write(&mut pair, 8);
    }
    world.run();
    let refused = world.hosts[0].driver.resize_cq(&mut pair.cq[0], 1);
    assert_eq!(refused, Err(Error::Refused(Status::CqNotEmpty)));
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 4);
}

/// A WRITE with immediate data whose key is refused completes the receive that it would have completed, with a local access
/// error (IBTA 11.6.2). The key is checked with the first packet: of a longer message that has no immediate data yet.
#[test]
fn a_write_with_immediate_data_and_a_bad_key_is_reported_to_the_receiver() {
    let local_access = (0, cqe::LOC_ACCESS_ERR);
    let flushed = |wqe| (wqe, cqe::WR_FLUSH_ERR);
    for (opcode, len, posted, expected) in [
        (wr::WR_WRITE_IMM, 100, 2, vec![local_access, flushed(1)]),
        (wr::WR_WRITE_IMM, 1024, 1, vec![local_access]),
        (wr::WR_WRITE_IMM, 100, 0, vec![]),
        (wr::WR_WRITE_IMM, 1025, 1, vec![flushed(0)]),
        (wr::WR_WRITE, 100, 1, vec![flushed(0)]),
    ] {
        for kind in [QPT_RC, QPT_UC] {
            let mut world = World::new(2, 1);
            let mut pair = world.connect(kind, 4096, |_| {});
            let (a, b) = (pair.mr[0], pair.mr[1]);
            for tag in 0..posted {
                let sge = (b.va, 8, b.key);
                let driver = &mut world.hosts[1].driver;
                driver.post_recv(&mut pair.qp[1], tag, &[sge]);
            }
            world.hosts[1].driver.async_events();
            let sges = [(a.va, len, a.key)];
            let send = |rkey| Send {
                opcode,
                sges: &sges,
                remote_addr: b.va,
                rkey,
                ..Send::default()
            };
            let driver = &mut world.hosts[0].driver;
            driver.post_send(&mut pair.qp[0], &send(b.key ^ 0x100));
            world.run();
            let received = |world: &mut World, pair: &mut Pair| -> Vec<(u32, u8)> {
                let found = world.completions(1, &mut pair.cq[1]);
                found.iter().map(|c| (c.wqe.get(), c.status)).collect()
            };
            let events = world.hosts[1].driver.async_events();
            if kind == QPT_RC {
                expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_ACCESS_ERR);
                // proves: IBV_WC_LOC_ACCESS_ERR
                assert_eq!(received(&mut world, &mut pair), expected, "{opcode} {len}");
                // There is an event if no completion reports the error.
                let reports = |found: &(u32, u8)| found.1 == cqe::LOC_ACCESS_ERR;
                let wanted = match expected.iter().any(reports) {
                    true => vec![],
                    false => vec![(event::QP_ACCESS_ERROR, pair.qp[1].qpn)],
                };
                assert_eq!(events, wanted);
                continue;
            }
            // UC: the message is lost, and the receive is for the next one.
            expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
            assert_eq!((received(&mut world, &mut pair), events), (vec![], vec![]));
            let driver = &mut world.hosts[0].driver;
            driver.post_send(&mut pair.qp[0], &send(b.key));
            world.run();
            let taken = usize::from(opcode == wr::WR_WRITE_IMM && posted > 0);
            let found = received(&mut world, &mut pair);
            assert_eq!(found, vec![(0, cqe::SUCCESS); taken]);
        }
    }
}

/// Error of a peer, status of the receive work request, and asynchronous event. There is an event if no completion
/// reports the error (IBTA 11.6.3): applications take an event for the end of a queue pair that they have not noticed
/// yet.
#[test]
fn an_event_reports_errors_without_a_completion() {
    /// Length of the SEND, key of its receive, opcode, offset of the remote key.
    type Case = (u32, u32, u8, u32);
    let cases: [(&str, Case, Option<u8>, Option<u8>); 5] = [
        ("nothing", (8, 0, wr::WR_SEND, 0), Some(cqe::SUCCESS), None),
        (
            "too long",
            (100, 0, wr::WR_SEND, 0),
            Some(cqe::LOC_LEN_ERR),
            None,
        ),
        (
            "a bad key of the receive",
            (8, 0x100, wr::WR_SEND, 0),
            Some(cqe::LOC_PROT_ERR),
            None,
        ),
        (
            "a bad remote key",
            (8, 0, wr::WR_WRITE, 0x100),
            Some(cqe::WR_FLUSH_ERR),
            Some(event::QP_ACCESS_ERROR),
        ),
        (
            "a bad remote key of a READ",
            (8, 0, wr::WR_READ, 0x100),
            Some(cqe::WR_FLUSH_ERR),
            Some(event::QP_ACCESS_ERROR),
        ),
    ];
    for (what, (len, key, opcode, rkey), status, wanted) in cases {
        let mut world = World::new(2, 1);
        let mut pair = world.connect(QPT_RC, 4096, |_| {});
        let (a, b) = (pair.mr[0], pair.mr[1]);
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut pair.qp[1], 1, &[(b.va, 8, b.key ^ key)]);
        driver.async_events();
        let send = Send {
            opcode,
            sges: &[(a.va, len, a.key)],
            remote_addr: b.va,
            rkey: b.key ^ rkey,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        let found = world.completions(1, &mut pair.cq[1]);
        let statuses = found.iter().map(|cqe| cqe.status);
        assert!(statuses.eq(status), "{what}: {found:?}");
        let events = world.hosts[1].driver.async_events();
        let wanted = wanted.map(|kind| (kind, pair.qp[1].qpn));
        assert!(events.iter().copied().eq(wanted), "{what}: {events:?}");
    }
}

/// Each kind of NAK, and the packets that cause them, twice or more often: a request is sent as often as without.
#[test]
fn a_doubled_nak_spends_no_retry() {
    const RETRIES: u8 = 3;
    for duplication in [0, 1000] {
        for lost in [false, true] {
            let mut world = World::new(2, 1);
            world.impair(LinkModel {
                duplicate: duplication * 1000,
                ..LinkModel::PLAIN
            });
            let mut pair = world.connect(QPT_RC, 4096, |connect| {
                (connect.rnr_retry, connect.retry_cnt) = (RETRIES, RETRIES);
                connect.timeout = 8;
            });
            // Either nothing is posted to receive it, or it is lost and the next one gets a sequence NAK.
            if lost {
                world.lose(|from, header| from == 0 && header.bth.psn.get() == 0);
            }
            let from = pair.mr[0];
            let sges = [(from.va, 8, from.key)];
            let send = Send {
                opcode: wr::WR_SEND,
                sges: &sges,
                ..Send::default()
            };
            world.start_trace();
            for _ in 0..2 {
                world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
            }
            world.run();
            let found = world.completions(0, &mut pair.cq[0]);
            let status = match lost {
                true => cqe::RETRY_EXC_ERR,
                false => cqe::RNR_RETRY_EXC_ERR,
            };
            assert_eq!(found[0].status, status);
            let is_first =
                |(from, header): &&(usize, RoceHeader)| *from == 0 && header.bth.psn.get() == 0;
            let trace = world.take_trace();
            // A lost packet is not in the trace of sent packets a second time.
            let sent = trace.iter().filter(is_first).count();
            assert_eq!(sent, 1 + usize::from(RETRIES), "{duplication} {lost}");
        }
    }
}
