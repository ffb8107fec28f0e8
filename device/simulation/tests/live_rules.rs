//! Live rules on processes of one and of two engines, alone and beside a scenario.

use faultline_abi::cqe::SUCCESS;
use faultline_scenario::live::{self, LiveLimits};
use faultline_scenario::rules::{LiveState, MAX_LIVE, TooManyRules};
use faultline_scenario::value::Time;

use faultline_simulation::process::Processes;

use crate::common::{End, Expect, TIMEOUT_10};
use crate::process_rules::{rc, send, start, two_nics};

/// Takes the link of the receiver down at the first SEND, whose acknowledgement is lost by that.
const LINK_DOWN: &str =
    "nic = 'nic1' on = { dir = 'rx', opcode = 'SEND', nth = 1 } do = { port_down = {} }";

/// Ends after ten milliseconds.
const TEN_MS: LiveLimits = LiveLimits {
    count: None,
    lasts: Some(Time::from_millis(10)),
};

fn stage(engines: usize) -> (Processes, [End; 2]) {
    let mut world = two_nics(engines);
    let ends = rc(&mut world, 100);
    (world, ends)
}

fn inject(world: &Processes, text: &str, limits: LiveLimits) -> Result<u16, TooManyRules> {
    let nics = ["nic0", "nic1"].map(str::to_owned);
    let live = live::plan(text, limits, &nics, &[]);
    world.all[0].start_live_rule(live.unwrap_or_else(|problems| panic!("{problems}")))
}

#[test]
fn a_live_rule_acts_as_often_as_its_count() {
    for engines in [1, 2] {
        let (mut world, mut ends) = stage(engines);
        let limits = LiveLimits {
            count: Some(2),
            ..LiveLimits::default()
        };
        let text = "nic = 'nic1' on = { dir = 'rx', opcode = 'SEND' } do = { drop = {} }";
        let number = inject(&world, text, limits).unwrap();
        send(&mut world, &mut ends);
        assert_eq!(world.now(), 2 * TIMEOUT_10);
        let [shown] = &world.all[0].live_rules()[..] else {
            panic!("one rule");
        };
        assert_eq!((shown.number, shown.state), (1, LiveState::Running));
        assert_eq!((shown.acted, shown.matched), (2, Some(3)));
        assert_eq!(
            (shown.name.as_str(), shown.text.as_str()),
            ("live rule 1", text)
        );
        assert_eq!(world.all[0].remove_live_rule(number).unwrap().acted, 2);
        assert_eq!(world.all[0].remove_live_rule(number), None);
        send(&mut world, &mut ends);
        assert_eq!(world.now(), 2 * TIMEOUT_10);
        assert!(world.all[0].live_rules().is_empty());
        world.expect_legal();
    }
}

#[test]
fn what_a_live_rule_has_changed_is_undone_when_its_time_is_over() {
    for engines in [1, 2] {
        let (mut world, mut ends) = stage(engines);
        inject(&world, LINK_DOWN, TEN_MS).unwrap();
        send(&mut world, &mut ends);
        // Transmissions at 0, 4.2 and 8.4 ms are not acknowledged, that at 12.6 ms is.
        assert_eq!(world.now(), 3 * TIMEOUT_10);
        let rules = world.all[0].live_rules();
        assert_eq!((rules[0].state, rules[0].acted), (LiveState::Ended, 1));
        world.all[0].remove_live_rule(1).unwrap();
        assert!(world.all[0].live_rules().is_empty());
    }
}

#[test]
fn what_is_removed_is_undone_at_once() {
    let (mut world, mut ends) = stage(1);
    let text = LINK_DOWN.replace("SEND", "WRITE");
    let number = inject(&world, &text, LiveLimits::default()).unwrap();
    let [from, to] = &mut ends;
    from.write(&mut world, &to.mr, 100);
    world.run_for(TIMEOUT_10 / 2);
    assert!(from.statuses(&mut world).is_empty());
    world.all[0].remove_live_rule(number).unwrap();
    world.run_for(TIMEOUT_10);
    assert_eq!(from.statuses(&mut world), [SUCCESS]);
}

