//! The rules of scenarios on processes of one and of two engines.

use faultline_abi::admin::EQ_FAULTS;
use faultline_abi::cqe::{RETRY_EXC_ERR, SUCCESS, WR_FLUSH_ERR};
use faultline_abi::regs;
use faultline_scenario::read::read;
use faultline_scenario::verdict::Verdict;
use faultline_simulation::process::{NicShape, Process, ProcessShape};
use faultline_simulator::Bus;

use crate::process::{connection, post_write, statuses};

const US: u64 = 1000;
const MS: u64 = 1_000_000;
/// WRITEs of a run, one each 100 µs.
const WRITES: usize = 20;

/// Rules, the status of the first completion that is no success, and the time that the run takes at least.
struct Case {
    name: &'static str,
    rules: &'static str,
    error: Option<u8>,
    takes: u64,
}

const CASES: [Case; 7] = [
    Case {
        name: "drop",
        rules: r#"
[[rule]]
nic = "nic1"
on = { dir = "rx", opcode = "rc_write_middle", nth = 40 }
do = { drop = {} }
[[expect]]
counter = { nic = "nic1", name = "packet_seq_err_sent", value = 1 }
"#,
        error: None,
        takes: 2 * MS,
    },
    Case {
        name: "delay",
        rules: r#"
[[rule]]
nic = "nic0"
on = { dir = "tx", opcode = "rc_write_last", nth = 20 }
do = { delay = { by = "3ms" } }
[[expect]]
counter = { nic = "nic1", name = "packet_seq_err_sent", value = 0 }
"#,
        error: None,
        takes: 4900 * US,
    },
    Case {
        name: "duplicate",
        rules: r#"
[[rule]]
nic = "nic1"
on = { dir = "rx", opcode = "rc_write_last", every = 10 }
do = { duplicate = {} }
fired = 2
[[expect]]
counter = { nic = "nic1", name = "duplicate_request", value = 2 }
"#,
        error: None,
        takes: 2 * MS,
    },
    Case {
        name: "link down",
        rules: r#"
[[at]]
nic = "nic1"
time = "1ms"
do = { port_down = { for = "2ms", move_gid = false } }
[[expect]]
counter = { nic = "nic0", name = "local_ack_timeout_err", value = "1.." }
"#,
        error: None,
        takes: 3 * MS,
    },
    Case {
        name: "mtu",
        rules: r#"
[[at]]
nic = "nic1"
time = "1ms"
do = { mtu = { bytes = 512 } }
"#,
        error: Some(RETRY_EXC_ERR),
        takes: 4 * MS,
    },
    Case {
        name: "reset",
        rules: r#"
[[at]]
nic = "nic1"
time = "1ms"
do = { reset = {} }
[[expect]]
diagnostic = { nic = "nic1", kind = "reset", count = 1 }
"#,
        error: Some(RETRY_EXC_ERR),
        takes: 4 * MS,
    },
    Case {
        name: "remove",
        rules: r#"
[[at]]
nic = "nic1"
time = "1ms"
do = { remove = {} }
[[expect]]
diagnostic = { nic = "nic1", kind = "reset", count = 0 }
"#,
        error: Some(RETRY_EXC_ERR),
        takes: 4 * MS,
    },
];

/// What has come of a run.
struct Outcome {
    process: Process,
    statuses: Vec<u8>,
    /// From the first WRITE to the last completion.
    took: u64,
    verdict: Verdict,
}

