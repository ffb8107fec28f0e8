//! Rules of a plan: tables of the scenario language that break no promise, or only those that they say.

use std::fmt;

use faultline_scenario::random::Rng;

use super::choice::{between, index, one_of};

/// What a rule may do to the flows of its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleEffect {
    /// Requests take longer.
    Delays,
    /// Packets are lost, late or out of order.
    Loses,
    /// The same, and a packet that is alone on its way may meet it: it takes one retry of a connection.
    TakesRetry,
    /// Packets arrive twice.
    Repeats,
    /// Page faults fail.
    Fails,
}

/// A rule at a NIC, which acts while requests are posted and complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRule {
    /// The NIC that observes.
    pub nic: usize,
    /// Name of the count of its actions.
    pub name: &'static str,
    /// Its table in a scenario file: `rule` or `at`.
    pub table: &'static str,
    /// Keys of the table, without those of name and NIC.
    pub keys: String,
    /// What it may do.
    pub effect: RuleEffect,
}

/// Groups of opcodes that rules match.
const OPCODES: [&str; 10] = [
    "any",
    "REQUEST",
    "RESPONSE",
    "SEND",
    "WRITE",
    "READ",
    "READ_RESPONSE",
    "ATOMIC",
    "ACK",
    "NAK",
];

/// The same at a NIC of iWARP.
const SEGMENTS: [&str; 10] = [
    "TCP",
    "TCP_SYN",
    "TCP_ACK",
    "MPA",
    "FPDU",
    "IWARP_SEND",
    "IWARP_WRITE",
    "IWARP_READ",
    "IWARP_READ_RESPONSE",
    "IWARP_ATOMIC",
];

/// A trigger without further conditions, or one that begins at a later match.
fn often(random: &mut Rng, what: &str) -> String {
    match random.chance(500) {
        true => format!("on = {{ {what}, every = {} }}", between(random, 1, 5)),
        false => format!("on = {{ {what}, nth = {} }}", between(random, 1, 20)),
    }
}

/// A duration as the value of a key.
fn time(random: &mut Rng, most: u64) -> String {
    format!("\"{}ns\"", between(random, 1, most))
}

/// An action that delays.
fn delay(random: &mut Rng, most: u64) -> String {
    format!("delay = {{ by = {} }}", time(random, most))
}

/// A rule that changes one packet.
fn of_packet(random: &mut Rng, nic: usize, is_iwarp: bool) -> PlanRule {
    use RuleEffect::{Delays, Repeats, TakesRetry};
    let opcodes = if is_iwarp { &SEGMENTS } else { &OPCODES };
    let opcode = one_of(random, opcodes, "any");
    let dir = one_of(random, &["tx", "rx"], "rx");
    let nth = between(random, 1, 30);
    let (name, dir, action, effect) = match random.below(6) {
        0 => (
            "packets dropped by rules",
            dir,
            "drop = {}".into(),
            TakesRetry,
        ),
        1 => {
            let action = delay(random, 1_000_000);
            ("packets delayed by rules", dir, action, TakesRetry)
        }
        2 => {
            let by = between(random, 1, 10);
            let action = format!("reorder = {{ by = {by} }}");
            ("packets overtaken by rules", dir, action, TakesRetry)
        }
        // Of a packet that the NIC has sent, the packet checker would see the change.
        3 => (
            "packets corrupted by rules",
            "rx",
            "corrupt = {}".into(),
            TakesRetry,
        ),
        4 => (
            "packets doubled by rules",
            dir,
            "duplicate = {}".into(),
            Repeats,
        ),
        _ => (
            "packets marked by rules",
            dir,
            "ecn_mark = {}".into(),
            Delays,
        ),
    };
    let on = format!("dir = \"{dir}\", opcode = \"{opcode}\", nth = {nth}");
    rule(
        nic,
        (name, effect),
        format!("on = {{ {on} }}\ndo = {{ {action} }}"),
    )
}

