//! The Grafana dashboard in docs/ uses metrics that exist.

#![cfg(test)]

use std::collections::BTreeSet;
use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_nic::{Instant, TxFrame};
use faultline_telemetry::{
    DoorbellPath, EngineSnapshot, FabricSnapshot, NicGauges, NicSnapshot, PortCounts,
    ProcessSnapshot, Recorder, TraceEvent, prometheus_text,
};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../../docs/grafana-dashboard.json");

/// The text of a NIC that has a series of each family.
fn text() -> String {
    let mut recorder = Recorder::new(0, 1, true);
    let frame = recorder.frame(1, &TxFrame::default(), 60).unwrap();
    recorder.received(0, &frame);
    recorder.sent(Instant(0), 0, frame);
    let doorbell = TraceEvent::Doorbell {
        page: 0,
        kind: faultline_abi::doorbell::SQ,
        path: DoorbellPath::Page,
        object: 1,
        value: 1,
    };
    recorder.event(Instant(0), 0, doorbell);
    let gauges = NicGauges {
        objects: vec![("qp", 1)],
        queue_pairs: vec![("RTS", 1)],
        queue_depths: vec![("fault", 1)],
        attached: Some(Duration::from_secs(1)),
        ..NicGauges::default()
    };
    let nic = NicSnapshot {
        name: "a".to_owned(),
        counters: [0; Counter::COUNT],
        metrics: recorder.snapshot(0),
        gauges,
        port: PortCounts {
            link_drops: vec![("mtu", 1)],
            ..PortCounts::default()
        },
    };
    prometheus_text(
        &[nic],
        &FabricSnapshot::default(),
        &[EngineSnapshot::default()],
        ProcessSnapshot {
            max_fds: Some(1),
            ..ProcessSnapshot::default()
        },
    )
}

/// Names of series and of labels in the text.
fn names(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut series, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("{other}"),
            };
            series.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
        } else if let Some((_, rest)) = line.split_once('{') {
            let keys = rest.split(',').filter_map(|label| label.split_once('='));
            labels.extend(keys.map(|(key, _)| key.to_owned()));
        }
    }
    (series, labels)
}

/// The words of a query.
fn words(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// The texts after each occurrence of a mark, up to a closing one.
fn between<'a>(text: &'a str, open: &'static str, close: char) -> impl Iterator<Item = &'a str> {
    text.split(open)
        .skip(1)
        .filter_map(move |rest| Some(rest.split_once(close)?.0))
}

#[test]
fn each_query_names_metrics_and_labels_that_exist() {
    let (series, labels) = names(&text());
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut used = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let metrics: Vec<_> = words(query)
                .filter(|w| w.starts_with("faultline_") || w.starts_with("process_"))
                .collect();
            assert!(!metrics.is_empty(), "{title}: {query}");
            for metric in metrics {
                assert!(series.contains(metric), "{title}: no metric {metric}");
                used.insert(metric);
            }
            let grouped = between(query, "by (", ')').flat_map(|list| list.split(", "));
            let legend = target["legendFormat"].as_str().unwrap();
            let shown = between(legend, "{{", '}');
            for label in grouped.chain(shown) {
                assert!(labels.contains(label), "{title}: no label {label}");
            }
            // All panels of NICs obey the selection. The log is that of the process.
            let process = [
                "faultline_engine_",
                "faultline_log_lines_lost_",
                "faultline_build_info",
            ];
            let process = process.iter().any(|metric| query.contains(metric));
            assert!(
                process || query.contains("nic=~\"$nic\""),
                "{title}: {query}"
            );
        }
    }
    // Everything but the device's own counters has a panel.
    let unused: Vec<_> = series
        .iter()
        .filter(|name| !used.contains(name.as_str()) && !name.starts_with("faultline_device_"))
        .filter(|name| *name != "faultline_fault_stage_seconds_count")
        .collect();
    assert_eq!(unused, Vec::<&String>::new());
}

#[test]
fn panels_have_their_own_place_and_number() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), panels.len());
    let place = |panel: &Value| {
        let of = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        (of("x"), of("y"), of("w"), of("h"))
    };
    for (number, panel) in panels.iter().enumerate() {
        let (x, y, w, h) = place(panel);
        assert!(w > 0 && h > 0 && x + w <= 24);
        for other in panels.iter().skip(number + 1) {
            let (x2, y2, w2, h2) = place(other);
            let apart = x + w <= x2 || x2 + w2 <= x || y + h <= y2 || y2 + h2 <= y;
            assert!(apart, "{} and {}", panel["title"], other["title"]);
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["name"] == "nic"));
}