/// The link of a NIC that a scenario and a live rule take down is up again when both have ended.
#[test]
fn a_change_lasts_until_all_rules_that_made_it_have_ended() {
    for engines in [1, 2] {
        let (mut world, mut ends) = stage(engines);
        let before = start(
            &world,
            "[[at]]\nnic = 'nic1'\ntime = '1ms'\ndo = { port_down = { for = '20ms', move_gid = false } }",
        );
        inject(&world, LINK_DOWN, TEN_MS).unwrap();
        send(&mut world, &mut ends);
        // The live rule ends at 10 ms, the action of the scenario at 21 ms.
        assert_eq!(world.now(), 6 * TIMEOUT_10);
        let verdict = world.all[0].stop_scenario(before).unwrap();
        assert!(verdict.passed(), "{verdict:?}");
    }
}

/// Each counts for itself, also inside a NIC.
#[test]
fn live_rules_and_a_scenario_do_not_disturb_each_other() {
    for engines in [1, 2] {
        let (mut world, mut ends) = stage(engines);
        let count = "nic = 'nic0'\non = { completion = 'SUCCESS' }\ndo = { count = {} }\n";
        let early = inject(&world, count, LiveLimits::default()).unwrap();
        let before = start(&world, &format!("[[rule]]\n{count}fired = 2\n"));
        let late = inject(&world, count, LiveLimits::default()).unwrap();
        send(&mut world, &mut ends);
        let acted = |number| world.all[0].remove_live_rule(number).map(|rule| rule.acted);
        assert_eq!(acted(early), Some(1));
        send(&mut world, &mut ends);
        let verdict = world.all[0].stop_scenario(before).unwrap();
        assert!(verdict.passed(), "{verdict:?}");
        send(&mut world, &mut ends);
        let acted = world.all[0].remove_live_rule(late).map(|rule| rule.acted);
        assert_eq!(acted, Some(3));
    }
}

/// The last condition that did not hold, of those that are looked at one after the other.
#[test]
fn a_rule_knows_its_nearest_miss() {
    let (mut world, mut ends) = stage(1);
    for (on, keys, count) in [
        ("opcode = 'SEND', psn = 5", "psn", 2),
        ("opcode = 'SEND', qpn = 77", "qpn", 2),
        ("opcode = 'SEND', iter = 1, after = '1s'", "after", 2),
        (
            "opcode = 'SEND', nth = 3",
            "nth, every, chance, or the limit of actions",
            2,
        ),
    ] {
        let text = format!("nic = 'nic0' on = {{ dir = 'tx', {on} }} do = {{ drop = {{}} }}");
        inject(&world, &text, LiveLimits::default()).unwrap();
        // A rule for all packets, so that none is ignored.
        let all = "nic = 'nic0' on = { dir = 'tx' } do = { count = {} }";
        let all = inject(&world, all, LiveLimits::default()).unwrap();
        send(&mut world, &mut ends);
        send(&mut world, &mut ends);
        let [rule, _] = &world.all[0].live_rules()[..] else {
            panic!("two rules");
        };
        let miss = rule.nearest.clone().unwrap_or_else(|| panic!("{on}: none"));
        assert_eq!(
            (miss.keys, miss.count, rule.acted),
            (keys, count, 0),
            "{on}"
        );
        world.all[0].remove_live_rule(rule.number).unwrap();
        world.all[0].remove_live_rule(all).unwrap();
    }
}

#[test]
fn the_number_of_live_rules_is_limited() {
    let (world, _) = stage(1);
    let text = "on = { dir = 'rx' } do = { count = {} }";
    let add = || inject(&world, text, LiveLimits::default());
    let numbers: Vec<u16> = (0..MAX_LIVE).map(|_| add().unwrap()).collect();
    assert_eq!(add(), Err(TooManyRules));
    world.all[0].remove_live_rule(numbers[3]).unwrap();
    // Numbers are not used again soon.
    assert_eq!(add(), Ok(numbers[MAX_LIVE - 1] + 1));
}
