//! Every kind of diagnostic, provoked, with the ids that it names.

use faultline_abi::doorbell::{Doorbell, SQ};
use faultline_abi::qp::*;
use faultline_abi::{Status, admin, event, regs, wqe as wr};
use faultline_nic::inspect::{PageBucket, QueueKind};
use faultline_nic::{
    CommandQueue, Diagnostic as D, FaultPolicy, KeyUse, Nanos, NicConfig, OverrunQueue, QpType,
    RetryCause, State, StateCause,
};
use faultline_simulation::FaultService;
use faultline_simulation::{Connect, Send, Sge};
use faultline_simulator::{HostPager, Pair, World, pager};

const VA: u64 = 0x7f12_3456_0000;
const PAGE: u64 = 4096;
const MS: u64 = 1_000_000;

/// A connection; host 1 has a region on demand.
struct Watched {
    world: World,
    pair: Pair,
    pager: HostPager,
}

impl Watched {
    fn new(kind: u8) -> Self {
        Self::with(kind, |_| {}, |_| {})
    }

    fn with(kind: u8, config: impl Fn(&mut NicConfig), change: impl Fn(&mut Connect)) -> Self {
        let mut world = World::with_config(2, 1, config);
        let pair = world.connect(kind, 64 << 10, change);
        let mut pager = HostPager::new(&mut world, 1, 64, 6);
        pager.register(&mut world, VA, 256 << 10);
        let mut watched = Self { world, pair, pager };
        watched.take(0);
        watched.take(1);
        watched
    }

    /// Diagnostics of a host's NIC since the last call.
    fn take(&mut self, host: usize) -> Vec<D> {
        let all = self.world.take_diagnostics(host).into_iter();
        all.map(|(_, diagnostic)| diagnostic).collect()
    }

    fn qpn(&self, host: usize) -> u32 {
        self.pair.qp[host].qpn
    }

    fn set_policy(&mut self, policy: u8) {
        let qpn = self.qpn(1);
        self.world.hosts[1]
            .driver
            .set_fault_policy(qpn, policy)
            .unwrap();
        self.take(1);
    }

    fn post(&mut self, opcode: u8, local: Sge, (at, rkey): (u64, u32)) {
        let send = Send {
            opcode,
            sges: &[local],
            remote_addr: at,
            rkey,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &send);
    }

    fn local(&self, len: u32) -> Sge {
        let mr = &self.pair.mr[0];
        (mr.va, len, mr.key)
    }

    /// A WRITE of 8 bytes to an absent page of host 1.
    fn write_absent(&mut self, page: u64) {
        let (at, _, rkey) = self.pager.sge(0, page * PAGE, 8);
        self.post(wr::WR_WRITE, self.local(8), (at, rkey));
    }

    /// A WRITE of 8 bytes from an absent page of host 1 to host 0.
    fn write_from_absent(&mut self) {
        let remote = &self.pair.mr[0];
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[self.pager.sge(0, 0, 8)],
            remote_addr: remote.va,
            rkey: remote.key,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[1].driver;
        driver.post_send(&mut self.pair.qp[1], &send);
    }

    /// A WRITE of 8 bytes to pinned memory.
    fn write_pinned(&mut self) {
        let remote = &self.pair.mr[1];
        let remote = (remote.va, remote.key);
        self.post(wr::WR_WRITE, self.local(8), remote);
    }

    fn run(&mut self) {
        pager::run(&mut self.world, &mut [&mut self.pager]);
    }

    fn pass(&mut self, ns: u64) {
        self.world.run_for(ns);
        self.pager.collect(&mut self.world);
    }
}

#[track_caller]
fn expect(found: &[D], wanted: impl Fn(&D) -> bool, what: &str) -> D {
    let at = found.iter().find(|diagnostic| wanted(diagnostic));
    *at.unwrap_or_else(|| panic!("no {what} in {found:#?}"))
}

/// The token of the only fault that was raised.
#[track_caller]
fn token_of(found: &[D]) -> u64 {
    let tokens: Vec<u64> = found
        .iter()
        .filter_map(|diagnostic| match diagnostic {
            D::FaultRaised { token, .. } => Some(*token),
            _ => None,
        })
        .collect();
    assert_eq!(tokens.len(), 1, "{found:#?}");
    tokens[0]
}

