//! NICs on several engines of one process, the links between the engines, and NICs that move.

use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{RETRY_EXC_ERR, SUCCESS};
use faultline_abi::qp::{QPT_RC, QPT_UD};
use faultline_abi::wqe::{WR_READ, WR_SEND_IMM, WR_WRITE};
use faultline_nic::Nanos;
use faultline_simulation::process::{PortShape, ProcessShape, Processes};

use crate::common::{
    Absent, At, Connect, End, Expect, MS, Send, connected, exchange, nics, pattern, process, wired,
};

const LEN: u64 = 32 << 10;
/// Frames and octets of payload from which a link is full.
const FULL: (usize, usize) = (128, 128 << 10);
/// Longest frame of a NIC, which is as long as a turn.
const LONGEST: usize = 16 << 10;

fn world(engines: usize, count: usize) -> Processes {
    let shape = ProcessShape {
        engines,
        nics: nics(count, |nic| nic % engines),
        seed: 5,
        ..ProcessShape::default()
    };
    Processes::with_config(&shape, &|config| {
        config.stall_timeout = Nanos::from_millis(60_000);
    })
    .unwrap()
}

/// Timers do not know that packets wait.
fn without_timers(path: Connect) -> Connect {
    Connect { timeout: 0, ..path }
}

fn rc(world: &mut Processes, at: [At; 2]) -> [End; 2] {
    connected(world, at, QPT_RC, (7, LEN), without_timers)
}

/// WRITEs and responses to READs fill the links in both directions: no frame is lost, and none waits for ever.
#[test]
fn full_links_lose_nothing() {
    const REQUESTS: usize = 64;
    const PART: u64 = 16 << 10;
    let len = REQUESTS as u64 * PART;
    let mut was_full = [false; 2];
    for seed in 0..10 {
        let shape = ProcessShape {
            engines: 2,
            nics: nics(2, |nic| nic),
            seed,
            ..ProcessShape::default()
        };
        let mut world = process(&shape);
        let at = [(0, 0), (0, 1)];
        let [mut a, b] = connected(&mut world, at, QPT_RC, (7, len), without_timers);
        // The first half of each region is sent, and the second half receives the data of the other.
        let sent = [seed, seed + 100].map(|seed| pattern(seed, len as usize / 2));
        a.fill(&mut world, 0, &sent[0]);
        b.fill(&mut world, 0, &sent[1]);
        for offset in (0..len / 2).step_by(PART as usize) {
            let (near, far) = (a.mr.va + offset, b.mr.va + offset);
            for (opcode, own, other) in [
                (WR_WRITE, near, far + len / 2),
                (WR_READ, near + len / 2, far),
            ] {
                let send = Send {
                    opcode,
                    sges: &[(own, PART as u32, a.mr.key)],
                    remote_addr: other,
                    rkey: b.mr.key,
                    ..Send::default()
                };
                let driver = &mut world.at(a.at).driver;
                driver.write_send(&mut a.qp, &send);
            }
        }
        // All at once.
        let driver = &mut world.at(a.at).driver;
        driver.ring_sends(&a.qp);
        a.await_good(&mut world, REQUESTS);
        assert!(b.read(&mut world, len / 2, sent[0].len()) == sent[0]);
        assert!(a.read(&mut world, len / 2, sent[1].len()) == sent[1]);
        for at in at {
            for counter in [Counter::out_of_sequence, Counter::retransmitted_packets] {
                assert_eq!(world.counter(at, counter), 0);
            }
        }
        for [from, to] in [[0, 1], [1, 0]] {
            let (frames, octets) = world.all[0].most_on_link(from, to).unwrap();
            // One frame of its only NIC may be beyond the mark.
            assert!(frames <= FULL.0 + 1, "{frames}");
            assert!(octets < FULL.1 + LONGEST, "{octets}");
            was_full[from] |= octets >= FULL.1;
        }
        world.expect_legal();
    }
    assert_eq!(was_full, [true; 2]);
}

