//! Traffic under each profile that comes with Faultline, and the differences to a NIC without a profile.

#![cfg(test)]

use faultline_scenario::profile::EMBEDDED;
use faultline_scenario::read::read;
use faultline_simulation::{Options, Outcome, SimulationError, simulate};

const MICROSECOND: u64 = 1000;
const MILLISECOND: u64 = 1_000_000;

/// WRITEs into pages that are absent at first.
const FAULTS: &str = r#"
[[traffic]]
name = "writes"
op = "write"
size = 8
count = 20
depth = 1
remote = "on_demand"
fresh_pages = true
"#;

/// WRITEs into pinned memory, one after another on 65 connections.
const PAIRS: &str = r#"
[[traffic]]
name = "writes"
op = "write"
size = 8
count = 4
depth = 1
connections = 65
gap = "1ms"
"#;

fn try_run(profile: Option<&str>, text: &str) -> Result<Outcome, SimulationError> {
    let profile = profile.map_or(String::new(), |name| format!("profile = \"{name}\"\n"));
    let text = format!("{profile}{text}");
    let scenario = read("a.toml", &text).unwrap_or_else(|problems| panic!("{problems}"));
    let plan = scenario.plan_simulation();
    let plan = plan.unwrap_or_else(|problems| panic!("{problems:?}"));
    simulate(&scenario, &plan, Options::default())
}

#[track_caller]
fn run(profile: Option<&str>, text: &str) -> Outcome {
    let outcome = try_run(profile, text).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.passed(), "{profile:?}: {:?}", outcome.verdict);
    outcome
}

/// The smallest and the largest latency of the messages, in nanoseconds.
fn latencies(outcome: &Outcome) -> (u64, u64) {
    let latencies = &outcome.results.facts.traffic[0].latencies;
    (latencies[0].0, latencies[latencies.len() - 1].0)
}

fn mean(profile: Option<&str>, text: &str) -> u64 {
    let outcome = run(profile, text);
    let latencies = &outcome.results.facts.traffic[0].latencies;
    latencies.iter().map(|latency| latency.0).sum::<u64>() / latencies.len() as u64
}

#[test]
fn traffic_runs_under_each_profile() {
    let pinned = "[[traffic]]\nname = \"writes\"\nop = \"write\"\ncount = 10\n";
    for (name, _) in EMBEDDED {
        let outcome = run(Some(name), pinned);
        assert_eq!(outcome.results.facts.traffic[0].done, 10, "{name}");
    }
}

#[test]
fn ideal_serves_faults_in_microseconds() {
    let (_, without) = latencies(&run(None, FAULTS));
    let (_, ideal) = latencies(&run(Some("ideal"), FAULTS));
    assert!(ideal < 30 * MICROSECOND, "{ideal}");
    assert!(without > 50 * MICROSECOND, "{without}");
}

#[test]
fn connectx_like_waits_for_its_rnr_timer_and_has_the_known_defects() {
    // The driver takes 220 us. Then the requester waits for 3.5 times its RNR timer, which the responder chooses from the time
    // that faults take.
    let text = format!("{FAULTS}min_rnr_timer = 14\n");
    let (least, most) = latencies(&run(Some("connectx-like"), &text));
    let (_, without) = latencies(&run(None, &text));
    assert!(without < 300 * MICROSECOND, "{without}");
    assert!(least > 2 * MICROSECOND, "{least}");
    assert!((700 * MICROSECOND..MILLISECOND).contains(&most), "{most}");
    // Requests that are posted while the queue pair waits are lost until the ACK timeout.
    let dammed = text.replace("depth = 1", "depth = 4\ngap = \"200us\"");
    let outcome = run(Some("connectx-like"), &dammed);
    let retried = |outcome: &Outcome| outcome.results.facts.counters[0]["local_ack_timeout_err"];
    assert!(retried(&outcome) > 0);
    // Each leaves a gap in the PSNs, which the packet checker finds. It finds none in other NICs.
    let gaps = "\n[[expect]]\nviolation = { rule = \"request-psn\", count = \"1..\" }\n";
    run(Some("connectx-like"), &format!("{dammed}{gaps}"));
    assert_eq!(retried(&run(None, &dammed)), 0);
}

#[test]
fn memfree_hca_reads_the_state_of_queue_pairs_that_do_not_fit() {
    let few = PAIRS.replace("connections = 65", "connections = 8");
    let added = |text: &str| mean(Some("memfree-hca"), text) - mean(None, text);
    // A doorbell and the reads of a work request take 2.5 us of each message, and each miss 2 us more.
    assert!(added(&few) > 2 * MICROSECOND);
    let per_connection = |text: &str, count| added(text) / count;
    let (cold, warm) = (per_connection(PAIRS, 65), per_connection(&few, 8));
    assert!(cold > warm + MICROSECOND / 2, "{cold} {warm}");
}

#[test]
fn profiles_without_paging_refuse_on_demand_regions() {
    for name in ["memfree-hca", "pinned-only"] {
        let error = try_run(Some(name), FAULTS).unwrap_err().to_string();
        assert!(error.contains("NotSupported"), "{name}: {error}");
    }
}

#[test]
fn small_reaches_the_limits_of_its_tables() {
    let error = try_run(Some("small"), PAIRS).unwrap_err().to_string();
    assert!(error.contains("NoResources"), "{error}");
    let faults = format!("{FAULTS}connections = 16\n");
    let overflows = |profile| {
        let outcome = run(profile, &faults);
        outcome.results.facts.counters[1]["page_fault_overflow"]
    };
    assert!(overflows(Some("small")) > 0);
    assert_eq!(overflows(None), 0);
}

#[test]
fn slow_host_answers_faults_after_a_tenth_of_a_second() {
    let (least, most) = latencies(&run(Some("slow-host"), FAULTS));
    assert!(
        least > 100 * MILLISECOND && most < 1000 * MILLISECOND,
        "{least} {most}"
    );
}

/// The scenario's own time wins over the profile's, and so does that of the options.
#[test]
fn a_time_of_the_scenario_replaces_that_of_the_profile() {
    let text = format!("[simulator]\nfault_service = \"5us\"\n{FAULTS}");
    let (_, most) = latencies(&run(Some("slow-host"), &text));
    assert!(most < 50 * MICROSECOND, "{most}");
}

/// The traffic alone has the profile, too: without attackers nothing is slower.
#[test]
fn traffic_alone_has_the_profile() {
    let text = format!("{FAULTS}[[expect]]\nslowdown = {{ traffic = \"writes\", max = 1.01 }}\n");
    for profile in [None, Some("slow-host"), Some("connectx-like")] {
        run(profile, &text);
    }
}
