//! Work queues and completion queues: valid work requests, ends of requests, guarantees of completions.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::event;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32, doorbell};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Error, QpConfig, Rng, Send, Sge};
use faultline_simulator::{Pair, World, expect_cqe};
use faultline_wire::opcode::OpKind;

use crate::common::{counter, state};

const LEN: u64 = 64 << 10;

fn write<'a>(pair: &Pair, sges: &'a [Sge]) -> Send<'a> {
    Send {
        opcode: wr::WR_WRITE,
        sges,
        remote_addr: pair.mr[1].va,
        rkey: pair.mr[1].key,
        ..Send::default()
    }
}

fn post(world: &mut World, pair: &mut Pair, send: &Send<'_>) {
    world.hosts[0].driver.post_send(&mut pair.qp[0], send);
}

/// Status and vendor error of one request with an error.
fn outcome(kind: u8, change: impl Fn(&mut World, &Pair, &mut Send<'_>, &mut Vec<Sge>)) -> (u8, u8) {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(kind, LEN, |_| {});
    let a = pair.mr[0];
    let mut sges = vec![(a.va, 100, a.key)];
    let mut send = write(&pair, &[]);
    change(&mut world, &pair, &mut send, &mut sges);
    if send.inline.is_none() {
        send = Send {
            sges: &sges,
            ..send
        };
    }
    let mut receives = Vec::new();
    for tag in 0..2 {
        world.hosts[0].driver.post_recv(&mut pair.qp[0], tag, &[]);
        receives.push(tag);
    }
    post(&mut world, &mut pair, &send);
    let good = [(a.va, 1, a.key)];
    let next = write(&pair, &good);
    post(&mut world, &mut pair, &next);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    let (failed, rest) = found.split_first().unwrap();
    if failed.status == cqe::SUCCESS {
        assert_eq!(rest[0].status, cqe::SUCCESS);
        return (cqe::SUCCESS, 0);
    }
    // Later requests are flushed; the receives only if the connection is reliable.
    let flushed = if kind == QPT_RC { 3 } else { 1 };
    assert_eq!(rest.len(), flushed);
    assert!(rest.iter().all(|cqe| cqe.status == cqe::WR_FLUSH_ERR));
    let end = if kind == QPT_RC { QPS_ERR } else { QPS_SQE };
    assert_eq!(state(&mut world, 0, &pair.qp[0]), end);
    // The peer hears nothing of it.
    assert_eq!(state(&mut world, 1, &pair.qp[1]), QPS_RTS);
    assert_eq!(counter(&mut world, 0, Counter::tx_packets), 0);
    (failed.status, failed.vendor_err)
}

#[test]
fn local_errors_name_the_check_that_failed() {
    let lkey = (cqe::LOC_PROT_ERR, cqe::LKEY);
    let bounds = (cqe::LOC_PROT_ERR, cqe::BOUNDS);
    for kind in [QPT_RC, QPT_UC] {
        assert_eq!(outcome(kind, |_, _, _, _| {}), (cqe::SUCCESS, 0));
        assert_eq!(outcome(kind, |_, _, _, s| s[0].2 ^= 1), lkey);
        assert_eq!(outcome(kind, |_, _, _, s| s[0].2 = 0), lkey);
        assert_eq!(outcome(kind, |_, _, _, s| s[0].0 -= 1), bounds);
        assert_eq!(outcome(kind, |_, _, _, s| s[0].0 += LEN - 99), bounds);
        assert_eq!(outcome(kind, |_, _, _, s| s[0].0 = u64::MAX - 10), bounds);
        // The second entry counts as much as the first.
        assert_eq!(
            outcome(kind, |_, _, _, s| {
                let (va, _, key) = s[0];
                s.push((va, 4, key ^ 0x100));
            }),
            lkey
        );
        // Empty entries may say anything.
        assert_eq!(
            outcome(kind, |_, _, _, s| s.push((1, 0, 2))),
            (cqe::SUCCESS, 0)
        );
        // proves: IBV_WC_LOC_QP_OP_ERR
        assert_eq!(
            outcome(kind, |_, _, send, _| send.flags = 1 << 7),
            (cqe::LOC_QP_OP_ERR, cqe::RESERVED)
        );
        assert_eq!(
            outcome(kind, |_, _, _, s| s.resize(5, s[0])),
            (cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT)
        );
        assert_eq!(
            outcome(kind, |_, _, _, s| {
                s[0].1 = 1 << 30;
                s.push((s[0].0, 1, s[0].2));
            }),
            (cqe::LOC_LEN_ERR, cqe::LENGTH)
        );
        assert_eq!(
            outcome(kind, |_, _, send, _| send.inline = Some(&[1; 81])),
            (cqe::LOC_QP_OP_ERR, cqe::SGE_COUNT),
            "more than the queue was made for"
        );
        assert_eq!(
            outcome(kind, |_, _, send, _| send.inline = Some(&[1; 80])),
            (cqe::SUCCESS, 0)
        );
        assert_eq!(
            outcome(kind, |world, _, _, s| {
                let pd = world.hosts[0].driver.alloc_pd().unwrap();
                let mr = world.hosts[0].driver.reg_mr(pd, s[0].0, LEN, ALL_ACCESS);
                s[0].2 = mr.unwrap().key;
            }),
            lkey,
            "foreign domain"
        );
        assert_eq!(
            outcome(kind, |world, pair, _, _| {
                let gone = pair.mr[0].key;
                let opcode = faultline_abi::admin::DESTROY_MKEY;
                world.hosts[0].driver.command(opcode, gone, &()).unwrap();
                let (pd, va) = (world.hosts[0].pd, pair.mr[0].va);
                let mr = world.hosts[0].driver.reg_mr(pd, va, LEN, ALL_ACCESS);
                assert_ne!(mr.unwrap().key, gone);
            })
            .1,
            cqe::LKEY,
            "destroyed"
        );
    }
}

#[test]
fn responses_need_writable_memory() {
    let lkey = (cqe::LOC_PROT_ERR, cqe::LKEY);
    let length = (cqe::LOC_LEN_ERR, cqe::LENGTH);
    let read_only = |world: &mut World, s: &mut Vec<Sge>| {
        let (pd, va) = (world.hosts[0].pd, s[0].0);
        let mr = world.hosts[0]
            .driver
            .reg_mr(pd, va, LEN, ACCESS_REMOTE_READ);
        s[0].2 = mr.unwrap().key;
    };
    for opcode in [wr::WR_READ, wr::WR_COMP_SWAP, wr::WR_FETCH_ADD] {
        let base = |pair: &Pair, send: &mut Send<'_>, s: &mut Vec<Sge>| {
            send.opcode = opcode;
            send.remote_addr = (pair.mr[1].va + 7) & !7;
            s[0].1 = 8;
        };
        assert_eq!(
            outcome(QPT_RC, |_, pair, send, s| base(pair, send, s)),
            (cqe::SUCCESS, 0)
        );
        assert_eq!(
            outcome(QPT_RC, |world, pair, send, s| {
                base(pair, send, s);
                read_only(world, s);
            }),
            lkey
        );
        assert_eq!(
            outcome(QPT_RC, |_, pair, send, s| {
                base(pair, send, s);
                send.inline = Some(b"12345678");
            }),
            (cqe::LOC_QP_OP_ERR, cqe::OPCODE)
        );
        if opcode == wr::WR_READ {
            continue;
        }
        for bad in [0, 4, 7, 9, 16] {
            assert_eq!(
                outcome(QPT_RC, |_, pair, send, s| {
                    base(pair, send, s);
                    s[0].1 = bad;
                }),
                length
            );
        }
        // Two halves make a whole.
        assert_eq!(
            outcome(QPT_RC, |_, pair, send, s| {
                base(pair, send, s);
                *s = vec![(s[0].0, 3, s[0].2), (s[0].0 + 50, 5, s[0].2)];
            }),
            (cqe::SUCCESS, 0)
        );
    }
}