/// More datagrams than a link holds. They are never repeated, so a datagram that is lost or overtaken is noticed.
#[test]
fn datagrams_arrive_once_and_in_order() {
    const KEY: u32 = 7;
    const COUNT: u32 = 2000;
    let mut world = world(2, 2);
    let [mut from, mut to] =
        [(0, 0), (0, 1)].map(|at| End::new(&mut world, at, QPT_UD, (11, 4096)));
    for end in [&from, &to] {
        end.activate(&mut world, KEY);
    }
    let path = to.path(&mut world);
    let host = world.at(from.at);
    let ah = host.driver.create_ah(host.pd, path.av()).unwrap();
    for tag in 0..COUNT {
        to.receive(&mut world, tag, (0, 100));
        let send = Send {
            opcode: WR_SEND_IMM,
            imm: tag.to_be_bytes(),
            sges: &[(from.mr.va, 4, from.mr.key)],
            ah,
            remote_qpn: to.qp.qpn,
            qkey: KEY,
            ..Send::default()
        };
        let driver = &mut world.at(from.at).driver;
        driver.write_send(&mut from.qp, &send);
    }
    // All at once.
    let driver = &mut world.at(from.at).driver;
    driver.ring_sends(&from.qp);
    from.await_good(&mut world, COUNT as usize);
    let received = to.await_good(&mut world, COUNT as usize);
    for (tag, cqe) in (0_u32..).zip(received) {
        assert_eq!(
            (cqe.wqe.get(), cqe.imm.to_bytes()),
            (tag, tag.to_be_bytes())
        );
    }
    let (frames, _) = world.all[0].most_on_link(0, 1).unwrap();
    assert!((FULL.0..=FULL.0 + 1).contains(&frames), "{frames}");
}

/// A NIC pauses its senders on the same engine: meanwhile no frame of any NIC leaves them.
#[test]
fn a_paused_nic_holds_up_all_senders_of_its_engine() {
    let mut world = world(1, 3);
    let mut absent = Absent::new(&mut world, (0, 1));
    let [mut a, b] = rc(&mut world, [(0, 0), (0, 1)]);
    let [mut other, other_to] = rc(&mut world, [(0, 0), (0, 1)]);
    let [mut third, third_to] = rc(&mut world, [(0, 2), (0, 0)]);
    b.stall_at_faults(&mut world);
    a.write_to(&mut world, (absent.va, absent.key), 6);
    let fault = absent.fault(&mut world);
    let sent =
        |world: &mut Processes| [0, 2].map(|nic| world.counter((0, nic), Counter::tx_packets));
    let before = sent(&mut world);
    other.write(&mut world, &other_to.mr, LEN);
    third.write(&mut world, &third_to.mr, LEN);
    world.run_for(1000 * MS);
    assert_eq!(sent(&mut world), before);
    absent.repair(&mut world, &fault);
    let repaired = world.now();
    for end in [&mut a, &mut other, &mut third] {
        end.await_good(&mut world, 1);
    }
    assert_eq!(world.now(), repaired);
    for at in [(0, 0), (0, 2)] {
        assert_eq!(world.counter(at, Counter::retransmitted_packets), 0);
    }
}

/// NIC 1, on the other engine, has paused its senders, and the link to it is full.
struct Stalled {
    world: Processes,
    /// Each has posted a WRITE to the other.
    pairs: Vec<[End; 2]>,
    absent: Absent,
    fault: faultline_abi::event::Eqe,
}

/// Connections to the paused NIC. The WRITE of the first one waits for a page, and the WRITEs of the others exceed the
/// room of a link.
const PAIRS: usize = 6;

