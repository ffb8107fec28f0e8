//! Policy `stall`: how much of the others' time it takes.

use faultline_abi::admin::Counter;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_nic::Nanos;
use faultline_simulation::FaultService;
use faultline_simulation::{Cq, Qp, QpConfig, Send};
use faultline_simulator::{HostPager, World};

const VA: u64 = 0x7f12_3456_0000;
const MS: u64 = 1_000_000;
/// Stall timeout of all NICs.
const LIMIT: u64 = 6 * MS;

/// Several NICs that stall whenever they can pause a sender for a tenth of its time all together, and for no longer in one
/// piece than one of them.
#[test]
fn all_others_together_pause_a_sender_for_a_tenth_of_the_time() {
    for others in [1, 3] {
        let mut world = World::with_config(others + 1, 1, |config| {
            config.stall_timeout = Nanos(LIMIT);
            config.pause_sharers = others as u32;
        });
        world.hand_over_by_reference();
        let source = world.hosts[0].mr(4096).unwrap();
        let mut flows: Vec<(Qp, Cq, HostPager)> = Vec::new();
        for host in 1..=others {
            let cq = [0, host].map(|host| world.hosts[host].cq(4).unwrap());
            let near = world.hosts[0].qp(QPT_UC, &cq[0]).unwrap();
            let far = world.hosts[host].qp(QPT_UC, &cq[1]).unwrap();
            for (host, qpn, to, peer) in
                [(0, near.qpn, host, far.qpn), (host, far.qpn, 0, near.qpn)]
            {
                let path = world.path(to, peer);
                world.hosts[host]
                    .driver
                    .connect(qpn, QPT_UC, &path)
                    .unwrap();
            }
            world.hosts[host]
                .driver
                .set_fault_policy(far.qpn, FAULT_POLICY_STALL)
                .unwrap();
            let mut pager = HostPager::new(&mut world, host, 8, 6);
            pager.register(&mut world, VA, 1 << 20);
            pager.service = FaultService::Ignore;
            let [cq, _] = cq;
            flows.push((near, cq, pager));
        }
        let (mut paused, mut longest, mut run, mut stopped) = (0, 0, 0, 0);
        const PARTS: u64 = 3000;
        for part in 0..PARTS {
            for (qp, cq, pager) in &mut flows {
                let (at, _, rkey) = pager.sge(0, part % 100 * 4096, 8);
                let write = Send {
                    opcode: wr::WR_WRITE,
                    sges: &[(source.va, 8, source.key)],
                    remote_addr: at,
                    rkey,
                    ..Send::default()
                };
                world.hosts[0].driver.post_send(qp, &write);
                world.completions(0, cq);
            }
            world.run_for(LIMIT / 12);
            let by = |look: fn(&mut faultline_nic::Nic) -> bool| {
                (1..=others)
                    .filter(|host| world.with_nic(*host, look))
                    .count()
            };
            stopped += by(|nic| nic.is_input_stopped());
            run = match by(|nic| nic.is_stalled()) {
                0 => 0,
                _ => run + 1,
            };
            paused += u64::from(run > 0);
            longest = longest.max(run);
        }
        assert!(stopped > PARTS as usize * others * 9 / 10, "{stopped}");
        // A tenth, and the error of coarse samples.
        assert!(
            (PARTS / 20..=PARTS / 8).contains(&paused),
            "{others}: {paused}"
        );
        assert!((2..=13).contains(&longest), "{others}: {longest}");
    }
}