fn play(engines: usize, rules: &str) -> Outcome {
    let nic = |engine| NicShape {
        engine,
        ..NicShape::default()
    };
    let mut process = Process::new(&ProcessShape {
        engines,
        nics: (0..2).map(|id| nic(id % engines)).collect(),
        seed: 3,
        ..ProcessShape::default()
    })
    .unwrap();
    let [mut from, to] = connection(&mut process, [0, 1]);
    let scenario = read("rules.toml", rules).unwrap_or_else(|problems| panic!("{problems}"));
    let nics = ["nic0", "nic1"].map(str::to_owned);
    let plan = scenario.plan(&nics, &[]).unwrap();
    let before = process.start_scenario(plan);
    let start = process.now();
    let mut found = Vec::new();
    let mut took = 0;
    while found.len() < WRITES {
        let since = process.now() - start;
        assert!(since < 2000 * MS, "{} of {WRITES}: {rules}", found.len());
        if since < WRITES as u64 * 100 * US {
            post_write(&mut process.hosts[0], &mut from, &to, 1);
        }
        process.run_for(100 * US);
        found.extend(statuses(&mut process.hosts[0], &mut from.cq));
        took = process.now() - start;
    }
    let verdict = process.stop_scenario(before).unwrap();
    assert!(process.watched().violations.is_empty(), "{rules}");
    Outcome {
        process,
        statuses: found,
        took,
        verdict,
    }
}

#[test]
fn rules_do_the_same_with_one_engine_and_with_two() {
    for case in CASES {
        let run = |engines| {
            let outcome = play(engines, case.rules);
            let name = format!("{}, {engines} engines", case.name);
            assert!(outcome.verdict.passed(), "{name}: {:?}", outcome.verdict);
            assert!(outcome.took >= case.takes, "{name}: {} ns", outcome.took);
            let found = outcome.statuses.iter();
            let ok = found.clone().take_while(|status| **status == SUCCESS);
            let rest: Vec<u8> = found.skip(ok.count()).copied().collect();
            match case.error {
                None => assert!(rest.is_empty(), "{name}: {rest:?}"),
                Some(error) => {
                    let flushed = rest.iter().skip(1);
                    let flushed = flushed.filter(|status| **status == WR_FLUSH_ERR);
                    assert_eq!(rest.first(), Some(&error), "{name}");
                    assert_eq!(flushed.count(), rest.len() - 1, "{name}");
                }
            }
            let registers = |host: usize| {
                let mut bus = outcome.process.hosts[host].driver.bus.clone();
                bus.read_register(regs::MAGIC)
            };
            assert_ne!(registers(0), u32::MAX, "{name}");
            assert_eq!(registers(1) == u32::MAX, case.name == "remove", "{name}");
            (outcome.statuses, outcome.took)
        };
        assert_eq!(run(1), run(2), "{}", case.name);
    }
}

#[test]
fn a_table_that_no_host_moves_is_a_problem() {
    let rules = "[[at]]\nnic = \"nic1\"\ntime = \"1ms\"\ndo = { port_down = { for = \"1us\", move_gid = true } }";
    let outcome = play(2, rules);
    let problems = &outcome.verdict.problems;
    assert_eq!(problems, &["NIC nic1: move_gid was not carried out"]);
}

/// A fault that the driver never answers counts with its age.
#[test]
fn a_latency_counts_a_fault_without_an_answer() {
    let shape = ProcessShape {
        engines: 2,
        nics: (0..2)
            .map(|engine| NicShape {
                engine,
                ..NicShape::default()
            })
            .collect(),
        seed: 3,
        ..ProcessShape::default()
    };
    let mut process = Process::new(&shape).unwrap();
    let [mut from, mut to] = connection(&mut process, [0, 1]);
    let host = &mut process.hosts[1];
    host.driver.create_eq(EQ_FAULTS, 2, 4).unwrap();
    to.mr.key = host
        .driver
        .reg_on_demand(host.pd, to.mr.va, 32 << 10, 0)
        .unwrap();
    let rules = "[[expect]]\nlatency = { of = \"total\", percentile = 100, max = \"4ms\" }";
    let scenario = read("rules.toml", rules).unwrap_or_else(|problems| panic!("{problems}"));
    let plan = scenario
        .plan(&["nic0".to_owned(), "nic1".to_owned()], &[])
        .unwrap();
    let before = process.start_scenario(plan);
    post_write(&mut process.hosts[0], &mut from, &to, 1);
    process.run_for(5 * MS);
    let verdict = process.stop_scenario(before).unwrap();
    let [latency] = &verdict.checks[..] else {
        panic!("{verdict:?}");
    };
    assert!(
        !latency.passed && latency.found.contains("1 faults without an answer"),
        "{latency:?}"
    );
}
