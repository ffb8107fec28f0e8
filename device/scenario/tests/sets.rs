//! Several sets of rules at a time: a scenario and live rules.

use faultline_nic::{Diagnostic, FaultPolicy, Instant, Nic, NicConfig, State, StateCause};
use faultline_scenario::live::{self, LiveLimits};
use faultline_scenario::rules::{CallerRequest, NicRequest, RuleSets};
use faultline_wire::MacAddr;

/// A NIC with the rules of a scenario and live rules.
struct Stage {
    nic: Nic,
    sets: RuleSets,
}

impl Stage {
    fn new(scenario: &str) -> Self {
        let nic = Nic::new(NicConfig::new(MacAddr([2, 0, 0, 0, 0, 1])));
        let mut sets = RuleSets::default();
        let scenario = faultline_scenario::read::read("a.toml", scenario).unwrap();
        let plan = scenario.plan(&["a".to_owned()], &[]).unwrap();
        sets.prepare_scenario(plan, [&nic], Instant(0));
        let rules = sets.scenario_mut().unwrap();
        while !rules.take_existing([&nic]) {}
        rules.begin(Instant(0));
        Self { nic, sets }
    }

    fn add_live(&mut self, text: &str) -> u16 {
        let live = live::plan(text, LiveLimits::default(), &["a".to_owned()], &[]);
        let live = live.unwrap_or_else(|problems| panic!("{problems}"));
        let number = self.sets.prepare_live(live, [&self.nic], Instant(0));
        let number = number.unwrap();
        while !self.sets.begin_live(number, [&self.nic], Instant(0)) {}
        number
    }

    fn connect(&mut self, qpn: u32) {
        let connected = Diagnostic::QpState {
            qpn,
            from: State::Init,
            to: State::Rtr,
            cause: StateCause::Command,
        };
        self.sets.diagnostic(Instant(0), 0, &connected, &self.nic);
    }

    /// What the signal requests.
    fn signal(&mut self, time: u64, name: &str) -> Vec<NicRequest> {
        assert!(self.sets.signal(Instant(time), name));
        self.requests()
    }

    /// What the end of a live rule requests.
    fn remove(&mut self, number: u16) -> Vec<NicRequest> {
        self.sets.remove_live(number).unwrap();
        let requests = self.requests();
        self.sets.sweep(Instant(0));
        requests
    }

    /// What the end of the scenario requests.
    fn stop(&mut self) -> Vec<NicRequest> {
        self.sets.stop_scenario();
        let requests = self.requests();
        self.sets.take_scenario();
        requests
    }

    fn requests(&mut self) -> Vec<NicRequest> {
        let requests = std::iter::from_fn(|| self.sets.poll_request());
        requests.map(|(_, _, request)| request).collect()
    }
}

fn mtu(bytes: Option<u16>) -> [NicRequest; 1] {
    [NicRequest::Caller(CallerRequest::Mtu(bytes))]
}

fn policy(policy: FaultPolicy) -> [NicRequest; 1] {
    [NicRequest::FaultPolicy(5, policy)]
}

#[test]
fn the_value_of_another_set_comes_back_when_a_set_ends() {
    let action = "on = { signal = 'go' }\ndo = { mtu = { bytes = 1000 } }";
    let mut stage = Stage::new(&format!("[[rule]]\n{action}"));
    let live = |signal, bytes| {
        format!("on = {{ signal = '{signal}' }} do = {{ mtu = {{ bytes = {bytes} }} }}")
    };
    let first = stage.add_live(&live("first", 500));
    let second = stage.add_live(&live("second", 300));
    assert_eq!(stage.signal(1, "first"), mtu(Some(500)));
    assert_eq!(stage.signal(2, "second"), mtu(Some(300)));
    assert_eq!(stage.signal(3, "go"), mtu(Some(1000)));
    // The last one is that of the scenario, although it was started first.
    assert_eq!(stage.remove(first), mtu(Some(1000)));
    assert_eq!(stage.stop(), mtu(Some(300)));
    assert_eq!(stage.remove(second), mtu(None));
}

#[test]
fn fault_policies_come_back_in_the_same_way() {
    let action = |signal, policy| {
        format!(
            "on = {{ signal = '{signal}' }}\ndo = {{ fault_policy = {{ qpn = 5, policy = '{policy}' }} }}"
        )
    };
    let [usual, one, two] = [0, 1, 2].map(|index| FaultPolicy::ALL[index]);
    assert_eq!(usual, FaultPolicy::default());
    let mut stage = Stage::new(&format!("[[rule]]\n{}", action("go", one.name())));
    let live = stage.add_live(&action("live", two.name()));
    let later = stage.add_live(&action("later", two.name()));
    stage.connect(5);
    assert_eq!(stage.signal(1, "go"), policy(one));
    assert_eq!(stage.signal(2, "live"), policy(two));
    assert_eq!(stage.remove(live), policy(one));
    assert_eq!(stage.signal(3, "later"), policy(two));
    assert_eq!(stage.stop(), policy(two));
    assert_eq!(stage.remove(later), policy(usual));
}
