//! READY: its receivers, and its effects.

use faultline_abi::admin::Counter;
use faultline_abi::qp::*;
use faultline_abi::{cqe, wqe as wr};
use faultline_checker::Rule;
use faultline_nic::ReadyMode;
use faultline_simulation::Send;
use faultline_simulator::{HostPager, Pair, World, expect_cqe, packet, pager};
use faultline_wire::bth::{Bth, Psn};
use faultline_wire::opcode::{OpKind, Opcode};
use faultline_wire::packet::RoceHeader;
use faultline_wire::{Ip, Syndrome};

use crate::common::counter;

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Time of the service of a fault.
const SERVICE: u64 = 3 * MS;

/// Host 0 writes to pages of host 1 that are absent.
struct Faulting {
    world: World,
    pair: Pair,
    pager: HostPager,
    pages: u64,
}

impl Faulting {
    fn new(mut world: World, kind: u8) -> Self {
        let pair = world.connect(kind, PAGE, |c| c.path_mtu = 3);
        let mut pager = HostPager::new(&mut world, 1, 64, 6);
        pager.register(&mut world, VA, 1 << 20);
        pager.delay = SERVICE;
        world.start_capture();
        Self {
            world,
            pair,
            pager,
            pages: 0,
        }
    }

    fn post(&mut self) {
        let (local, remote) = (
            self.pair.mr[0],
            self.pager.sge(0, self.pages * PAGE + 40, 0),
        );
        self.pages += 1;
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(local.va, 64, local.key)],
            remote_addr: remote.0,
            rkey: remote.2,
            ..Send::default()
        };
        self.world.hosts[0]
            .driver
            .post_send(&mut self.pair.qp[0], &send);
    }

    /// A WRITE to the next absent page; returns how long it took.
    fn write(&mut self) -> u64 {
        self.post();
        let start = self.world.now();
        loop {
            let next = self.world.now() + US;
            while self.world.step(next) {}
            self.world.advance_to(next);
            self.pager.collect(&mut self.world);
            self.pager.answer_due(&mut self.world);
            let done = self.world.completions(0, &mut self.pair.cq[0]);
            if let Some(done) = done.first() {
                assert_eq!(done.status, cqe::SUCCESS);
                return self.world.now() - start;
            }
        }
    }

    /// READY packets that host 1 has sent, and all other opcodes of the manufacturers' range of anybody.
    fn captured(&self) -> (usize, usize) {
        let frames = self.world.take_capture();
        let manufacturers = |(from, bytes): &(usize, Vec<u8>)| {
            // Untagged Ethernet, IPv4, UDP.
            let opcode = bytes[14 + 20 + 8];
            (opcode >= 0xc0).then_some((*from, opcode))
        };
        let found: Vec<_> = frames.iter().filter_map(manufacturers).collect();
        let ready = found.iter().filter(|found| **found == (1, 0xc0)).count();
        (ready, found.len() - ready)
    }

    fn counters(&mut self) -> [u64; 3] {
        [
            counter(&mut self.world, 1, Counter::ready_notices),
            counter(&mut self.world, 0, Counter::ready_received),
            counter(&mut self.world, 0, Counter::ready_refused),
        ]
    }
}

fn world(modes: [ReadyMode; 2]) -> World {
    World::with_config(2, 1, |config| {
        config.ready = modes[usize::from(config.mac.0[5]) - 1];
    })
}

/// Host 0 is on a wire, and does not answer peer queries.
fn foreign() -> World {
    let world = world([ReadyMode::Never, ReadyMode::Known]);
    world.make_foreign(0);
    world
}

#[test]
fn faultlines_of_one_process_exchange_ready() {
    for by_reference in [false, true] {
        let world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut f = Faulting::new(world, QPT_RC);
        for count in 1..4 {
            let took = f.write();
            // The RNR timer would have had the better part of a millisecond to go.
            assert!(took < SERVICE + 50 * US, "{took} ns");
            assert_eq!(f.captured(), (1, 0));
            assert_eq!(f.counters(), [count, count, 0]);
        }
    }
}

