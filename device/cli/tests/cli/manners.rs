//! Common behaviour of all commands: signals, arguments that cannot be used, log levels, colours, the attached client.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::program::server;
use crate::running::{LONG, Program, call, client};
use crate::terminal::run_in_terminal;

/// VFIO_USER_DEVICE_GET_INFO.
const GET_INFO: u16 = 4;

/// Many runs. Each takes some milliseconds.
const LOSS: &str = "[[traffic]]\nop = \"write\"\ncount = 2000\n[[rule]]\non = { dir = \"rx\", opcode = \"ACK\", nth = 5 }\ndo = { drop = {} }\n";
const FOR_GUESTS: &str = "[guests]\nscript = \"p.sh\"\n[[rule]]\non = { dir = \"rx\", opcode = \"ACK\", nth = 5 }\ndo = { drop = {} }\n";

fn program(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(arguments).current_dir(directory);
    command.env_remove("RUST_BACKTRACE").env_remove("NO_COLOR");
    command.env("FAULTLINE_CONTROL", directory.join("control"));
    command
}

fn run(directory: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    texts(program(directory, arguments).output().unwrap())
}

/// Status, standard output and standard error.
fn texts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The same as [`run`] for a program that gets a signal as soon as it handles it.
fn interrupt(directory: &Path, arguments: &[&str], of: Signal) -> (Option<i32>, String, String) {
    let mut command = program(directory, arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    await_handler(&child);
    signal(&child, of);
    texts(child.wait_with_output().unwrap())
}

/// Waits until a program handles SIGINT and SIGTERM (bits 1 and 14 of the signals that it catches, proc_pid_status(5)).
#[track_caller]
fn await_handler(child: &Child) {
    let start = Instant::now();
    let path = format!("/proc/{}/status", child.id());
    loop {
        let status = fs::read_to_string(&path).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        let both = (1 << 1) | (1 << 14);
        if caught & both == both {
            return;
        }
        assert!(start.elapsed() < LONG, "it does not handle both signals");
        std::thread::yield_now();
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn a_trace_that_a_signal_ends_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a"]);
    assert_eq!(run(path, &["ctl", "action", "a", "reset"]).0, Some(0));
    for (of, name) in [(Signal::INT, "int.jsonl"), (Signal::TERM, "term.jsonl")] {
        let mut command = program(path, &["trace", "-o", name, "--follow", "3600"]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        await_handler(&child);
        signal(&child, of);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let saved = fs::read_to_string(path.join(name)).unwrap();
        assert!(saved.contains("Reset"), "{saved}");
    }
}

#[test]
fn a_signal_ends_a_search_with_its_report() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("a.toml"), LOSS).unwrap();
    let arguments = [
        "scenario",
        "run",
        "--seeds",
        "1..1000000",
        "--junit",
        "out.xml",
        "a.toml",
        "b.toml",
    ];
    for of in [Signal::INT, Signal::TERM] {
        let (status, text, error) = interrupt(path, &arguments, of);
        assert_eq!(status, Some(128 + of.as_raw()), "{error}");
        assert!(
            error.contains("interrupted: 1 of 2 files were run"),
            "{error}"
        );
        assert!(text.contains(" of 1000000 seeds that were tried"), "{text}");
        let report = fs::read_to_string(path.join("out.xml")).unwrap();
        for file in ["a.toml", "b.toml"] {
            let suite = format!("<testsuite name=\"{file}\"");
            assert!(report.contains(&suite), "{file}: {report}");
        }
        assert!(report.contains("interrupted before it"), "{report}");
        fs::remove_file(path.join("out.xml")).unwrap();
    }
}

#[test]
fn a_signal_ends_random_processes_with_their_number() {
    let directory = tempfile::tempdir().unwrap();
    for (of, arguments) in [
        (Signal::INT, &["vopr", "1", "--count", "1000000"][..]),
        (Signal::TERM, &["vopr", "1", "--count", "1000000"]),
        (Signal::TERM, &["vopr", "1", "--count", "0"]),
    ] {
        let (status, text, error) = interrupt(directory.path(), arguments, of);
        let lines = text.lines().count();
        let (expected, wanted) = match arguments[3] {
            "0" => (0, String::new()),
            count => (128 + of.as_raw(), format!(" of {count}")),
        };
        assert_eq!(status, Some(expected), "{error}");
        let said = format!("interrupted: {lines}{wanted} seeds were run, and none failed\n");
        assert_eq!(error, said);
    }
}

#[test]
fn a_file_that_cannot_be_read_has_one_status() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a"]);
    fs::write(path.join("nonsense"), [0xff; 8]).unwrap();
    for file in ["absent", ".", "nonsense"] {
        for arguments in [
            &["check", file][..],
            &["report", file],
            &["scenario", "run", file],
            &["scenario", "check", file],
            &["scenario", "check", "--config", file, "nonsense"],
            &["scenario", "import", file],
            &["ctl", "scenario", "start", file],
            &["serve", "--config", file],
            &["serve", "--check", "--config", file],
        ] {
            let (status, _, error) = run(path, arguments);
            assert_eq!(status, Some(2), "{arguments:?}: {error}");
        }
    }
}