impl Stalled {
    fn new(change: impl Fn(Connect) -> Connect + Copy) -> Self {
        let mut world = world(2, 5);
        let at = [(0, 0), (0, 1)];
        let mut pairs: Vec<[End; 2]> = (0..PAIRS)
            .map(|_| connected(&mut world, at, QPT_RC, (7, LEN), change))
            .collect();
        let mut absent = Absent::new(&mut world, at[1]);
        let [from, to] = &mut pairs[0];
        to.stall_at_faults(&mut world);
        from.write_to(&mut world, (absent.va, absent.key), 6);
        let fault = absent.fault(&mut world);
        for (seed, [from, to]) in (1..).zip(&mut pairs[1..]) {
            from.fill(&mut world, 0, &pattern(seed, LEN as usize));
            from.write(&mut world, &to.mr, LEN);
        }
        world.settle();
        let (frames, octets) = world.all[0].most_on_link(0, 1).unwrap();
        assert!(frames >= FULL.0 || octets >= FULL.1, "{frames}, {octets}");
        Self {
            world,
            pairs,
            absent,
            fault,
        }
    }

    /// Completions of all senders.
    fn statuses(&mut self) -> Vec<u8> {
        let ends = self.pairs.iter_mut();
        ends.flat_map(|[from, _]| from.statuses(&mut self.world))
            .collect()
    }
}

/// A NIC that pauses its senders fills the link to it. The sender waits; its neighbours on both engines do not.
#[test]
fn a_paused_nic_holds_up_its_senders_and_nothing_else() {
    let mut stalled = Stalled::new(without_timers);
    let Stalled { world, .. } = &mut stalled;
    let before = world.now();
    // NICs 2 and 4 are on the engine of the sender.
    let [mut c, mut e] = rc(world, [(0, 2), (0, 4)]);
    for seed in 0..10 {
        exchange(world, &mut c, &e, seed);
        exchange(world, &mut e, &c, seed);
    }
    assert_eq!(world.now(), before);
    stalled.world.run_for(1000 * MS);
    assert_eq!(stalled.statuses(), [0_u8; 0], "the other NIC takes nothing");
    let fault = stalled.fault;
    stalled.absent.repair(&mut stalled.world, &fault);
    let repaired = stalled.world.now();
    stalled.world.settle();
    assert_eq!(stalled.statuses(), [SUCCESS; PAIRS]);
    assert_eq!(stalled.world.now(), repaired);
    for (seed, [_, to]) in (1..).zip(&stalled.pairs[1..]) {
        let found = to.read(&mut stalled.world, 0, LEN as usize);
        assert!(found == pattern(seed, LEN as usize));
    }
    let lost = stalled.world.counter((0, 1), Counter::out_of_sequence);
    assert_eq!(lost, 0);
}

/// Frames on a link refer to no memory of the sender's guest: they arrive after the memory is freed.
#[test]
fn the_sender_of_frames_on_a_link_may_be_reset() {
    let mut stalled = Stalled::new(without_timers);
    stalled.world.all[0].reset_nic(0);
    // The guest's memory has other data now.
    for [from, _] in &stalled.pairs {
        from.fill(&mut stalled.world, 0, &[0xee; LEN as usize]);
    }
    let fault = stalled.fault;
    stalled.absent.repair(&mut stalled.world, &fault);
    stalled.world.settle();
    let mut arrived = 0;
    for (seed, [_, to]) in (1..).zip(&stalled.pairs[1..]) {
        let found = to.read(&mut stalled.world, 0, LEN as usize);
        let sent = pattern(seed, LEN as usize);
        let same = found.iter().zip(&sent).take_while(|(a, b)| a == b).count();
        assert!(found[same..].iter().all(|octet| *octet == 0));
        arrived += same;
    }
    // The frames that were on the link, and no more.
    let (_, octets) = stalled.world.all[0].most_on_link(0, 1).unwrap();
    assert_eq!(arrived, octets);
    stalled.world.all[0].restart_host(0).unwrap();
    let [mut a, b] = rc(&mut stalled.world, [(0, 0), (0, 1)]);
    exchange(&mut stalled.world, &mut a, &b, 3);
}