#[test]
fn a_foreign_peer_never_gets_ready() {
    let world = foreign();
    let mut f = Faulting::new(world, QPT_RC);
    let mut longest = 0;
    for _ in 0..8 {
        longest = f.write().max(longest);
    }
    assert!(longest > SERVICE + 100 * US, "{longest} ns");
    assert_eq!(f.captured(), (0, 0));
    assert_eq!(f.counters(), [0, 0, 0]);
}

/// A foreign peer gets only acknowledgements and RNR NAKs of its requests: in particular no acknowledgement twice.
#[test]
fn a_foreign_peer_sees_nothing_unusual() {
    let world = foreign();
    world.start_trace();
    let mut f = Faulting::new(world, QPT_RC);
    f.write();
    f.write();
    let trace = f.world.take_trace();
    let answers = trace.iter().filter(|(from, _)| *from == 1);
    let mut acked = Vec::new();
    for (_, header) in answers {
        match header.aeth.expect("an acknowledgement").syndrome {
            Syndrome::Ack { .. } => acked.push(header.bth.psn.get()),
            Syndrome::RnrNak { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    acked.sort_unstable();
    acked.dedup();
    assert_eq!(acked.len(), 2);
    let sent = trace.iter().filter(|(from, _)| *from == 1).count();
    let naks = counter(&mut f.world, 1, Counter::rnr_nak_sent) as usize;
    assert_eq!(sent, 2 + naks);
}

#[test]
fn an_operator_can_declare_all_peers_as_faultlines() {
    let world = world([ReadyMode::Always; 2]);
    world.make_foreign(0);
    world.permit(&[Rule::Ready]);
    let mut f = Faulting::new(world, QPT_RC);
    let took = f.write();
    assert!(took < SERVICE + 50 * US, "{took} ns");
    assert_eq!(f.captured(), (1, 0));
    assert_eq!(f.counters(), [1, 1, 0]);
}

#[test]
fn an_operator_can_switch_ready_off() {
    let mut f = Faulting::new(world([ReadyMode::Known, ReadyMode::Never]), QPT_RC);
    let took = f.write();
    assert!(took > SERVICE + 50 * US, "{took} ns");
    assert_eq!(f.captured(), (0, 0));
    assert_eq!(f.counters(), [0, 0, 0]);
    // The requester takes none either.
    let mut f = Faulting::new(world([ReadyMode::Never, ReadyMode::Known]), QPT_RC);
    let took = f.write();
    assert!(took > SERVICE + 50 * US, "{took} ns");
    assert_eq!(f.captured(), (1, 0));
    assert_eq!(f.counters(), [1, 0, 1]);
}

/// Two hosts on a wire: host 0 answers the query of host 1. `device/simulation/tests/ready.rs` has the rest.
#[test]
fn a_faultline_on_a_wire_gets_ready_after_its_answer() {
    let world = World::new(2, 1);
    world.make_foreign(0);
    world.permit(&[Rule::Ready]);
    let mut f = Faulting::new(world, QPT_RC);
    let took = f.write();
    assert!(took < SERVICE + 50 * US, "{took} ns");
    assert_eq!(f.captured(), (1, 0));
    assert_eq!(f.counters()[0], 1);
}

/// The opcode may mean anything if an adapter of another make sends it.
#[test]
fn ready_of_a_foreign_peer_is_dropped() {
    let world = world([ReadyMode::Known, ReadyMode::Always]);
    world.make_foreign(1);
    world.permit(&[Rule::Ready]);
    let mut f = Faulting::new(world, QPT_RC);
    let took = f.write();
    assert!(took > SERVICE + 50 * US, "{took} ns");
    assert_eq!(f.counters(), [1, 0, 1]);
}

#[test]
fn a_lost_ready_costs_the_rnr_timer_only() {
    let world = World::new(2, 1);
    world.lose(|_, header| header.bth.opcode == Opcode::Ready);
    let mut f = Faulting::new(world, QPT_RC);
    for count in 1..4 {
        let took = f.write();
        let range = SERVICE + 50 * US..3 * SERVICE;
        assert!(range.contains(&took), "{took} ns");
        assert_eq!(f.counters(), [count, 0, 0]);
    }
    let timeouts = counter(&mut f.world, 0, Counter::local_ack_timeout_err);
    assert_eq!(timeouts, 0);
}

/// READY that comes twice, late, for another request, or for none, changes nothing.
#[test]
fn a_stray_ready_is_harmless() {
    let mut f = Faulting::new(world([ReadyMode::Always; 2]), QPT_RC);
    f.write();
    let stray = |f: &Faulting, psn: u32| {
        let host = |n: usize| &f.world.hosts[n];
        let ip = Ip::from_gids(host(1).gid, host(0).gid, 0, 0, 64);
        let bth = Bth::new(Opcode::Ready, f.pair.qp[0].qpn, Psn::new(psn));
        packet(&RoceHeader::new(host(0).mac, host(1).mac, ip, bth), &[])
    };
    // Nothing waits.
    f.world.inject(1, stray(&f, 0));
    f.world.inject(1, stray(&f, 0xff_ffff));
    f.world.run();
    // The request with PSN 1 waits.
    f.post();
    while f.pager.records.is_empty() {
        let next = f.world.now() + US;
        while f.world.step(next) {}
        f.world.advance_to(next);
        f.pager.collect(&mut f.world);
    }
    f.world.run_for(20 * US);
    f.world.start_trace();
    for psn in [0, 2, 9, 0xff_ffff] {
        f.world.inject(1, stray(&f, psn));
    }
    f.world.run_for(10 * US);
    let requests = |f: &Faulting| {
        let trace = f.world.take_trace();
        let is_request = |(_, header): &&(usize, RoceHeader)| header.bth.opcode.is_request();
        trace.iter().filter(is_request).count()
    };
    assert_eq!(requests(&f), 0);
    // For that one, but too early: it gets another RNR NAK.
    f.world.permit(&[Rule::RnrWait]);
    f.world.inject(1, stray(&f, 1));
    f.world.run_for(10 * US);
    assert_eq!(requests(&f), 1);
    pager::run(&mut f.world, &mut [&mut f.pager]);
    expect_cqe(&mut f.world, 0, &mut f.pair.cq[0], cqe::SUCCESS);
}

/// A new connection of the same queue pair may have another peer.
#[test]
fn a_reset_queue_pair_forgets_its_peer() {
    let mut f = Faulting::new(world([ReadyMode::Never, ReadyMode::Known]), QPT_RC);
    f.write();
    assert_eq!(f.captured(), (1, 0));
    f.world.make_foreign(0);
    for host in 0..2 {
        let attr = QpAttr {
            mask: QP_ATTR_STATE.into(),
            state: QPS_RESET,
            ..QpAttr::default()
        };
        let qpn = f.pair.qp[host].qpn;
        f.world.hosts[host].driver.modify_qp(qpn, &attr).unwrap();
    }
    let qpn = [0, 1].map(|host| f.pair.qp[host].qpn);
    for host in 0..2 {
        let path = f.world.path(1 - host, qpn[1 - host]);
        let driver = &mut f.world.hosts[host].driver;
        driver.connect(qpn[host], QPT_RC, &path).unwrap();
    }
    f.pair.qp[0].reset();
    f.write();
    assert_eq!(f.captured(), (0, 0));
}

/// Fault policy `drop`: a peer that is not known gets a sequence NAK only if a later packet has arrived, as after a loss.
#[test]
fn a_dropped_packet_looks_lost_to_a_foreign_peer() {
    for (foreign, later) in [(false, false), (true, false), (true, true)] {
        let world = match foreign {
            true => self::foreign(),
            false => World::new(2, 1),
        };
        let mut f = Faulting::new(world, QPT_RC);
        let qpn = f.pair.qp[1].qpn;
        f.world.hosts[1]
            .driver
            .set_fault_policy(qpn, FAULT_POLICY_DROP)
            .unwrap();
        if later {
            f.post();
        }
        f.world.start_trace();
        let took = f.write();
        let trace = f.world.take_trace();
        let naks = trace.iter().filter(|(from, header)| {
            let is_ack = header.bth.opcode.info().kind == OpKind::Ack;
            *from == 1 && is_ack && matches!(header.aeth.unwrap().syndrome, Syndrome::Nak(_))
        });
        let expected = usize::from(!foreign || later);
        assert_eq!(naks.count(), expected, "{foreign} {later}");
        // The ACK timeout is 67 ms.
        assert_eq!(took > 60 * MS, foreign && !later, "{took} ns");
        assert_eq!(f.captured(), (0, 0));
    }
}
