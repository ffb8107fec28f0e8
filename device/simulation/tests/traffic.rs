//! Each kind of traffic from beginning to end, and how runs end.

use faultline_scenario::file::Scenario;
use faultline_scenario::read::read;
use faultline_simulation::{Ending, Options, Results, SimulationError, run, simulate};

fn scenario(text: &str) -> Scenario {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn results(text: &str) -> Results {
    run(&scenario(text), Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The same, with rules in the text.
fn results_with_rules(text: &str) -> Results {
    let scenario = read("rules.toml", text).unwrap_or_else(|problems| panic!("{problems}"));
    let plan = scenario.plan_simulation().unwrap();
    simulate(&scenario, &plan, Options::default())
        .unwrap()
        .results
}

fn refusal(text: &str) -> SimulationError {
    match run(&scenario(text), Options::default()) {
        Err(error) => error,
        Ok(results) => panic!("{text}: {results:?}"),
    }
}

#[test]
fn each_operation_of_each_service_completes_with_its_data() {
    let kinds = [
        ("rc", "send", 10_000),
        ("rc", "write", 10_000),
        ("rc", "write_imm", 10_000),
        ("rc", "read", 10_000),
        ("rc", "fetch_add", 8),
        ("rc", "compare_swap", 8),
        ("uc", "send", 10_000),
        ("uc", "write", 10_000),
        ("uc", "write_imm", 10_000),
        ("ud", "send", 1000),
    ];
    for (service, op, size) in kinds {
        for memory in ["pinned", "on_demand"] {
            for to in ["nic0", "nic1"] {
                // Unreliable messages without a receive are lost.
                let receives = if service == "rc" { 2 } else { 20 };
                let text = format!(
                    "[[traffic]]\nop = \"{op}\"\nservice = \"{service}\"\nsize = {size}\nto = \"{to}\"\n\
                     count = 20\nconnections = 2\nlocal = \"{memory}\"\nremote = \"{memory}\"\ndepth = 3\n\
                     receives = {receives}"
                );
                let found = results(&text);
                assert_eq!(found.ending, Ending::Finished, "{text}");
                assert_eq!(found.problems, Vec::<String>::new(), "{text}");
                let [traffic] = &found.facts.traffic[..] else {
                    panic!("{:?}", found.facts.traffic)
                };
                assert_eq!(
                    (traffic.done, traffic.failed, traffic.wrong),
                    (40, 0, 0),
                    "{text}"
                );
                let faults = &found.diagnostics[usize::from(to == "nic1")];
                assert_eq!(
                    faults.contains_key("fault_raised"),
                    memory == "on_demand",
                    "{text}"
                );
            }
        }
    }
}

/// Drops all packets that arrive.
const SINK: &str = r#"
[[rule]]
on = { dir = "rx", opcode = "any" }
do = { drop = {} }
"#;

#[test]
fn a_connection_without_answers_fails_its_messages() {
    let text = "[[traffic]]\nop = \"write\"\ncount = 9\ndepth = 2\ntimeout = 8\nretry_count = 2";
    let found = results_with_rules(&format!("{text}{SINK}"));
    assert_eq!(found.ending, Ending::Finished);
    let traffic = &found.facts.traffic[0];
    assert_eq!((traffic.done, traffic.failed), (0, 9));
    let retries = faultline_abi::cqe::RETRY_EXC_ERR;
    let statuses: Vec<u8> = found.completions.iter().map(|c| c.status).collect();
    assert_eq!(statuses, [retries, faultline_abi::cqe::WR_FLUSH_ERR]);
}

#[test]
fn traffic_that_waits_for_ever_is_named() {
    let text = "[[traffic]]\nname = \"lost\"\nop = \"write\"\ntimeout = 0\ncount = 3";
    let found = results_with_rules(&format!("{text}{SINK}"));
    let Ending::Stuck(stuck) = &found.ending else {
        panic!("{:?}", found.ending)
    };
    let said = stuck.to_string();
    assert!(said.contains("lost, connection 0 (nic0 QP "), "{said}");
    assert!(
        said.contains("3 of 3 messages have not completed"),
        "{said}"
    );
}

#[test]
fn the_limit_ends_a_run() {
    let text = "limit = \"3ms\"\n[[traffic]]\nop = \"write\"\ngap = \"1ms\"\ncount = 9";
    let found = results(text);
    assert!(
        matches!(found.ending, Ending::Limit(_)),
        "{:?}",
        found.ending
    );
    assert_eq!(found.time.0, 3_000_000);
    assert_eq!(found.facts.traffic[0].done, 3);
    assert_eq!(
        results(&text.replace("3ms", "30ms")).ending,
        Ending::Finished
    );
}

#[test]
fn impossible_values_are_refused_with_their_key() {
    let cases = [
        ("[simulator]\nhosts = 9", "simulator.hosts is 9: 1 to 8"),
        ("[simulator]\nfault_queue = 3", "simulator.fault_queue is 3"),
        ("[simulator]\npage_frames = 1", "simulator.page_frames is 1"),
        (
            "[[traffic]]\nop = \"read\"\nservice = \"uc\"",
            "traffic[0].op is Read",
        ),
        ("[[traffic]]\nop = \"fetch_add\"", "traffic[0].size is 4096"),
        (
            "[[traffic]]\nop = \"send\"\nservice = \"ud\"",
            "traffic[0].size is 4096",
        ),
        (
            "[[traffic]]\nop = \"send\"\nmtu = 1000",
            "traffic[0].mtu is 1000",
        ),
        (
            "[[traffic]]\nop = \"send\"\ndepth = 0",
            "traffic[0].depth is 0",
        ),
        (
            "[[traffic]]\nop = \"send\"\nto = \"nic2\"",
            "traffic[0].to is \"nic2\"",
        ),
        (
            "[[traffic]]\nop = \"write\"\nsize = 16777216\nconnections = 9\ndepth = 8",
            "nic0 has 268435456 bytes of memory",
        ),
    ];
    for (text, start) in cases {
        let said = refusal(text).to_string();
        assert!(said.starts_with(start), "{said}");
    }
}

/// Loses interrupts of completion events.
const SILENCE: &str = r#"
[[rule]]
on = { interrupt = 1 }
do = { drop = {} }
fired = "0.."
"#;

#[test]
fn a_lost_interrupt_is_noticed_only_by_software_that_waits_for_events() {
    let text = "[[traffic]]\nop = \"send\"\ncount = 5\nwait = ";
    for (wait, ends) in [("\"events\"", true), ("\"poll\"", true)] {
        let found = results(&format!("{text}{wait}"));
        assert_eq!(found.ending == Ending::Finished, ends, "{wait}");
    }
    let polled = results_with_rules(&format!("{text}\"poll\"{SILENCE}"));
    assert_eq!(polled.ending, Ending::Finished);
    let waited = results_with_rules(&format!("{text}\"events\"{SILENCE}"));
    assert!(
        matches!(waited.ending, Ending::Stuck(_)),
        "{:?}",
        waited.ending
    );
}

#[test]
fn messages_fail_after_their_memory_is_deregistered() {
    let text = "[[traffic]]\nop = \"write\"\ncount = 100\ngap = \"10us\"\nderegister = \"500us\"";
    let found = results(text);
    let traffic = &found.facts.traffic[0];
    assert_eq!(found.ending, Ending::Finished);
    assert!((40..60).contains(&traffic.done), "{traffic:?}");
    assert_eq!(traffic.done + traffic.failed, 100);
}

#[test]
fn faults_without_an_answer_expire() {
    let text = "limit = \"200s\"\n[simulator]\nfaults = \"ignore\"\n\
                [[traffic]]\nop = \"write\"\nremote = \"on_demand\"\ncount = 2";
    let found = results(text);
    assert_eq!(found.ending, Ending::Finished);
    assert_eq!(found.facts.traffic[0].failed, 2);
    assert_eq!(found.diagnostics[1].get("fault_expired"), Some(&1));
}

#[test]
fn fewer_frames_than_pages_cause_faults_again() {
    let text = "[simulator]\npage_frames = 4\n\
                [[traffic]]\nop = \"write\"\nremote = \"on_demand\"\nsize = 8192\ndepth = 4\ncount = 24";
    let found = results(text);
    assert_eq!(found.ending, Ending::Finished, "{:?}", found.problems);
    assert_eq!(found.facts.traffic[0].done, 24);
    assert!(found.diagnostics[1]["fault_raised"] > 8);
}

#[test]
fn fresh_pages_fault_for_each_message() {
    let text =
        "[[traffic]]\nop = \"write\"\nremote = \"on_demand\"\nsize = 4096\ndepth = 1\ncount = 24";
    let used_again = results(text);
    assert_eq!(used_again.diagnostics[1]["fault_raised"], 1);
    let fresh = results(&format!("{text}\nfresh_pages = true"));
    assert_eq!(fresh.diagnostics[1]["fault_raised"], 24);
}

#[test]
fn an_entry_of_several_faults_on_its_own_page() {
    let text = "[[traffic]]\nop = \"send\"\nlocal = \"on_demand\"\nsize = 3000\nsges = 3\ncount = 1\nfresh_pages = true";
    let found = results(text);
    assert_eq!(found.facts.traffic[0].done, 1, "{:?}", found.problems);
    assert_eq!(found.diagnostics[0]["fault_raised"], 3);
}

#[test]
fn the_trace_identifies_a_run() {
    let text = "[[traffic]]\nop = \"write\"\nremote = \"on_demand\"\ncount = 20";
    let first = results(text);
    assert!(first.trace.len() > 100);
    for _ in 0..10 {
        assert_eq!(results(text).trace.hash(), first.trace.hash());
    }
    let other = results(&format!("seed = 2\n{text}"));
    assert_ne!(other.trace.hash(), first.trace.hash());
}

#[test]
fn damming_loses_only_requests_posted_during_a_wait() {
    // One request at a time: each meets an absent page, and none is posted while another one waits.
    let text = "[simulator]\ndamming = true\n[[traffic]]\nop = \"write\"\ncount = 8\ndepth = 1\ngap = \"5ms\"\n\
                remote = \"on_demand\"\nfresh_pages = true\n";
    let found = results(text);
    assert_eq!(found.ending, Ending::Finished);
    assert_eq!(found.facts.counters[1]["page_faults"], 8);
    assert_eq!(found.facts.counters[0]["local_ack_timeout_err"], 0);
}

/// Software posts twice as much at one instant as a modelled link holds.
#[test]
fn a_wire_without_rules_loses_nothing() {
    let text = "[[traffic]]\nop = \"write\"\nsize = 4194304\nmtu = 4096\ncount = 2\ndepth = 2\nconnections = 4";
    let found = results(text);
    assert_eq!(found.ending, Ending::Finished);
    assert_eq!(found.facts.traffic[0].done, 8);
    assert_eq!(found.facts.counters[1]["packet_seq_err_sent"], 0);
    assert_eq!(found.facts.counters[0]["local_ack_timeout_err"], 0);
}
