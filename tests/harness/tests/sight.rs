//! Diagnostics of a NIC have the same ids in the log, in the metrics, in the trace and in the API.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use faultline_abi::admin::Counter;
use faultline_abi::qp::QPS_ERR;
use faultline_abi::{Status, admin, doorbell, doorbell::Doorbell};
use faultline_config::Config;
use faultline_harness::frames::{Frame, raw_qp, send};
use faultline_harness::paging::{PAGE, Pager};
use faultline_harness::testbed::{Fabric, LONG, connect_nodes, until};
use faultline_harness::{QpType, SendWr};
use serde_json::{Value, json};

use crate::log::Log;
use crate::observed::{exchange, request};
use crate::traced::trace;

/// Waits for a line with all of these words.
#[track_caller]
fn expect_logged(log: &Log, words: &[&str]) {
    let all = |line: &str| words.iter().all(|word| line.contains(word));
    until(&format!("a line with {words:?}"), || {
        log.text().lines().any(all)
    });
}

/// A process with NICs of these names, and its control socket.
fn observed(names: &[&str]) -> (Fabric, PathBuf) {
    let fabric = Fabric::start_controlled(Config::default(), names).unwrap();
    let socket = fabric.control();
    (fabric, socket)
}

fn get(socket: &Path, path: &str) -> Value {
    serde_json::from_str(&request(socket, "GET", path, "")).unwrap()
}

/// Diagnostics of a NIC in the trace: kind and fields.
fn traced(socket: &Path, nic: usize) -> Vec<(String, Value)> {
    let (header, records) = trace(socket, "/v1/trace?from=0&limit=4096");
    assert_eq!(header["nics"][nic], if nic == 0 { "a" } else { "b" });
    assert_eq!(header["lost"], 0);
    records
        .iter()
        .filter(|record| record["nic"] == nic as u64)
        .filter_map(|record| match &record["event"]["Nic"] {
            Value::Object(fields) => {
                let (kind, fields) = fields.iter().next()?;
                Some((kind.clone(), fields.clone()))
            }
            Value::String(kind) => Some((kind.clone(), Value::Null)),
            _ => None,
        })
        .collect()
}

#[track_caller]
fn find<'a>(events: &'a [(String, Value)], kind: &str, wanted: &[(&str, u64)]) -> &'a Value {
    let fits = |fields: &Value| wanted.iter().all(|(name, value)| fields[*name] == *value);
    let found = events
        .iter()
        .find(|(name, fields)| name == kind && fits(fields));
    match found {
        Some((_, fields)) => fields,
        None => panic!("no {kind} with {wanted:?} in {events:#?}"),
    }
}

/// The value of the metric of diagnostics of a kind.
fn counted(metrics: &str, nic: &str, kind: &str) -> u64 {
    let line = metrics.lines().find(|line| {
        line.starts_with("faultline_diagnostics_total{")
            && line.contains(&format!("nic=\"{nic}\""))
            && line.contains(&format!("kind=\"{kind}\""))
    });
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.map_or(0, |value| value.parse().unwrap())
}