/// A rule that changes an event inside the NIC, or at its boundary.
fn of_event(random: &mut Rng, nic: usize) -> PlanRule {
    use RuleEffect::{Delays, Fails, TakesRetry};
    let fault = one_of(random, &["record", "answer"], "record");
    let fault = format!("fault = \"{fault}\"");
    let events = ["interrupt = \"any\"", "event = \"any\""];
    let commands = ["command = \"any\"", "command = \"any_translation\""];
    let of = |random: &mut Rng, all: &[&'static str]| one_of(random, all, "").to_owned();
    let (name, on, action, effect) = match random.below(10) {
        0 => {
            let action = delay(random, 300_000);
            ("faults delayed by rules", fault, action, Delays)
        }
        1 => (
            "faults doubled by rules",
            fault,
            "duplicate = {}".into(),
            Delays,
        ),
        2 => ("faults failed by rules", fault, "fail = {}".into(), Fails),
        3 => {
            let action = delay(random, 50_000);
            (
                "completions delayed by rules",
                "completion = \"any\"".into(),
                action,
                Delays,
            )
        }
        4 => {
            let action = delay(random, 50_000);
            (
                "events delayed by rules",
                of(random, &events),
                action,
                Delays,
            )
        }
        5 => (
            "events doubled by rules",
            of(random, &events),
            "duplicate = {}".into(),
            Delays,
        ),
        6 => {
            let action = delay(random, 20_000);
            (
                "commands delayed by rules",
                of(random, &commands),
                action,
                Delays,
            )
        }
        7 => {
            let count = between(random, 1, 3);
            let action = format!("fail = {{ with = \"no_resources\", times = {count} }}");
            (
                "MAPs refused by rules",
                "command = \"map\"".into(),
                action,
                Delays,
            )
        }
        8 => {
            let action = delay(random, 20_000);
            (
                "look-ups delayed by rules",
                "lookup = \"any\"".into(),
                action,
                Delays,
            )
        }
        _ => {
            let nth = between(random, 1, 20);
            let on = format!("request = \"any\", nth = {nth}");
            let keys = format!("on = {{ {on} }}\ndo = {{ drop = {{}} }}");
            return rule(nic, ("requests dropped by rules", TakesRetry), keys);
        }
    };
    let on = often(random, &on);
    rule(nic, (name, effect), format!("{on}\ndo = {{ {action} }}"))
}

/// A rule that delays a doorbell, or rings it twice.
fn of_doorbell(random: &mut Rng, nic: usize) -> PlanRule {
    let (name, action) = match random.chance(500) {
        true => {
            let action = delay(random, 100_000);
            ("doorbells delayed by rules", action)
        }
        false => ("doorbells doubled by rules", "duplicate = {}".into()),
    };
    let on = often(random, "doorbell = \"any\"");
    rule(
        nic,
        (name, RuleEffect::Delays),
        format!("{on}\ndo = {{ {action} }}"),
    )
}

/// An action on the NIC at a time.
fn at_time(random: &mut Rng, nic: usize) -> PlanRule {
    use RuleEffect::{Delays, Fails, Loses};
    let lasts = time(random, 1_000_000);
    let (name, action, effect) = match random.below(7) {
        0 => (
            "ports taken down by rules",
            format!("port_down = {{ for = {lasts} }}"),
            Loses,
        ),
        1 => (
            "senders paused by rules",
            format!("pause_storm = {{ for = {lasts} }}"),
            Delays,
        ),
        2 => (
            "fault records held by rules",
            format!("hold_faults = {{ for = {lasts} }}"),
            Delays,
        ),
        3 => (
            "fault queues filled by rules",
            format!("fill_faults = {{ for = {lasts} }}"),
            Loses,
        ),
        4 => ("pages removed by rules", "evict = {}".into(), Delays),
        5 => {
            let takes = time(random, 2000);
            let action = format!("lookup = {{ takes = {takes}, for = {lasts} }}");
            ("look-ups made slow by rules", action, Delays)
        }
        _ => (
            "outstanding faults failed by rules",
            "fail_faults = {}".into(),
            Fails,
        ),
    };
    let at = time(random, 1_000_000);
    PlanRule {
        nic,
        name,
        table: "at",
        keys: format!("time = {at}\ndo = {{ {action} }}"),
        effect,
    }
}

fn rule(nic: usize, (name, effect): (&'static str, RuleEffect), keys: String) -> PlanRule {
    PlanRule {
        nic,
        name,
        table: "rule",
        keys,
        effect,
    }
}

/// A rule of one of `nics` NICs; the first `iwarp` of them are of iWARP.
pub(super) fn random_rule(random: &mut Rng, (nics, iwarp): (usize, usize)) -> PlanRule {
    let nic = index(random, nics);
    match random.below(9) {
        0..=2 => of_packet(random, nic, nic < iwarp),
        3..=5 => of_event(random, nic),
        6 => of_doorbell(random, nic),
        _ => at_time(random, nic),
    }
}

impl fmt::Display for PlanRule {
    /// The table, as in a scenario file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nic, table, keys, ..
        } = self;
        writeln!(f, "[[{table}]]\nnic = \"nic{nic}\"\n{keys}")
    }
}
