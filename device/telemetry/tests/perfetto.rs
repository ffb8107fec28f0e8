//! Perfetto's own tools read what is written for Perfetto.
//!
//! Needs Python with the package `perfetto`; the program that runs SQL over a trace (`trace_processor_shell`) is used if
//! `TRACE_PROCESSOR` names it, and else the script decodes the file with Perfetto's descriptors.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use faultline_nic::{Diagnostic, DriverTimes, Instant};
use faultline_telemetry::{Record, Report, Trace, TraceEvent, TraceFormat, TraceHeader};

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
#[ignore = "needs the Python package perfetto"]
fn perfetto_sees_the_same_faults_as_the_report() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/perfetto_trace.py");
    let trace = trace();
    let report = folder.join("report.json");
    let json = serde_json::to_vec(&Report::new(&trace)).unwrap();
    fs::write(&report, json).unwrap();
    let file = folder.join("trace.pftrace");
    let mut out = Vec::new();
    trace.write(TraceFormat::Perfetto, &mut out).unwrap();
    fs::write(&file, out).unwrap();
    let mut python = Command::new("python3");
    python.arg(&script).arg(&file).arg(&report);
    if let Some(shell) = std::env::var_os("TRACE_PROCESSOR") {
        python.arg("--trace-processor").arg(shell);
    }
    let output = python.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{output:?}");
    assert!(text.contains("100 faults"), "{text}");
}
