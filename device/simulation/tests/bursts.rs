//! Much at once: a burst of datagrams, and many connections. Every byte is verified, and no completion is lost or comes twice.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{RDMA_READ, RDMA_WRITE, RECV, SEND};
use faultline_abi::qp::{QPT_RC, QPT_UD};
use faultline_abi::wqe::{WR_READ, WR_SEND_IMM, WR_WRITE};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::process::{NicShape, ProcessShape};

use crate::common::{End, Expect, HEADERS, MTU, RETH, Send, US, connected, nics, pattern, process};

/// Octets of a burst of datagrams.
const BURST: usize = 64 << 10;
const KEY: u32 = 0x1ee7;
/// Octets in front of a datagram in its buffer.
const GRH: usize = 40;

/// Datagrams of `size` octets to a receiver with fewer or as many buffers. `at_once`: one doorbell announces all of
/// them.
fn burst(engines: usize, size: usize, posted: usize, at_once: bool) {
    let count = BURST / size.max(16);
    let mut world = process(&ProcessShape {
        engines,
        nics: nics(2, |nic| nic % engines),
        seed: 2,
        ..ProcessShape::default()
    });
    // Distance of the datagrams: headers and data, and an octet behind each that must stay unchanged.
    let step = GRH + size + 1;
    let len = (posted * step).max(BURST) as u64;
    let [mut from, mut to] = [(0, 0), (0, 1)].map(|at| End::new(&mut world, at, QPT_UD, (12, len)));
    for end in [&from, &to] {
        end.activate(&mut world, KEY);
    }
    let path = to.path(&mut world);
    let host = world.at(from.at);
    let ah = host.driver.create_ah(host.pd, path.av()).unwrap();
    let data = pattern(size as u64, BURST);
    from.fill(&mut world, 0, &data);
    to.fill(&mut world, 0, &vec![0xee; posted * step]);
    for tag in 0..posted {
        to.receive(
            &mut world,
            tag as u32,
            ((tag * step) as u64, (GRH + size) as u64),
        );
    }
    for n in 0..count {
        let send = Send {
            opcode: WR_SEND_IMM,
            imm: (n as u32).to_be_bytes(),
            sges: &[(from.mr.va + (n * size) as u64, size as u32, from.mr.key)],
            ah,
            remote_qpn: to.qp.qpn,
            qkey: KEY,
            ..Send::default()
        };
        let driver = &mut world.at(from.at).driver;
        driver.write_send(&mut from.qp, &send);
        if !at_once {
            driver.ring_sends(&from.qp);
        }
    }
    world.at(from.at).driver.ring_sends(&from.qp);
    let sent = from.await_good(&mut world, count);
    // The index of a send is that behind it.
    let indices = sent.iter().map(|cqe| cqe.wqe.get());
    let first = sent[0].wqe.get();
    assert!(indices.eq(first..first + count as u32));
    world.settle();
    let arrived = posted.min(count);
    let received = to.await_good(&mut world, arrived);
    for (n, cqe) in received.iter().enumerate() {
        let found = (cqe.wqe.get(), cqe.byte_len.get(), cqe.src_qp.get());
        assert_eq!(found, (n as u32, (GRH + size) as u32, from.qp.qpn));
        assert_eq!(cqe.imm.to_bytes(), (n as u32).to_be_bytes());
        let found = to.read(&mut world, (n * step + GRH) as u64, size + 1);
        assert!(found[..size] == data[n * size..][..size]);
        assert_eq!(found[size], 0xee);
    }
    let lost = world.counter(to.at, Counter::out_of_buffer);
    assert_eq!(lost as usize, count - arrived, "{count} of {size} octets");
    assert_eq!(world.now(), 0);
    world.expect_legal();
}

/// A burst that one doorbell announces, or one doorbell for each datagram, to a receiver with as many buffers as
/// messages, or fewer.
#[test]
fn a_burst_of_small_datagrams_loses_no_completion() {
    for engines in [1, 2] {
        for (size, posted, at_once) in [
            (64, 1024, true),
            (64, 1024, false),
            (16, 4095, true),
            (1, 4095, false),
            (64, 1000, true),
            (16, 17, false),
        ] {
            burst(engines, size, posted, at_once);
        }
    }
}

