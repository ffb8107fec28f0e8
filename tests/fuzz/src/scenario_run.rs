//! Random valid scenarios, run in the simulator.
//!
//! The input chooses traffic, rules, timed actions and expectations from lists of valid parts of files. Text that
//! nobody checks (target `scenario`) is almost never a scenario that does anything.
//!
//! The bounds keep a run short without leaving out a state: a message has at most four packets, as the longest that differs from a
//! shorter one (first, two in the middle, last), and the limit is the time that the longest action needs, so that retries with the
//! shortest timers are not repeated by the thousand.

use std::fmt::Write;

use faultline_scenario::file::Scenario;
use faultline_scenario::read;
use faultline_simulation::trace::Detail;
use faultline_simulation::{Options, SimulationError, simulate};

use crate::input::Input;

/// Longer than the latest timed action (1.8 ms) and the longest outage (1 ms) after it, and than the longest delay of a rule.
const LIMIT: &str = "4ms";
/// Every n-th input runs twice.
const TWICE: u8 = 8;

/// Triggers, without their conditions.
const THINGS: &[&str] = &[
    r#"dir = "tx""#,
    r#"dir = "rx""#,
    r#"opcode = "any""#,
    r#"opcode = "ACK", dir = "rx""#,
    r#"opcode = "REQUEST""#,
    r#"opcode = "RESPONSE", dir = "tx""#,
    r#"opcode = "READ_RESPONSE", iter = 1"#,
    r#"opcode = "WRITE", iter = 2"#,
    r#"opcode = "RNR_NAK""#,
    r#"opcode = "NAK""#,
    r#"opcode = "CNP""#,
    r#"psn = "0..5""#,
    r#"psn = 1, dir = "rx""#,
    r#"bytes = 5000"#,
    r#"fault = "record""#,
    r#"fault = "answer""#,
    r#"completion = "any""#,
    r#"completion = "SUCCESS""#,
    r#"completion = "WR_FLUSH_ERR""#,
    r#"event = "any""#,
    r#"event = "completion""#,
    r#"command = "any""#,
    r#"command = "any_translation""#,
    r#"command = "create_qp""#,
    r#"command = "map""#,
    r#"lookup = "any""#,
    r#"request = "any""#,
    r#"request = "rc_write_only""#,
    r#"interrupt = "any""#,
    r#"interrupt = 1"#,
    r#"doorbell = "any""#,
    r#"doorbell = "sq""#,
    r#"diagnostic = "retried""#,
    r#"diagnostic = "fault_raised""#,
    r#"diagnostic = "injected""#,
    r#"diagnostic = "qp_state""#,
    r#"qp_state = "RTS""#,
    r#"qp_state = "ERR""#,
    r#"signal = "never""#,
];
/// Conditions.
const CONDITIONS: &[&str] = &[
    "",
    "",
    "",
    ", nth = 1",
    ", nth = 3",
    ", nth = 2, every = 2",
    ", every = 3",
    ", chance = 0.3",
    ", qp = 0",
    ", qp = 1",
    ", qpn = 2",
    ", region = 0",
    r#", region = 0, page = "0..1""#,
    ", level = 1",
    r#", after = "100us""#,
    r#", before = "1ms""#,
    r#", process = "p""#,
    ", key = 256",
];
/// Actions on what a rule has matched.
const CHANGES: &[&str] = &[
    "drop = {}",
    "drop = { times = 2 }",
    r#"delay = { by = "30us" }"#,
    r#"delay = { by = "3ms", times = 3 }"#,
    "duplicate = {}",
    "duplicate = { times = 1 }",
    "corrupt = {}",
    r#"corrupt = { part = "header" }"#,
    "fail = {}",
    r#"fail = { with = "rnr" }"#,
    r#"fail = { with = "psn" }"#,
    r#"fail = { with = "remote_access", times = 1 }"#,
    r#"fail = { with = "no_resources" }"#,
    r#"fail = { with = "LOC_PROT_ERR" }"#,
    "overrun = {}",
    "reorder = { by = 1 }",
    "reorder = { by = 1000 }",
    "truncate = { to = 0 }",
    "truncate = { to = 60 }",
    "ecn_mark = {}",
    "mig_req = { value = false }",
    "count = {}",
];
/// Actions on a NIC.
const ACTIONS: &[&str] = &[
    r#"port_down = { for = "300us" }"#,
    r#"port_down = { for = "1ms", move_gid = true }"#,
    "port_down = {}",
    "speed = { mbps = 0 }",
    "mtu = { bytes = 68 }",
    "mtu = { bytes = 1000 }",
    r#"pause_storm = { for = "500us" }"#,
    "fatal = {}",
    "reset = {}",
    "remove = {}",
    r#"pause = { for = "200us" }"#,
    "fail_faults = {}",
    r#"hold_faults = { for = "1ms" }"#,
    r#"fill_faults = { for = "1ms" }"#,
    "evict = {}",
    "evict = { region = 0 }",
    "evict = { key = 256, page = 1, pages = 3 }",
    "prefetch = { region = 0, pages = 4 }",
    r#"lookup = { takes = "10us", for = "1ms" }"#,
    r#"lookup = { takes = "1ms" }"#,
    "fail_qp = { qp = 0 }",
    "fail_qp = { qpn = 2 }",
    "overrun_cq = {}",
    "overrun_cq = { number = 1 }",
    "overrun_eq = {}",
    "overrun_eq = { number = 1 }",
    r#"fault_policy = { qp = 0, policy = "drop" }"#,
    r#"fault_policy = { qp = 0, policy = "stall" }"#,
    "end = {}",
];
/// Expectations.
const EXPECTATIONS: &[&str] = &[
    r#"completion = { status = "SUCCESS", count = "1.." }"#,
    r#"completion = { nic = "nic1", qp = 0, status = "any", count = 3 }"#,
    r#"counter = { name = "rx_packets", value = "..100" }"#,
    r#"diagnostic = { kind = "retried", count = 0 }"#,
    r#"event = { kind = "port_up", count = "0..1" }"#,
    r#"packets = { opcode = "any", count = "1.." }"#,
    r#"packets = { dir = "rx", opcode = "ACK", count = 5 }"#,
    r#"ends = { before = "1ms" }"#,
    r#"latency = { of = "total", percentile = 50, max = "1ms" }"#,
    r#"latency = { of = "message", traffic = "t0", percentile = 100, min = "1us" }"#,
    r#"traffic = { name = "t0", done = 3 }"#,
    r#"slowdown = { traffic = "t0", max = 2.0 }"#,
];

