//! Scenarios with rules: repeatability, and the examples of the reference.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use faultline_scenario::file::Scenario;
use faultline_scenario::plan::Plan;
use faultline_scenario::read::read;
use faultline_simulation::{Options, Outcome, simulate};

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

/// Frames that are passed at once keep their place.
#[test]
fn a_packet_that_is_only_marked_is_not_overtaken() {
    let text = "[[traffic]]\nop = \"send\"\nsize = 64\n\
                [[rule]]\nnic = \"nic1\"\non = { dir = \"rx\", opcode = \"SEND\", every = 3 }\ndo = { ecn_mark = {} }";
    let (scenario, plan) = load("marked.toml", text);
    let outcome = run(&scenario, &plan);
    assert!(outcome.passed(), "{:?}", outcome.verdict);
    assert!(!outcome.results.diagnostics[1].contains_key("sequence_nak_sent"));
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