/// Octets of an operation.
const OPERATION: u64 = 16 << 10;
/// Octets of an AETH, and of immediate data.
const AETH: u64 = 4;
const IMM: u64 = 4;
/// Rate of both links, in Mb/s: an octet lasts a nanosecond.
const RATE: u32 = 8000;

/// All connections write, send and read 16 KiB each at once, in messages of several packets, through links that take a
/// millisecond for sixty of them.
#[test]
fn a_thousand_connections_move_16_kib_each() {
    const COUNT: usize = 1000;
    let link = LinkModel {
        rate_mbps: RATE,
        pause_bytes: 1 << 20,
        ..LinkModel::default()
    };
    let nic = |engine| NicShape {
        engine,
        links: [Some(link), None],
        ..NicShape::default()
    };
    let mut world = process(&ProcessShape {
        engines: 2,
        nics: vec![nic(0), nic(1)],
        seed: 2,
        ..ProcessShape::default()
    });
    let at = [(0, 0), (0, 1)];
    let without_timers = |path| crate::common::Connect { timeout: 0, ..path };
    let mut all: Vec<[End; 2]> = (0..COUNT)
        .map(|_| connected(&mut world, at, QPT_RC, (2, OPERATION), without_timers))
        .collect();
    let packets = OPERATION / MTU;
    // Octets of each operation in the direction of its data beside headers of all packets, and the only packet that is under way in the
    // other direction before the first, or behind the last of these.
    for (kind, opcode, is_read, more, other) in [
        (WR_WRITE, RDMA_WRITE, false, RETH, HEADERS + AETH),
        (WR_SEND_IMM, SEND, false, IMM, HEADERS + AETH),
        (WR_READ, RDMA_READ, true, 2 * AETH, HEADERS + RETH),
    ] {
        let (from, to) = if is_read { (1, 0) } else { (0, 1) };
        // The clocks of both engines are equal again.
        world.run_for(US);
        for (n, ends) in all.iter_mut().enumerate() {
            let data = pattern((n + 1000 * usize::from(kind)) as u64, OPERATION as usize);
            ends[from].fill(&mut world, 0, &data);
            if kind == WR_SEND_IMM {
                ends[1].receive(&mut world, n as u32, (0, OPERATION));
            }
        }
        let start = world.now();
        for (n, [a, b]) in all.iter_mut().enumerate() {
            let send = Send {
                opcode: kind,
                imm: (n as u32).to_be_bytes(),
                sges: &[(a.mr.va, OPERATION as u32, a.mr.key)],
                remote_addr: b.mr.va,
                rkey: b.mr.key,
                ..Send::default()
            };
            a.post(&mut world, &send);
        }
        for (n, [a, b]) in all.iter_mut().enumerate() {
            let done = a.await_good(&mut world, 1);
            assert_eq!(done[0].opcode, opcode);
            let received = b.poll(&mut world);
            assert_eq!(received.len(), usize::from(kind == WR_SEND_IMM));
            for cqe in received {
                let found = (cqe.opcode, cqe.wqe.get(), cqe.byte_len.get());
                assert_eq!(found, (RECV, n as u32, OPERATION as u32));
                assert_eq!(cqe.imm.to_bytes(), (n as u32).to_be_bytes());
            }
        }
        let took = world.now() - start;
        let octets = COUNT as u64 * (OPERATION + packets * HEADERS + more);
        // A frame is a nanosecond later on the other engine.
        assert_eq!(took, octets + other + 1, "{kind}");
        for (n, ends) in all.iter_mut().enumerate() {
            let data = pattern((n + 1000 * usize::from(kind)) as u64, OPERATION as usize);
            assert!(ends[to].read(&mut world, 0, data.len()) == data);
            assert!(ends.iter_mut().all(|end| end.poll(&mut world).is_empty()));
        }
    }
    for at in at {
        assert_eq!(world.counter(at, Counter::retransmitted_packets), 0);
    }
    world.expect_legal();
}
