//! Perfetto's trace processor reads traces in both formats.
//!
//! Needs Python with the packages `perfetto` and `wasmtime`, and in `TRACE_PROCESSOR` the path of the module
//! `trace_processor.wasm`.

#![cfg(test)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use faultline_nic::{Diagnostic, DriverTimes, Instant};
use faultline_telemetry::{Record, Report, Trace, TraceEvent, TraceFormat, TraceHeader};
use serde_json::{Value, json};

/// Faults that overlap, each slower than the one before; every third is joined by another access.
fn trace() -> Trace {
    let mut records = Vec::new();
    let mut nic = |at, diagnostic| {
        records.push(Record {
            at: Instant(at),
            nic: 0,
            event: TraceEvent::Nic(diagnostic),
        });
    };
    for n in 1..=100u32 {
        let (qpn, token) = (n % 7, u64::from(n));
        let raised = Instant(u64::from(n) * 1_000);
        let driver = DriverTimes {
            wait_ns: 100 * n,
            map_ns: 2_000 + 10 * n,
            post_ns: 50,
        };
        let resumed = Instant(raised.0 + 5_000 + 200 * u64::from(n));
        nic(
            raised.0,
            Diagnostic::FaultRaised {
                token,
                qpn,
                key: 0x100,
                va: 0x1000 * u64::from(n),
                bytes: 64,
                psn: n,
                write: true,
                requester: false,
            },
        );
        nic(
            resumed.0,
            Diagnostic::FaultResumed {
                token,
                raised,
                waiters: 1,
                record_ns: 0,
                driver,
            },
        );
        for access in 0..=u64::from(n % 3 == 0) {
            let done = Diagnostic::FaultDone {
                token,
                qpn: qpn + 10,
                resumed,
                raised,
            };
            nic(resumed.0 + 700 + 30 * u64::from(n) + 5_000 * access, done);
        }
    }
    records.sort_by_key(|record| record.at);
    Trace {
        header: TraceHeader::new(vec!["left".to_owned()]),
        records,
    }
}

#[test]
#[ignore = "needs Perfetto's trace processor: `cargo lab test host::perfetto` fetches it"]
fn sql_counts_the_same_faults_as_the_report() {
    let module = std::env::var_os("TRACE_PROCESSOR").expect("TRACE_PROCESSOR is set");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perfetto_trace.py");
    let trace = trace();
    let report = serde_json::to_value(Report::new(&trace)).unwrap();
    let by_name = |stages: &Value| -> BTreeMap<String, Value> {
        let stages = stages.as_array().unwrap().iter();
        let named =
            stages.map(|stage| (stage["stage"].as_str().unwrap().to_owned(), stage.clone()));
        named.collect()
    };
    let stages = by_name(&report["stages"]);
    assert_eq!(stages.len(), 7);
    // From a refused access to its fault, and from there to the access that is executed. In JSON, no arrow can lead to
    // a fault.
    for (name, format, arrows) in [
        ("trace.pftrace", TraceFormat::Perfetto, 233),
        ("trace.json", TraceFormat::Json, 0),
    ] {
        let file = folder.join(name);
        let mut out = Vec::new();
        trace.write(format, &mut out).unwrap();
        fs::write(&file, out).unwrap();
        let counted = |options: &[&str]| -> Value {
            let mut python = Command::new("python3");
            python.arg(&script).arg(&module).arg(&file).args(options);
            let output = python.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            serde_json::from_slice(&output.stdout).unwrap()
        };
        let all = counted(&["--nic", "left"]);
        assert_eq!(all["faults"], 100, "{name}");
        assert_eq!(all["faults"], report["faults"]["all"], "{name}");
        assert_eq!(all["tokens"], json!((1..=100).collect::<Vec<u64>>()));
        assert_eq!(by_name(&all["stages"]), stages, "{name}");
        assert_eq!(all["arrows"], arrows, "{name}");
        // The faults whose numbers are greater than 90 were raised after 90 µs.
        assert_eq!(counted(&["--since", "90000"])["faults"], 10, "{name}");
        assert_eq!(counted(&["--nic", "right"])["faults"], 0, "{name}");
    }
}