#[test]
fn a_fault_is_reported_from_the_miss_to_the_data() {
    let mut w = Watched::new(QPT_RC);
    w.write_absent(3);
    w.write_absent(3);
    w.run();
    let (here, there) = (w.take(0), w.take(1));
    let token = token_of(&there);
    let qpn = w.qpn(1);
    let (va, _, key) = w.pager.sge(0, 3 * PAGE, 8);
    let D::FaultRaised {
        qpn: found_qpn,
        key: found_key,
        va: found_va,
        bytes,
        write,
        requester,
        psn,
        ..
    } = there[0]
    else {
        panic!("{there:#?}");
    };
    assert_eq!(
        (found_qpn, found_key, found_va, bytes, write, requester),
        (qpn, key, va, 8, true, false)
    );
    let stages: Vec<usize> = [
        there.iter().position(
            |d| matches!(d, D::RnrNakSent { token: of, psn: at, .. } if *of == token && *at == psn),
        ),
        there
            .iter()
            .position(|d| matches!(d, D::FaultResumed { token: of, waiters: 1, .. } if *of == token)),
        there
            .iter()
            .position(|d| *d == D::FaultContinued { token, qpn }),
        there.iter().position(
            |d| matches!(d, D::FaultDone { token: of, qpn: q, raised, resumed } if (*of, *q) == (token, qpn) && raised < resumed),
        ),
    ]
    .into_iter()
    .map(|at| at.unwrap_or_else(|| panic!("a stage is missing: {there:#?}")))
    .collect();
    assert!(stages.is_sorted(), "{there:#?}");
    let refused = expect(&here, |d| matches!(d, D::RnrNakReceived { .. }), "RNR");
    let sender = w.qpn(0);
    assert!(
        matches!(refused, D::RnrNakReceived { qpn, psn: at, delay } if qpn == sender && at == psn && delay > Nanos(0))
    );
}

#[test]
fn a_fault_whose_request_comes_again_before_the_answer_is_done_with_the_answer() {
    let mut w = Watched::new(QPT_RC);
    w.pager.service = FaultService::Ignore;
    w.write_absent(3);
    w.pass(MS / 10);
    let token = token_of(&w.take(1));
    w.pager.map_page(&mut w.world, 0, VA / PAGE + 3, true);
    // The RNR timer ends, and the WRITE is carried out.
    w.pass(100 * MS);
    assert_eq!(w.world.completions(0, &mut w.pair.cq[0]).len(), 1);
    w.take(1);
    w.pager.resume(&mut w.world, token, Status::Ok).unwrap();
    let (found, qpn) = (w.take(1), w.qpn(1));
    let at = |wanted: &dyn Fn(&D) -> bool| found.iter().position(wanted);
    let resumed = at(&|d| matches!(d, D::FaultResumed { token: of, .. } if *of == token));
    let done =
        at(&|d| matches!(d, D::FaultDone { token: of, qpn: q, .. } if (*of, *q) == (token, qpn)));
    assert!(resumed.is_some() && done > resumed, "{found:#?}");
    // It is reported once.
    w.write_pinned();
    w.pass(MS);
    let again = w.take(1);
    assert!(
        !again.iter().any(|d| matches!(d, D::FaultDone { .. })),
        "{again:#?}"
    );
}

#[test]
fn a_fault_of_the_requester_is_reported() {
    let mut w = Watched::new(QPT_RC);
    w.write_from_absent();
    w.run();
    let found = w.take(1);
    let token = token_of(&found);
    expect(
        &found,
        |d| {
            matches!(
                d,
                D::FaultRaised {
                    requester: true,
                    write: false,
                    ..
                }
            )
        },
        "fault of the requester",
    );
    expect(
        &found,
        |d| matches!(d, D::FaultDone { token: of, .. } if *of == token),
        "end of the fault",
    );
}

/// Queue pair, key and page of the first fault that was raised.
fn place_of(found: &[D]) -> Option<(u32, u32, u64)> {
    found.iter().find_map(|d| match *d {
        D::FaultRaised { qpn, key, va, .. } => Some((qpn, key, va & !(PAGE - 1))),
        _ => None,
    })
}