/// `KeyRefused` -> `key_refused`.
fn metric_name(kind: &str) -> String {
    let mut name = String::new();
    for c in kind.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// Values of the metric of queue pairs of a NIC, by state.
fn pairs_by_state(socket: &Path, nic: &str) -> BTreeMap<String, u64> {
    let metrics = request(socket, "GET", "/metrics", "");
    let prefix = format!("faultline_queue_pairs{{nic=\"{nic}\",state=\"");
    let series = metrics.lines().filter_map(|line| {
        let (state, value) = line.strip_prefix(&prefix)?.split_once("\"} ")?;
        Some((state.to_owned(), value.parse().unwrap()))
    });
    series.collect()
}

/// The same from the list of queue pairs.
fn listed_by_state(socket: &Path, nic: &str) -> BTreeMap<String, u64> {
    let page = get(socket, &format!("/v1/nics/{nic}/queue-pairs"));
    assert_eq!(page["next"], Value::Null);
    let mut states = BTreeMap::new();
    for pair in page["items"].as_array().unwrap() {
        let state = pair["state"].as_str().unwrap();
        *states.entry(state.to_owned()).or_default() += 1;
    }
    states
}

#[test]
fn metrics_count_queue_pairs_by_state() {
    let (fabric, socket) = observed(&["a", "b"]);
    let (a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let check = |expected: &[(&str, u64)]| {
        let mut counted = pairs_by_state(&socket, "a");
        assert_eq!(counted.len(), 7, "{counted:?}");
        counted.retain(|_, count| *count > 0);
        let expected = expected
            .iter()
            .map(|(state, count)| ((*state).to_owned(), *count));
        assert_eq!(counted, expected.collect());
        assert_eq!(counted, listed_by_state(&socket, "a"));
    };
    check(&[]);
    let idle = [a.qp(QpType::Rc).unwrap(), a.qp(QpType::Ud).unwrap()];
    check(&[("RESET", 2)]);
    let (mut connected, _peer) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    check(&[("RESET", 2), ("RTS", 1)]);
    connected.to_error().unwrap();
    check(&[("RESET", 2), ("ERR", 1)]);
    connected.to_reset().unwrap();
    check(&[("RESET", 3)]);
    drop(idle);
    check(&[("RESET", 1)]);
    request(
        &socket,
        "POST",
        "/v1/nics/a/actions",
        r#"{"action": "reset"}"#,
    );
    check(&[]);
}

/// The metrics have counted the records of the trace.
fn compare_metrics(socket: &Path) {
    for (nic, name) in [(0, "a"), (1, "b")] {
        let events = traced(socket, nic);
        let metrics = request(socket, "GET", "/metrics", "");
        for (kind, _) in &events {
            let recorded = events.iter().filter(|(other, _)| other == kind).count();
            let metric = metric_name(kind);
            assert_eq!(
                counted(&metrics, name, &metric),
                recorded as u64,
                "{metric}"
            );
        }
    }
}

/// The page table of a region of 16 pages in buckets; requests that are refused.
fn check_buckets(socket: &Path, path: &str) {
    let map = get(socket, path);
    assert_eq!(
        (&map["bucket_pages"], &map["next"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(map["buckets"].as_array().unwrap().len(), 16);
    let rest = get(socket, &format!("{path}?buckets=4&from=14"));
    assert_eq!(
        (&rest["bucket_pages"], &rest["first"]),
        (&json!(4), &json!(3))
    );
    assert_eq!(rest["buckets"][0]["pages"], 2);
    for (query, status) in [
        ("?buckets=0", "400"),
        ("?buckets=4097", "400"),
        ("?more=1", "400"),
        ("?from=99", "200"),
    ] {
        let answer = exchange(socket, "GET", &format!("{path}{query}"), "");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{query}: {answer}"
        );
    }
    let answer = exchange(socket, "GET", "/v1/nics/b/regions/3735928559/pages", "");
    assert!(
        answer.contains("NIC b has no memory key 0xdeadbeef with a page table"),
        "{answer}"
    );
}

#[test]
fn a_diagnostic_has_the_same_ids_everywhere() {
    let log = Log::start();
    let (fabric, socket) = observed(&["a", "b"]);
    let (mut a, b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
    let (mut qa, qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
    let mut pager = Pager::new(&b, 16).unwrap();

    // A page fault, seen while it is outstanding and afterwards.
    let wr = SendWr::write_inline(b"absent", pager.mr.remote(3 * PAGE)).signaled();
    qa.post_send(&wr).unwrap();
    let record = pager.record(LONG).unwrap();
    let faults = get(&socket, "/v1/nics/b/faults");
    let fault = &faults[0];
    assert_eq!(fault["token"], record.token.get());
    assert_eq!(fault["key"], u64::from(record.key.get()));
    assert_eq!(fault["va"], record.va.get());
    assert_eq!(fault["qpn"], qb.number());
    assert_eq!(fault["waiters"], 1);
    // The page table shows that the page is awaited, then that it is present.
    let path = format!("/v1/nics/b/regions/{}/pages", record.key.get());
    let bucket = |present: u64, faulting: u64| json!({"pages": 1, "present": present, "writable": present, "faulting": faulting});
    let map = get(&socket, &path);
    let states = [&map["buckets"][2], &map["buckets"][3]];
    assert_eq!(states, [&bucket(0, 0), &bucket(0, 1)]);
    pager.repair(&record).unwrap();
    assert_eq!(get(&socket, &path)["buckets"][3], bucket(1, 0));
    check_buckets(&socket, &path);
    let done = a.good_completion();
    qa.retire(&done);
    // The WRITE and its repetitions are messages of both NICs.
    let messages = |nic: &str, name: &str| get(&socket, &format!("/v1/nics/{nic}"))[name].as_u64();
    let sent = messages("a", "tx_messages").unwrap();
    assert!(sent >= 2, "{sent}");
    assert_eq!(messages("b", "rx_messages"), Some(sent));
    assert_eq!(messages("b", "tx_messages"), Some(0));
    let (token, number) = (record.token.get(), u64::from(qb.number()));
    let there = traced(&socket, 1);
    let ids = [("token", token), ("qpn", number)];
    let raised = find(&there, "FaultRaised", &ids);
    assert_eq!(raised["va"], record.va.get());
    find(&there, "RnrNakSent", &ids);
    find(&there, "FaultResumed", &ids[..1]);
    find(&there, "FaultContinued", &ids);
    find(&there, "FaultDone", &ids);
    let shown = format!("token={token:#x}");
    expect_logged(
        log,
        &["nic{name=b}", "kind=\"fault_raised\"", &shown, "page fault"],
    );
    expect_logged(log, &["nic{name=b}", "kind=\"fault_done\""]);

    // A key that does not exist ends the connection.
    let mut remote = b.mr.remote(0);
    remote.key ^= 1;
    qa.post_send(&SendWr::write_inline(b"refused", remote).signaled())
        .unwrap();
    assert!(!a.completion().is_ok());
    let there = traced(&socket, 1);
    let key = u64::from(remote.key);
    find(&there, "KeyRefused", &[("qpn", number), ("key", key)]);
    let refused = find(&there, "RequestRefused", &[("qpn", number)]);
    assert_eq!(refused["nak"], "remote_access");
    find(&there, "QpFailed", &[("qpn", number)]);
    find(&there, "QpState", &[("qpn", number)]);
    let here = traced(&socket, 0);
    find(&here, "WorkFailed", &[("qpn", u64::from(qa.number()))]);
    let (qpn, key) = (format!("qpn={number}"), format!("key={key:#x}"));
    expect_logged(
        log,
        &["WARN", "nic{name=b}", "kind=\"key_refused\"", &qpn, &key],
    );
    expect_logged(log, &["WARN", "nic{name=b}", "kind=\"qp_failed\"", &qpn]);
    assert_eq!(qb.state().unwrap(), QPS_ERR);
    let pair = get(&socket, &format!("/v1/nics/b/queue-pairs/{number}"));
    assert_eq!(pair["state"], "ERR", "{pair}");

    // A command and a doorbell that are refused, and a device that is stopped.
    let wrong = b.nic.admin(admin::DESTROY_QP, 0xffff, &());
    assert_eq!(wrong.unwrap_err().status(), Some(Status::BadQp));
    let bell = Doorbell {
        kind: doorbell::SQ,
        object: 0xfffe,
        value: 1,
    };
    b.nic.ring(0, bell).unwrap();
    let fatal = r#"{"action": "fatal"}"#;
    until("a refused doorbell", || {
        let there = traced(&socket, 1);
        there.iter().any(|(kind, _)| kind == "DoorbellRefused")
    });
    request(&socket, "POST", "/v1/nics/b/actions", fatal);
    let there = traced(&socket, 1);
    let mut refused = there.iter().filter(|(kind, _)| kind == "Command");
    assert!(refused.any(|(_, fields)| fields["status"] == "BAD_QP"));
    find(
        &there,
        "DoorbellRefused",
        &[("page", 0), ("object", 0xfffe)],
    );
    assert_eq!(find(&there, "Fatal", &[])["cause"], "INJECTED");
    expect_logged(
        log,
        &["ERROR", "nic{name=b}", "kind=\"fatal\"", "cause=INJECTED"],
    );
    expect_logged(log, &["WARN", "kind=\"doorbell_refused\"", "object=65534"]);
    let nic = get(&socket, "/v1/nics/b");
    assert_eq!(nic["state"], "fatal", "{nic}");

    compare_metrics(&socket);
}

/// The NICs of two connected processes have one name, and so one address. Each process says so, once.
#[test]
fn a_peer_with_the_address_of_a_nic_is_logged() {
    let log = Log::start();
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("wire").display());
    let process = |key: &str| {
        let config =
            format!("[[port]]\nname = \"{key}\"\nkind = \"stream\"\n{key} = \"{address}\"\n");
        Fabric::start_with(Config::from_toml(&config).unwrap(), &["doubled"]).unwrap()
    };
    let (near, far) = (process("listen"), process("connect"));
    let (near, mut far) = (near.node("doubled").unwrap(), far.node("doubled").unwrap());
    assert_eq!(near.nic.mac(), far.nic.mac());
    let mut raw = raw_qp(&far, &far.cq, 4).unwrap();
    let frame = Frame {
        dst: [0xff; 6],
        src: far.nic.mac(),
        ..Frame::to(&near.nic)
    };
    let words = ["WARN", "nic{name=doubled}", "through port `listen`"];
    let lines = || {
        let text = log.text();
        let all = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(all).count()
    };
    // The first frames may be lost before the processes are connected.
    until("a line", || {
        send(&mut far, &mut raw, &frame.bytes());
        lines() > 0
    });
    let arrived = || near.nic.counters().unwrap()[Counter::rx_packets];
    let before = arrived();
    for _ in 0..5 {
        send(&mut far, &mut raw, &frame.bytes());
    }
    until("arrived", || arrived() >= before + 5);
    // The log has the lines about these before those about this.
    let bell = Doorbell {
        kind: doorbell::SQ,
        object: 0xfffd,
        value: 1,
    };
    near.nic.ring(0, bell).unwrap();
    expect_logged(
        log,
        &["nic{name=doubled}", "doorbell_refused", "object=65533"],
    );
    assert_eq!(lines(), 1);
}
