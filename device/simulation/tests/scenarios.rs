//! Scenarios with rules: repeatability, and the examples of the reference.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use faultline_scenario::file::Scenario;
use faultline_scenario::plan::Plan;
use faultline_scenario::read::read;
use faultline_simulation::{Ending, Options, Outcome, simulate};

fn load(name: &str, text: &str) -> (Scenario, Plan) {
    let scenario = read(name, text).unwrap_or_else(|problems| panic!("{problems}"));
    let plan = scenario.plan_simulation();
    let plan = plan.unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
    (scenario, plan)
}

fn run(scenario: &Scenario, plan: &Plan) -> Outcome {
    let outcome = simulate(scenario, plan, Options::default());
    outcome.unwrap_or_else(|error| panic!("{error}"))
}

/// Loss, faults, and probability.
const CHANCES: &str = r#"
[[traffic]]
op = "write"
count = 5
remote = "on_demand"
fresh_pages = true
depth = 4
timeout = 8
[[rule]]
on = { dir = "rx", opcode = "any", chance = 0.05 }
do = { drop = {} }
fired = "0.."
[[rule]]
on = { fault = "record", chance = 0.3 }
do = { delay = { by = "20us" } }
fired = "0.."
"#;

#[test]
fn a_seed_gives_the_same_trace_a_thousand_times() {
    let (scenario, plan) = load("chances.toml", CHANCES);
    let first = run(&scenario, &plan).results.trace.hash();
    for _ in 0..1000 {
        assert_eq!(run(&scenario, &plan).results.trace.hash(), first);
    }
    let hash = |seed| {
        let plan = Plan {
            seed,
            ..plan.clone()
        };
        run(&scenario, &plan).results.trace.hash()
    };
    let hashes: BTreeSet<String> = (2..52).map(hash).collect();
    assert_eq!(hashes.len(), 50);
    assert!(!hashes.contains(&first));
}

/// The checker sees each packet once, although packets are lost, doubled and late. Its default expectation holds.
#[test]
fn the_packet_checker_sees_each_sent_packet() {
    for by_reference in [false, true] {
        let text = format!("[simulator]\nby_reference = {by_reference}\n{CHANCES}");
        let (scenario, plan) = load("chances.toml", &text);
        let outcome = run(&scenario, &plan);
        assert!(outcome.passed(), "{:?}", outcome.verdict);
        let check = outcome.verdict.checks.last().expect("a check");
        assert_eq!(
            (check.name.as_str(), check.found.as_str()),
            ("violation", "0")
        );
        let packets = outcome.results.packets.iter().flatten();
        let sent = packets.filter(|(name, _)| name.starts_with("tx"));
        let sent: u64 = sent.map(|(_, count)| count).sum();
        let checker = outcome.results.packets_checked.expect("a checker");
        assert!(sent > 20);
        assert_eq!(checker.packets(), sent);
        assert_eq!(checker.responses_without_flow(), 0);
    }
}

/// Packets that a rule only changes keep their place, with and without a wire, where they are sent and where they
/// arrive. Rules are not asked about the next packet before.
#[test]
fn a_packet_that_is_only_marked_is_not_overtaken() {
    for (by_reference, dir) in [(false, "rx"), (false, "tx"), (true, "rx"), (true, "tx")] {
        let nic = if dir == "rx" { "nic1" } else { "nic0" };
        let text = format!(
            "[simulator]\nby_reference = {by_reference}\n[[traffic]]\nop = \"send\"\nsize = 2000\n\
             [[rule]]\nnic = \"{nic}\"\non = {{ dir = \"{dir}\", opcode = \"rc_send_first\", every = 3 }}\ndo = {{ ecn_mark = {{}} }}"
        );
        let (scenario, plan) = load("marked.toml", &text);
        let outcome = run(&scenario, &plan);
        assert!(outcome.passed(), "{:?}", outcome.verdict);
        let refused = outcome.results.diagnostics[1].contains_key("sequence_nak_sent");
        assert!(!refused, "{by_reference} {dir}");
    }
}

