//! The rules of a plan, asked and answered by hand.

use faultline_abi::doorbell::{self, Doorbell};
use faultline_nic::{
    CommandQueue, Diagnostic, Injection, Instant, Nanos, Nic, NicConfig, Origin, Outcome, Point,
    State, StateCause,
};
use faultline_scenario::action::{Action, Evict, For, Mtu, Nothing, Number, PortDown};
use faultline_scenario::plan::*;
use faultline_scenario::rules::{
    ByRule, CallerRequest, HeldFrame, Late, NicRequest, PacketFacts, Pages, Rules, Taking,
};
use faultline_scenario::segment::{SegmentFacts, SegmentKinds, SegmentMatch};
use faultline_scenario::trigger::Direction::{Rx, Tx};
use faultline_scenario::value::{Range, Time};
use faultline_telemetry::DiagnosticKind;
use faultline_wire::ddp::{Ddp, DdpTarget};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::mpa::{Crc32c, Fpdu};
use faultline_wire::packet::RoceHeader;
use faultline_wire::rdmap::{RdmapControl, RdmapOpcode};
use faultline_wire::{
    Bth, EtherType, Ethernet, Ip, Ipv4, MacAddr, Opcode, Psn, Seq, Tcp, TcpFlags,
};

const EACH: Choice = Choice {
    skip: 0,
    every: 1,
    times: u64::MAX,
    per_million: 1_000_000,
};
const ONCE: Choice = Choice { times: 1, ..EACH };

fn packets(opcodes: &[Opcode]) -> PacketMatch {
    let mut set = Opcodes::default();
    opcodes.iter().for_each(|opcode| set.insert(*opcode));
    PacketMatch {
        dir: Tx,
        opcodes: set,
        answer: None,
        psn: None,
        iter: None,
        bytes: None,
        segment: None,
    }
}

fn rule(thing: Thing, effect: Effect, choice: Choice) -> PlannedRule {
    PlannedRule {
        name: "rule".to_owned(),
        nic: None,
        thing,
        conditions: Conditions::default(),
        choice,
        effect,
        port: None,
        is_illegal: false,
        fired: Range::from(1),
    }
}

fn drop_sends(choice: Choice) -> PlannedRule {
    let sends = Thing::Packet(packets(&[Opcode::RcSendOnly]));
    rule(sends, Effect::Packet(PacketChange::Drop), choice)
}

fn at(ms: u64, action: Action) -> PlannedTime {
    PlannedTime {
        name: "at".to_owned(),
        nic: Some(0),
        time: Nanos::from_millis(ms),
        every: None,
        times: 1,
        action,
    }
}

fn plan(rules: Vec<PlannedRule>, timed: Vec<PlannedTime>) -> Plan {
    Plan {
        seed: 1,
        limit: Nanos::from_millis(1000),
        rules,
        timed,
        expectations: Vec::new(),
    }
}

fn nic() -> Nic {
    Nic::new(NicConfig::new(MacAddr([2, 0, 0, 0, 0, 1])))
}

/// Rules for two NICs.
fn start(rules: Vec<PlannedRule>, timed: Vec<PlannedTime>) -> Rules {
    let nics = [nic(), nic()];
    Rules::new(plan(rules, timed), &nics, Instant(0))
}

fn header(opcode: Opcode, psn: u32) -> RoceHeader {
    let ip = Ip::V4(Ipv4 {
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
        ttl: 64,
        ..Ipv4::default()
    });
    let bth = Bth::new(opcode, 7, Psn::new(psn));
    RoceHeader::new(MacAddr([2; 6]), MacAddr([4; 6]), ip, bth)
}

fn pass(rules: &mut Rules, nic: usize, opcode: Opcode, psn: u32) -> Option<PacketChange> {
    let header = header(opcode, psn);
    let facts = PacketFacts {
        header: Some(&header),
        segment: None,
        bytes: 100,
    };
    let taking = rules.packet(Instant(0), nic, Tx, 7, facts);
    taking.map(|taking| taking.change)
}

fn requests(rules: &mut Rules) -> Vec<(usize, NicRequest)> {
    std::iter::from_fn(|| rules.poll_request()).collect()
}

fn fired(rules: &Rules) -> Vec<u64> {
    rules.fired().into_iter().map(|fired| fired.times).collect()
}

fn connect(rules: &mut Rules, nic_number: usize, qpn: u32) {
    let connected = Diagnostic::QpState {
        qpn,
        from: State::Init,
        to: State::Rtr,
        cause: StateCause::Command,
    };
    rules.diagnostic(Instant(0), nic_number, &connected, &nic());
}

