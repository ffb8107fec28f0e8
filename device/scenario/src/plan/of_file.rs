//! Makes the plan of a file.

use super::check::Checker;
use super::effects::{self, action_name};
use faultline_nic::injection::MAX_INJECTIONS;

use super::things::Kind;
use super::{Plan, PlannedExpectation, PlannedRule, PlannedTime, Thing};
use crate::action::Action;
use crate::expectation::Expectation;
use crate::file::{Rule, Scenario, Timed};
use crate::problem::{Path, Problem};
use crate::value::Range;

impl Scenario {
    /// Checks the scenario for a process with NICs, and ports that lead out of it, of these names, and returns the plan or all problems.
    /// Numbers that are out of range, names that do not exist and combinations that have no meaning are problems.
    pub fn plan(&self, nics: &[String], ports: &[String]) -> Result<Plan, Vec<Problem>> {
        let mut checker = Checker::new(nics, ports);
        let root = Path::root();
        checker.profile(root.key("profile"), self.profile.as_deref());
        let limit = checker.duration(root.key("limit"), self.limit);
        let rules = self.rules.iter().enumerate();
        let rules = rules
            .map(|(index, rule)| checker.rule(index, rule))
            .collect::<Vec<_>>();
        let timed = self.timed.iter().enumerate();
        let timed = timed
            .map(|(index, timed)| checker.timed(index, timed, self))
            .collect();
        let expectations = self.expectations.iter().enumerate();
        let expectations: Vec<_> = expectations
            .map(|(index, expectation)| {
                let path = root.key("expect").index(index);
                checker.expectation(&path, expectation, &self.traffic)
            })
            .collect();
        checker.shows_something(self);
        checker.simulated(self);
        checker.entries(&rules, &expectations);
        if !checker.problems.is_empty() {
            return Err(checker.problems);
        }
        Ok(Plan {
            seed: self.seed,
            limit,
            // Each rule without problems has a plan.
            rules: rules.into_iter().flatten().collect(),
            timed,
            expectations,
        })
    }

    /// As [`Scenario::plan`], for the hosts of the simulation.
    pub fn plan_simulation(&self) -> Result<Plan, Vec<Problem>> {
        let nics: Vec<String> = (0..self.simulator.hosts)
            .map(|n| format!("nic{n}"))
            .collect();
        self.plan(&nics, &[])
    }
}

/// Most repetitions of a timed action.
const MAX_REPETITIONS: u64 = 1_000_000;