/// Pauses count for the limit of a run, also a pause in which the run ends.
#[test]
fn the_limit_is_one_of_the_hosts_clock() {
    for at in ["1ms", "7900us"] {
        let text = format!(
            "limit = \"8ms\"\n[[traffic]]\nop = \"send\"\ngap = \"1ms\"\n\
             [[at]]\ntime = \"{at}\"\ndo = {{ pause = {{ for = \"2ms\" }} }}"
        );
        let (scenario, plan) = load("pause.toml", &text);
        let outcome = run(&scenario, &plan);
        assert!(matches!(outcome.results.ending, Ending::Limit(_)));
        assert_eq!(outcome.results.time, plan.limit);
    }
}

/// The example that needs a client of the API: the tests of the harness run it.
const NOT_SIMULATED: [&str; 1] = ["signal.toml"];

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scenarios/examples");
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        let name = file.file_name().unwrap().to_str().unwrap();
        !NOT_SIMULATED.contains(&name)
    });
    files.sort();
    files
}

#[test]
fn each_example_passes_and_fails_with_an_opposite_expectation_or_a_silent_rule() {
    let mut wrong = Vec::new();
    let mut tried = 0;
    let files = examples();
    assert!(files.len() >= 35);
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let (scenario, plan) = load(&name, &fs::read_to_string(&file).unwrap());
        let outcome = run(&scenario, &plan);
        if !outcome.passed() {
            let failed = outcome.verdict.checks.iter().filter(|check| !check.passed);
            let failed: Vec<_> = failed.collect();
            wrong.push(format!(
                "{name} fails: {failed:?} {:?}",
                outcome.verdict.problems
            ));
            continue;
        }
        let changed = plan.with_opposite_expectations();
        for (what, plan) in changed.into_iter().chain(plan.with_silent_rules()) {
            tried += 1;
            // A run whose objects can't be created without its rule fails, too.
            if simulate(&scenario, &plan, Options::default()).is_ok_and(|run| run.passed()) {
                wrong.push(format!("{name} passes with the opposite of {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 60, "{tried}");
}

/// All completions of a queue pair that fails are written in one turn.
#[test]
fn a_turn_with_many_diagnostics_loses_none() {
    let text = r#"
[[traffic]]
name = "writes"
op = "write"
size = 8
count = 1000
depth = 1000
[[rule]]
nic = "nic1"
on = { dir = "rx", opcode = "REQUEST" }
do = { drop = {} }
[[at]]
nic = "nic0"
time = "1ms"
do = { fail_qp = { qp = 0 } }
[[expect]]
completion = { nic = "nic0", status = "WR_FLUSH_ERR", count = "999.." }
"#;
    let (scenario, plan) = load("many.toml", text);
    let outcome = run(&scenario, &plan);
    assert!(outcome.passed(), "{:?}", outcome.verdict);
}

/// `nth` counts over all queue pairs of a process, for events inside a NIC and for packets.
#[test]
fn a_rule_for_a_process_counts_once_for_all_its_queue_pairs() {
    let text = r#"
[[traffic]]
name = "own"
process = "own"
op = "write"
count = 10
connections = 80
[[traffic]]
name = "other"
process = "other"
op = "write"
count = 10
connections = 10
[[rule]]
nic = "nic0"
on = { completion = "SUCCESS", process = "own", nth = 700 }
do = { count = {} }
fired = 1
[[rule]]
nic = "nic0"
on = { completion = "SUCCESS", process = "own" }
do = { count = {} }
fired = 800
"#;
    let (scenario, plan) = load("process.toml", text);
    let outcome = run(&scenario, &plan);
    assert!(outcome.passed(), "{:?}", outcome.verdict);
}

/// The device keeps the entries of pages that its driver has evicted, because rules refuse the invalidations.
#[test]
fn a_write_to_a_page_after_its_invalidation_fails_the_run() {
    let traffic = r#"
limit = "5s"
[simulator]
page_frames = 2
[[traffic]]
op = "write"
size = 4096
count = 16
depth = 1
connections = 4
remote = "on_demand"
"#;
    let rule = r#"
[[rule]]
nic = "nic1"
on = { command = "invalidate", every = 1 }
do = { fail = { with = "bad_mkey" } }
fired = "1.."
"#;
    let problem = "nic1 has written to a page after its invalidation";
    for (rules, is_found) in [("", false), (rule, true)] {
        let (scenario, plan) = load("stale.toml", &format!("{traffic}{rules}"));
        let verdict = run(&scenario, &plan).verdict;
        let found = verdict.problems.iter().any(|found| found == problem);
        assert_eq!(found, is_found, "{verdict:?}");
    }
}

/// Files that a check accepts can be simulated; a value that cannot be simulated is refused at its position.
#[test]
fn a_check_and_a_run_refuse_the_same_files() {
    for wrong in [
        "size = 0",
        "size = 16777217",
        "depth = 1025",
        "receives = 4097",
        "connections = 4096\n[[traffic]]\nop = \"write\"",
        "connections = 4096\ncount = 1000",
        "process = \"a name that is too long\"",
    ] {
        let text = format!("[[traffic]]\nop = \"write\"\n{wrong}\n");
        let scenario = read("a.toml", &text).unwrap();
        assert!(scenario.plan_simulation().is_err(), "{wrong}");
    }
    let text = "[[traffic]]\nop = \"fetch_add\"\nsize = 16\n";
    assert!(read("a.toml", text).unwrap().plan_simulation().is_err());
    let endless =
        "limit = \"24h\"\n[[at]]\ntime = \"0s\"\nevery = \"1ns\"\ndo = { fail_faults = {} }\n";
    assert!(read("a.toml", endless).unwrap().plan_simulation().is_err());
    let injected = "[[rule]]\non = { diagnostic = \"injected\" }\ndo = { count = {} }\n";
    assert!(read("a.toml", injected).unwrap().plan_simulation().is_err());
    let many = "[[rule]]\non = { completion = \"any\" }\ndo = { count = {} }\n".repeat(64);
    assert!(read("a.toml", &many).unwrap().plan_simulation().is_ok());
    let one = "[[expect]]\ncompletion = { status = \"SUCCESS\", count = 1 }\n";
    let more = read("a.toml", &format!("{many}{one}")).unwrap();
    assert!(more.plan_simulation().is_err());
}

/// Of forty faults ten get no answer. A percentile counts them with their age, so that the worst case is not that of the others.
#[test]
fn a_latency_counts_faults_without_an_answer() {
    let text = |drop: &str| {
        format!(
            "[[traffic]]\nop = \"write\"\ncount = 1\nconnections = 40\nremote = \"on_demand\"\nmin_rnr_timer = 1\n{drop}\n\
             [[at]]\ntime = \"50ms\"\ndo = {{ end = {{}} }}\n\
             [[expect]]\nlatency = {{ of = \"total\", percentile = 70, max = \"10ms\" }}\n\
             [[expect]]\nlatency = {{ of = \"total\", percentile = 100, max = \"49ms\" }}\n"
        )
    };
    let checks = |drop: &str| {
        let (scenario, plan) = load("unanswered.toml", &text(drop));
        let checks = run(&scenario, &plan).verdict.checks;
        let latencies = checks
            .into_iter()
            .filter(|check| check.name.contains("latency"));
        latencies.collect::<Vec<_>>()
    };
    let lost = "[[rule]]\nnic = \"nic1\"\non = { fault = \"record\", nth = 31 }\ndo = { drop = { times = 10 } }\n";
    let checks_of_lost = checks(lost);
    let passed: Vec<bool> = checks_of_lost.iter().map(|check| check.passed).collect();
    assert_eq!(passed, [true, false], "{checks_of_lost:#?}");
    let found = &checks_of_lost[1].found;
    assert!(found.contains("10 faults without an answer"), "{found}");
    let checks = checks("");
    assert!(checks.iter().all(|check| check.passed), "{checks:#?}");
}