#[test]
fn no_reads_where_none_were_agreed() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.rd_atomic = 0);
    let a = pair.mr[0];
    let sges = [(a.va, 8, a.key)];
    let read = Send {
        opcode: wr::WR_READ,
        ..write(&pair, &sges)
    };
    post(&mut world, &mut pair, &read);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::LOC_QP_OP_ERR);
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    // The requester believes in eight, the responder in one.
    let qpn = pair.qp[1].qpn;
    world.hosts[1].driver.set_state(qpn, QPS_RESET).unwrap();
    let mut path = world.path(0, pair.qp[0].qpn);
    path.rd_atomic = 1;
    world.hosts[1].driver.connect(qpn, QPT_RC, &path).unwrap();
    let a = pair.mr[0];
    for n in 0..2 {
        let sges = [(a.va + n * 20_000, 20_000, a.key)];
        let read = Send {
            opcode: wr::WR_READ,
            ..write(&pair, &sges)
        };
        world.hosts[0].driver.write_send(&mut pair.qp[0], &read);
    }
    world.hosts[0].driver.ring_sends(&pair.qp[0]);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    let statuses: Vec<u8> = found.iter().map(|cqe| cqe.status).collect();
    // proves: max_qp_rd_atom, IBV_QP_MAX_DEST_RD_ATOMIC
    assert_eq!(statuses, [cqe::SUCCESS, cqe::REM_INV_REQ_ERR]);
}