impl Checker<'_> {
    /// Refuses a file without anything that could fail.
    fn shows_something(&mut self, scenario: &Scenario) {
        let acts = !scenario.rules.is_empty() || !scenario.timed.is_empty();
        let has_traffic = !scenario.traffic.is_empty() || scenario.guests.is_some();
        if !acts && !has_traffic && scenario.expectations.is_empty() {
            let message = "a run of this file would do nothing: it needs at least one of `[[rule]]`, `[[at]]`, `[[expect]]`, `[[traffic]]` and `[guests]`";
            self.problems.push(Problem::of_file(message));
        }
    }

    /// Refuses more rules and expectations than the injection table of a NIC has entries.
    fn entries(&mut self, rules: &[Option<PlannedRule>], expectations: &[PlannedExpectation]) {
        let rules = rules.iter().enumerate().filter_map(|(index, rule)| {
            let rule = rule.as_ref()?;
            let is_inside = matches!(rule.thing, Thing::Point(..));
            is_inside.then(|| (Path::root().key("rule").index(index), rule.nic))
        });
        let expectations = expectations.iter().enumerate();
        let expectations = expectations.filter_map(|(index, planned)| {
            let is_inside = matches!(
                planned.expectation,
                Expectation::Completion(_) | Expectation::Event(_)
            );
            is_inside.then(|| (Path::root().key("expect").index(index), planned.nic))
        });
        let mut of_nic = vec![0_usize; self.nics.len()];
        let mut wrong = Vec::new();
        for (path, only) in rules.chain(expectations) {
            for (nic, count) in of_nic.iter_mut().enumerate() {
                if only.is_none_or(|only| only == nic) {
                    *count = count.saturating_add(1);
                }
            }
            if of_nic.iter().any(|count| *count > MAX_INJECTIONS) {
                wrong.push(path);
            }
        }
        if let Some(path) = wrong.into_iter().next() {
            let message = format!(
                "a NIC has room for {MAX_INJECTIONS} rules for faults, completions, events, commands, look-ups and requests, and expectations of completions and events: this is one more"
            );
            self.wrong_value(path, message);
        }
    }

    fn rule(&mut self, index: usize, rule: &Rule) -> Option<PlannedRule> {
        let path = Path::root().key("rule").index(index);
        let nic = self.nic(path.key("nic"), rule.nic.as_deref());
        let port = self.port(path.key("port"), rule.port.as_deref());
        let is_of_port = rule.port.is_some();
        self.not_both(&path, ("nic", rule.nic.is_some()), ("port", is_of_port));
        let on = path.key("on");
        let thing = self.thing(&on, &rule.on);
        if is_of_port {
            self.rule_of_port(&path, rule, thing.as_ref());
        }
        let Some(mut thing) = thing else {
            // The values of an action on the NIC are wrong or right whatever was to match.
            if !effects::is_change(&rule.action) {
                let path = path.key("do").key(action_name(&rule.action));
                self.nic_action(&path, &rule.action, Some(Kind::Packet));
            }
            return None;
        };
        // At a port all frames match, unless opcodes are named.
        if let Thing::Packet(packets) = &mut thing
            && is_of_port
            && rule.on.opcode.is_none()
        {
            packets.opcodes.raw = true;
        }
        let kind = Kind::of(&thing);
        let conditions = self.conditions(&on, &rule.on, kind);
        let once = !effects::is_change(&rule.action);
        let choice = self.choice(&on, &rule.on, effects::times(&rule.action), once);
        let effect = self.effect(&path.key("do"), &rule.action, kind)?;
        Some(PlannedRule {
            name: rule.name.clone().unwrap_or_else(|| path.to_string()),
            nic,
            port,
            thing,
            conditions,
            choice,
            effect,
            is_illegal: kind.is_illegal(action_name(&rule.action)),
            fired: rule.fired,
        })
    }

    /// Refuses conditions and actions that a port does not have. `path` is that of the rule.
    fn rule_of_port(&mut self, path: &Path, rule: &Rule, thing: Option<&Thing>) {
        let (on, Rule { on: trigger, .. }) = (path.key("on"), rule);
        if let Some(kind) = thing.map(Kind::of).filter(|kind| *kind != Kind::Packet) {
            let message = format!(
                "a port has packets only: {} belong to a NIC, so give the rule `nic` or neither",
                kind.name()
            );
            self.wrong_key(path.key("port"), message);
            return;
        }
        for (key, is_present) in [
            ("psn", trigger.psn.is_some()),
            ("iter", trigger.iter.is_some()),
            ("qp", trigger.qp.is_some()),
            ("process", trigger.process.is_some()),
        ] {
            if is_present {
                let message = format!(
                    "`{key}` is known at a NIC only: at a port, conditions are `dir`, `opcode`, `bytes`, `offset`, `queue`, `msn`, `stag`, `qpn`, `after`, `before`, `nth`, `every` and `chance`"
                );
                self.wrong_key(on.key(key), message);
            }
        }
        if !effects::is_change(&rule.action) {
            let name = action_name(&rule.action);
            let message = format!(
                "`{name}` acts on a NIC: a rule for a port can only change packets or count them"
            );
            self.wrong_key(path.key("do").key(name), message);
        }
    }

    fn timed(&mut self, index: usize, timed: &Timed, scenario: &Scenario) -> PlannedTime {
        let path = Path::root().key("at").index(index);
        let action = path.key("do").key(action_name(&timed.action));
        if effects::is_change(&timed.action) {
            let message = format!(
                "`{}` changes what a rule has matched: at a time, only actions on the NIC are possible, such as `port_down`",
                action_name(&timed.action)
            );
            self.wrong_key(action, message);
        } else {
            self.nic_action(&action, &timed.action, None);
        }
        let time = self.time(path.key("time"), timed.time);
        if timed.time > scenario.limit {
            let message = format!(
                "{} is after the limit of the run, {}",
                timed.time, scenario.limit
            );
            self.wrong_value(path.key("time"), message);
        }
        self.optional_limits(path.key("times"), timed.times, Range::from(1));
        if timed.times.is_some() && timed.every.is_none() {
            let message = "`times` has no effect without `every`, which is missing";
            self.wrong_key(path.key("times"), message);
        }
        let every = timed
            .every
            .map(|every| self.duration(path.key("every"), every));
        let left = scenario.limit.nanos().saturating_sub(timed.time.nanos());
        let repetitions = every.map_or(0, |every| left.checked_div(every.0).unwrap_or(0));
        let repetitions = repetitions.min(timed.times.unwrap_or(u64::MAX));
        if repetitions > MAX_REPETITIONS {
            let message = format!(
                "the action takes place {repetitions} times until the limit of the run: at most {MAX_REPETITIONS} are possible, so give a longer period, `times`, or a shorter `limit`"
            );
            self.wrong_value(path.key("every"), message);
        }
        if every.is_some() && matches!(timed.action, Action::End(_)) {
            let message = "the run ends once: `every` has no meaning";
            self.wrong_key(path.key("every"), message);
        }
        PlannedTime {
            name: timed.name.clone().unwrap_or_else(|| path.to_string()),
            nic: self.nic(path.key("nic"), timed.nic.as_deref()),
            time,
            every,
            times: match every {
                None => 1,
                Some(_) => timed.times.unwrap_or(u64::MAX),
            },
            action: timed.action.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use faultline_nic::{Nanos, Outcome, Point};

    use super::super::{Answer, BoundaryChange, Choice, Effect, PacketChange, Thing};
    use super::*;
    use crate::read;
    use crate::trigger::Direction;

    const ALWAYS: u32 = 1_000_000;

    #[track_caller]
    fn planned(text: &str) -> Plan {
        let nics = ["nic1", "left"].map(str::to_owned);
        match read::load("a.toml", text, &nics) {
            Ok((_, plan)) => plan,
            Err(problems) => panic!("{problems}"),
        }
    }

    #[track_caller]
    fn rule(on: &str, action: &str) -> PlannedRule {
        let text = format!("[[rule]]\non = {{ {on} }}\ndo = {{ {action} }}\n");
        planned(&text).rules.remove(0)
    }

    #[test]
    fn the_example_of_the_documentation_has_a_plan() {
        let text = include_str!("../../../../docs/scenarios.md");
        let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
        let example: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("title"))
            .take_while(|line| !line.starts_with("title") || line.contains("lost ACK"))
            .collect();
        let end = example
            .iter()
            .position(|line| line.starts_with("completion"));
        let plan = match read::load(
            "a.toml",
            &example[..=end.unwrap()].join("\n"),
            &["nic0".to_owned(), "nic1".to_owned()],
        ) {
            Ok((_, plan)) => plan,
            Err(problems) => panic!("{problems}"),
        };
        assert_eq!((plan.seed, plan.limit), (7, Nanos::from_millis(60_000)));
        let [rule] = &plan.rules[..] else {
            panic!("{:?}", plan.rules);
        };
        assert_eq!((rule.name.as_str(), rule.nic), ("rule[0]", Some(0)));
        let Thing::Packet(packets) = &rule.thing else {
            panic!("{:?}", rule.thing);
        };
        assert_eq!(packets.dir, Direction::Rx);
        assert_eq!(packets.answer, Some(Answer::Ack));
        assert_eq!(rule.conditions.connection, Some(0));
        assert_eq!(rule.effect, Effect::Packet(PacketChange::Drop));
        assert_eq!(rule.fired, Range::from(1));
        let every_one_of_eight = Choice {
            skip: 0,
            every: 1,
            times: 8,
            per_million: ALWAYS,
        };
        assert_eq!(rule.choice, every_one_of_eight);
        let [at] = &plan.timed[..] else {
            panic!("{:?}", plan.timed);
        };
        assert_eq!((at.time, at.times), (Nanos::from_millis(500), 1));
        assert_eq!(plan.expectations[0].name, "expect[0] completion");
        assert_eq!(plan.expectations[0].code, Some(12));
    }

    #[test]
    fn how_often_a_rule_acts_depends_on_its_keys() {
        let counts = |on: &str, action: &str| {
            let choice = rule(on, action).choice;
            (choice.skip, choice.every, choice.times)
        };
        let drop = "drop = {}";
        assert_eq!(counts("dir = 'tx'", drop), (0, 1, u64::MAX));
        assert_eq!(counts("dir = 'tx', nth = 3", drop), (2, 1, 1));
        assert_eq!(
            counts("dir = 'tx', nth = 3, every = 2", drop),
            (2, 2, u64::MAX)
        );
        assert_eq!(
            counts("dir = 'tx', nth = 3", "drop = { times = 5 }"),
            (2, 1, 5)
        );
        assert_eq!(counts("dir = 'tx'", "fatal = {}"), (0, 1, 1));
        assert_eq!(
            counts("dir = 'tx', every = 9", "fail_qp = {}"),
            (0, 9, u64::MAX)
        );
        assert_eq!(
            rule("dir = 'tx', chance = 0.25", drop).choice.per_million,
            250_000
        );
    }

    #[test]
    fn nics_are_found_by_name_before_number() {
        for (name, index) in [("left", 1), ("nic0", 0), ("nic1", 0)] {
            let text = format!("[[at]]\nnic = '{name}'\ntime = '1s'\ndo = {{ reset = {{}} }}\n");
            assert_eq!(planned(&text).timed[0].nic, Some(index), "{name}");
        }
    }

    #[test]
    fn each_kind_of_thing_is_recognized() {
        let point = |point, code| Thing::Point(point, code);
        for (on, action, thing) in [
            ("fault = 'record'", "drop", point(Point::FaultRecord, None)),
            ("fault = 'answer'", "drop", point(Point::FaultAnswer, None)),
            ("completion = 'any'", "drop", point(Point::Completion, None)),
            (
                "completion = 'success'",
                "drop",
                point(Point::Completion, Some(0)),
            ),
            ("event = 'port_down'", "drop", point(Point::Event, Some(33))),
            ("command = 'any'", "drop", point(Point::AdminCommand, None)),
            (
                "command = 'map'",
                "drop",
                point(Point::TranslationCommand, Some(1)),
            ),
            (
                "command = 'any_translation'",
                "drop",
                point(Point::TranslationCommand, None),
            ),
            ("lookup = 'any'", "count", point(Point::Lookup, None)),
            (
                "request = 'rc_send_only'",
                "drop",
                point(Point::Request, Some(4)),
            ),
            ("interrupt = 'any'", "drop", Thing::Interrupt(None)),
            ("interrupt = 3", "drop", Thing::Interrupt(Some(3))),
            ("doorbell = 'SQ'", "drop", Thing::Doorbell(Some(1))),
            (
                "qp_state = 'err'",
                "count",
                Thing::QpState(faultline_nic::State::Err),
            ),
            ("signal = 'go'", "count", Thing::Signal("go".to_owned())),
        ] {
            assert_eq!(rule(on, &format!("{action} = {{}}")).thing, thing, "{on}");
        }
    }

    #[test]
    fn actions_become_effects_on_the_matched_thing() {
        for (on, action, effect) in [
            ("dir = 'tx'", "count = {}", Effect::Count),
            (
                "dir = 'tx'",
                "mig_req = { value = true }",
                Effect::Packet(PacketChange::MigReq(true)),
            ),
            (
                "interrupt = 0",
                "drop = {}",
                Effect::Boundary(BoundaryChange::Drop),
            ),
            (
                "completion = 'any'",
                "fail = { with = 'loc_prot_err' }",
                Effect::Inject(Outcome::Fail(4)),
            ),
            (
                "command = 'create_qp'",
                "fail = { with = 'no_resources' }",
                Effect::Inject(Outcome::Fail(4)),
            ),
            (
                "request = 'any'",
                "fail = { with = 'rnr' }",
                Effect::Inject(Outcome::Fail(0x20)),
            ),
            (
                "fault = 'record'",
                "fail = {}",
                Effect::Inject(Outcome::Fail(0)),
            ),
            (
                "lookup = 'any'",
                "delay = { by = '1us' }",
                Effect::Inject(Outcome::Delay(Nanos(1000))),
            ),
        ] {
            assert_eq!(rule(on, action).effect, effect, "{on}: {action}");
        }
        let on_nic = rule("signal = 'a'", "port_down = {}").effect;
        assert!(matches!(on_nic, Effect::Nic(Action::PortDown(_))));
    }

    /// The plan refuses all that the NIC would refuse.
    #[test]
    fn planned_outcomes_are_allowed_at_their_points() {
        for kind in Kind::ALL {
            let Kind::Point(point) = kind else {
                continue;
            };
            assert!(kind.changes().contains(&"count"));
            for (change, outcome) in [
                ("drop", Outcome::Drop),
                ("duplicate", Outcome::Duplicate),
                ("corrupt", Outcome::Corrupt),
                ("overrun", Outcome::Overrun),
            ] {
                let planned = kind.changes().contains(&change);
                assert_eq!(planned, point.allows(outcome), "{point:?} {change}");
            }
        }
    }
}