#[test]
fn a_rule_acts_on_the_matches_that_it_chooses() {
    let choice = Choice {
        skip: 2,
        every: 3,
        times: 2,
        ..EACH
    };
    let mut rules = start(vec![drop_sends(choice)], Vec::new());
    let dropped: Vec<usize> = (0..12)
        .filter(|psn| pass(&mut rules, 0, Opcode::RcSendOnly, *psn).is_some())
        .map(|psn| psn as usize)
        .collect();
    assert_eq!(dropped, [2, 5]);
    assert_eq!(fired(&rules), [2]);
    // The other NIC has counts of its own, and other opcodes do not count.
    assert_eq!(pass(&mut rules, 1, Opcode::RcWriteOnly, 0), None);
    let second: Vec<bool> = (0..3)
        .map(|psn| pass(&mut rules, 1, Opcode::RcSendOnly, psn).is_some())
        .collect();
    assert_eq!(second, [false, false, true]);
}

#[test]
fn the_first_rule_that_changes_a_packet_decides() {
    let sends = || Thing::Packet(packets(&[Opcode::RcSendOnly]));
    let rules = vec![
        rule(sends(), Effect::Count, EACH),
        rule(sends(), Effect::Packet(PacketChange::EcnMark), ONCE),
        drop_sends(EACH),
        rule(sends(), Effect::Nic(Action::Fatal(Nothing {})), ONCE),
    ];
    let mut rules = start(rules, Vec::new());
    let changes = [0, 1].map(|psn| pass(&mut rules, 0, Opcode::RcSendOnly, psn));
    assert_eq!(
        changes,
        [Some(PacketChange::EcnMark), Some(PacketChange::Drop)]
    );
    assert_eq!(fired(&rules), [2, 1, 1, 1]);
    assert_eq!(requests(&mut rules), [(0, NicRequest::Fatal)]);
}

