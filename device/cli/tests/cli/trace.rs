//! `faultline trace` and `faultline report` as programs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::program::{printed_by, server};

fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(arguments).env_remove("RUST_BACKTRACE");
    command.env("FAULTLINE_CONTROL", directory.join("control"));
    command.current_dir(directory).output().unwrap()
}

#[track_caller]
fn printed(directory: &Path, arguments: &[&str]) -> String {
    printed_by(run(directory, arguments), arguments)
}

#[track_caller]
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = run(directory, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_trace_is_saved_in_each_form_and_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a"]);
    // A reset is an event.
    printed(path, &["ctl", "action", "a", "reset"]);
    for file in ["x.jsonl", "x.json", "x.pftrace"] {
        let text = printed(path, &["trace", "-o", file]);
        assert_eq!(text, format!("1 events in {file}\n"));
        let report = printed(path, &["report", file, "--json"]);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert!(report.is_object(), "{report}");
        assert!(!printed(path, &["report", file]).is_empty());
    }
    let raw = std::fs::read_to_string(path.join("x.jsonl")).unwrap();
    assert!(raw.contains("Reset"), "{raw}");
    // Events that come while it follows are in the trace.
    let follow = std::thread::scope(|scope| {
        let trace = scope.spawn(|| printed(path, &["trace", "-o", "y.json", "--follow", "2"]));
        std::thread::sleep(std::time::Duration::from_millis(700));
        printed(path, &["ctl", "action", "a", "reset"]);
        trace.join().unwrap()
    });
    assert_eq!(follow, "2 events in y.json\n");
    printed(
        path,
        &[
            "report",
            "y.json",
            "--histogram",
            "h.svg",
            "--time-line",
            "t.svg",
        ],
    );
    for picture in ["h.svg", "t.svg"] {
        let picture = std::fs::read_to_string(path.join(picture)).unwrap();
        assert!(picture.starts_with("<svg"), "{picture}");
    }
}

#[test]
fn wrong_files_are_refused_before_anything_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let error = refused(path, &["trace", "-o", "x.txt"]);
    assert!(error.contains(".jsonl (raw), .json or .pftrace"), "{error}");
    let error = refused(path, &["trace", "-o", "x.json"]);
    assert!(error.contains("there is no socket"), "{error}");
    assert!(!path.join("x.json").exists());
    let error = refused(path, &["report", "nothing.json"]);
    assert!(error.contains("can't read nothing.json"), "{error}");
    std::fs::write(path.join("other.json"), "{}").unwrap();
    let error = refused(path, &["report", "other.json"]);
    assert!(error.contains("not a trace of Faultline"), "{error}");
}

/// The device clock stands still in a pause, which must not keep a trace from its end.
#[test]
fn a_trace_ends_in_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a"]);
    printed(path, &["ctl", "pause"]);
    let text = printed(path, &["trace", "--follow", "1", "-o", "t.jsonl"]);
    assert!(text.contains("events in t.jsonl"), "{text}");
}