#[test]
fn faults_that_join_fail_expire_or_are_cancelled() {
    // Two queue pairs would be needed to join; a READ and a WRITE of one do as well.
    let mut w = Watched::new(QPT_RC);
    w.pager.service = FaultService::Fail;
    w.write_absent(0);
    w.run();
    let found = w.take(1);
    let (token, place) = (token_of(&found), place_of(&found));
    expect(
        &found,
        |d| matches!(d, D::FaultFailed { token: of, qpn, key, va, .. } if (*of, Some((*qpn, *key, *va))) == (token, place)),
        "failed fault",
    );
    assert!(!found.iter().any(|d| matches!(d, D::FaultDone { .. })));

    let mut w = Watched::with(QPT_RC, |c| c.fault_timeout = Nanos(2 * MS), |_| {});
    w.pager.service = FaultService::Ignore;
    w.write_absent(0);
    w.pass(MS / 2);
    // The RNR NAK's repetition joins.
    w.pass(5 * MS);
    let found = w.take(1);
    let (token, place) = (token_of(&found[..1]), place_of(&found));
    expect(
        &found,
        |d| matches!(d, D::FaultJoined { token: of, .. } if *of == token),
        "joined fault",
    );
    expect(
        &found,
        |d| matches!(d, D::FaultExpired { token: of, qpn, key, va, .. } if (*of, Some((*qpn, *key, *va))) == (token, place)),
        "expired fault",
    );

    let mut w = Watched::new(QPT_RC);
    w.pager.service = FaultService::Ignore;
    w.write_absent(0);
    w.pass(MS / 10);
    w.pager.deregister(&mut w.world, 0);
    let found = w.take(1);
    let (token, place) = (token_of(&found), place_of(&found));
    expect(
        &found,
        |d| matches!(d, D::FaultCancelled { token: of, qpn, key, va, .. } if (*of, Some((*qpn, *key, *va))) == (token, place)),
        "cancelled fault",
    );
}

/// The time for which a record waits in the device is not the driver's.
#[test]
fn a_late_record_is_a_stage_of_its_fault() {
    for late in [0, MS] {
        let mut w = Watched::new(QPT_RC);
        let hold = |w: &mut Watched, held| {
            w.world
                .operate(1, |nic, now, mem| nic.set_fault_queue_held(now, mem, held));
        };
        hold(&mut w, late > 0);
        w.write_from_absent();
        w.world.run_for(late);
        hold(&mut w, false);
        w.run();
        let found = w.take(1);
        let resumed = expect(&found, |d| matches!(d, D::FaultResumed { .. }), "answer");
        let D::FaultResumed { record_ns, .. } = resumed else {
            panic!("{resumed:?}");
        };
        let wanted = late..=late + late / 10;
        assert!(wanted.contains(&u64::from(record_ns)), "{record_ns}");
    }
}

/// Nothing was resumed, and no page has come: that is not the end of an access.
#[test]
fn a_cancelled_fault_is_not_done() {
    let mut w = Watched::new(QPT_RC);
    w.pager.service = FaultService::Ignore;
    w.write_from_absent();
    w.pass(MS / 10);
    w.pager.deregister(&mut w.world, 0);
    w.pass(MS);
    let found = w.take(1);
    let token = token_of(&found);
    expect(
        &found,
        |d| matches!(d, D::FaultCancelled { token: of, .. } if *of == token),
        "cancelled fault",
    );
    assert!(
        !found.iter().any(|d| matches!(d, D::FaultDone { .. })),
        "{found:#?}"
    );
}

#[test]
fn a_fault_without_room_is_an_overrun() {
    let mut w = Watched::with(QPT_RC, |c| c.limits.max_faults = 0, |_| {});
    w.write_absent(0);
    w.pass(MS / 10);
    let (found, qpn) = (w.take(1), w.qpn(1));
    let overrun = D::Overrun {
        queue: OverrunQueue::Fault,
        object: qpn,
    };
    assert!(found.contains(&overrun), "{found:#?}");
    expect(
        &found,
        |d| matches!(d, D::RnrNakSent { token: 0, .. }),
        "RNR NAK without a fault",
    );
}