/// Requests before an invalid one succeed.
#[test]
fn requests_before_a_bad_one_succeed() {
    for kind in [QPT_RC, QPT_UC] {
        let mut world = World::new(2, 1);
        let mut pair = world.connect(kind, LEN, |_| {});
        world.pace(50);
        let a = pair.mr[0];
        for n in 0..5u32 {
            let key = if n == 3 { 0 } else { a.key };
            let sges = [(a.va, 10_000, key)];
            let send = write(&pair, &sges);
            world.hosts[0].driver.write_send(&mut pair.qp[0], &send);
        }
        world.hosts[0].driver.ring_sends(&pair.qp[0]);
        world.run();
        let found = world.completions(0, &mut pair.cq[0]);
        let found: Vec<_> = found.iter().map(|c| (c.wqe.get(), c.status)).collect();
        let (ok, bad, rest) = (cqe::SUCCESS, cqe::LOC_PROT_ERR, cqe::WR_FLUSH_ERR);
        assert_eq!(found, [(0, ok), (1, ok), (2, ok), (3, bad), (4, rest)]);
    }
}

#[test]
fn a_send_queue_without_memory_completes_in_error() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    // A queue whose entries are outside of memory.
    let host = &mut world.hosts[0];
    let body = faultline_abi::admin::CreateQp {
        sq: faultline_abi::admin::RingDesc {
            addr: faultline_abi::U64::new(0x10_0000),
            num_pages: U32::new(2),
            page_shift: 12,
            ..Default::default()
        },
        rq: faultline_abi::admin::RingDesc {
            addr: faultline_abi::U64::new(0x10_0000),
            num_pages: U32::new(2),
            page_shift: 12,
            ..Default::default()
        },
        pd: U32::new(host.pd),
        send_cqn: U32::new(pair.cq[0].cqn),
        recv_cqn: U32::new(pair.cq[0].cqn),
        qp_type: QPT_RC,
        sq_log_depth: 4,
        sq_stride_shift: 6,
        rq_log_depth: 4,
        rq_stride_shift: 5,
        ..Default::default()
    };
    let opcode = faultline_abi::admin::CREATE_QP;
    let qpn = host.driver.command(opcode, 0, &body).unwrap().handle.get();
    let path = world.path(1, pair.qp[1].qpn);
    world.hosts[0].driver.connect(qpn, QPT_RC, &path).unwrap();
    world.hosts[0].driver.ring(0, doorbell::SQ, qpn, 2);
    world.run();
    let found = world.completions(0, &mut pair.cq[0]);
    let found: Vec<_> = found.iter().map(|c| (c.status, c.vendor_err)).collect();
    let expected = (cqe::LOC_QP_OP_ERR, cqe::WQE_FETCH);
    assert_eq!(found, [expected, (cqe::WR_FLUSH_ERR, cqe::NONE)]);
}