/// The receiver of frames on a link is reset: the connections of the sender end as if their peer did not answer.
#[test]
fn the_receiver_of_frames_on_a_link_may_be_reset() {
    let mut stalled = Stalled::new(|path| Connect {
        timeout: 10,
        retry_cnt: 3,
        ..path
    });
    stalled.world.all[0].reset_nic(1);
    stalled.world.run_for(100 * MS);
    assert_eq!(stalled.statuses(), [RETRY_EXC_ERR; PAIRS]);
    stalled.world.all[0].restart_host(1).unwrap();
    let [mut a, b] = rc(&mut stalled.world, [(0, 0), (0, 1)]);
    exchange(&mut stalled.world, &mut a, &b, 3);
}

/// An external port belongs to the first engine; NICs of each engine reach it, and are reached.
#[test]
fn nics_of_all_engines_reach_external_ports() {
    let near = ProcessShape {
        engines: 2,
        nics: nics(2, |nic| nic),
        ports: vec![PortShape {
            hold: Duration::from_millis(100),
            room: 1 << 20,
            ..PortShape::default()
        }],
        seed: 8,
        ..ProcessShape::default()
    };
    let mut world = wired(&near, &near);
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let [mut a, mut b] = rc(&mut world, [(0, from), (1, to)]);
        for seed in 0..3 {
            exchange(&mut world, &mut a, &b, seed);
            exchange(&mut world, &mut b, &a, seed + 10);
        }
    }
    for process in 0..2 {
        for nic in 0..2 {
            let repeated = world.counter((process, nic), Counter::retransmitted_packets);
            assert_eq!(repeated, 0);
        }
    }
    world.expect_legal();
}

#[test]
fn a_nic_that_moves_keeps_its_connection() {
    let mut world = process(&ProcessShape {
        engines: 3,
        nics: nics(2, |_| 0),
        seed: 2,
        ..ProcessShape::default()
    });
    let [mut from, to] = rc(&mut world, [(0, 0), (0, 1)]);
    for (turn, engine) in [1, 2, 0, 2, 1].into_iter().enumerate() {
        for _ in 0..4 {
            from.write(&mut world, &to.mr, LEN);
        }
        world.all[0].move_nics(&[turn % 2], engine);
        from.await_good(&mut world, 4);
        exchange(&mut world, &mut from, &to, engine as u64);
    }
    assert_eq!(world.counter((0, 0), Counter::retransmitted_packets), 0);
    assert_eq!(world.now(), 0);
    world.expect_legal();
}

/// Both NICs move while one pauses its senders and frames are on the link between them.
#[test]
fn nics_move_while_frames_wait_for_a_paused_one() {
    let mut stalled = Stalled::new(without_timers);
    stalled.world.all[0].move_nics(&[0, 1], 0);
    stalled.world.settle();
    assert_eq!(stalled.statuses(), [0_u8; 0]);
    let fault = stalled.fault;
    stalled.absent.repair(&mut stalled.world, &fault);
    stalled.world.settle();
    assert_eq!(stalled.statuses(), [SUCCESS; PAIRS]);
    let lost = stalled.world.counter((0, 1), Counter::out_of_sequence);
    assert_eq!(lost, 0);
}

/// Frames between two engines are on the link between them only, and no other NIC gets them.
#[test]
fn frames_of_a_link_go_to_no_further_link() {
    let mut world = world(3, 3);
    let [mut a, b] = rc(&mut world, [(0, 0), (0, 1)]);
    exchange(&mut world, &mut a, &b, 1);
    assert_eq!(world.all[0].most_on_link(0, 2), Some((0, 0)));
    assert_eq!(world.all[0].most_on_link(1, 2), Some((0, 0)));
    for counter in [Counter::rx_packets, Counter::tx_packets] {
        assert_eq!(world.counter((0, 2), counter), 0);
    }
}
