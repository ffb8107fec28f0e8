//! Unreliable connections: the position of a receiver after packets that it did not expect.

use faultline_abi::admin::Counter;
use faultline_abi::qp::QPT_UC;
use faultline_abi::{cqe, wqe as wr};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::{Rng, Send};
use faultline_simulator::{Pair, World, packet};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;
use faultline_wire::reth::Reth;

const LEN: u64 = 64 << 10;
const START: u32 = 0xff_fff0;
/// Messages that a receiver may lose after one wrong packet: they could be duplicates.
const RECENT: u32 = 1024;

fn connect(world: &mut World) -> Pair {
    world.connect(QPT_UC, LEN, |c| {
        (c.sq_psn, c.rq_psn) = (START, START);
        c.path_mtu = 1;
    })
}

/// Puts a packet on the wire as if host 0's queue pair had sent it. It has no data and needs no receive.
fn forge(world: &World, pair: &Pair, opcode: Opcode, psn: Psn) {
    let (from, to) = (&world.hosts[0], &world.hosts[1]);
    let ip = Ip::from_gids(from.gid, to.gid, 0, 0, 64);
    let bth = Bth::new(opcode, pair.qp[1].qpn, psn);
    let mut header = RoceHeader::new(to.mac, from.mac, ip, bth);
    let payload: &[u8] = match opcode {
        Opcode::UcWriteOnly => {
            header.reth = Some(Reth {
                addr: pair.mr[1].va,
                rkey: pair.mr[1].key,
                len: 0,
            });
            &[]
        }
        _ => &[0; 256],
    };
    world.inject(0, packet(&header, payload));
}

/// Sends message `n`, of several packets if it is odd. Returns the number of the message that has arrived, if one has.
fn exchange(world: &mut World, pair: &mut Pair, n: u32) -> Vec<u32> {
    let len = if n.is_multiple_of(2) { 100 } else { 700 };
    let data: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
    let (a, b) = (pair.mr[0], pair.mr[1]);
    world.hosts[0].driver.write_mr(&a, 0, &data);
    let send = Send {
        opcode: wr::WR_SEND_IMM,
        imm: n.to_be_bytes(),
        sges: &[(a.va, len, a.key)],
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut pair.qp[0], &send);
    world.run();
    assert_eq!(world.completions(0, &mut pair.cq[0]).len(), 1);
    let found = world.completions(1, &mut pair.cq[1]);
    for cqe in &found {
        assert_eq!(cqe.status, cqe::SUCCESS);
        let sge = (b.va, 4096, b.key);
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut pair.qp[1], 0, &[sge]);
        if u32::from_be_bytes(cqe.imm.to_bytes()) == n {
            assert!(driver.read_mr(&b, 0, len as usize) == data, "message {n}");
        }
    }
    let numbers = found
        .iter()
        .map(|cqe| u32::from_be_bytes(cqe.imm.to_bytes()));
    numbers.collect()
}

fn start(seed: u64) -> (World, Pair) {
    let mut world = World::new(2, seed);
    let mut pair = connect(&mut world);
    let b = pair.mr[1];
    for _ in 0..8 {
        let driver = &mut world.hosts[1].driver;
        driver.post_recv(&mut pair.qp[1], 0, &[(b.va, 4096, b.key)]);
    }
    (world, pair)
}

fn expected_psn(world: &mut World, pair: &Pair) -> Psn {
    let attr = world.hosts[1].driver.query_qp(pair.qp[1].qpn).unwrap();
    Psn::new(attr.rq_psn.get())
}

/// A packet from anywhere in the PSN space between two messages: the next message arrives.
#[test]
fn one_wrong_packet_does_not_stop_a_connection() {
    for opcode in [
        Opcode::UcWriteOnly,
        Opcode::UcSendMiddle,
        Opcode::UcSendLast,
    ] {
        for offset in [
            (1 << 23) - 1,
            1 << 23,
            (1 << 23) + 1,
            1 << 22,
            RECENT + 1,
            2 * RECENT,
            2 * RECENT + 1,
            (1 << 24) - 2 * RECENT - 1,
            (1 << 24) - RECENT - 1,
            (1 << 24) - RECENT,
            (1 << 24) - 1,
        ] {
            let (mut world, mut pair) = start(1);
            for n in 0..10 {
                assert_eq!(exchange(&mut world, &mut pair, n), [n]);
            }
            let psn = expected_psn(&mut world, &pair).add(offset);
            forge(&world, &pair, opcode, psn);
            world.run();
            for n in 10..40 {
                let arrived = exchange(&mut world, &mut pair, n);
                assert_eq!(arrived, [n], "{opcode:?} at {offset:#x}");
            }
        }
    }
}

/// Only packets that could be duplicates are lost after it.
#[test]
fn a_packet_from_the_near_future_loses_the_skipped_ones() {
    for ahead in [1, 20, RECENT] {
        let (mut world, mut pair) = start(1);
        assert_eq!(exchange(&mut world, &mut pair, 0), [0]);
        let psn = expected_psn(&mut world, &pair).add(ahead);
        forge(&world, &pair, Opcode::UcWriteOnly, psn);
        world.run();
        let mut n = 1;
        while exchange(&mut world, &mut pair, n).is_empty() {
            n += 1;
            assert!(n < ahead + 3, "{n} messages after a packet {ahead} ahead");
        }
        for next in n + 1..n + 20 {
            assert_eq!(exchange(&mut world, &mut pair, next), [next]);
        }
    }
}

/// Messages come at most once and in order, though packets are repeated, lost and overtaken, and some are wrong.
#[test]
fn no_message_comes_twice_when_the_expected_psn_has_jumped() {
    for seed in 0..20 {
        let (mut world, mut pair) = start(seed);
        world.impair(LinkModel {
            loss: 20_000,
            duplicate: 200_000,
            reorder: 100_000,
            ..LinkModel::PLAIN
        });
        let mut rng = Rng::new(seed);
        let (mut last, mut arrived) = (None, 0);
        for n in 0..200 {
            // Beside the message; copies of it may still be on their way.
            if rng.chance(100) {
                let far = 1 << (12 + rng.below(12));
                let psn = expected_psn(&mut world, &pair).add(far + rng.below(7) as u32);
                forge(&world, &pair, Opcode::UcWriteOnly, psn);
            }
            for number in exchange(&mut world, &mut pair, n) {
                assert!(last < Some(number), "seed {seed}: {number} after {last:?}");
                last = Some(number);
                arrived += 1;
            }
        }
        assert!(arrived > 120, "seed {seed}: {arrived} of 200");
        let dropped = world.hosts[1].driver.counter(Counter::duplicate_request);
        assert!(dropped.unwrap() > 0);
    }
}
