//! Data of every transport, verified byte by byte.

use faultline_abi::cqe;
use faultline_abi::qp::{ACCESS_LOCAL_WRITE, QPS_ERR, QPS_RTS};
use faultline_config::PollMode;
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node, connect_nodes};
use faultline_harness::traffic::exchange_anew;
use faultline_harness::{
    Link, NicOptions, QpOptions, QpType, RingLayout, Rng, SendWr, connect, path_to,
};

/// Lengths around the borders of packets and pages.
const LENGTHS: [usize; 12] = [
    0, 1, 7, 8, 255, 256, 1025, 4095, 4096, 4097, 20_000, 100_003,
];

fn pair() -> (Fabric, Node, Node) {
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let (a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    (fabric, a, b)
}

/// Half of a node's memory is for sent data, half for received data.
const IN: usize = Node::BUF / 2;

#[test]
fn rc_send_write_read_of_all_lengths_at_all_mtus() {
    let (_fabric, mut a, mut b) = pair();
    let mut seed = 1;
    for path_mtu in 1..=5 {
        let link = Link {
            path_mtu,
            ..Link::default()
        };
        let (mut qa, mut qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
        connect(&qa, &qb, &link).unwrap();
        for len in LENGTHS {
            // Unaligned on either side, and not by the same amount.
            let (from, to) = (3 * len % 61 + 1, IN + len % 53 + 5);

            seed += 1;
            a.buf.fill_pattern(from, len, seed);
            qb.post_recv(7, &[b.mr.sge(to, len)]).unwrap();
            let id = qa
                .post_send(
                    &SendWr::send(&[a.mr.sge(from, len)])
                        .imm(0xfee1_dead)
                        .signaled(),
                )
                .unwrap();
            let wc = b.good_completion();
            // proves: IBV_WC_RECV
            assert_eq!((wc.opcode, wc.id, wc.len), (cqe::RECV, 7, len as u32));
            assert_eq!(
                (wc.imm, wc.flags & cqe::CQE_IMM),
                (0xfee1_dead, cqe::CQE_IMM)
            );
            let wc = a.good_completion();
            // proves: IBV_WC_SEND
            assert_eq!((wc.opcode, wc.id, wc.qpn), (cqe::SEND, id, qa.number()));
            qa.retire(&wc);
            assert_eq!(b.buf.pattern_mismatch(to, len, seed), None, "SEND {len}");

            seed += 1;
            a.buf.fill_pattern(from, len, seed);
            b.buf.fill(to - 1, len + 2, 0xee);
            let sges = [a.mr.sge(from, len)];
            let write = SendWr::write(&sges, b.mr.remote(to)).signaled();
            qa.post_send(&write).unwrap();
            let wc = a.good_completion();
            // proves: IBV_WC_RDMA_WRITE
            assert_eq!(wc.opcode, cqe::RDMA_WRITE);
            qa.retire(&wc);
            assert_eq!(b.buf.pattern_mismatch(to, len, seed), None, "WRITE {len}");
            assert_eq!(b.buf.to_vec(to - 1, 1), [0xee]);
            assert_eq!(b.buf.to_vec(to + len, 1), [0xee]);

            seed += 1;
            b.buf.fill_pattern(from, len, seed);
            a.buf.fill(to - 1, len + 2, 0xee);
            let sges = [a.mr.sge(to, len)];
            let read = SendWr::read(&sges, b.mr.remote(from)).signaled();
            qa.post_send(&read).unwrap();
            let wc = a.good_completion();
            // proves: IBV_WC_RDMA_READ
            assert_eq!((wc.opcode, wc.len), (cqe::RDMA_READ, len as u32));
            qa.retire(&wc);
            // proves: IBV_QP_PATH_MTU, IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048
            // proves: IBV_MTU_4096
            assert_eq!(a.buf.pattern_mismatch(to, len, seed), None, "READ {len}");
            assert_eq!(a.buf.to_vec(to - 1, 1), [0xee]);
            assert_eq!(a.buf.to_vec(to + len, 1), [0xee]);
        }
    }
}

#[test]
fn rc_write_with_immediate_data_consumes_a_receive() {
    let (_fabric, mut a, mut b) = pair();
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    a.buf.fill_pattern(0, 9000, 5);
    qb.post_recv(42, &[]).unwrap();
    let sges = [a.mr.sge(0, 9000)];
    let write = SendWr::write(&sges, b.mr.remote(IN)).imm(0x0102_0304);
    qa.post_send(&write.signaled()).unwrap();
    let wc = b.good_completion();
    let expected = (cqe::RECV_RDMA_WITH_IMM, 42, 9000, 0x0102_0304);
    // proves: IB_WR_RDMA_WRITE_WITH_IMM
    assert_eq!((wc.opcode, wc.id, wc.len, wc.imm), expected);
    assert_eq!(b.buf.pattern_mismatch(IN, 9000, 5), None);
    a.good_completion();
}

#[test]
fn rc_atomics_are_exact_under_pipelining() {
    let (_fabric, mut a, b) = pair();
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    b.buf.store_u64(64, 1000);
    for i in 0..40u64 {
        let sges = [a.mr.sge(8 * i as usize, 8)];
        let add = SendWr::fetch_add(&sges, b.mr.remote(64), i + 1);
        qa.post_send(&add.signaled()).unwrap();
    }
    let mut sum = 1000;
    for i in 0..40u64 {
        let wc = a.good_completion();
        // proves: IBV_WC_FETCH_ADD
        assert_eq!(wc.opcode, cqe::FETCH_ADD);
        qa.retire(&wc);
        assert_eq!(a.buf.load_u64(8 * i as usize), sum, "old value {i}");
        sum += i + 1;
    }
    // proves: IB_WR_ATOMIC_FETCH_AND_ADD
    assert_eq!(b.buf.load_u64(64), sum);
    let sges = [a.mr.sge(0, 8)];
    for (compare, swap, after) in [(1, 77, sum), (sum, 77, 77)] {
        let swap = SendWr::comp_swap(&sges, b.mr.remote(64), compare, swap);
        qa.post_send(&swap.signaled()).unwrap();
        // proves: IBV_WC_COMP_SWAP, IB_WR_ATOMIC_CMP_AND_SWP
        assert_eq!(a.good_completion().opcode, cqe::COMP_SWAP);
        assert_eq!(a.buf.load_u64(0), sum);
        assert_eq!(b.buf.load_u64(64), after);
    }
}

#[test]
fn inline_data_of_every_length() {
    let (_fabric, mut a, mut b) = pair();
    let options = QpOptions {
        inline: 464,
        ..QpOptions::default()
    };
    let mut qa = a.qp_with(QpType::Rc, None, &options).unwrap();
    let mut qb = b.qp(QpType::Rc).unwrap();
    connect(&qa, &qb, &Link::default()).unwrap();
    for len in 0..=464usize {
        let data = faultline_harness::pattern(len as u64, len);
        b.buf.fill(IN, len + 1, 0xee);
        let write = SendWr::write_inline(&data, b.mr.remote(IN)).signaled();
        qa.post_send(&write).unwrap();
        qa.retire(&a.good_completion());
        // proves: IBV_SEND_INLINE, IB_SEND_INLINE
        assert_eq!(b.buf.pattern_mismatch(IN, len, len as u64), None);
        assert_eq!(b.buf.to_vec(IN + len, 1), [0xee]);
    }
    qb.post_recv(1, &[b.mr.sge(0, 100)]).unwrap();
    qa.post_send(&SendWr::send_inline(b"by value").signaled())
        .unwrap();
    assert_eq!(b.good_completion().len, 8);
    assert_eq!(b.buf.to_vec(0, 8), b"by value");
    a.good_completion();
}

#[test]
fn scattered_pages_lists_of_rings_and_many_sges() {
    let (_fabric, mut a, b) = pair();
    // A region whose pages are in memory in reverse order, at an address without a relation to theirs.
    let pages = 64;
    let backing = b.nic.alloc(pages * 4096).unwrap();
    let addrs: Vec<u64> = (0..pages).rev().map(|p| backing.dma(p * 4096)).collect();
    let iova = 0x1234_5678_9000 + 1234;
    let length = (pages * 4096 - 1234) as u64;
    let region =
        b.pd.register_pages(iova, length, &addrs, ALL_ACCESS)
            .unwrap();
    for layout in [
        RingLayout::Contiguous,
        RingLayout::List,
        RingLayout::TwoLevels,
    ] {
        let options = QpOptions {
            send_depth: 8,
            recv_depth: 8,
            send_sge: 10,
            recv_sge: 3,
            inline: 0,
            layout,
            ..QpOptions::default()
        };
        a.cq = a.context.cq_with(&a.eq, 9, layout).unwrap();
        let mut qa = a.qp_with(QpType::Rc, None, &options).unwrap();
        let qb = b.qp_with(QpType::Rc, None, &options).unwrap();
        connect(&qa, &qb, &Link::default()).unwrap();
        // Twice around the ring.
        for round in 0..600usize {
            let at = (round * 331) % 100_000;
            let lens = [1, 0, 4096, 63, 17, 2, 900, 33, 4095, 8];
            let total: usize = lens.iter().sum();
            let mut sges = Vec::new();
            let mut from = round;
            for len in lens {
                sges.push(a.mr.sge(from, len));
                from += len;
            }
            if round % 100 == 0 {
                a.buf.fill_pattern(0, 20_000, round as u64);
            }
            let target = region.remote(at);
            let write = SendWr::write(&sges, target).signaled();
            qa.post_send(&write).unwrap();
            let wc = a.good_completion();
            assert_eq!(wc.id, round as u32);
            qa.retire(&wc);
            if round % 50 == 0 {
                let mut have = vec![0; total];
                for (i, byte) in have.iter_mut().enumerate() {
                    let offset = 1234 + at + i;
                    let page = pages - 1 - offset / 4096;
                    backing.read(page * 4096 + offset % 4096, std::slice::from_mut(byte));
                }
                assert_eq!(have, a.buf.to_vec(round, total), "round {round}");
            }
        }
    }
}

#[test]
fn large_messages_fill_the_window() {
    let (_fabric, mut a, b) = pair();
    let len = 16 << 20;
    let (from, to) = (a.nic.ram().clone(), b.nic.ram().clone());
    let from = from.alloc(len, 4096).unwrap();
    let to = to.alloc(len, 4096).unwrap();
    let source = a.pd.register(&from, ACCESS_LOCAL_WRITE).unwrap();
    let target = b.pd.register(&to, ALL_ACCESS).unwrap();
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    from.fill_pattern(0, len, 99);
    let sges = [source.sge(0, len)];
    qa.post_send(&SendWr::write(&sges, target.remote(0)).signaled())
        .unwrap();
    a.good_completion();
    assert_eq!(to.pattern_mismatch(0, len, 99), None);
    from.fill(0, len, 0);
    qa.post_send(&SendWr::read(&sges, target.remote(0)).signaled())
        .unwrap();
    assert_eq!(a.good_completion().len, len as u32);
    assert_eq!(from.pattern_mismatch(0, len, 99), None);
}

#[test]
fn uc_sends_and_writes_and_refuses_reads() {
    let (_fabric, mut a, mut b) = pair();
    let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Uc).unwrap();
    for len in LENGTHS {
        a.buf.fill_pattern(1, len, len as u64);
        qb.post_recv(3, &[b.mr.sge(IN, len)]).unwrap();
        let sges = [a.mr.sge(1, len)];
        qa.post_send(&SendWr::send(&sges)).unwrap();
        qa.post_send(&SendWr::write(&sges, b.mr.remote(0)).signaled())
            .unwrap();
        qa.retire(&a.good_completion());
        assert_eq!(b.good_completion().len, len as u32);
        assert_eq!(b.buf.pattern_mismatch(IN, len, len as u64), None);
        assert_eq!(b.buf.pattern_mismatch(0, len, len as u64), None);
    }
    let sges = [a.mr.sge(0, 8)];
    qa.post_send(&SendWr::read(&sges, b.mr.remote(0))).unwrap();
    let wc = a.completion();
    assert_eq!(
        (wc.status, wc.vendor_err),
        (cqe::LOC_QP_OP_ERR, cqe::OPCODE)
    );
}

#[test]
fn ud_datagrams_carry_header_source_and_key() {
    const KEY: u32 = 0x1ee7;
    let (_fabric, mut a, mut b) = pair();
    let (mut qa, mut qb) = (a.qp(QpType::Ud).unwrap(), b.qp(QpType::Ud).unwrap());
    qa.open_datagrams(KEY).unwrap();
    qb.open_datagrams(KEY).unwrap();
    let ah = a.pd.ah(&b.nic).unwrap();
    for len in [0, 1, 8, 1000, 4095, 4096] {
        a.buf.fill_pattern(9, len, len as u64);
        qb.post_recv(5, &[b.mr.sge(IN, 40 + len)]).unwrap();
        let sges = [a.mr.sge(9, len)];
        let send = SendWr::send(&sges).imm(17).to(&ah, qb.number(), KEY);
        qa.post_send(&send.signaled()).unwrap();
        let wc = b.good_completion();
        assert_eq!((wc.id, wc.len, wc.imm), (5, 40 + len as u32, 17));
        assert_eq!(wc.src_qp, qa.number());
        assert_ne!(wc.flags & cqe::CQE_GRH, 0);
        // An IPv4 header in the last 20 of the 40 bytes: source and destination at its end.
        let addresses = b.buf.to_vec(IN + 32, 8);
        let ip = |gid: [u8; 16]| gid[12..].to_vec();
        assert_eq!(addresses, [ip(a.nic.gid()), ip(b.nic.gid())].concat());
        assert_eq!(b.buf.pattern_mismatch(IN + 40, len, len as u64), None);
        qa.retire(&a.good_completion());
    }
    // A wrong Q_Key and a missing receive are dropped and counted; the sender does not notice.
    let before = b.nic.counters().unwrap();
    let hello = SendWr::send_inline(b"x").signaled();
    qa.post_send(&hello.to(&ah, qb.number(), KEY + 1)).unwrap();
    qa.post_send(&hello.to(&ah, qb.number(), KEY)).unwrap();
    for _ in 0..2 {
        a.good_completion();
    }
    let after = b.nic.counters().unwrap();
    use faultline_abi::admin::Counter;
    for counter in [Counter::rx_bad_qkey, Counter::out_of_buffer] {
        assert_eq!(after[counter] - before[counter], 1, "{counter:?}");
    }
    assert_eq!(path_to(&b.nic).port, 1);
}

#[test]
fn srq_serves_several_qps_and_raises_its_limit_event() {
    use faultline_abi::admin::EQ_ASYNC;
    use faultline_abi::event;
    let (_fabric, mut a, mut b) = pair();
    let mut events = b.nic.event_queue(0, EQ_ASYNC, 5).unwrap();
    assert_eq!(events.wait(LONG).unwrap().unwrap().kind, event::PORT_UP);
    let mut srq = b.context.srq(&b.pd, 5, 1, 0).unwrap();
    let mut pairs: Vec<_> = (0..4)
        .map(|_| {
            let options = QpOptions::default();
            let qa = a.qp(QpType::Rc).unwrap();
            let qb = b.qp_with(QpType::Rc, Some(&srq), &options).unwrap();
            connect(&qa, &qb, &Link::default()).unwrap();
            (qa, qb)
        })
        .collect();
    for tag in 0..32 {
        srq.post(tag, &[b.mr.sge(IN + 1000 * tag as usize, 1000)])
            .unwrap();
    }
    assert!(srq.post(32, &[]).is_err(), "more than fit");
    srq.set_limit(3).unwrap();
    for n in 0..32usize {
        let (qa, qb) = &mut pairs[n % 4];
        a.buf.fill_pattern(0, 700 + n, n as u64);
        let sges = [a.mr.sge(0, 700 + n)];
        qa.post_send(&SendWr::send(&sges).signaled()).unwrap();
        let wc = b.good_completion();
        assert_eq!((wc.id, wc.len), (n as u32, 700 + n as u32));
        assert_eq!(wc.qpn, qb.number());
        assert_eq!(
            b.buf.pattern_mismatch(IN + 1000 * n, 700 + n, n as u64),
            None
        );
        qa.retire(&a.good_completion());
    }
    let event = events.wait(LONG).unwrap().unwrap();
    assert_eq!(
        (event.kind, event.object.get()),
        (event::SRQ_LIMIT, srq.number())
    );
    assert_eq!(srq.limit().unwrap(), 0);
    assert!(events.poll().is_none());
    // Empty: the sender is told to come again, and does.
    a.buf.fill_pattern(0, 500, 77);
    let sges = [a.mr.sge(0, 500)];
    pairs[0]
        .0
        .post_send(&SendWr::send(&sges).signaled())
        .unwrap();
    while b.nic.counters().unwrap()[faultline_abi::admin::Counter::rnr_nak_sent] == 0 {}
    srq.post(99, &[b.mr.sge(0, 500)]).unwrap();
    assert_eq!(b.good_completion().id, 99);
    assert_eq!(b.buf.pattern_mismatch(0, 500, 77), None);
    a.good_completion();
}

#[test]
fn a_qp_in_error_flushes_earlier_and_later_requests() {
    let (_fabric, a, mut b) = pair();
    let (qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    for tag in 0..3 {
        qb.post_recv(tag, &[b.mr.sge(0, 8)]).unwrap();
    }
    assert_eq!(qb.state().unwrap(), QPS_RTS);
    qb.to_error().unwrap();
    assert_eq!(qb.state().unwrap(), QPS_ERR);
    for tag in 0..3 {
        let wc = b.completion();
        // proves: IBV_WC_WR_FLUSH_ERR
        assert_eq!((wc.id, wc.status), (tag, cqe::WR_FLUSH_ERR));
    }
    // Now the record asks for a doorbell.
    qb.post_recv(3, &[]).unwrap();
    assert_eq!(b.completion().status, cqe::WR_FLUSH_ERR);
    qb.post_send(&SendWr::send_inline(b"x")).unwrap();
    let wc = b.completion();
    assert_eq!((wc.id, wc.status), (0, cqe::WR_FLUSH_ERR));
    // From RESET it works again.
    qb.to_reset().unwrap();
    drop(qa);
    let mut qa = a.qp(QpType::Rc).unwrap();
    connect(&qa, &qb, &Link::default()).unwrap();
    qb.post_recv(8, &[b.mr.sge(0, 8)]).unwrap();
    qa.post_send(&SendWr::send_inline(b"again")).unwrap();
    assert_eq!(b.good_completion().len, 5);
}

#[test]
fn remote_access_without_right_key_or_range_is_refused() {
    let (_fabric, mut a, b) = pair();
    let read_only = b.pd.register(&b.buf, ACCESS_LOCAL_WRITE).unwrap();
    let other_pd = b.nic.pd().unwrap();
    let foreign = other_pd.register(&b.buf, ALL_ACCESS).unwrap();
    let mut beyond = b.mr.remote(Node::BUF - 7);
    let mut stale = b.mr.remote(0);
    stale.key ^= 1;
    let wrap = faultline_harness::Remote {
        addr: u64::MAX - 3,
        key: b.mr.key(),
    };
    b.buf.fill_pattern(0, Node::BUF, 4);
    for remote in [read_only.remote(0), foreign.remote(0), beyond, stale, wrap] {
        let (mut qa, qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
        let write = SendWr::write_inline(b"8 bytes!", remote).signaled();
        qa.post_send(&write).unwrap();
        let wc = a.completion();
        assert_eq!(
            (wc.status, wc.vendor_err),
            (cqe::REM_ACCESS_ERR, cqe::REMOTE)
        );
        assert_eq!(qa.state().unwrap(), QPS_ERR);
        assert_eq!(qb.state().unwrap(), QPS_ERR);
    }
    assert_eq!(b.buf.pattern_mismatch(0, Node::BUF, 4), None);
    beyond.addr -= 1;
    let (mut qa, _qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    qa.post_send(&SendWr::write_inline(b"8 bytes!", beyond).signaled())
        .unwrap();
    a.good_completion();
    assert_eq!(b.buf.to_vec(Node::BUF - 8, 8), b"8 bytes!");
}

#[test]
fn a_cq_is_resized_while_it_holds_completions() {
    let (_fabric, mut a, b) = pair();
    let mut cq = a.context.cq(&a.eq, 5).unwrap();
    let options = QpOptions::default();
    let mut qa = a
        .context
        .qp(&a.pd, QpType::Rc, &cq, &cq, None, &options)
        .unwrap();
    let qb = b.qp(QpType::Rc).unwrap();
    connect(&qa, &qb, &Link::default()).unwrap();
    let mut next = 0;
    for log_depth in [7, 5, 10, 6] {
        for _ in 0..20 {
            let write = SendWr::write_inline(b"x", b.mr.remote(0)).signaled();
            qa.post_send(&write).unwrap();
        }
        let mut take = |cq: &mut faultline_harness::Cq, n: u32| {
            for _ in 0..n {
                let wc = cq.poll_for(LONG).unwrap();
                assert!(wc.is_ok());
                assert_eq!(wc.id, next);
                next += 1;
                qa.retire(&wc);
            }
        };
        take(&mut cq, 3);
        cq.resize(log_depth).unwrap();
        take(&mut cq, 17);
    }
    a.cq = cq;
}

/// The largest packets fit into frames of 4200 bytes (and the smallest MTU that they fit into is 4192), over IPv4 and IPv6.
#[test]
fn a_path_mtu_of_4096_needs_a_netdev_mtu_of_4192() {
    const KEY: u32 = 7;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    for ipv6 in [false, true] {
        for (mtu, longest) in [(4191, 2048), (4192, 4096), (4200, 4096), (9000, 4096)] {
            let mut nodes = [("a", 1), ("b", 2)].map(|(name, last)| {
                let mut gid = [0; 16];
                (gid[0], gid[15]) = (0xfd, last);
                let options = NicOptions {
                    mtu,
                    gid: ipv6.then_some(gid),
                    ..NicOptions::default()
                };
                fabric.node_with(name, &options).unwrap()
            });
            let mut rng = Rng::new(u64::from(mtu));
            let [a, b] = &mut nodes;
            exchange_anew(a, b, &mut rng);
            let (mut qa, mut qb) = (a.qp(QpType::Ud).unwrap(), b.qp(QpType::Ud).unwrap());
            qa.open_datagrams(KEY).unwrap();
            qb.open_datagrams(KEY).unwrap();
            let ah = a.pd.ah(&b.nic).unwrap();
            for (len, fits) in [(longest, true), (longest + 1, false)] {
                a.buf.fill_pattern(0, len, len as u64);
                qb.post_recv(1, &[b.mr.sge(IN, 40 + len)]).unwrap();
                let sges = [a.mr.sge(0, len)];
                let send = SendWr::send(&sges).to(&ah, qb.number(), KEY);
                qa.post_send(&send.signaled()).unwrap();
                let wc = a.completion();
                if !fits {
                    assert_eq!(wc.status, cqe::LOC_LEN_ERR, "MTU {mtu}");
                    continue;
                }
                assert!(wc.is_ok(), "MTU {mtu}: {wc:?}");
                qa.retire(&wc);
                b.good_completion();
                assert_eq!(b.buf.pattern_mismatch(IN + 40, len, len as u64), None);
            }
        }
    }
}
