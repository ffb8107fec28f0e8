use std::collections::{BTreeMap, BTreeSet};

use faultline_nic::{Diagnostic, Instant};

use super::*;
use crate::event::FrameEvent;

/// A line of a family: name with suffix, labels without `le`, `le`, value.
struct Sample {
    name: String,
    labels: String,
    le: Option<String>,
    value: f64,
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
        None => (series, ""),
    };
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    assert!(name.chars().all(legal), "{line}");
    let (le, others): (Vec<_>, Vec<_>) = labels
        .split(',')
        .filter(|label| !label.is_empty())
        .partition(|label| label.starts_with("le="));
    for label in &others {
        let (key, value) = label.split_once('=').unwrap();
        assert!(key.chars().all(legal), "{line}");
        assert!(value.starts_with('"') && value.ends_with('"'), "{line}");
    }
    let bound = |le: &&str| le.trim_start_matches("le=").trim_matches('"').to_owned();
    Sample {
        name: name.to_owned(),
        labels: others.join(","),
        le: le.first().map(bound),
        value: value.parse().unwrap(),
    }
}

/// Checks the text by the rules of the format, and returns the families with their types.
fn check(text: &str) -> BTreeMap<String, String> {
    let mut families = BTreeMap::new();
    let mut series = BTreeSet::new();
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    let mut family = String::new();
    let body = text.strip_suffix("# EOF\n").expect("ends with EOF");
    for line in body.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let mut word = || words.next().unwrap().to_owned();
            let (keyword, name, rest) = (word(), word(), word());
            match keyword.as_str() {
                "HELP" => assert!(rest.len() > 8, "{line}"),
                "TYPE" => {
                    assert_eq!(families.insert(name.clone(), rest), None, "{line}");
                    family = name;
                }
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let sample = sample(line);
        assert!(series.insert(line.rsplit_once(' ').unwrap().0), "{line}");
        assert!(sample.value >= 0.0, "{line}");
        let suffix = sample.name.strip_prefix(family.as_str()).expect(line);
        match (families[&family].as_str(), suffix) {
            ("counter", "_total") | ("gauge", "") | ("histogram", "_sum") => {}
            ("histogram", "_count") => {
                counts.insert(sample.labels, sample.value);
            }
            ("histogram", "_bucket") => {
                let le = sample.le.unwrap();
                let bound = if le == "+Inf" {
                    f64::INFINITY
                } else {
                    le.parse().unwrap()
                };
                let list = buckets.entry(sample.labels).or_default();
                list.push((bound, sample.value));
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(counts.len(), buckets.len());
    for (labels, list) in &buckets {
        assert!(
            list.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1),
            "{labels}"
        );
        assert_eq!(list.last(), Some(&(f64::INFINITY, counts[labels])));
    }
    families
}

fn nic(name: &str) -> NicSnapshot {
    let mut metrics = NicMetrics::default();
    for opcode in 0..=u8::MAX {
        let frame = FrameEvent {
            to: 0,
            opcode,
            syndrome: FrameEvent::NO_SYNDROME,
            src_qpn: 1,
            dst_qpn: 2,
            psn: 0,
            packets: 2,
            bytes: 100,
        };
        metrics.tx.count(&frame, 1);
        metrics.rx.count(&frame, 1);
        metrics.count_doorbell(opcode, crate::event::DoorbellPath::Kick);
    }
    for ns in [0, 1500, 3_000_000, u64::MAX] {
        let done = Diagnostic::FaultDone {
            token: 1,
            qpn: 2,
            resumed: Instant(0),
            raised: Instant(0),
        };
        metrics.count_diagnostic(Instant(ns), &done);
    }
    NicSnapshot {
        name: name.to_owned(),
        counters: [7; Counter::COUNT],
        metrics,
        gauges: NicGauges {
            objects: vec![("qp", 3), ("cq", 4)],
            queue_pairs: vec![("RTS", 3)],
            queue_depths: vec![("fault", 1)],
            held_bytes: 1 << 20,
            attached: Some(Duration::from_secs(61)),
            ..NicGauges::default()
        },
        port: PortCounts {
            log_dropped: 6,
            link_drops: vec![("mtu", 8)],
            interrupts_suppressed: 9,
        },
    }
}

#[test]
fn the_text_obeys_the_format() {
    let engine = EngineSnapshot {
        uptime: Duration::from_millis(1500),
        ..EngineSnapshot::default()
    };
    let process = ProcessSnapshot {
        version: "1.2.3",
        cpu: Duration::from_millis(2500),
        resident: 4096,
        max_fds: Some(1024),
        ..ProcessSnapshot::default()
    };
    let text = prometheus_text(&[nic("a"), nic("b")], &fabric(), &[engine], process);
    let families = check(&text);
    assert!(families.len() > Counter::COUNT + 15);
    for line in [
        "faultline_engine_uptime_seconds 1.5",
        "faultline_log_dropped_total{nic=\"a\"} 6",
        "faultline_wire_bytes_total{nic=\"b\",direction=\"rx\",opcode=\"rc_send_only\"} 100",
        "faultline_packets_total{nic=\"a\",direction=\"tx\",opcode=\"raw\"} 2",
        "faultline_messages_total{nic=\"a\",direction=\"tx\",opcode=\"rc_read_request\"} 2",
        "faultline_doorbells_total{nic=\"a\",kind=\"sq\",path=\"kick\"} 2",
        "faultline_interrupts_suppressed_total{nic=\"b\"} 9",
        "faultline_link_dropped_packets_total{nic=\"a\",reason=\"mtu\"} 8",
        "faultline_diagnostics_total{nic=\"a\",kind=\"fault_done\"} 4",
        "faultline_fault_stage_seconds_bucket{le=\"+Inf\",nic=\"a\",stage=\"total\"} 4",
        "faultline_device_page_faults_total{nic=\"a\"} 7",
        "faultline_device_table_bytes{nic=\"a\"} 7",
        "faultline_objects{nic=\"a\",kind=\"qp\"} 3",
        "faultline_held_bytes{nic=\"a\"} 1048576",
        "faultline_client_attached{nic=\"a\"} 1",
        "faultline_client_attached_time_seconds{nic=\"b\"} 61",
        "faultline_build_info{version=\"1.2.3\"} 1",
        "process_cpu_seconds_total 2.5",
        "process_resident_memory_bytes 4096",
        "process_max_fds 1024",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is absent");
    }
}

#[test]
fn a_guest_adds_no_more_series_than_there_are_opcodes() {
    let text = prometheus_text(
        &[nic("a")],
        &FabricSnapshot::default(),
        &[EngineSnapshot::default()],
        ProcessSnapshot::default(),
    );
    let opcodes = faultline_wire::Opcode::ALL.len() + 1;
    let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(lines("faultline_frames_total"), 2 * opcodes);
    assert!(lines("faultline_doorbells_total") <= 10);
}

#[test]
fn names_of_nics_are_escaped() {
    let text = prometheus_text(
        &[nic("a\"b\\c\nd")],
        &FabricSnapshot::default(),
        &[EngineSnapshot::default()],
        ProcessSnapshot::default(),
    );
    assert!(text.contains(r#"{nic="a\"b\\c\nd"}"#));
    check(&text);
}

#[test]
fn no_nics_is_no_error() {
    check(&prometheus_text(
        &[],
        &FabricSnapshot::default(),
        &[EngineSnapshot::default()],
        ProcessSnapshot::default(),
    ));
}

fn fabric() -> FabricSnapshot {
    let port = |name: &str| PortSnapshot {
        name: name.to_owned(),
        connected: true,
        connections: 2,
        rx: (3, 300),
        tx: (4, 400),
        drops: vec![("too_long", 5), ("overrun", 6)],
        holds: 13,
        malformed: 7,
    };
    let link = |direction| LinkSnapshot {
        port: "wire\"1".to_owned(),
        direction,
        effects: vec![("lost", 8), ("corrupted", 9)],
        pauses: 10,
        pauses_by_priority: vec![PrioritySnapshot {
            priority: 3,
            pauses: 11,
            paused: Duration::from_millis(12),
        }],
    };
    FabricSnapshot {
        ports: vec![port("wire\"1"), port("host")],
        links: vec![link(Direction::Tx), link(Direction::Rx)],
    }
}

#[test]
fn ports_and_links_have_series_of_their_own() {
    let text = prometheus_text(
        &[],
        &fabric(),
        &[EngineSnapshot::default()],
        ProcessSnapshot::default(),
    );
    check(&text);
    for line in [
        "faultline_port_frames_total{port=\"wire\\\"1\",direction=\"rx\"} 3",
        "faultline_port_frames_total{port=\"host\",direction=\"tx\"} 4",
        "faultline_port_wire_bytes_total{port=\"host\",direction=\"rx\"} 300",
        "faultline_port_dropped_frames_total{port=\"host\",reason=\"overrun\"} 6",
        "faultline_port_connected{port=\"host\"} 1",
        "faultline_port_connections_total{port=\"host\"} 2",
        "faultline_port_holds_total{port=\"host\"} 13",
        "faultline_port_malformed_total{port=\"host\"} 7",
        "faultline_link_model_frames_total{port=\"wire\\\"1\",direction=\"rx\",effect=\"corrupted\"} 9",
        "faultline_link_model_pauses_total{port=\"wire\\\"1\",direction=\"tx\"} 10",
        "faultline_link_model_priority_pauses_total{port=\"wire\\\"1\",direction=\"rx\",priority=\"3\"} 11",
        "faultline_link_model_priority_paused_seconds_total{port=\"wire\\\"1\",direction=\"rx\",priority=\"3\"} 0.012",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let without = prometheus_text(
        &[],
        &FabricSnapshot::default(),
        &[EngineSnapshot::default()],
        ProcessSnapshot::default(),
    );
    assert!(!without.contains("faultline_port_") && !without.contains("faultline_link_model"));
}