#[test]
fn a_doorbell_beyond_the_ring_ends_the_queue_pair_alone() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    world.hosts[0].driver.async_events();
    let qpn = pair.qp[0].qpn;
    let before = counter(&mut world, 0, Counter::doorbell_errors);
    world.hosts[0].driver.ring(0, doorbell::SQ, qpn, 257);
    // proves: IBV_EVENT_QP_FATAL
    assert_eq!(
        world.hosts[0].driver.async_events(),
        [(event::QP_FATAL, qpn)]
    );
    assert_eq!(counter(&mut world, 0, Counter::doorbell_errors), before + 1);
    assert_eq!(state(&mut world, 0, &pair.qp[0]), QPS_ERR);
    assert_eq!(world.completions(0, &mut pair.cq[0]), []);
    let mut other = world.connect(QPT_RC, LEN, |_| {});
    let a = other.mr[0];
    let sges = [(a.va, 9, a.key)];
    let send = write(&other, &sges);
    world.hosts[0].driver.post_send(&mut other.qp[0], &send);
    world.run();
    expect_cqe(&mut world, 0, &mut other.cq[0], cqe::SUCCESS);
    pair.qp[0].reset();
}

#[test]
fn a_sender_waits_without_end_for_a_receiver_that_is_never_ready() {
    let mut world = World::new(2, 1);
    // 491.52 ms each (code 31).
    let mut pair = world.connect(QPT_RC, LEN, |c| c.min_rnr_timer = 31);
    let send = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"inlined!"),
        ..Send::default()
    };
    post(&mut world, &mut pair, &send);
    world.run_for(30_000_000_000);
    assert_eq!(world.completions(0, &mut pair.cq[0]), []);
    assert_eq!(counter(&mut world, 0, Counter::rnr_nak_received), 62);
    let b = pair.mr[1];
    world.hosts[1]
        .driver
        .post_recv(&mut pair.qp[1], 0, &[(b.va, 100, b.key)]);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
}

/// The last packet of a WRITE with immediate data waits for a receive; written data is not written again.
#[test]
fn immediate_data_waits_for_a_receive() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.min_rnr_timer = 10);
    let a = pair.mr[0];
    world.start_trace();
    let sges = [(a.va, 10_000, a.key)];
    let send = Send {
        opcode: wr::WR_WRITE_IMM,
        imm: [9, 8, 7, 6],
        ..write(&pair, &sges)
    };
    post(&mut world, &mut pair, &send);
    world.run_for(10_000);
    world.hosts[1].driver.post_recv(&mut pair.qp[1], 77, &[]);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    let found = expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
    assert_eq!((found.wqe.get(), found.byte_len.get()), (77, 10_000));
    // proves: IB_WC_WITH_IMM
    assert_eq!(
        (found.opcode, found.imm.to_bytes()),
        (cqe::RECV_RDMA_WITH_IMM, [9, 8, 7, 6])
    );
    let sent: Vec<u32> = world
        .take_trace()
        .iter()
        .filter(|(from, _)| *from == 0)
        .map(|(_, h)| h.bth.psn.get())
        .collect();
    assert_eq!(sent, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]);
}

#[test]
fn progress_gives_the_retries_back() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| {
        c.timeout = 8;
        c.retry_cnt = 2;
    });
    let a = pair.mr[0];
    // Each packet twice lost, the third time it arrives.
    let mut tries = std::collections::BTreeMap::new();
    world.lose(move |from, h| {
        let n = tries.entry(h.bth.psn.get()).or_insert(0);
        *n += u32::from(from == 0);
        from == 0 && *n <= 2
    });
    for n in 0..5 {
        let sges = [(a.va, 8, a.key)];
        let send = write(&pair, &sges);
        post(&mut world, &mut pair, &send);
        world.run();
        let found = expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
        assert_eq!(found.wqe.get(), n);
    }
    assert_eq!(counter(&mut world, 0, Counter::local_ack_timeout_err), 10);
}