#[test]
fn stalls_are_reported_with_their_length() {
    let mut w = Watched::new(QPT_RC);
    w.set_policy(FAULT_POLICY_STALL);
    w.pager.delay = 3 * MS;
    w.write_absent(0);
    w.run();
    let (found, qpn) = (w.take(1), w.qpn(1));
    assert!(found.contains(&D::Stalled { qpn }), "{found:#?}");
    expect(
        &found,
        |d| matches!(d, D::StallEnded { after } if after.0 >= 3 * MS),
        "end of the stall",
    );

    let mut w = Watched::with(QPT_UC, |c| c.stall_timeout = Nanos(MS), |_| {});
    w.set_policy(FAULT_POLICY_STALL);
    w.pager.service = FaultService::Ignore;
    w.write_absent(0);
    w.pass(20 * MS);
    let (found, qpn) = (w.take(1), w.qpn(1));
    assert!(found.contains(&D::StallTimedOut { qpn }), "{found:#?}");
}

#[test]
fn held_and_parked_packets_that_find_no_room_are_overruns() {
    let config = |config: &mut NicConfig| {
        config.stall_timeout = Nanos(100_000 * MS);
        // Nearly no pause for the sender.
        config.pause_sharers = 1_000_000;
    };
    let mut w = Watched::with(QPT_UC, config, |_| {});
    w.set_policy(FAULT_POLICY_STALL);
    w.pager.service = FaultService::Ignore;
    let mut found = Vec::new();
    for _ in 0..500 {
        for _ in 0..12 {
            w.write_absent(0);
        }
        w.pass(MS);
        w.world.completions(0, &mut w.pair.cq[0]);
        found.extend(w.take(1));
    }
    let overrun = D::Overrun {
        queue: OverrunQueue::Ingress,
        object: 0,
    };
    assert!(found.contains(&overrun), "{}", found.len());

    let mut w = Watched::with(QPT_UC, |c| c.park_bytes = 100, |_| {});
    w.pager.service = FaultService::Ignore;
    for _ in 0..5 {
        w.write_absent(0);
    }
    w.pass(MS);
    let (found, qpn) = (w.take(1), w.qpn(1));
    let overrun = D::Overrun {
        queue: OverrunQueue::Parked,
        object: qpn,
    };
    assert!(found.contains(&overrun), "{found:#?}");
}

#[test]
fn a_completion_queue_that_overruns_fails_its_queue_pair() {
    let mut w = Watched::new(QPT_RC);
    let small = w.world.hosts[0].cq(1).unwrap();
    let mut qp = w.world.hosts[0].qp(QPT_RC, &small).unwrap();
    let qpn = qp.qpn;
    let peer_cq = w.world.hosts[1].cq(4).unwrap();
    let peer = w.world.hosts[1].qp(QPT_RC, &peer_cq).unwrap();
    for (host, number, other) in [(0, qpn, peer.qpn), (1, peer.qpn, qpn)] {
        let path = w.world.path(1 - host, other);
        let driver = &mut w.world.hosts[host].driver;
        driver.connect(number, QPT_RC, &path).unwrap();
    }
    w.take(0);
    let remote = (w.pair.mr[1].va, w.pair.mr[1].key);
    for _ in 0..4 {
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[w.local(8)],
            remote_addr: remote.0,
            rkey: remote.1,
            ..Send::default()
        };
        w.world.hosts[0].driver.post_send(&mut qp, &send);
    }
    w.pass(MS);
    let found = w.take(0);
    let overrun = D::Overrun {
        queue: OverrunQueue::Completion,
        object: small.cqn,
    };
    assert!(found.contains(&overrun), "{found:#?}");
    let failed = D::QpFailed {
        qpn,
        event: event::QP_FATAL,
    };
    assert!(found.contains(&failed), "{found:#?}");
    let state = D::QpState {
        qpn,
        from: State::Rts,
        to: State::Err,
        cause: StateCause::Event {
            event: event::QP_FATAL,
        },
    };
    assert!(found.contains(&state), "{found:#?}");
}