/// A run of minutes must not fail at its end because its result cannot be written.
#[test]
fn paths_of_results_are_checked_before_the_work() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a"]);
    fs::write(path.join("a.toml"), LOSS).unwrap();
    fs::write(path.join("old.xml"), "old").unwrap();
    for arguments in [
        &["scenario", "run", "a.toml", "--junit", "absent/out.xml"][..],
        &["scenario", "run", "a.toml", "--junit", "."],
        &["scenario", "import", "absent.yml", "-o", "absent/out.toml"],
        &["trace", "-o", "absent/x.json", "--follow", "3600"],
        &["report", "absent.jsonl", "--histogram", "absent/x.svg"],
        &["ctl", "scenario", "stop", "--junit", "absent/out.xml"],
        &["demo", "--html", "absent/x.html"],
    ] {
        let (status, text, error) = run(path, arguments);
        assert_eq!(status, Some(1), "{arguments:?}: {error}");
        assert!(error.contains("can't write"), "{arguments:?}: {error}");
        assert_eq!(text, "", "{arguments:?}");
    }
    // A check changes nothing.
    let (status, ..) = run(
        path,
        &["scenario", "run", "absent.toml", "--junit", "new.xml"],
    );
    assert_eq!(status, Some(2));
    let (_, _, error) = run(path, &["trace", "-o", "old.xml"]);
    assert!(error.contains("old.xml"), "{error}");
    assert_eq!(fs::read_to_string(path.join("old.xml")).unwrap(), "old");
}

#[test]
fn a_capture_is_not_written_to_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a"]);
    let (text, status) = run_in_terminal(&mut program(path, &["capture", "-w", "-"]));
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("not for a terminal"), "{text}");
}

#[test]
fn problems_of_files_have_colours_only_for_users_who_want_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("a.toml"), "[[rule]]\non = 5\n").unwrap();
    let check = || program(path, &["scenario", "check", "a.toml"]);
    let (coloured, _) = run_in_terminal(&mut check());
    assert!(coloured.contains('\x1b'), "{coloured}");
    let (plain, _) = run_in_terminal(check().env("NO_COLOR", "1"));
    assert!(
        plain.contains("a.toml:2") && !plain.contains('\x1b'),
        "{plain}"
    );
}

#[test]
fn a_file_for_guests_names_the_needed_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("guests.toml"), FOR_GUESTS).unwrap();
    fs::write(path.join("a.toml"), LOSS).unwrap();
    let (status, text, _) = run(path, &["scenario", "check", "guests.toml"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("cargo lab scenario guests.toml"), "{text}");
    let (status, text, _) = run(
        path,
        &["scenario", "run", "guests.toml", "--junit", "out.xml"],
    );
    assert_eq!(status, Some(3), "nothing was judged: {text}");
    assert!(
        text.contains("it is for guests") && !text.contains("FAILED"),
        "{text}"
    );
    let report = fs::read_to_string(path.join("out.xml")).unwrap();
    assert!(report.contains("<skipped"), "{report}");
    let (status, text, _) = run(path, &["scenario", "run", "guests.toml", "a.toml"]);
    assert_eq!(status, Some(0), "{text}");
}

/// The log of a process until its end.
fn logged(directory: &Path, prepare: impl FnOnce(&mut Command)) -> String {
    let socket = directory.join("nic");
    let program = Program::start_with(&[&socket], prepare);
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < LONG);
        std::thread::yield_now();
    }
    // Its signals are handled once it answers.
    client(&socket);
    await_handler(&program.child);
    program.signal(Signal::TERM);
    let log = program.log.iter().collect::<Vec<_>>().join("\n");
    assert!(program.ends().success(), "{log}");
    log
}