#[test]
fn no_timeout_means_none() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |c| c.timeout = 0);
    world.lose(|_, _| true);
    let a = pair.mr[0];
    let sges = [(a.va, 8, a.key)];
    let send = write(&pair, &sges);
    post(&mut world, &mut pair, &send);
    world.run_for(100_000_000_000);
    assert_eq!(world.completions(0, &mut pair.cq[0]), []);
    assert_eq!(world.with_nic(0, |nic| nic.object_counts().timers), 0);
}

#[test]
fn a_write_behind_a_fence_waits_and_others_do_not() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    let a = pair.mr[0];
    world.start_trace();
    let sges = [(a.va, 8, a.key)];
    let read = Send {
        opcode: wr::WR_READ,
        ..write(&pair, &sges)
    };
    let fenced = Send {
        flags: wr::WR_FLAG_FENCE,
        ..write(&pair, &sges)
    };
    let plain = write(&pair, &sges);
    for send in [&read, &plain, &fenced, &plain] {
        world.hosts[0].driver.write_send(&mut pair.qp[0], send);
    }
    world.hosts[0].driver.ring_sends(&pair.qp[0]);
    let sent = |world: &World| -> Vec<(u32, OpKind)> {
        let trace = world.take_trace();
        let own = trace.iter().filter(|(from, _)| *from == 0);
        own.map(|(_, h)| (h.bth.psn.get(), h.bth.opcode.info().kind))
            .collect()
    };
    let (r, w) = (OpKind::ReadRequest, OpKind::Write);
    assert_eq!(sent(&world), [(0, r), (1, w)]);
    world.run_for(1999);
    assert_eq!(sent(&world), []);
    world.run();
    assert_eq!(sent(&world), [(2, w), (3, w)]);
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 4);
}

#[test]
fn every_resize_under_traffic_loses_nothing() {
    let mut world = World::new(2, 1);
    // The driver has memory for the resizes of short waits only.
    let mut pair = world.connect(QPT_RC, LEN, |path| path.timeout = 3);
    world.pace(100);
    world.impair(LinkModel {
        loss: 20_000,
        ..LinkModel::PLAIN
    });
    let a = pair.mr[0];
    let mut rng = Rng::new(4);
    let (mut posted, mut seen) = (0u32, 0u32);
    while seen < 600 {
        if posted < 600 && posted - seen < 30 {
            let sges = [(a.va, 8, a.key)];
            let send = write(&pair, &sges);
            post(&mut world, &mut pair, &send);
            posted += 1;
        }
        let ns = rng.below(500);
        world.run_for(ns);
        if rng.chance(100) {
            let log_depth = 5 + rng.below(4) as u8;
            world.hosts[0]
                .driver
                .resize_cq(&mut pair.cq[0], log_depth)
                .unwrap();
        }
        if rng.chance(300) {
            for found in world.completions(0, &mut pair.cq[0]) {
                assert_eq!((found.status, found.wqe.get()), (cqe::SUCCESS, seen));
                seen += 1;
            }
        }
    }
}

/// A notice is never lost: armed with an index that is behind, it is due at once; else the next entry brings it.
#[test]
fn a_reader_that_arms_and_sleeps_is_woken() {
    let mut rng = Rng::new(8);
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    let a = pair.mr[0];
    let (mut posted, mut seen) = (0, 0);
    while seen < 300 {
        if posted < 300 && posted - seen < 20 {
            for _ in 0..=rng.below(3) {
                let sges = [(a.va, 8, a.key)];
                let send = write(&pair, &sges);
                post(&mut world, &mut pair, &send);
                posted += 1;
            }
        }
        let ns = rng.below(4000);
        world.run_for(ns);
        // Poll until the queue is empty, cause events, arm with the index that was seen.
        seen += world.completions(0, &mut pair.cq[0]).len();
        let ns = rng.below(4000);
        world.run_for(ns);
        world.hosts[0].driver.arm_cq(&pair.cq[0], false);
        if posted > seen {
            world.run();
            let host = &mut world.hosts[0];
            let notice = host.driver.poll_event(&mut host.eq).expect("a notice");
            assert_eq!(
                (notice.kind, notice.object.get()),
                (event::COMPLETION, pair.cq[0].cqn)
            );
            assert!(host.driver.poll_event(&mut host.eq).is_none(), "one");
        } else {
            // Use the arming up.
            let sges = [(a.va, 8, a.key)];
            let send = write(&pair, &sges);
            post(&mut world, &mut pair, &send);
            posted += 1;
            world.run();
            let host = &mut world.hosts[0];
            assert!(host.driver.poll_event(&mut host.eq).is_some());
        }
    }
}