fn one_of(input: &mut Input<'_>, list: &'static [&'static str]) -> &'static str {
    list[usize::from(input.u8()) % list.len()]
}

/// A number from a few.
fn few(input: &mut Input<'_>, values: &[u32]) -> u32 {
    values[usize::from(input.u8()) % values.len()]
}

/// Operations of a service (IBTA volume 1, table 38).
fn operations(service: &str) -> &'static [&'static str] {
    match service {
        "ud" => &["send"],
        "uc" => &["send", "write", "write_imm"],
        _ => &[
            "send",
            "write",
            "write_imm",
            "read",
            "fetch_add",
            "compare_swap",
        ],
    }
}

fn traffic(text: &mut String, input: &mut Input<'_>, index: usize) -> std::fmt::Result {
    let service = one_of(input, &["rc", "rc", "rc", "uc", "ud"]);
    let op = one_of(input, operations(service));
    // With 4096, messages and their buffers extend over several pages.
    let mtu = few(input, &[256, 1024, 4096]);
    let size = match (op, service) {
        ("fetch_add" | "compare_swap", _) => 8,
        (_, "ud") => few(input, &[1, 64, mtu]),
        _ => few(input, &[1, 64, mtu, mtu + 1, 2 * mtu + 64, 3 * mtu + 1]),
    };
    writeln!(
        text,
        "[[traffic]]\nname = \"t{index}\"\nservice = \"{service}\"\nop = \"{op}\"\nmtu = {mtu}\nsize = {size}"
    )?;
    for (key, values) in [
        ("count", &[1, 2, 3, 8][..]),
        ("depth", &[1, 2, 8]),
        ("connections", &[1, 1, 2]),
        ("timeout", &[1, 4, 6, 0]),
        ("retry_count", &[0, 1, 7]),
        ("rnr_retry", &[0, 2, 7]),
        // 80 us and 0.64 ms (IBTA table 45).
        ("min_rnr_timer", &[6, 12]),
    ] {
        writeln!(text, "{key} = {}", few(input, values))?;
    }
    let flags = input.u8();
    for (bit, line) in [
        (1, "local = \"on_demand\""),
        (2, "remote = \"on_demand\""),
        (4, "wait = \"events\""),
        (8, "fresh_pages = true"),
        (16, "receives = 1"),
        (32, "deregister = \"200us\""),
        (64, "gap = \"20us\""),
        (128, "to = \"nic0\""),
    ] {
        if flags & bit != 0 {
            writeln!(text, "{line}")?;
        }
    }
    Ok(())
}

fn nic(text: &mut String, input: &mut Input<'_>) -> std::fmt::Result {
    let line = one_of(input, &["", "nic = \"nic0\"", "nic = \"nic1\""]);
    writeln!(text, "{line}")
}

/// A scenario's file.
fn scenario(input: &mut Input<'_>) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let counts = input.u16();
    writeln!(text, "seed = {}\nlimit = \"{LIMIT}\"", input.u8())?;
    writeln!(
        text,
        "[simulator]\npage_frames = {}",
        few(input, &[512, 16, 2])
    )?;
    writeln!(text, "fault_queue = {}", few(input, &[256, 4, 2]))?;
    let faults = one_of(input, &["repair", "repair", "fail", "ignore"]);
    writeln!(text, "faults = \"{faults}\"")?;
    let flags = input.u8();
    for (bit, key) in [(1, "by_reference"), (2, "damming"), (4, "flood")] {
        writeln!(text, "{key} = {}", flags & bit != 0)?;
    }
    for index in 0..=usize::from(counts & 1) {
        traffic(&mut text, input, index)?;
    }
    for _ in 0..counts >> 1 & 3 {
        let (thing, condition) = (one_of(input, THINGS), one_of(input, CONDITIONS));
        let action = match input.u8() % 3 {
            0 => one_of(input, ACTIONS),
            _ => one_of(input, CHANGES),
        };
        writeln!(
            text,
            "[[rule]]\non = {{ {thing}{condition} }}\ndo = {{ {action} }}"
        )?;
        nic(&mut text, input)?;
    }
    for _ in 0..counts >> 3 & 3 {
        let (action, time) = (one_of(input, ACTIONS), u32::from(input.u8()) * 7);
        writeln!(text, "[[at]]\ntime = \"{time}us\"\ndo = {{ {action} }}")?;
        if input.u8() & 1 != 0 {
            writeln!(text, "every = \"50us\"\ntimes = 5")?;
        }
        nic(&mut text, input)?;
    }
    for _ in 0..counts >> 5 & 3 {
        writeln!(text, "[[expect]]\n{}", one_of(input, EXPECTATIONS))?;
    }
    Ok(text)
}

/// Leaves out rules, actions and expectations that no plan has: not all things have all conditions and changes.
fn possible(mut scenario: Scenario) -> Scenario {
    let mut base = scenario.clone();
    base.rules.clear();
    base.timed.clear();
    base.expectations.clear();
    scenario.rules.retain(|rule| {
        let mut one = base.clone();
        one.rules.push(rule.clone());
        one.plan_simulation().is_ok()
    });
    scenario.timed.retain(|timed| {
        let mut one = base.clone();
        one.timed.push(timed.clone());
        one.plan_simulation().is_ok()
    });
    scenario.expectations.retain(|expectation| {
        let mut one = base.clone();
        one.expectations.push(expectation.clone());
        one.plan_simulation().is_ok()
    });
    scenario
}

/// A scenario runs to its end or its limit, and has a verdict. One of [`TWICE`] inputs runs twice: with the same trace.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let Ok(text) = scenario(&mut input) else {
        return;
    };
    let scenario = match read::read("fuzz.toml", &text) {
        Ok(scenario) => possible(scenario),
        Err(problems) => panic!("the target writes files that are read:\n{problems}"),
    };
    let Ok(plan) = scenario.plan_simulation() else {
        return;
    };
    // The second octet chooses nothing else.
    let twice = data.get(1).is_some_and(|octet| octet.is_multiple_of(TWICE));
    let trace = match twice {
        true => Detail::Hash,
        false => Detail::Nothing,
    };
    let simulate = || {
        let options = Options {
            trace,
            ..Options::default()
        };
        simulate(&scenario, &plan, options)
    };
    let outcome = match simulate() {
        Ok(outcome) => outcome,
        // A command for the set-up of the traffic may fail because of a rule.
        Err(SimulationError::Driver { .. }) => return,
        Err(error) => panic!("{error}\n{text}"),
    };
    let rules = plan.rules.len() + plan.timed.len();
    let checks = &outcome.verdict.checks;
    assert!(checks.len() >= rules + plan.expectations.len(), "{text}");
    assert!(outcome.results.time <= plan.limit, "{text}");
    if twice {
        let again = simulate().expect("it has been simulated before");
        assert_eq!(
            again.results.trace.hash(),
            outcome.results.trace.hash(),
            "{text}"
        );
        assert_eq!(again.verdict, outcome.verdict, "{text}");
    }
}