#[test]
fn the_fullest_completion_queue_is_found() {
    let mut w = Watched::new(QPT_RC);
    // Never used.
    w.world.hosts[0].cq(2).unwrap();
    let fullest = |w: &Watched| {
        let found = w.world.operate(0, |nic, _, mem| nic.fullest_cq(mem, 0));
        assert_eq!(found.1, None, "a second part");
        found.0.unwrap()
    };
    assert_eq!(fullest(&w).unread, 0);
    (0..3).for_each(|_| w.write_pinned());
    w.pass(MS);
    let fill = fullest(&w);
    assert_eq!(fill.unread, 3);
    assert!(fill.depth > 4, "{fill:?}");
    assert_eq!(fill.share(), 3_000_000 / u64::from(fill.depth));
    w.world.completions(0, &mut w.pair.cq[0]);
    assert_eq!(fullest(&w).unread, 0);
}

#[test]
fn refused_keys_are_reported_on_both_sides() {
    let mut w = Watched::new(QPT_RC);
    let (at, key) = (w.pair.mr[1].va, w.pair.mr[1].key ^ 1);
    w.post(wr::WR_WRITE, w.local(8), (at, key));
    w.pass(MS);
    let (here, there) = (w.take(0), w.take(1));
    let refused = D::KeyRefused {
        qpn: w.qpn(1),
        key,
        va: at,
        by: KeyUse::Remote,
    };
    assert!(there.contains(&refused), "{there:#?}");
    expect(
        &there,
        |d| matches!(d, D::RequestRefused { nak: 2, .. }),
        "NAK, remote access error",
    );
    let failed = D::QpFailed {
        qpn: w.qpn(1),
        event: event::QP_ACCESS_ERROR,
    };
    assert!(there.contains(&failed), "{there:#?}");
    let qpn = w.qpn(0);
    expect(
        &here,
        |d| matches!(d, D::WorkFailed { qpn: of, status, receive: false, .. } if *of == qpn && *status == faultline_abi::cqe::REM_ACCESS_ERR),
        "failed work request",
    );

    let mut w = Watched::new(QPT_RC);
    let (va, len, key) = w.local(8);
    let remote = (w.pair.mr[1].va, w.pair.mr[1].key);
    w.post(wr::WR_WRITE, (va, len, key ^ 1), remote);
    w.pass(MS);
    let (found, qpn) = (w.take(0), w.qpn(0));
    let refused = D::KeyRefused {
        qpn,
        key: key ^ 1,
        va,
        by: KeyUse::Local,
    };
    assert!(found.contains(&refused), "{found:#?}");
}

#[test]
fn retries_are_reported_until_they_are_used_up() {
    // The peer is gone.
    let mut w = Watched::new(QPT_RC);
    w.world.lose(|from, _| from == 0);
    w.write_pinned();
    w.pass(8 * 70 * MS);
    let (found, qpn) = (w.take(0), w.qpn(0));
    let retried = found.iter().filter(
        |d| matches!(d, D::Retried { qpn: of, cause: RetryCause::Timeout, psn: 0 } if *of == qpn),
    );
    assert_eq!(retried.count(), 7, "{found:#?}");
    let exhausted = D::RetriesExhausted {
        qpn,
        psn: 0,
        rnr: false,
    };
    assert!(found.contains(&exhausted), "{found:#?}");

    // One packet is lost.
    let mut w = Watched::new(QPT_RC);
    let mut lost = false;
    w.world
        .lose(move |from, _| from == 0 && !std::mem::replace(&mut lost, true));
    w.write_pinned();
    w.write_pinned();
    w.pass(MS);
    let (here, there) = (w.take(0), w.take(1));
    let sent = D::SequenceNakSent {
        qpn: w.qpn(1),
        psn: 0,
    };
    assert!(there.contains(&sent), "{there:#?}");
    let retried = D::Retried {
        qpn: w.qpn(0),
        psn: 0,
        cause: RetryCause::SequenceNak,
    };
    assert!(here.contains(&retried), "{here:#?}");

    // No receive work request, and one RNR retry.
    let mut w = Watched::with(QPT_RC, |_| {}, |c| c.rnr_retry = 1);
    w.post(wr::WR_SEND, w.local(8), (0, 0));
    w.pass(100 * MS);
    let (found, qpn) = (w.take(0), w.qpn(0));
    let exhausted = D::RetriesExhausted {
        qpn,
        psn: 0,
        rnr: true,
    };
    assert!(found.contains(&exhausted), "{found:#?}");
}