#[test]
fn a_failed_completion_counts_as_solicited() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    world.hosts[0].driver.arm_cq(&pair.cq[0], true);
    let a = pair.mr[0];
    for key in [a.key, 0] {
        let sges = [(a.va, 8, key)];
        let send = write(&pair, &sges);
        post(&mut world, &mut pair, &send);
        world.run();
        let host = &mut world.hosts[0];
        let notice = host.driver.poll_event(&mut host.eq);
        assert_eq!(notice.is_some(), key == 0);
    }
}

#[test]
fn queues_wrap_many_times() {
    let mut world = World::new(2, 1);
    let mut cq = [0, 1].map(|i| world.hosts[i].cq(3).unwrap());
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    let mut qp = [0, 1].map(|i| {
        let config = QpConfig {
            log_depth: 1,
            ..world.hosts[i].qp_config(QPT_RC, &cq[i])
        };
        world.hosts[i].driver.create_qp(&config).unwrap()
    });
    for i in 0..2 {
        let path = world.path(1 - i, qp[1 - i].qpn);
        world.hosts[i]
            .driver
            .connect(qp[i].qpn, QPT_RC, &path)
            .unwrap();
    }
    for n in 0..100u32 {
        let sge = (mr[1].va + u64::from(n), 4, mr[1].key);
        world.hosts[1].driver.post_recv(&mut qp[1], n, &[sge]);
        let value = n.to_le_bytes();
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(&value),
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
        world.run();
        assert_eq!(
            expect_cqe(&mut world, 0, &mut cq[0], cqe::SUCCESS)
                .wqe
                .get(),
            n
        );
        assert_eq!(
            expect_cqe(&mut world, 1, &mut cq[1], cqe::SUCCESS)
                .wqe
                .get(),
            n
        );
        assert_eq!(
            world.hosts[1].driver.read_mr(&mr[1], u64::from(n), 4),
            value
        );
    }
}

#[test]
fn an_error_is_left_by_reset_only_and_leaves_nothing_behind() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    let a = pair.mr[0];
    let qpn = pair.qp[0].qpn;
    world.lose(|_, _| true);
    let sges = [(a.va, 50_000, a.key)];
    let send = write(&pair, &sges);
    post(&mut world, &mut pair, &send);
    world.hosts[0].driver.post_recv(&mut pair.qp[0], 1, &[]);
    for state in [QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD, QPS_SQE] {
        world.hosts[0].driver.set_state(qpn, QPS_ERR).unwrap();
        let left = world.hosts[0].driver.set_state(qpn, state);
        assert_eq!(left, Err(Error::Refused(Status::BadTransition)));
    }
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 2);
    world.lose_nothing();
    for i in 0..2 {
        let number = pair.qp[i].qpn;
        world.hosts[i].driver.set_state(number, QPS_RESET).unwrap();
        pair.qp[i].reset();
        let mut path = world.path(1 - i, pair.qp[1 - i].qpn);
        (path.sq_psn, path.rq_psn) = (500, 500);
        world.hosts[i]
            .driver
            .connect(number, QPT_RC, &path)
            .unwrap();
    }
    // A receive posted now is taken quietly: the record no longer asks for doorbells.
    let doorbells = counter(&mut world, 0, Counter::doorbell_errors);
    world.hosts[0]
        .driver
        .post_recv(&mut pair.qp[0], 7, &[(a.va, 100, a.key)]);
    let back = Send {
        opcode: wr::WR_SEND,
        inline: Some(b"again"),
        ..Send::default()
    };
    world.hosts[1].driver.post_send(&mut pair.qp[1], &back);
    world.run();
    assert_eq!(
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS)
            .wqe
            .get(),
        7
    );
    expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
    let found = world.hosts[0].driver.read_mr(&a, 0, 5);
    assert_eq!(found, b"again");
    assert_eq!(counter(&mut world, 0, Counter::doorbell_errors), doorbells);
}

