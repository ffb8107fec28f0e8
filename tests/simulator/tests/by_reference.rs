//! Frames passed by reference, as between the NICs of one process: one guest's memory is read on behalf of
//! another, and its errors affect only its own guest.

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_checker::Rule;
use faultline_simulation::driver::ALL_ACCESS;
use faultline_simulation::{Cq, Mr, Qp, Send};
use faultline_simulator::{Pair, World, expect_cqe};

use crate::common::state;

const LEN: u64 = 64 << 10;
/// DMA address where no guest has memory.
const NOWHERE: u64 = 0x10_0000;

fn world() -> World {
    let world = World::new(2, 1);
    world.hand_over_by_reference();
    world
}

/// A region of host 0; only its first page is present.
fn torn(world: &mut World, host: usize) -> Mr {
    let host = &mut world.hosts[host];
    let good = host.driver.alloc(4096).unwrap();
    let va = 0x5500_0000;
    let mr = host
        .driver
        .reg_mr_at(host.pd, va, 2 << 12, ALL_ACCESS, NOWHERE)
        .unwrap();
    host.driver.map(&mr, va, &[good]).unwrap();
    mr
}

fn dma_errors(world: &mut World, host: usize) -> u64 {
    world.hosts[host]
        .driver
        .counter(Counter::dma_errors)
        .unwrap()
}

#[test]
fn a_senders_missing_memory_does_not_hurt_the_receiver() {
    for opcode in [wr::WR_SEND, wr::WR_WRITE] {
        for kind in [QPT_RC, QPT_UC] {
            let mut world = world();
            let mut pair = world.connect(kind, LEN, |c| c.timeout = 8);
            if kind == QPT_UC {
                // The rest of a message that can't be read takes up its PSNs and is not sent.
                world.permit(&[Rule::RequestPsn]);
            }
            let torn = torn(&mut world, 0);
            let b = pair.mr[1];
            world.hosts[1]
                .driver
                .post_recv(&mut pair.qp[1], 4, &[(b.va, LEN as u32, b.key)]);
            let send = |sges| Send {
                opcode,
                sges,
                remote_addr: b.va,
                rkey: b.key,
                ..Send::default()
            };
            let broken = [(torn.va, 8192, torn.key)];
            world.hosts[0]
                .driver
                .post_send(&mut pair.qp[0], &send(&broken));
            world.run();
            let found = world.completions(0, &mut pair.cq[0]);
            assert_eq!(found.len(), 1);
            if kind == QPT_RC {
                assert_eq!(found[0].status, cqe::RETRY_EXC_ERR);
            }
            assert_eq!(world.completions(1, &mut pair.cq[1]), []);
            assert_eq!(state(&mut world, 1, &pair.qp[1]), QPS_RTS);
            assert!(dma_errors(&mut world, 1) > 0);
            if kind == QPT_UC && opcode == wr::WR_SEND {
                // The receive is still there for the next message.
                let good = [(torn.va, 100, torn.key)];
                world.hosts[0]
                    .driver
                    .post_send(&mut pair.qp[0], &send(&good));
                world.run();
                let found = expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::SUCCESS);
                assert_eq!((found.wqe.get(), found.byte_len.get()), (4, 100));
            }
        }
    }
}

#[test]
fn a_responders_missing_memory_costs_the_reader_its_connection_only() {
    let mut world = world();
    let mut pair = world.connect(QPT_RC, LEN, |c| c.timeout = 8);
    let torn = torn(&mut world, 1);
    let a = pair.mr[0];
    let read = Send {
        opcode: wr::WR_READ,
        sges: &[(a.va, 8192, a.key)],
        remote_addr: torn.va,
        rkey: torn.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &read);
    world.run();
    expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::RETRY_EXC_ERR);
}

/// Two QPs of a kind without connection, with a CQ and a region each.
fn loose(world: &mut World, kind: u8) -> ([Cq; 2], [Qp; 2], [Mr; 2]) {
    let cq = [0, 1].map(|i| world.hosts[i].cq(8).unwrap());
    let qp = [0, 1].map(|i| world.hosts[i].qp(kind, &cq[i]).unwrap());
    let mr = [0, 1].map(|i| world.hosts[i].mr(LEN).unwrap());
    for (host, qp) in qp.iter().enumerate() {
        world.hosts[host].driver.activate(qp.qpn, kind, 7).unwrap();
    }
    (cq, qp, mr)
}