#[test]
fn a_filter_that_names_nothing_does_not_make_the_process_silent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for filter in ["loud", "other_program=debug", "=x="] {
        let log = logged(path, |command| {
            command.env("RUST_LOG", filter);
        });
        assert!(log.contains("serving on"), "{filter}: {log}");
        let named = format!("RUST_LOG={filter:?} is not used");
        assert!(
            log.contains(&named) && log.contains("WARN"),
            "{filter}: {log}"
        );
    }
    for filter in ["warn,[nic{name=nic0}]=debug", "faultline_daemon=info"] {
        let log = logged(path, |command| {
            command.env("RUST_LOG", filter);
        });
        assert!(
            log.contains("serving on") && !log.contains("is not used"),
            "{log}"
        );
    }
    assert_eq!(
        logged(path, |command| {
            command.env("RUST_LOG", "off");
        }),
        ""
    );
    let log = logged(path, |command| {
        command.env("RUST_LOG", "off").arg("--log-level=info");
    });
    assert!(log.contains("serving on"), "{log}");
    let log = logged(path, |command| {
        command.arg("--log-level=warn");
    });
    assert!(!log.contains("serving on"), "{log}");
}

#[test]
fn an_attached_client_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["a", "b"]);
    let nics =
        || -> Value { serde_json::from_str(&run(path, &["ctl", "nics", "--json"]).1).unwrap() };
    assert_eq!(nics()[0]["client"], Value::Null);
    let mut stream = client(&path.join("a"));
    assert_eq!(
        call(
            &mut stream,
            GET_INFO,
            &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        ),
        0
    );
    let found = nics();
    let attached = &found[0]["client"];
    assert_eq!(attached["pid"], std::process::id(), "{found}");
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(attached["program"], name.trim_end(), "{found}");
    assert!(attached["attached_ns"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found[1]["client"], Value::Null, "{found}");
    let (_, text, _) = run(path, &["ctl", "nics"]);
    assert!(
        text.contains(&format!("{} {} for ", name.trim_end(), std::process::id())),
        "{text}"
    );
    let (_, metrics, _) = run(path, &["ctl", "metrics"]);
    assert!(
        metrics.contains("faultline_client_attached{nic=\"a\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("faultline_client_attached{nic=\"b\"} 0\n"),
        "{metrics}"
    );
    drop(stream);
    let start = Instant::now();
    while !nics()[0]["client"].is_null() {
        assert!(start.elapsed() < LONG, "it is still attached");
    }
}

#[test]
fn manual_pages_have_the_exit_statuses() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (status, _, error) = run(path, &["manual", "."]);
    assert_eq!(status, Some(0), "{error}");
    for page in [
        "faultline.1",
        "faultline-check.1",
        "faultline-scenario-run.1",
    ] {
        let text = fs::read_to_string(path.join(page)).unwrap();
        assert!(
            text.contains("Exit status") && text.contains("no RoCE packet"),
            "{page}: {text}"
        );
    }
}

#[test]
fn completions_know_the_profiles() {
    let directory = tempfile::tempdir().unwrap();
    for shell in ["bash", "fish", "zsh"] {
        let (status, script, _) = run(directory.path(), &["completions", shell]);
        assert_eq!(status, Some(0), "{shell}");
        assert!(script.contains("slow-host"), "{shell}");
    }
}

/// In a shell, with a process that has NICs.
#[test]
fn bash_completes_the_names_of_nics() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let _server = server(path, &["alpha", "beta", "c d", "$(touch spoilt)"]);
    let (_, script, _) = run(path, &["completions", "bash"]);
    fs::write(path.join("script"), script).unwrap();
    let folder = Path::new(env!("CARGO_BIN_EXE_faultline")).parent().unwrap();
    let search = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let completed = |words: &str, last: &str, before: &str| {
        let line = format!(
            ". ./script; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _faultline_nics faultline '{last}' '{before}'; printf '%s ' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["-c", &line])
            .current_dir(path)
            .env("PATH", &search);
        let output = bash
            .env("FAULTLINE_CONTROL", path.join("control"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        completed("faultline ctl show ''", "", "show"),
        r"alpha beta c\ d \$\(touch\ spoilt\) "
    );
    assert!(!path.join("spoilt").exists(), "a name was executed");
    assert_eq!(completed("faultline ctl show b", "b", "show"), "beta ");
    assert_eq!(
        completed("faultline capture --nic al", "al", "--nic"),
        "alpha "
    );
    assert!(completed("faultline ctl qp", "qp", "ctl").contains("qps"));
}