/// Frames that have waited for a page are taken without another reason to look at the NIC.
#[test]
fn all_waiting_frames_continue_by_themselves() {
    const FRAMES: u32 = 1000;
    let mut world = World::new(2, 1);
    let source = world.hosts[0].mr(4096).unwrap();
    let cq = [0, 1].map(|host: usize| world.hosts[host].cq(4).unwrap());
    let config = QpConfig {
        log_depth: 10,
        flags: 0,
        ..world.hosts[0].qp_config(QPT_UC, &cq[0])
    };
    let mut near = world.hosts[0].driver.create_qp(&config).unwrap();
    let far = world.hosts[1].qp(QPT_UC, &cq[1]).unwrap();
    for (host, qpn, peer) in [(0, near.qpn, far.qpn), (1, far.qpn, near.qpn)] {
        let path = world.path(1 - host, peer);
        let driver = &mut world.hosts[host].driver;
        driver.connect(qpn, QPT_UC, &path).unwrap();
    }
    world.hosts[1]
        .driver
        .set_fault_policy(far.qpn, FAULT_POLICY_STALL)
        .unwrap();
    let mut pager = HostPager::new(&mut world, 1, 8, 6);
    pager.register(&mut world, VA, 1 << 20);
    let (at, _, rkey) = pager.sge(0, 0, 8);
    let write = Send {
        opcode: wr::WR_WRITE,
        sges: &[(source.va, 8, source.key)],
        remote_addr: at,
        rkey,
        ..Send::default()
    };
    for _ in 0..FRAMES {
        world.hosts[0].driver.write_send(&mut near, &write);
    }
    world.hosts[0].driver.ring_sends(&near);
    let received = |world: &World| world.with_nic(1, |nic| nic.counters().get(Counter::rx_packets));
    let before = received(&world);
    world.run_for(MS);
    assert!(world.with_nic(1, |nic| nic.is_input_stopped()));
    assert_eq!(received(&world), before + 1);
    pager.delay = 0;
    pager.collect(&mut world);
    pager.answer_due(&mut world);
    world.run_for(MS);
    assert!(!world.with_nic(1, |nic| nic.is_input_stopped()));
    assert_eq!(received(&world) - before, u64::from(FRAMES));
}

/// A look-up of a sender ends while the sender is paused: the simulated time advances, and frames that have waited for
/// both are sent after the pause.
#[test]
fn a_look_up_that_ends_during_a_pause_needs_no_further_deadline() {
    const WRITES: u64 = 6;
    let mut world = World::with_config(2, 1, |config| {
        config.stall_timeout = Nanos(LIMIT);
        config.lookup = Nanos(MS);
    });
    world.hand_over_by_reference();
    let mut pair = world.connect(QPT_UC, 4096 * WRITES, |_| {});
    let far = pair.qp[1].qpn;
    world.hosts[1]
        .driver
        .set_fault_policy(far, FAULT_POLICY_STALL)
        .unwrap();
    let mut pager = HostPager::new(&mut world, 1, 8, 6);
    pager.register(&mut world, VA, 1 << 20);
    pager.service = FaultService::Ignore;
    let (at, _, rkey) = pager.sge(0, 0, 8);
    let near = pair.mr[0];
    for page in 0..WRITES {
        // Each request reads another page, so the NIC looks each of them up.
        let write = Send {
            opcode: wr::WR_WRITE,
            sges: &[(near.va + page * 4096, 8, near.key)],
            remote_addr: at,
            rkey,
            ..Send::default()
        };
        world.hosts[0].driver.write_send(&mut pair.qp[0], &write);
    }
    let sent = |world: &World| world.with_nic(0, |nic| nic.counters().get(Counter::tx_packets));
    let before = sent(&world);
    world.hosts[0].driver.ring_sends(&pair.qp[0]);
    world.run_for(LIMIT / 2);
    assert!(world.with_nic(1, |nic| nic.is_stalled()));
    let now = world.now();
    let deadline = world.with_nic(0, |nic| nic.next_deadline());
    assert!(
        deadline.is_none_or(|at| at.0 > now),
        "{deadline:?} at {now}"
    );
    let during = sent(&world) - before;
    assert!((1..WRITES).contains(&during), "{during} were sent");
    world.run_for(LIMIT + WRITES * MS);
    assert_eq!(sent(&world) - before, WRITES);
}
