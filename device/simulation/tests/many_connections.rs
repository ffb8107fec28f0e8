//! Rules on a NIC with many queue pairs: each of their steps takes a bounded number of them.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use faultline_abi::qp::{QPS_RESET, QPT_RC};
use faultline_nic::injection::ALWAYS;
use faultline_nic::{Instant, Nanos, Nic, Outcome, Point};
use faultline_scenario::plan::{Choice, Conditions, Effect, Plan, PlannedRule, Thing};
use faultline_scenario::rules::Rules;
use faultline_scenario::value::Range;
use faultline_simulation::{CqConfig, QpConfig};
use faultline_simulator::World;

/// Queue pairs: more than the requests that rules keep at a time.
const PAIRS: usize = 5000;
/// Queue pairs that one step may take, as the engine's turns require.
const STEP: usize = 64;

/// A rule that delays the completions of a process.
fn plan() -> Plan {
    let conditions = Conditions {
        process: Some("many".to_owned()),
        ..Conditions::default()
    };
    let choice = Choice {
        skip: 0,
        every: 1,
        times: u64::MAX,
        per_million: ALWAYS,
    };
    Plan {
        seed: 1,
        limit: Nanos::from_millis(1000),
        rules: vec![PlannedRule {
            name: "rule".to_owned(),
            nic: None,
            thing: Thing::Point(Point::Completion, None),
            conditions,
            choice,
            effect: Effect::Inject(Outcome::Delay(Nanos(1000))),
            port: None,
            is_illegal: false,
            fired: Range::from(1),
        }],
        timed: Vec::new(),
        expectations: Vec::new(),
    }
}

/// A host whose process has many connected queue pairs.
fn world() -> World {
    let mut world = World::with_config(1, 1, |config| config.limits.max_qp = 1 << 14);
    let path = world.path(0, 2);
    let host = world.hosts.first_mut().unwrap();
    let uctx = host.driver.alloc_uctx_of("many").unwrap();
    let pd = host.driver.alloc_pd_of(uctx).unwrap();
    let cq = CqConfig {
        log_depth: 4,
        eqn: host.eq.eqn,
        uctx,
    };
    let cq = host.driver.create_cq(cq).unwrap();
    let config = QpConfig {
        pd,
        uctx,
        log_depth: 2,
        ..host.qp_config(QPT_RC, &cq)
    };
    for _ in 0..PAIRS {
        // Nothing is posted, so all of them may have the same rings.
        let free = host.driver.next_free();
        let pair = host.driver.create_qp(&config).unwrap();
        host.driver.free_from(free);
        host.driver.connect(pair.qpn, QPT_RC, &path).unwrap();
    }
    world.take_diagnostics(0);
    world
}

/// Executes the requests of the rules. Returns the number of requests.
fn carry_out(rules: &mut Rules, world: &World) -> usize {
    let requests: Vec<_> = std::iter::from_fn(|| rules.poll_request()).collect();
    let count = requests.len();
    for (_, request) in requests {
        let left = world.operate(0, |nic, now, memory| request.carry_out(nic, now, memory));
        assert_eq!(left, Ok(None));
    }
    count
}

/// Passes the diagnostics of the NIC to the rules.
fn report(rules: &mut Rules, world: &World) {
    for (at, diagnostic) in world.take_diagnostics(0) {
        world.with_nic(0, |nic| rules.diagnostic(at, 0, &diagnostic, nic));
    }
}

/// Queue pairs that the only entry of the injection table names.
fn named(nic: &Nic) -> usize {
    let [used] = nic.injections() else {
        panic!("{:?}", nic.injections());
    };
    assert!(used.pairs.is_sorted());
    used.pairs.len()
}

#[test]
fn existing_connections_are_taken_in_steps() {
    let mut world = world();
    let mut rules = world.with_nic(0, |nic| Rules::prepare(plan(), [&*nic], Instant(0)));
    let mut steps = 1;
    assert!(!world.with_nic(0, |nic| rules.take_existing([&*nic])));
    // A queue pair that has been taken ends before the beginning, and one is made.
    let (first, uctx) = world.with_nic(0, |nic| {
        let pairs = nic.queue_pairs(0, PAIRS).items;
        let mut own = pairs.iter().filter(|pair| pair.context != 0);
        own.next().map(|pair| (pair.qpn, pair.context)).unwrap()
    });
    assert_ne!(uctx, 0);
    let driver = &mut world.hosts.first_mut().unwrap().driver;
    driver.set_state(first, QPS_RESET).unwrap();
    report(&mut rules, &world);
    while !world.with_nic(0, |nic| rules.take_existing([&*nic])) {
        steps += 1;
        assert_eq!(rules.poll_request(), None, "it has not begun");
    }
    assert!(steps >= PAIRS / STEP, "{steps} steps");
    assert!(!rules.has_begun());
    rules.begin(Instant(0));
    // The seed, the entry and its queue pairs.
    assert_eq!(carry_out(&mut rules, &world), 3);
    assert_eq!(world.with_nic(0, |nic| named(nic)), PAIRS - 1);
    assert!(rules.problems().is_empty(), "{:?}", rules.problems());
}

#[test]
fn a_reset_ends_all_connections_in_a_few_requests() {
    let world = world();
    let mut rules = world.with_nic(0, |nic| Rules::new(plan(), [&*nic], Instant(0)));
    carry_out(&mut rules, &world);
    assert_eq!(world.with_nic(0, |nic| named(nic)), PAIRS);
    world.with_nic(0, |nic| nic.reset(Instant(0)));
    report(&mut rules, &world);
    assert_eq!(carry_out(&mut rules, &world), 1);
    assert_eq!(world.with_nic(0, |nic| named(nic)), 0);
    assert!(rules.problems().is_empty(), "{:?}", rules.problems());
}