#[test]
fn a_strangers_datagram_without_memory_is_dropped() {
    let mut world = world();
    let (mut cq, mut qp, mr) = loose(&mut world, QPT_UD);
    let torn = torn(&mut world, 0);
    let pd = world.hosts[0].pd;
    let av = world.path(1, 0).av();
    let ah = world.hosts[0].driver.create_ah(pd, av).unwrap();
    for tag in [11, 12] {
        world.hosts[1]
            .driver
            .post_recv(&mut qp[1], tag, &[(mr[1].va, 4096, mr[1].key)]);
    }
    let remote_qpn = qp[1].qpn;
    for (at, len) in [(torn.va + 4096, 64), (torn.va + 4000, 500), (torn.va, 64)] {
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(at, len, torn.key)],
            ah,
            remote_qpn,
            qkey: 7,
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
        world.run();
    }
    let found = expect_cqe(&mut world, 1, &mut cq[1], cqe::SUCCESS);
    assert_eq!((found.wqe.get(), found.byte_len.get()), (11, 104));
    assert_eq!(dma_errors(&mut world, 1), 2);
    assert_eq!(world.completions(0, &mut cq[0]).len(), 3);
    // What was held back for the next datagram is not lost in an error.
    let broken = Send {
        opcode: wr::WR_SEND,
        sges: &[(torn.va + 4096, 64, torn.key)],
        ah,
        remote_qpn,
        qkey: 7,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut qp[0], &broken);
    world.run();
    world.hosts[1].driver.set_state(qp[1].qpn, QPS_ERR).unwrap();
    let found = expect_cqe(&mut world, 1, &mut cq[1], cqe::WR_FLUSH_ERR);
    assert_eq!(found.wqe.get(), 12);
}

#[test]
fn a_frame_without_memory_costs_the_netdev_no_buffer() {
    let mut world = world();
    let (mut cq, mut qp, mr) = loose(&mut world, QPT_RAW);
    let torn = torn(&mut world, 0);
    let mac = world.hosts[1].mac;
    world.hosts[1]
        .driver
        .set_netdev(mac, 1500, qp[1].qpn)
        .unwrap();
    world.hosts[1]
        .driver
        .post_recv(&mut qp[1], 3, &[(mr[1].va, 2000, mr[1].key)]);
    let good = world.hosts[0].driver.alloc(4096).unwrap();
    world.hosts[0].driver.map(&torn, torn.va, &[good]).unwrap();
    faultline_simulation::Bus::write(&world.hosts[0].driver.bus, good + 3896, &mac.0);
    faultline_simulation::Bus::write(&world.hosts[0].driver.bus, good + 3008, &mac.0);
    for (offset, len) in [(3896, 1000), (3008, 1000)] {
        let send = Send {
            opcode: wr::WR_RAW,
            sges: &[(torn.va + offset, len, torn.key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut qp[0], &send);
        world.run();
    }
    let found = expect_cqe(&mut world, 1, &mut cq[1], cqe::SUCCESS);
    assert_eq!((found.wqe.get(), found.byte_len.get()), (3, 1000));
    assert_eq!(dma_errors(&mut world, 1), 1);
}

/// The receiver's own missing memory is its own error, and the sender is told.
#[test]
fn a_receivers_missing_memory_is_reported_on_both_sides() {
    for by_reference in [false, true] {
        let mut world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut pair: Pair = world.connect(QPT_RC, LEN, |_| {});
        let torn = torn(&mut world, 1);
        world.hosts[1]
            .driver
            .post_recv(&mut pair.qp[1], 4, &[(torn.va, 8192, torn.key)]);
        let a = pair.mr[0];
        let send = Send {
            opcode: wr::WR_SEND,
            sges: &[(a.va, 8192, a.key)],
            ..Send::default()
        };
        world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
        world.run();
        expect_cqe(&mut world, 0, &mut pair.cq[0], cqe::REM_OP_ERR);
        let found = expect_cqe(&mut world, 1, &mut pair.cq[1], cqe::LOC_PROT_ERR);
        assert_eq!((found.wqe.get(), found.vendor_err), (4, cqe::DMA));
    }
}
