//! NICs that are added and removed while the process runs.

use std::path::PathBuf;

use faultline_config::{Config, NicEntry};
use faultline_control::view::NicSummary;
use faultline_harness::testbed::{Fabric, until};
use serde_json::json;

use crate::observed::{exchange, request};
use crate::scenarios::send;

const PATH: &str = "/v1/nics";

/// NICs `a` and `b`, and the absent NIC `c`.
fn fabric() -> (Fabric, PathBuf) {
    let absent = NicEntry {
        name: "c".to_owned(),
        present: false,
        ..NicEntry::default()
    };
    let config = Config {
        nics: vec![absent],
        ..Config::default()
    };
    let fabric = Fabric::start_controlled(config, &["a", "b", "c"]).unwrap();
    let socket = fabric.control();
    (fabric, socket)
}

fn add(socket: &std::path::Path, name: &str) -> NicSummary {
    let body = json!({"name": name}).to_string();
    serde_json::from_str(&request(socket, "POST", PATH, &body)).unwrap()
}

fn remove(socket: &std::path::Path, name: &str) -> NicSummary {
    let path = format!("{PATH}/{name}");
    serde_json::from_str(&request(socket, "DELETE", &path, "")).unwrap()
}

fn present(socket: &std::path::Path) -> Vec<bool> {
    let list: Vec<NicSummary> = serde_json::from_str(&request(socket, "GET", PATH, "")).unwrap();
    list.iter().map(|nic| nic.present).collect()
}

#[test]
fn a_nic_is_added_used_removed_and_added_again() {
    let (fabric, control) = fabric();
    assert_eq!(present(&control), [true, true, false]);
    assert!(!fabric.socket("c").exists());
    let mut a = fabric.node("a").unwrap();
    for _ in 0..2 {
        assert!(add(&control, "c").present);
        let mut c = fabric.node("c").unwrap();
        send(&mut a, &mut c, 5000);
        send(&mut c, &mut a, 5000);
        // Its client is attached.
        let removed = remove(&control, "c");
        assert!(!removed.present && removed.client.is_none(), "{removed:?}");
        assert_eq!(removed.queue_pairs, 0);
        assert!(!fabric.socket("c").exists());
        assert_eq!(present(&control), [true, true, false]);
        until("disconnected", || c.nic.read_reg(0).is_err());
        assert!(fabric.open("c").is_err());
    }
    // The others work as before.
    let mut b = fabric.node("b").unwrap();
    send(&mut a, &mut b, 5000);
    remove(&control, "a");
    fabric.assert_passes_are_short();
}

#[test]
fn a_nic_is_added_and_removed_once() {
    let (fabric, control) = fabric();
    let refused = |method: &str, path: &str, body: &str, status: &str, reason: &str| {
        let answer = exchange(&control, method, path, body);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        assert!(answer.contains(reason), "{answer}");
    };
    refused("POST", PATH, r#"{"name": "a"}"#, "409", "present already");
    refused("DELETE", "/v1/nics/c", "", "409", "absent already");
    refused(
        "POST",
        PATH,
        r#"{"name": "d"}"#,
        "404",
        "the NICs are: a, b, c",
    );
    refused(
        "POST",
        PATH,
        r#"{"name": "c", "socket": "x"}"#,
        "400",
        "unknown field",
    );
    // The path belongs to something else, and later it does not.
    std::fs::write(fabric.socket("c"), "mine").unwrap();
    refused("POST", PATH, r#"{"name": "c"}"#, "409", "is not a socket");
    std::fs::remove_file(fabric.socket("c")).unwrap();
    assert!(add(&control, "c").present);
}