#[test]
fn commands_doorbells_resets_and_fatal_errors_are_reported() {
    let mut w = Watched::new(QPT_RC);
    let pd = w.world.hosts[0].driver.alloc_pd().unwrap();
    let wrong = w.world.hosts[0].driver.set_state(0xffff, QPS_INIT);
    assert!(wrong.is_err());
    let found = w.take(0);
    let command = |opcode, status, object| D::Command {
        queue: CommandQueue::Admin,
        opcode,
        status: status as u16,
        object,
    };
    assert_eq!(
        found,
        [
            command(admin::ALLOC_PD, Status::Ok, pd),
            command(admin::MODIFY_QP, Status::BadQp, 0xffff)
        ]
    );

    let key = w.pair.mr[1].key;
    w.world.hosts[1]
        .driver
        .ring(0, faultline_abi::doorbell::SQ, 0xffff, 1);
    let refused = D::DoorbellRefused {
        page: 0,
        object: 0xffff,
    };
    let found = w.take(1);
    assert!(found.contains(&refused), "{found:#?} {key}");

    w.world.with_nic(1, |nic| {
        assert!(nic.inject_fatal(faultline_nic::Instant(5)));
        assert!(!nic.inject_fatal(faultline_nic::Instant(6)));
        nic.reset(faultline_nic::Instant(7));
    });
    let cause = regs::INJECTED;
    assert_eq!(w.take(1), [D::Fatal { cause }, D::Reset]);
}

/// The lists name what the driver has made, in parts of any size.
#[test]
fn objects_are_listed_in_parts() {
    let mut w = Watched::new(QPT_RC);
    let more: Vec<u32> = (0..20)
        .map(|_| {
            let cq = w.world.hosts[1].cq(1).unwrap();
            w.world.hosts[1].qp(QPT_UD, &cq).unwrap().qpn
        })
        .collect();
    let cq = w.world.hosts[1].cq(1).unwrap();
    assert_eq!(w.world.hosts[1].qp(QPT_GSI, &cq).unwrap().qpn, 1);
    w.pager.service = FaultService::Ignore;
    w.write_absent(5);
    w.pass(MS / 10);
    let qpn = w.qpn(1);
    let peer = w.qpn(0);
    let (va, _, key) = w.pager.sge(0, 5 * PAGE, 8);
    w.world.with_nic(1, |nic| {
        let in_parts = |limit| {
            let mut found = Vec::new();
            let mut from = Some(0);
            while let Some(place) = from {
                let part = nic.queue_pairs(place, limit);
                assert!(part.items.len() <= limit);
                found.extend(part.items);
                from = part.next;
            }
            found
        };
        let found = in_parts(3);
        assert_eq!(in_parts(1), found);
        let numbers: Vec<u32> = found.iter().map(|qp| qp.qpn).collect();
        assert_eq!((numbers.len(), numbers[0]), (22, 1));
        assert!(more.iter().all(|qpn| numbers.contains(qpn)));
        let qp = nic.queue_pair_info(qpn).unwrap();
        assert_eq!(qp.kind, QueueKind::Pair(QpType::Rc));
        assert_eq!((qp.state, qp.peer_qpn), (Some(State::Rts), Some(peer)));
        assert!(qp.waits_for_page && qp.traffic.rx_packets >= 1 && qp.traffic.tx_packets >= 1);
        assert_eq!(nic.queue_pair_info(0xfff), None);

        let past_the_end = nic.queue_pairs(u32::MAX, 1);
        assert_eq!((past_the_end.items, past_the_end.next), (vec![], None));

        let regions = nic.regions(0, 100).items;
        let region = regions.iter().find(|region| region.key == key).unwrap();
        assert_eq!((region.iova, region.length), (VA, 256 << 10));
        assert!(region.on_demand && region.present_entries == 0);
        let pinned = regions.iter().find(|region| !region.on_demand).unwrap();
        assert!(u64::from(pinned.present_entries) >= pinned.length / PAGE);

        // 64 pages in 16 buckets; one awaits a page.
        let map = nic.page_map(key, 16, 0).unwrap();
        assert_eq!((map.bucket_pages, map.first, map.next), (4, 0, None));
        let awaited = usize::try_from((va - VA) / (4 * PAGE)).unwrap();
        for (bucket, counted) in map.buckets.iter().enumerate() {
            let expected = PageBucket {
                pages: 4,
                faulting: u64::from(bucket == awaited),
                ..PageBucket::default()
            };
            assert_eq!(*counted, expected, "bucket {bucket}");
        }
        assert_eq!(map.buckets.len(), 16);
        let rest = nic.page_map(key, 16, 62).unwrap();
        assert_eq!((rest.first, rest.buckets.len()), (15, 1));
        assert_eq!(rest.buckets[0].pages, 2);
        let past_the_end = nic.page_map(key, 16, u64::MAX).unwrap();
        assert_eq!((past_the_end.buckets, past_the_end.next), (vec![], None));
        let map = nic.page_map(pinned.key, 1, 0).unwrap();
        let pages = map.buckets[0].pages;
        assert!(pages >= pinned.length / PAGE);
        assert_eq!((map.buckets[0].present, map.buckets.len()), (pages, 1));
        assert_eq!(nic.page_map(0xdead_beef, 16, 0), None);

        let faults = nic.faults(10);
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].key, faults[0].va, faults[0].pages), (key, va, 1));
        assert_eq!((faults[0].write, faults[0].waiters), (true, 1));
    });
}

