//! The rules of scenarios on processes of one and of two engines.

use faultline_abi::admin::{Counter, EQ_FAULTS};
use faultline_abi::cqe::{RETRY_EXC_ERR, SUCCESS, WR_FLUSH_ERR};
use faultline_abi::qp::QPT_RC;
use faultline_abi::regs;
use faultline_abi::wqe::{WR_READ, WR_SEND};
use faultline_fabric::scenario::CounterValues;
use faultline_scenario::read::read;
use faultline_scenario::verdict::Verdict;
use faultline_simulation::process::{Process, ProcessShape, Processes};

use crate::common::{
    Bus, Connect, End, Expect, MS, Mr, Send, TIMEOUT_10, US, connected, exchange, nic_and_port,
    nics, pattern, process, wired,
};
use crate::stations::{Frame, Station};

const LEN: u64 = 32 << 10;
/// WRITEs of a run, one each 100 µs.
const WRITES: usize = 20;

/// Rules, the status of the first failed completion, and the time that the run takes, in whole steps of 100 µs.
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
        // The WRITE of 1 ms is sent again after 4.2 ms.
        takes: 5200 * US,
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
        // From 1 ms on, eight timeouts of 4.2 ms.
        takes: 34_600 * US,
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
        // From 1 ms on, eight timeouts of 4.2 ms.
        takes: 34_600 * US,
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
        // From 1 ms on, eight timeouts of 4.2 ms.
        takes: 34_600 * US,
    },
];

/// The results of a run.
struct Outcome {
    process: Process,
    statuses: Vec<u8>,
    /// From the first WRITE to the last completion.
    took: u64,
    verdict: Verdict,
}

pub(crate) fn two_nics(engines: usize) -> Processes {
    process(&ProcessShape {
        engines,
        nics: nics(2, |nic| nic % engines),
        seed: 3,
        ..ProcessShape::default()
    })
}

/// A connection. A retry is made after 4 ms.
pub(crate) fn rc(world: &mut Processes, len: u64) -> [End; 2] {
    let change = |path| Connect {
        timeout: 10,
        ..path
    };
    connected(world, [(0, 0), (0, 1)], QPT_RC, (7, len), change)
}

pub(crate) fn start(world: &Processes, rules: &str) -> CounterValues {
    let scenario = read("rules.toml", rules).unwrap_or_else(|problems| panic!("{problems}"));
    let nics = ["nic0", "nic1"].map(str::to_owned);
    world.all[0].start_scenario(scenario.plan(&nics, &[]).unwrap())
}

/// A SEND of all of the region, whose data is checked.
#[track_caller]
pub(crate) fn send(world: &mut Processes, [from, to]: &mut [End; 2]) {
    let data = pattern(7, from.mr.len as usize);
    from.fill(world, 0, &data);
    to.fill(world, 0, &vec![0; data.len()]);
    to.receive(world, 1, (0, data.len() as u64));
    let send = Send {
        opcode: WR_SEND,
        sges: &[(from.mr.va, data.len() as u32, from.mr.key)],
        ..Send::default()
    };
    from.post(world, &send);
    from.await_good(world, 1);
    to.await_good(world, 1);
    assert!(to.read(world, 0, data.len()) == data);
}

