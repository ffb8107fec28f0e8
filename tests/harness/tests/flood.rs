//! A guest that causes events as fast as it can fills neither the log nor the metrics, and hides no other NIC.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::{Status, admin};
use faultline_config::Config;
use faultline_harness::testbed::{Fabric, LONG, Node, until};
use serde_json::Value;

use crate::log::Log;
use crate::observed::request;

/// Refused doorbells, each of another object, and so of another text.
const DOORBELLS: u64 = 30_000;
/// Refused commands.
const COMMANDS: u32 = 2_000;
/// Records of the trace that are kept: fewer than the events of the flood.
const RECORDS: usize = 16_384;
/// Most lines of a NIC in the log. Each kind of message has a limit of its own (20 in a burst), and there are a few kinds.
const MOST_LINES: usize = 200;

/// The names and labels of all samples.
fn series(socket: &Path) -> BTreeSet<String> {
    let text = request(socket, "GET", "/metrics", "");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let names = samples.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
    names.collect()
}

fn find(socket: &Path, sample: &str) -> Option<u64> {
    let text = request(socket, "GET", "/metrics", "");
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(sample)?.trim().parse().ok())
}

fn value(socket: &Path, sample: &str) -> u64 {
    find(socket, sample).unwrap_or_else(|| panic!("no {sample}"))
}

fn bell(object: u32, value: u32) -> Doorbell {
    Doorbell {
        kind: doorbell::SQ,
        object,
        value,
    }
}

/// Rings for objects that do not exist.
fn flood(node: &Node) {
    for n in 0..u32::try_from(DOORBELLS).unwrap() {
        let bell = bell(0x8000 + n % 0x7000, n);
        let start = Instant::now();
        // The ring may be full. A flood does not sleep until there is room.
        while node.nic.ring(0, bell).is_err() {
            assert!(start.elapsed() < LONG, "the device takes no doorbells");
            std::thread::yield_now();
        }
    }
    for n in 0..COMMANDS {
        let refused = node.nic.admin(admin::DESTROY_QP, 0xff_0000 + n, &());
        assert_eq!(refused.unwrap_err().status(), Some(Status::BadQp));
    }
}

#[test]
fn a_flood_of_events_fills_nothing_and_hides_no_other_nic() {
    let log = Log::start();
    let config = Config {
        trace_records: RECORDS,
        ..Config::default()
    };
    let fabric = Fabric::start_controlled(config, &["loud", "quiet"]).unwrap();
    let socket = fabric.control();
    let (loud, quiet) = (fabric.node("loud").unwrap(), fabric.node("quiet").unwrap());
    let refused = "faultline_diagnostics_total{nic=\"loud\",kind=\"doorbell_refused\"}";
    let wait_for = |count: u64| until("refused", || value(&socket, refused) >= count);
    // A kind of doorbells has a sample from its first one on.
    loud.nic.ring(0, bell(0x7fff, 1)).unwrap();
    wait_for(1);
    let before = series(&socket);
    flood(&loud);
    wait_for(1 + DOORBELLS);
    // Everything is counted, and no number of an object has become a label.
    // A doorbell that wakes the device arrives a second time, through the kick page.
    let kicks = "faultline_doorbells_total{nic=\"loud\",kind=\"sq\",path=\"kick\"}";
    let kicks = find(&socket, kicks).unwrap_or(0);
    let count = value(&socket, refused);
    assert!(
        (1 + DOORBELLS..=1 + DOORBELLS + kicks).contains(&count),
        "{count}"
    );
    // A path of doorbells has a sample from its first doorbell on, too: the device may have slept before.
    let mut new = series(&socket);
    new.retain(|name| !before.contains(name) && !name.contains("path=\"kick\""));
    assert!(new.is_empty(), "{new:?}");

    // The other NIC's message is logged, counted, and in the trace.
    let wrong = quiet.nic.admin(admin::DESTROY_QP, 0xff_ffff, &());
    assert!(wrong.is_err());
    quiet.nic.ring(0, bell(0xfffe, 1)).unwrap();
    let words = [
        "nic{name=quiet}",
        "kind=\"doorbell_refused\"",
        "object=65534",
    ];
    let has_all = |line: &str| words.iter().all(|word| line.contains(word));
    until("a message of the other NIC", || {
        log.text().lines().any(has_all)
    });
    let of = |nic: &str| {
        let text = log.text();
        let mark = format!("nic{{name={nic}}}");
        let is_message = |line: &&str| line.contains(&mark) && line.contains("kind=");
        text.lines().filter(is_message).count()
    };
    let lines = of("loud");
    assert!((1..=MOST_LINES).contains(&lines), "{lines} lines");

    // The trace has its size: each NIC has half of it. It says how many records there were, and has those of the other NIC.
    let mut from = 0;
    let (mut records, mut found) = (0, false);
    let recorded = loop {
        let text = request(&socket, "GET", &format!("/v1/trace?from={from}"), "");
        let mut lines = text.lines();
        let header: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        from = header["next"].as_u64().unwrap();
        let part: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        if part.is_empty() {
            break header["recorded"][0].as_u64().unwrap();
        }
        records += part.len();
        found |= part.iter().any(|record| {
            record["nic"] == 1 && record["event"]["Nic"]["DoorbellRefused"]["object"] == 0xfffe
        });
    };
    assert!(found, "the other NIC's event is not in the trace");
    assert!(recorded >= DOORBELLS, "{recorded}");
    assert!(records <= RECORDS / 2 + 1024, "{records} records");
    fabric.assert_passes_are_short();
}