#[test]
fn an_operator_changes_policy_and_link_and_fails_faults() {
    let mut w = Watched::new(QPT_RC);
    let qpn = w.qpn(1);
    w.world.with_nic(1, |nic| {
        nic.set_fault_policy(qpn, FaultPolicy::Terminate).unwrap();
        let wrong = nic.set_fault_policy(0xfff, FaultPolicy::Drop);
        assert_eq!(wrong, Err(Status::BadQp));
    });
    let attr = w.world.hosts[1].driver.query_qp(qpn).unwrap();
    assert_eq!(attr.fault_policy, FAULT_POLICY_TERMINATE);
    w.world.hosts[1].driver.async_events();
    w.world
        .operate(1, |nic, now, mem| nic.set_link(now, mem, false));
    w.world
        .operate(1, |nic, now, mem| nic.set_link(now, mem, false));
    assert_eq!(
        w.world.hosts[1].driver.async_events(),
        [(event::PORT_DOWN, 1)]
    );
    w.world.with_nic(1, |nic| assert!(!nic.is_link_up()));
    w.world
        .operate(1, |nic, now, mem| nic.set_link(now, mem, true));
    assert_eq!(
        w.world.hosts[1].driver.async_events(),
        [(event::PORT_UP, 1)]
    );

    let mut w = Watched::new(QPT_RC);
    w.pager.service = FaultService::Ignore;
    w.write_absent(0);
    w.pass(MS / 10);
    let failed = w
        .world
        .operate(1, |nic, now, mem| nic.fail_faults(now, mem));
    assert_eq!(failed, 1);
    expect(
        &w.take(1),
        |d| matches!(d, D::FaultExpired { .. }),
        "failed fault",
    );
}

/// A caller that never polls loses the oldest ones and nothing else.
#[test]
fn untaken_diagnostics_are_overwritten() {
    let w = Watched::new(QPT_RC);
    w.world.operate(0, |nic, now, mem| {
        // Each refused doorbell is one.
        let bell = Doorbell {
            kind: SQ,
            object: u32::MAX,
            value: 1,
        };
        for _ in 0..8192 + 144 {
            nic.doorbell(now, mem, 0, bell);
        }
        assert_eq!(nic.take_lost_diagnostics(), 144);
        let kept = std::iter::from_fn(|| nic.poll_diagnostic());
        assert_eq!(kept.count(), 8192);
    });
}