fn play(engines: usize, rules: &str) -> Outcome {
    let mut world = two_nics(engines);
    let [mut from, to] = rc(&mut world, LEN);
    let before = start(&world, rules);
    let start = world.now();
    let mut found = Vec::new();
    let mut took = 0;
    while found.len() < WRITES {
        let since = world.now() - start;
        assert!(since < 2000 * MS, "{} of {WRITES}: {rules}", found.len());
        if since < WRITES as u64 * 100 * US {
            from.write(&mut world, &to.mr, LEN);
        }
        world.run_for(100 * US);
        found.extend(from.statuses(&mut world));
        took = world.now() - start;
    }
    let process = world.all.remove(0);
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
            assert_eq!(outcome.took, case.takes, "{name}");
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

/// Runs of packets are taken apart, and all data arrives although each seventh packet is lost, delayed or changed.
#[test]
fn large_messages_survive_all_changes_of_packets() {
    /// Each seventh of 196 packets, from the third one on, and no packet is sent again.
    const HARMLESS: Option<(u64, u64)> = Some((28, 0));
    /// However a packet is lost, all behind it are sent again.
    const LOST: Option<(u64, u64)> = Some((84, 394));
    for (change, expected) in [
        ("drop = {}", LOST),
        ("duplicate = {}", HARMLESS),
        (r#"delay = { by = "200us" }"#, None),
        ("reorder = { by = 3 }", None),
        (r#"corrupt = { part = "payload" }"#, LOST),
        (r#"corrupt = { part = "header" }"#, LOST),
        ("truncate = { to = 60 }", LOST),
        ("ecn_mark = {}", HARMLESS),
        ("mig_req = { value = false }", HARMLESS),
    ] {
        let found = [1, 2].map(|engines| {
            let mut world = two_nics(engines);
            let mut ends = rc(&mut world, 200_000);
            let rules = format!(
                "[[rule]]\non = {{ dir = 'rx', opcode = 'REQUEST', nth = 3, every = 7 }}\ndo = {{ {change} }}\nfired = '7..'"
            );
            let before = start(&world, &rules);
            send(&mut world, &mut ends);
            let verdict = world.all[0].stop_scenario(before).unwrap();
            assert!(verdict.passed(), "{change}: {verdict:?}");
            // Without a scenario everything is as before.
            let repeated = world.counter((0, 0), Counter::retransmitted_packets);
            send(&mut world, &mut ends);
            let after = world.counter((0, 0), Counter::retransmitted_packets);
            assert_eq!(after, repeated, "{change}");
            world.expect_legal();
            (verdict.checks[0].found.clone(), repeated)
        });
        assert_eq!(found[0], found[1], "{change}");
        if let Some((fired, repeated)) = expected {
            let expected = (format!("fired {fired} times"), repeated);
            assert_eq!(found[0], expected, "{change}");
        }
    }
}

/// A connection that is older than the scenario is known by its number, and a rule matches its first packet since the beginning.
#[test]
fn rules_know_connections_that_exist() {
    for engines in [1, 2] {
        let mut world = two_nics(engines);
        let mut ends = rc(&mut world, 100);
        send(&mut world, &mut ends);
        let rules = "[[rule]]\nnic = 'nic0'\non = { dir = 'tx', opcode = 'SEND', psn = 0, iter = 1 }\ndo = { count = {} }\nfired = 1\n";
        let before = start(&world, rules);
        send(&mut world, &mut ends);
        send(&mut world, &mut ends);
        let verdict = world.all[0].stop_scenario(before).unwrap();
        assert!(verdict.passed(), "{verdict:?}");
    }
}

/// More connections than one step takes before a scenario begins.
#[test]
fn a_scenario_starts_on_many_connections() {
    for engines in [1, 2] {
        let mut world = two_nics(engines);
        let mut pairs: Vec<[End; 2]> = (0..100).map(|_| rc(&mut world, 100)).collect();
        let mut last = pairs.pop().unwrap();
        // The first PSN of the last connection is known only if all of them were asked for it.
        let rules = format!(
            "[[rule]]\nnic = 'nic0'\non = {{ qpn = {}, opcode = 'SEND', psn = 0, iter = 1 }}\ndo = {{ drop = {{}} }}\nfired = 1\n\
             [[expect]]\ndiagnostic = {{ nic = 'nic0', kind = 'retried', count = 1 }}\n",
            last[0].qp.qpn
        );
        let before = start(&world, &rules);
        send(&mut world, &mut last);
        assert_eq!(world.now(), TIMEOUT_10);
        let verdict = world.all[0].stop_scenario(before).unwrap();
        assert!(verdict.passed(), "{verdict:?}");
    }
}

/// The rules of a process act on frames through its port, in both directions, also on frames that are not RoCE.
#[test]
fn rules_for_a_port_change_its_frames() {
    let shape = nic_and_port();
    let mut world = wired(&shape, &shape);
    let at = [(0, 0), (1, 0)];
    let change = |path| Connect {
        timeout: 10,
        ..path
    };
    let [mut a, mut b] = connected(&mut world, at, QPT_RC, (7, LEN), change);
    let mut stations = at.map(|at| Station::new(&mut world, at));
    exchange(&mut world, &mut a, &b, 1);
    assert_eq!(world.now(), 0);
    let rule = |on: &str, action: &str, fired: u32| {
        format!("[[rule]]\nport = 'port0'\non = {{ {on} }}\ndo = {{ {action} }}\nfired = {fired}\n")
    };
    let rules = [
        rule("dir = 'rx', opcode = 'WRITE', nth = 3", "corrupt = {}", 1),
        rule("dir = 'tx', opcode = 'ACK', nth = 1", "drop = {}", 1),
        rule(
            "dir = 'tx', opcode = 'READ', nth = 1",
            "delay = { by = '1ms' }",
            1,
        ),
        rule("dir = 'rx', opcode = 'RAW', nth = 2", "duplicate = {}", 1),
        rule("dir = 'rx', opcode = 'RAW'", "count = {}", 3),
    ];
    let scenario = read("rules.toml", &rules.concat());
    let scenario = scenario.unwrap_or_else(|problems| panic!("{problems}"));
    let names = ["nic0", "port0"].map(|name| vec![name.to_owned()]);
    let before = world.all[0].start_scenario(scenario.plan(&names[0], &names[1]).unwrap());
    // The corrupted packet is requested again at once, and the lost acknowledgement after a timeout.
    exchange(&mut world, &mut b, &a, 2);
    let written = world.now();
    assert_eq!(written, TIMEOUT_10);
    assert_eq!(world.counter(at[0], Counter::rx_icrc_errors), 1);
    let send = Send {
        opcode: WR_READ,
        sges: &[(a.mr.va, LEN as u32, a.mr.key)],
        remote_addr: b.mr.va,
        rkey: b.mr.key,
        ..Send::default()
    };
    a.post(&mut world, &send);
    a.await_good(&mut world, 1);
    assert_eq!(world.now(), written + MS);
    let frame = Frame::new(stations[0].mac, stations[1].mac);
    for count in [1, 2, 1] {
        stations[1].send(&mut world, &frame);
        let found = stations[0].received(&mut world);
        assert_eq!(found, vec![frame.bytes(); count]);
    }
    let verdict = world.all[0].stop_scenario(before).unwrap();
    assert!(verdict.passed(), "{verdict:?}");
    world.expect_legal();
}

/// A fault that the driver never answers counts with its age.
#[test]
fn a_latency_counts_a_fault_without_an_answer() {
    let mut world = two_nics(2);
    let [mut from, to] = rc(&mut world, LEN);
    let host = world.at((0, 1));
    host.driver.create_eq(EQ_FAULTS, 2, 4).unwrap();
    let key = host.driver.reg_on_demand(host.pd, to.mr.va, LEN, 0);
    let key = key.unwrap();
    let rules = "[[expect]]\nlatency = { of = \"total\", percentile = 100, max = \"4ms\" }";
    let before = start(&world, rules);
    from.write(&mut world, &Mr { key, ..to.mr }, LEN);
    world.run_for(5 * MS);
    let verdict = world.all[0].stop_scenario(before).unwrap();
    let [latency] = &verdict.checks[..] else {
        panic!("{verdict:?}");
    };
    assert!(
        !latency.passed && latency.found.contains("1 faults without an answer"),
        "{latency:?}"
    );
}