#[test]
fn probabilities_follow_from_the_seed() {
    let half = Choice {
        per_million: 500_000,
        ..EACH
    };
    let run = |seed| {
        let nics = [nic()];
        let plan = Plan {
            seed,
            ..plan(vec![drop_sends(half)], Vec::new())
        };
        let mut rules = Rules::new(plan, &nics, Instant(0));
        let dropped: Vec<bool> = (0..200)
            .map(|psn| pass(&mut rules, 0, Opcode::RcSendOnly, psn).is_some())
            .collect();
        dropped
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let count = run(1).into_iter().filter(|dropped| *dropped).count();
    assert!((60..140).contains(&count), "{count}");
}

#[test]
fn a_transmission_ends_where_the_psn_goes_back() {
    let second = PacketMatch {
        iter: Some(2),
        ..packets(&[Opcode::RcSendOnly])
    };
    let drop = Effect::Packet(PacketChange::Drop);
    let mut rules = start(vec![rule(Thing::Packet(second), drop, EACH)], Vec::new());
    let psns = [0xff_ffff, 0, 1, 0, 1, 2, 2];
    assert_eq!(
        pass(&mut rules, 0, Opcode::RcSendOnly, 0),
        None,
        "no connection"
    );
    connect(&mut rules, 0, 7);
    let dropped = psns.map(|psn| pass(&mut rules, 0, Opcode::RcSendOnly, psn).is_some());
    assert_eq!(dropped, [false, false, false, true, true, true, false]);
}

#[test]
fn connections_are_numbered_as_they_are_made() {
    let mut second = drop_sends(EACH);
    second.conditions.connection = Some(1);
    let mut rules = start(vec![second], Vec::new());
    connect(&mut rules, 0, 9);
    assert_eq!(pass(&mut rules, 0, Opcode::RcSendOnly, 0), None);
    connect(&mut rules, 0, 7);
    assert!(pass(&mut rules, 0, Opcode::RcSendOnly, 1).is_some());
    assert_eq!(
        pass(&mut rules, 1, Opcode::RcSendOnly, 1),
        None,
        "of another NIC"
    );
    // The queue pair is used again: that is connection 2.
    connect(&mut rules, 0, 7);
    assert_eq!(pass(&mut rules, 0, Opcode::RcSendOnly, 2), None);
}

#[test]
fn a_number_of_bytes_is_reached_again_and_again() {
    let each_250 = PacketMatch {
        bytes: Some(250),
        ..packets(&[Opcode::RcSendOnly])
    };
    let drop = Effect::Packet(PacketChange::Drop);
    let mut rules = start(vec![rule(Thing::Packet(each_250), drop, EACH)], Vec::new());
    let dropped: Vec<bool> = (0..6)
        .map(|psn| pass(&mut rules, 0, Opcode::RcSendOnly, psn).is_some())
        .collect();
    assert_eq!(dropped, [false, false, true, false, true, false]);
}

#[test]
fn interrupts_and_doorbells_are_lost_late_or_there_twice() {
    let interrupt = |vector, change| {
        rule(
            Thing::Interrupt(Some(vector)),
            Effect::Boundary(change),
            ONCE,
        )
    };
    let delay = BoundaryChange::Delay(Nanos(50));
    let doorbell = Thing::Doorbell(Some(doorbell::SQ));
    let all = vec![
        interrupt(1, BoundaryChange::Drop),
        interrupt(2, delay),
        interrupt(3, BoundaryChange::Duplicate),
        rule(doorbell, Effect::Boundary(delay), ONCE),
    ];
    let mut rules = start(all, Vec::new());
    let now = Instant(10);
    let sent = [0, 1, 1, 2, 3].map(|vector| rules.interrupt(now, 0, vector));
    assert_eq!(sent, [true, false, true, false, false]);
    let bell = Doorbell {
        kind: doorbell::SQ,
        object: 7,
        value: 1,
    };
    assert!(rules.may_change(0, &bell));
    assert!(!rules.doorbell(now, 0, 5, bell));
    assert!(rules.doorbell(now, 0, 5, bell), "only the first");
    let taken = [(1, 5), (0, 6), (0, 5), (0, 5)];
    let taken = taken.map(|(nic, page)| rules.has_taken(nic, page, bell));
    assert_eq!(taken, [false, false, true, false]);
    let twice = Late::Interrupt { nic: 0, vector: 3 };
    let late: Vec<Late> = std::iter::from_fn(|| rules.poll_late()).collect();
    assert_eq!(late, [twice, twice]);
    assert_eq!(rules.next_deadline(), Some(Instant(60)));
    rules.advance(Instant(60));
    let late: Vec<Late> = std::iter::from_fn(|| rules.poll_late()).collect();
    let (nic, page, vector) = (0, 5, 2);
    let expected = [
        Late::Interrupt { nic, vector },
        Late::Doorbell { nic, page, bell },
    ];
    assert_eq!(late, expected);
}

#[test]
fn actions_at_times_repeat_and_end() {
    let down = Action::PortDown(PortDown {
        time: Some(Time::from_millis(3)),
        move_gid: false,
    });
    let repeated = PlannedTime {
        every: Some(Nanos::from_millis(10)),
        times: 2,
        ..at(5, down)
    };
    let mut rules = start(Vec::new(), vec![repeated]);
    let link = |up| (0, NicRequest::Caller(CallerRequest::Link(up)));
    let mut seen = Vec::new();
    while let Some(at) = rules.next_deadline() {
        rules.advance(at);
        let all = requests(&mut rules).into_iter();
        seen.extend(all.map(|request| (at.0 / 1_000_000, request)));
    }
    assert_eq!(
        seen,
        [
            (5, link(false)),
            (8, link(true)),
            (15, link(false)),
            (18, link(true))
        ]
    );
    assert_eq!(fired(&rules), [2]);
}

/// With a period of zero the clock would never advance.
#[test]
fn an_action_repeats_at_later_times_only() {
    let repeated = PlannedTime {
        every: Some(Nanos(0)),
        times: u64::MAX,
        ..at(0, Action::FailFaults(Nothing {}))
    };
    let mut rules = start(Vec::new(), vec![repeated]);
    rules.advance(Instant(0));
    assert_eq!(requests(&mut rules).len(), 1);
    assert_eq!(rules.next_deadline(), Some(Instant(1)));
}

#[test]
fn the_end_undoes_lasting_actions_and_releases_kept_frames() {
    let forever = Action::PortDown(PortDown {
        time: None,
        move_gid: true,
    });
    let hold = Action::HoldFaults(For {
        time: Time::from_millis(50),
    });
    let sends = Thing::Packet(packets(&[Opcode::RcSendOnly]));
    let delay = PacketChange::Delay(Nanos::from_millis(9));
    let delayed = rule(sends, Effect::Packet(delay), EACH);
    let mut rules = start(vec![delayed], vec![at(1, forever), at(1, hold)]);
    let now = Instant(1_000_000);
    rules.advance(now);
    let caller = |request| (0, NicRequest::Caller(request));
    assert_eq!(
        requests(&mut rules),
        [
            caller(CallerRequest::MoveGids),
            caller(CallerRequest::Link(false)),
            (0, NicRequest::HoldFaults(true))
        ]
    );
    let frame = HeldFrame {
        site: 0,
        by: None,
        dir: Tx,
        origin: Origin::Unknown,
        note: 5,
        bytes: vec![0; 60],
    };
    let taking = Taking {
        rule: 0,
        change: delay,
    };
    rules.take_frame(now, taking, frame.clone());
    assert_eq!(rules.poll_frame(now), None);
    rules.stop();
    let by = Some(taking.by());
    assert_eq!(rules.poll_frame(now), Some(HeldFrame { by, ..frame }));
    assert_eq!(
        requests(&mut rules),
        [
            (0, NicRequest::HoldFaults(false)),
            caller(CallerRequest::Link(true)),
        ]
    );
    assert_eq!(rules.next_deadline(), None);
}

fn added(rules: &mut Rules) -> Vec<(usize, Injection)> {
    let all = requests(rules).into_iter();
    all.filter_map(|(nic, request)| match request {
        NicRequest::AddInjection(injection) => Some((nic, injection)),
        _ => None,
    })
    .collect()
}

#[test]
fn rules_about_the_inside_of_a_nic_are_entries_of_its_table() {
    let point = Thing::Point(Point::FaultRecord, None);
    let lost = Effect::Inject(Outcome::Drop);
    let anywhere = rule(point.clone(), lost.clone(), ONCE);
    let mut of_second = rule(point, Effect::Nic(Action::Evict(Evict::default())), EACH);
    of_second.conditions.connection = Some(1);
    of_second.nic = Some(1);
    let mut rules = start(vec![anywhere, of_second], Vec::new());
    let first = added(&mut rules);
    let places: Vec<usize> = first.iter().map(|(nic, _)| *nic).collect();
    assert_eq!(places, [0, 1, 1]);
    let injection = first[2].1;
    assert!(injection.filter.listed && injection.outcome == Outcome::Report);
    assert!(first[..2].iter().all(|(_, injection)| {
        injection.outcome == Outcome::Drop && injection.times == 1 && injection.filter.qpn.is_none()
    }));
    for (nic, qpn) in [(0, 3), (0, 4), (1, 5)] {
        connect(&mut rules, nic, qpn);
    }
    assert_eq!(requests(&mut rules), []);
    connect(&mut rules, 1, 6);
    assert_eq!(
        requests(&mut rules),
        [(1, NicRequest::AddInjectionPair(1, 6))]
    );
    // It has an effect.
    let injected = Diagnostic::Injected {
        id: injection.id,
        point: Point::FaultRecord,
        qpn: 6,
        object: 0x500,
    };
    rules.diagnostic(Instant(0), 1, &injected, &nic());
    assert_eq!(fired(&rules), [0, 1]);
    let pages = Pages {
        key: None,
        first: 0,
        count: None,
    };
    assert_eq!(requests(&mut rules), [(1, NicRequest::Evict(pages))]);
}

#[test]
fn entries_exist_between_the_times_of_their_rule() {
    let point = Thing::Point(Point::Completion, Some(0));
    let mut limited = rule(point, Effect::Inject(Outcome::Drop), EACH);
    limited.nic = Some(0);
    limited.conditions.after = Some(Nanos(100));
    limited.conditions.before = Some(Nanos(200));
    let mut rules = start(vec![limited], Vec::new());
    assert_eq!(added(&mut rules), []);
    rules.advance(Instant(100));
    let [(0, injection)] = added(&mut rules)[..] else {
        panic!("no entry");
    };
    rules.advance(Instant(200));
    let removed = (0, NicRequest::RemoveInjection(injection.id));
    assert_eq!(requests(&mut rules), [removed]);
}

#[test]
fn diagnostics_states_and_signals_trigger_actions() {
    let fatal = || Effect::Nic(Action::Fatal(Nothing {}));
    let all = vec![
        rule(Thing::Diagnostic(DiagnosticKind::Retried), fatal(), EACH),
        rule(Thing::QpState(State::Err), fatal(), EACH),
        rule(Thing::Signal("go".to_owned()), Effect::Count, ONCE),
    ];
    let mut rules = start(all, Vec::new());
    let error = Diagnostic::QpState {
        qpn: 7,
        from: State::Rts,
        to: State::Err,
        cause: StateCause::Command,
    };
    rules.diagnostic(Instant(0), 1, &error, &nic());
    rules.diagnostic(Instant(0), 0, &Diagnostic::Reset, &nic());
    assert!(!rules.signal(Instant(0), "stop"));
    assert!(rules.signal(Instant(0), "go"));
    assert_eq!(fired(&rules), [0, 1, 2], "the signal is one for each NIC");
    assert_eq!(requests(&mut rules), [(1, NicRequest::Fatal)]);
    let counts = rules.counts();
    assert_eq!(counts.diagnostics(None, DiagnosticKind::Reset), 1);
    assert_eq!(counts.diagnostics(Some(1), DiagnosticKind::Reset), 0);
}

/// An action on an object that does not exist is a problem of the run.
#[test]
fn an_action_on_an_unknown_object_is_a_problem() {
    let evict = Evict {
        region: Some(3),
        ..Evict::default()
    };
    let mut rules = start(Vec::new(), vec![at(1, Action::Evict(evict))]);
    rules.advance(Instant(1_000_000));
    assert_eq!(requests(&mut rules), []);
    assert_eq!(rules.problems().len(), 1);
}

#[test]
fn packets_of_other_directions_are_not_asked_for() {
    let mut received = packets(&[Opcode::RcAcknowledge]);
    received.dir = Rx;
    let drop = Effect::Packet(PacketChange::Drop);
    let mut acks = rule(Thing::Packet(received), drop, EACH);
    acks.nic = Some(1);
    let rules = start(vec![acks], Vec::new());
    let sides = [(0, Tx), (0, Rx), (1, Tx), (1, Rx)];
    assert_eq!(
        sides.map(|(nic, dir)| rules.takes_packets(nic, dir)),
        [false, false, false, true]
    );
}

/// Its page may have another user after the reset.
#[test]
fn a_late_doorbell_does_not_outlive_a_reset() {
    let late = Effect::Boundary(BoundaryChange::Delay(Nanos(50)));
    let mut rules = start(vec![rule(Thing::Doorbell(None), late, EACH)], Vec::new());
    let bell = Doorbell {
        kind: doorbell::SQ,
        object: 7,
        value: 1,
    };
    for nic in [0, 1] {
        assert!(!rules.doorbell(Instant(0), nic, 5, bell));
    }
    rules.diagnostic(Instant(1), 0, &Diagnostic::Reset, &nic());
    rules.advance(Instant(50));
    let late: Vec<Late> = std::iter::from_fn(|| rules.poll_late()).collect();
    let (nic, page) = (1, 5);
    assert_eq!(late, [Late::Doorbell { nic, page, bell }]);
}

/// A guest that makes queue pairs without end.
#[test]
fn requests_caused_by_connections_are_bounded() {
    let point = Thing::Point(Point::Completion, None);
    let mut of_process = rule(point, Effect::Count, EACH);
    of_process.conditions.connection = Some(0);
    let mut rules = start(vec![of_process], Vec::new());
    for _ in 0..100_000 {
        connect(&mut rules, 0, 7);
    }
    assert!(requests(&mut rules).len() < 5000);
    assert!(rules.problems().len() <= 64);
}

/// The number of a destroyed queue pair may get another owner.
#[test]
fn an_entry_forgets_destroyed_queue_pairs() {
    let point = Thing::Point(Point::Completion, None);
    let mut of_first = rule(point, Effect::Inject(Outcome::Drop), EACH);
    of_first.conditions.connection = Some(0);
    of_first.nic = Some(0);
    let mut rules = start(vec![of_first], Vec::new());
    requests(&mut rules);
    connect(&mut rules, 0, 7);
    connect(&mut rules, 0, 8);
    let list = |add: fn(u32, u32) -> NicRequest| (0, add(0, 7));
    assert_eq!(requests(&mut rules), [list(NicRequest::AddInjectionPair)]);
    let destroyed = Diagnostic::Command {
        queue: CommandQueue::Admin,
        opcode: faultline_abi::admin::DESTROY_QP,
        status: 0,
        object: 7,
    };
    rules.diagnostic(Instant(0), 0, &destroyed, &nic());
    assert_eq!(
        requests(&mut rules),
        [list(NicRequest::RemoveInjectionPair)]
    );
    connect(&mut rules, 0, 7);
    assert_eq!(requests(&mut rules), [], "it is another connection");
}

/// The common change of two actions is undone when both have ended.
#[test]
fn actions_that_overlap_end_together() {
    let down = |ms| {
        Action::PortDown(PortDown {
            time: Some(Time::from_millis(ms)),
            move_gid: false,
        })
    };
    let mut rules = start(Vec::new(), vec![at(1, down(10)), at(5, down(20))]);
    let mut ups = Vec::new();
    while let Some(now) = rules.next_deadline() {
        rules.advance(now);
        let up = NicRequest::Caller(CallerRequest::Link(true));
        let all = requests(&mut rules).into_iter();
        ups.extend(all.filter(|(_, request)| *request == up).map(|_| now.0));
    }
    assert_eq!(ups, [25_000_000]);
}

#[test]
fn lost_diagnostics_fail_a_run() {
    let mut rules = start(Vec::new(), Vec::new());
    rules.lost_diagnostics(1, 3);
    assert!(rules.problems()[0].contains("NIC 1: 3 diagnostics"));
}

/// The first CQ of a device has the number 0.
#[test]
fn an_action_on_the_cq_of_a_match_finds_cq_0() {
    let overrun = Action::OverrunCq(Number { number: None });
    let point = Thing::Point(Point::Completion, None);
    let mut rules = start(vec![rule(point, Effect::Nic(overrun), EACH)], Vec::new());
    let (_, injection) = added(&mut rules)[0];
    let injected = Diagnostic::Injected {
        id: injection.id,
        point: Point::Completion,
        qpn: 6,
        object: 0,
    };
    rules.diagnostic(Instant(0), 0, &injected, &nic());
    assert_eq!(requests(&mut rules), [(0, NicRequest::OverrunCq(0))]);
}

/// Actions that last until the end are remembered once, however often a guest causes them, and leave room for others.
#[test]
fn repeated_actions_that_last_take_no_room() {
    let sends = Thing::Packet(packets(&[Opcode::RcSendOnly]));
    let writes = Thing::Packet(packets(&[Opcode::RcWriteOnly]));
    let mtu = Effect::Nic(Action::Mtu(Mtu { bytes: 1500 }));
    let hold = Effect::Nic(Action::HoldFaults(For {
        time: Time(Nanos::from_millis(5)),
    }));
    let mut rules = start(
        vec![rule(sends, mtu, EACH), rule(writes, hold, EACH)],
        Vec::new(),
    );
    for psn in 0..10_000 {
        pass(&mut rules, 0, Opcode::RcSendOnly, psn);
        assert_eq!(requests(&mut rules).len(), 1);
    }
    pass(&mut rules, 0, Opcode::RcWriteOnly, 0);
    assert_eq!(requests(&mut rules), [(0, NicRequest::HoldFaults(true))]);
    // Those with an end are limited.
    for psn in 1..5000 {
        pass(&mut rules, 0, Opcode::RcWriteOnly, psn);
        requests(&mut rules);
    }
    assert!(
        rules.problems()[0].contains("too many actions last"),
        "{:?}",
        rules.problems()
    );
    rules.stop();
    let undone = requests(&mut rules);
    let mtu = NicRequest::Caller(CallerRequest::Mtu(None));
    assert_eq!(
        undone.iter().filter(|(_, request)| *request == mtu).count(),
        1
    );
}

/// Rules for ports see all frames of their port and direction, RoCE or not, unless they name opcodes. Rules for NICs see none of them.
#[test]
fn rules_for_ports_see_the_frames_of_their_port() {
    let text = "[[rule]]\nport = 'wire'\non = { dir = 'rx', nth = 2 }\ndo = { drop = {} }\n\
                [[rule]]\nport = 'host'\non = { dir = 'tx', opcode = 'SEND', qpn = 7 }\ndo = { delay = { by = '1us' } }\n\
                [[rule]]\non = { dir = 'rx' }\ndo = { drop = {} }\nfired = 0\n";
    let scenario = faultline_scenario::read::read("a.toml", text).unwrap();
    let (nics, ports) = (["nic0".to_owned()], ["host", "wire"].map(str::to_owned));
    let plan = scenario.plan(&nics, &ports).unwrap();
    let mut rules = Rules::new(plan, [&nic()], Instant(0));
    let (host, wire) = (1, 2);
    let takes = [(host, Tx), (host, Rx), (wire, Tx), (wire, Rx), (3, Rx)];
    let takes = takes.map(|(site, dir)| rules.takes_packets(site, dir));
    assert_eq!(takes, [true, false, false, true, false]);
    let foreign = PacketFacts {
        header: None,
        segment: None,
        bytes: 60,
    };
    let send = header(Opcode::RcSendOnly, 5);
    let send = PacketFacts {
        header: Some(&send),
        segment: None,
        bytes: 100,
    };
    let mut pass = |site, dir, qpn, facts| rules.packet(Instant(0), site, dir, qpn, facts);
    assert_eq!(pass(wire, Rx, 0, foreign), None);
    let drop = Taking {
        rule: 0,
        change: PacketChange::Drop,
    };
    assert_eq!(pass(wire, Rx, 7, send), Some(drop));
    assert_eq!(pass(wire, Rx, 0, foreign), None);
    assert_eq!(pass(host, Tx, 0, foreign), None);
    assert_eq!(pass(host, Tx, 8, send), None);
    let late = Taking {
        rule: 1,
        change: PacketChange::Delay(Nanos(1000)),
    };
    assert_eq!(pass(host, Tx, 7, send), Some(late));
    let held = HeldFrame {
        site: host,
        dir: Tx,
        by: None,
        origin: Origin::Unknown,
        note: 0,
        bytes: vec![1; 100],
    };
    rules.take_frame(Instant(0), late, held.clone());
    assert_eq!(rules.poll_frame(Instant(999)), None);
    let by = Some(late.by());
    let passed = rules.poll_frame(Instant(1000));
    assert_eq!(passed, Some(HeldFrame { by, ..held }));
    assert_eq!(fired(&rules), [1, 1, 0]);
}

/// Several rules can change a frame. Its mark names the rule that has made it invalid, else the last one.
#[test]
fn a_frame_knows_the_rule_that_has_changed_it() {
    let mut rules = start(Vec::new(), Vec::new());
    let mut frame = HeldFrame {
        site: 0,
        by: None,
        dir: Tx,
        origin: Origin::Unknown,
        note: 0,
        bytes: vec![0; 60],
    };
    let mark = ChangeKind::EcnMark;
    let cut = ChangeKind::Truncate;
    for (rule, change, expected) in [
        (3, PacketChange::EcnMark, (3, mark)),
        (2, PacketChange::Truncate(50), (2, cut)),
        (1, PacketChange::Delay(Nanos(0)), (2, cut)),
    ] {
        rules.take_frame(Instant(0), Taking { rule, change }, frame);
        frame = rules.poll_frame(Instant(0)).unwrap();
        let (rule, kind) = expected;
        assert_eq!(frame.by, Some(ByRule { rule, kind }));
    }
}

/// A packet is ignored if no rule names its opcode, or all rules for its place name other queue pairs.
#[test]
fn packets_that_no_rule_names_are_ignored() {
    let named = |qpn| PlannedRule {
        conditions: Conditions {
            qpn,
            ..Conditions::default()
        },
        ..drop_sends(EACH)
    };
    let (send, write) = (Some(Opcode::RcSendOnly), Some(Opcode::RcWriteOnly));
    let ignores = |rules: &Rules, dir, opcode, qpn| rules.ignores_packet((0, dir), opcode, || qpn);
    let rules = start(vec![named(Some(7)), named(Some(9))], Vec::new());
    for (dir, opcode, qpn, is_ignored) in [
        (Tx, send, 7, false),
        (Tx, send, 9, false),
        (Tx, send, 8, true),
        (Tx, write, 7, true),
        (Tx, None, 7, true),
        (Rx, send, 7, true),
    ] {
        assert_eq!(ignores(&rules, dir, opcode, qpn), is_ignored, "{opcode:?}");
    }
    let rules = start(vec![named(Some(7)), named(None)], Vec::new());
    assert!(!ignores(&rules, Tx, send, 8));
    assert!(ignores(&rules, Tx, write, 8));
}

/// A segment of a TCP stream: with SYN, or with this offset, and data.
fn segment(offset: Option<u32>, data: &[u8]) -> SegmentFacts {
    segment_from(1, offset, data)
}

/// The same, from a port.
fn segment_from(src_port: u16, offset: Option<u32>, data: &[u8]) -> SegmentFacts {
    let tcp = Tcp {
        src_port,
        dst_port: 2,
        seq: Seq(u32::MAX).add(offset.map_or(0, |offset| offset + 1)),
        flags: match offset {
            None => TcpFlags::SYN,
            Some(_) => TcpFlags::ACK,
        },
        ..Tcp::default()
    };
    let mut ip = Ip::V4(Ipv4 {
        protocol: PROTOCOL_TCP,
        ttl: 1,
        ..Ipv4::default()
    });
    ip.set_payload_len(Tcp::LEN + data.len()).unwrap();
    let ethernet = Ethernet {
        dst: MacAddr([2; 6]),
        src: MacAddr([4; 6]),
        vlan: None,
        ethertype: EtherType::IPV4,
    };
    let mut frame = vec![0; 14 + 20 + Tcp::LEN];
    ethernet.emit(&mut frame).unwrap();
    ip.emit(&mut frame[14..]).unwrap();
    tcp.emit(&mut frame[34..]).unwrap();
    frame.extend_from_slice(data);
    SegmentFacts::parse(&frame).unwrap()
}

/// An FPDU with a SEND.
fn send_fpdu(msn: u32) -> Vec<u8> {
    let ddp = Ddp {
        last: true,
        version: 1,
        upper_control: RdmapControl::new(RdmapOpcode::Send).to_u8(),
        target: DdpTarget::Untagged {
            upper: 9,
            queue: 0,
            msn,
            offset: 0,
        },
    };
    let fpdu = Fpdu { ulpdu_len: 18 };
    let mut out = vec![0; 20];
    fpdu.emit(&mut out).unwrap();
    ddp.emit(&mut out[2..]).unwrap();
    let mut crc = Crc32c::default();
    crc.update(&out);
    out.extend_from_slice(&crc.finish().to_le_bytes());
    out
}

#[test]
fn segments_match_by_kind_offset_and_message() {
    let fpdu = send_fpdu(3);
    let damaged = [&fpdu[..22], &[0, 0]].concat();
    let (sends, all) = (
        SegmentKinds::of_messages(&[RdmapOpcode::Send]),
        SegmentKinds::ALL,
    );
    let only = |change: fn(&mut SegmentMatch)| {
        let mut only = SegmentMatch::default();
        change(&mut only);
        Some(only)
    };
    // Of a SYN, an acknowledgment, an FPDU, a damaged FPDU, and another SEND: those that match.
    let cases = [
        (all, None, [true, true, true, true, true]),
        (SegmentKinds::SYN, None, [true, false, false, false, false]),
        (SegmentKinds::ACK, None, [false, true, false, false, false]),
        (sends, None, [false, false, true, false, true]),
        (
            all,
            only(|only| only.offset = Some(Range::exactly(24))),
            [false, false, false, true, false],
        ),
        (
            all,
            only(|only| only.msn = Some(Range::exactly(3))),
            [false, false, true, false, false],
        ),
        (
            sends,
            only(|only| only.queue = Some(0)),
            [false, false, true, false, true],
        ),
        (sends, only(|only| only.queue = Some(1)), [false; 5]),
        (
            all,
            only(|only| only.stag = Some(9)),
            [false, false, true, false, true],
        ),
    ];
    for (kinds, segment_match, expected) in cases {
        let matched = PacketMatch {
            opcodes: Opcodes::of_segments(kinds),
            segment: segment_match,
            ..packets(&[])
        };
        let effect = Effect::Packet(PacketChange::Drop);
        let mut rules = start(vec![rule(Thing::Packet(matched), effect, EACH)], Vec::new());
        assert!(rules.wants_segments((0, Tx)) && !rules.wants_segments((0, Rx)));
        assert!(!rules.ignores_packet((0, Tx), None, || 0));
        let passed = [
            segment(None, &[]),
            segment(Some(0), &[]),
            segment(Some(0), &fpdu),
            segment(Some(24), &damaged),
            segment(Some(48), &send_fpdu(4)),
        ];
        let taken = passed.map(|segment| {
            let facts = PacketFacts {
                header: None,
                segment: Some(segment),
                bytes: 100,
            };
            rules.packet(Instant(0), 0, Tx, 0, facts).is_some()
        });
        assert_eq!(taken, expected, "{kinds:?} {segment_match:?}");
    }
}

/// New streams are followed, however many there were before. A SYN has no offset.
#[test]
fn new_streams_replace_the_oldest() {
    let only = SegmentMatch {
        offset: Some(Range::exactly(24)),
        ..SegmentMatch::default()
    };
    let matched = PacketMatch {
        opcodes: Opcodes::of_segments(SegmentKinds::ALL),
        segment: Some(only),
        ..packets(&[])
    };
    let effect = Effect::Packet(PacketChange::Drop);
    let mut rules = start(vec![rule(Thing::Packet(matched), effect, EACH)], Vec::new());
    for port in 1..10_000 {
        let taken = [None, Some(0), Some(24)].map(|offset| {
            let facts = PacketFacts {
                header: None,
                segment: Some(segment_from(port, offset, &[1])),
                bytes: 100,
            };
            rules.packet(Instant(0), 0, Tx, 0, facts).is_some()
        });
        assert_eq!(taken, [false, false, true], "{port}");
    }
}

/// Connections beyond those that get a number are followed, and the run says once that they have none.
#[test]
fn later_connections_have_no_number() {
    let numbered = PlannedRule {
        conditions: Conditions {
            connection: Some(0),
            ..Conditions::default()
        },
        ..rule(Thing::Signal("go".to_owned()), Effect::Count, EACH)
    };
    let first = PacketMatch {
        iter: Some(1),
        ..packets(&[Opcode::RcSendOnly])
    };
    let drop = Effect::Packet(PacketChange::Drop);
    let rules = vec![numbered, rule(Thing::Packet(first), drop, EACH)];
    let mut rules = start(rules, Vec::new());
    for _ in 0..65_535 {
        connect(&mut rules, 0, 7);
    }
    assert!(rules.problems().is_empty());
    for _ in 0..3 {
        connect(&mut rules, 0, 7);
        assert!(pass(&mut rules, 0, Opcode::RcSendOnly, 5).is_some());
    }
    assert_eq!(rules.problems().len(), 1, "{:?}", rules.problems());
}
