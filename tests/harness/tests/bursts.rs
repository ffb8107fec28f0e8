//! Many connections at once. Every byte is verified, no completion is lost or comes twice, and it ends in bounded time.
//! `device/simulation/tests/bursts.rs` has more of them, and bursts of datagrams.

use std::time::Instant;

use faultline_abi::cqe;
use faultline_config::PollMode;
use faultline_harness::testbed::{ALL_ACCESS, Fabric, LONG, Node};
use faultline_harness::{
    Buf, Cq, Link, Mr, NicOptions, Qp, QpOptions, QpType, SendWr, Wc, connect,
};

/// Completions of `cq` before [`LONG`] is over: `count`, all of them good, and no more.
#[track_caller]
fn take(cq: &mut Cq, count: usize, since: Instant) -> Vec<Wc> {
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let left = LONG.saturating_sub(since.elapsed());
        match cq.poll_for(left) {
            Some(wc) if wc.is_ok() => found.push(wc),
            Some(wc) => panic!("failed: {wc:?}"),
            None => panic!("{} of {count} completions within {LONG:?}", found.len()),
        }
    }
    assert_eq!(cq.poll(), None, "one completion too many");
    found
}

/// Memory of a host, as much for each connection as an operation has.
struct Memory {
    buf: Buf,
    mr: Mr,
}

const OPERATION: usize = 16 << 10;

/// All connections at once write, send and read 16 KiB each, in messages of several packets.
#[test]
fn a_hundred_connections_move_16_kib_each() {
    let count = 100;
    let fabric = Fabric::start(PollMode::Adaptive, &["a", "b"]).unwrap();
    let bytes = count * OPERATION;
    let options = NicOptions {
        ram: 2 * bytes + (64 << 20),
        ..NicOptions::default()
    };
    let nodes: [Node; 2] = ["a", "b"].map(|name| fabric.node_with(name, &options).unwrap());
    let mut cqs = [0, 1].map(|i: usize| nodes[i].context.cq(&nodes[i].eq, 12).unwrap());
    let memory = [0, 1].map(|i: usize| {
        let buf = nodes[i].nic.alloc(bytes).unwrap();
        let mr = nodes[i].pd.register(&buf, ALL_ACCESS).unwrap();
        Memory { buf, mr }
    });
    let shape = QpOptions {
        send_depth: 2,
        recv_depth: 2,
        ..QpOptions::default()
    };
    let link = Link {
        path_mtu: 3,
        ..Link::default()
    };
    let mut all: Vec<[Qp; 2]> = (0..count)
        .map(|_| {
            let qp = [0, 1].map(|i: usize| {
                let (node, cq) = (&nodes[i], &cqs[i]);
                let qp = node.context.qp(&node.pd, QpType::Rc, cq, cq, None, &shape);
                qp.unwrap()
            });
            connect(&qp[0], &qp[1], &link).unwrap();
            qp
        })
        .collect();
    let [a, b] = &memory;
    for (round, kind) in ["WRITE", "SEND", "READ"].into_iter().enumerate() {
        // A READ returns the data of host 1.
        let (from, to) = if kind == "READ" { (b, a) } else { (a, b) };
        for n in 0..count {
            let seed = (round * count + n) as u64;
            from.buf.fill_pattern(n * OPERATION, OPERATION, seed);
        }
        to.buf.fill(0, bytes, 0xee);
        let start = Instant::now();
        for (n, ends) in all.iter_mut().enumerate() {
            let at = n * OPERATION;
            if kind == "SEND" {
                let sge = b.mr.sge(at, OPERATION);
                ends[1].post_recv(n as u32, &[sge]).unwrap();
            }
        }
        for (n, ends) in all.iter_mut().enumerate() {
            let at = n * OPERATION;
            let (sges, remote) = ([a.mr.sge(at, OPERATION)], b.mr.remote(at));
            let wr = match kind {
                "WRITE" => SendWr::write(&sges, remote),
                "SEND" => SendWr::send(&sges).imm(n as u32),
                _ => SendWr::read(&sges, remote),
            };
            ends[0].post_send(&wr.signaled()).unwrap();
        }
        let done = take(&mut cqs[0], count, start);
        let mut numbers: Vec<u32> = done.iter().map(|wc| wc.qpn).collect();
        numbers.sort_unstable();
        let mut expected: Vec<u32> = all.iter().map(|ends| ends[0].number()).collect();
        expected.sort_unstable();
        assert_eq!(numbers, expected, "each {kind} completes once");
        if kind == "SEND" {
            let received = take(&mut cqs[1], count, start);
            let mut seen = vec![false; count];
            for wc in received {
                let n = wc.id as usize;
                let of = all[n][1].number();
                let expected = (cqe::RECV, OPERATION as u32, n as u32, of);
                assert_eq!((wc.opcode, wc.len, wc.imm, wc.qpn), expected);
                assert!(!std::mem::replace(&mut seen[n], true));
            }
        } else {
            assert_eq!(cqs[1].poll(), None, "a {kind} takes no receive");
        }
        let took = start.elapsed();
        assert!(took < LONG, "{kind}: {took:?}");
        for n in 0..count {
            let seed = (round * count + n) as u64;
            let found = to.buf.pattern_mismatch(n * OPERATION, OPERATION, seed);
            assert_eq!(found, None, "{kind} of connection {n}");
        }
        for wc in &done {
            let ends = all.iter_mut().find(|ends| ends[0].number() == wc.qpn);
            ends.unwrap()[0].retire(wc);
        }
    }
    fabric.assert_passes_are_short();
}