#[test]
fn in_drain_begun_requests_end_and_attributes_may_change() {
    let mut world = World::new(2, 1);
    let mut pair = world.connect(QPT_RC, LEN, |_| {});
    world.pace(100);
    let a = pair.mr[0];
    let qpn = pair.qp[0].qpn;
    let sges = [(a.va, 30_000, a.key)];
    let send = write(&pair, &sges);
    post(&mut world, &mut pair, &send);
    world.hosts[0].driver.set_state(qpn, QPS_SQD).unwrap();
    world.hosts[0].driver.async_events();
    let change = QpAttr {
        mask: U32::new(
            QP_ATTR_STATE | QP_ATTR_RETRY_CNT | QP_ATTR_TIMEOUT | QP_ATTR_MAX_QP_RD_ATOMIC,
        ),
        state: QPS_SQD,
        retry_cnt: 1,
        timeout: 9,
        max_rd_atomic: 2,
        ..QpAttr::default()
    };
    world.hosts[0].driver.modify_qp(qpn, &change).unwrap();
    world.run();
    assert_eq!(
        world.hosts[0].driver.async_events(),
        [],
        "no event was requested"
    );
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::SUCCESS);
    let attr = world.hosts[0].driver.query_qp(qpn).unwrap();
    // proves: IBV_QPS_SQD
    assert_eq!((attr.state, attr.sq_draining), (QPS_SQD, 0));
    assert_eq!(
        (attr.retry_cnt, attr.timeout, attr.max_rd_atomic),
        (1, 9, 2)
    );
    world.hosts[0].driver.set_state(qpn, QPS_RTS).unwrap();
    world.lose(|_, _| true);
    let start = world.now();
    post(&mut world, &mut pair, &send);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::RETRY_EXC_ERR);
    // 4.096 us * 2^9, twice, from the first packet on.
    assert_eq!(world.now() - start, 2 * 2_097_152);
}

#[test]
fn the_state_machine_refuses_transitions_outside_of_the_table() {
    let mut world = World::new(1, 1);
    let cq = world.hosts[0].cq(4).unwrap();
    for kind in [QPT_RC, QPT_UC, QPT_UD, QPT_RAW] {
        let qp = world.hosts[0].qp(kind, &cq).unwrap();
        let driver = &mut world.hosts[0].driver;
        let attr = QpAttr {
            mask: U32::new(QP_ATTR_STATE),
            state: QPS_INIT,
            ..QpAttr::default()
        };
        let found = driver.modify_qp(qp.qpn, &attr);
        assert_eq!(found, Err(Error::Refused(Status::MissingAttribute)));
        for state in [QPS_RTR, QPS_RTS, QPS_SQD, QPS_SQE] {
            let found = driver.set_state(qp.qpn, state);
            assert_eq!(found, Err(Error::Refused(Status::BadTransition)));
        }
        let found = driver.set_state(qp.qpn, 7);
        assert_eq!(found, Err(Error::Refused(Status::BadAttribute)));
        let reserved = QpAttr {
            reserved0: 1,
            ..attr
        };
        let found = driver.modify_qp(qp.qpn, &reserved);
        assert_eq!(found, Err(Error::Refused(Status::ReservedNotZero)));
        let wrong = QpAttr {
            mask: U32::new(QP_ATTR_STATE | QP_ATTR_CUR_STATE),
            state: QPS_RESET,
            cur_state: QPS_RTS,
            ..QpAttr::default()
        };
        let found = driver.modify_qp(qp.qpn, &wrong);
        // proves: IBV_QP_CUR_STATE, IB_DEVICE_CURR_QP_STATE_MOD
        assert_eq!(found, Err(Error::Refused(Status::WrongState)));
        assert_eq!(driver.query_qp(qp.qpn).unwrap().state, QPS_RESET);
    }
}
