//! `faultline ctl` and `faultline completions` as programs.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::task::{Context, Poll, Waker};

use crate::program::{printed_by, server};

fn run(socket: Option<&Path>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.args(arguments).env_remove("FAULTLINE_CONTROL");
    command.env_remove("RUST_BACKTRACE");
    if let Some(socket) = socket {
        command.env("FAULTLINE_CONTROL", socket);
    }
    command.output().unwrap()
}

/// Output of a command, which must succeed.
#[track_caller]
fn printed(socket: &Path, arguments: &[&str]) -> String {
    printed_by(run(Some(socket), arguments), arguments)
}

#[test]
fn tables_and_json_show_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let _server = server(directory.path(), &["a", "b c"]);
    let table = "NAME  MAC                STATE     LINK  STALLED  CLIENT  QPS  KEYS  TX  RX\n\
                 a     02:af:63:dc:4c:86  disabled  up    no       -         0     0   0   0\n\
                 b c   02:b2:d7:0e:18:69  disabled  up    no       -         0     0   0   0\n";
    let nics = printed(&socket, &["ctl", "nics"]);
    // The addresses are derived from the names.
    let without_mac = |text: &str| -> Vec<String> {
        let lines = text.lines().skip(1);
        lines
            .map(|line| format!("{}{}", &line[..6], &line[23..]))
            .collect()
    };
    assert_eq!(nics.lines().next(), table.lines().next());
    assert_eq!(without_mac(&nics), without_mac(table));
    let json = printed(&socket, &["ctl", "nics", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[1]["name"], "b c");
    for list in ["qps", "regions", "faults", "contexts"] {
        assert_eq!(
            printed(&socket, &["ctl", list, "b c", "--json"]),
            "[]\n",
            "{list}"
        );
        assert_eq!(
            printed(&socket, &["ctl", list, "b c"]).lines().count(),
            1,
            "{list}"
        );
    }
    assert_eq!(
        printed(&socket, &["ctl", "counters", "a"]),
        "COUNTER  VALUE\n"
    );
    let dump: serde_json::Value =
        serde_json::from_str(&printed(&socket, &["ctl", "dump", "a"])).unwrap();
    assert_eq!(dump["nic"]["name"], "a");
    let show = printed(&socket, &["ctl", "show", "a"]);
    assert!(show.contains("fault policy       rnr"), "{show}");
    assert!(printed(&socket, &["ctl", "metrics"]).contains("nic=\"a\""));
}

#[test]
fn everything_is_printed_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let _server = server(directory.path(), &["a", "b c"]);
    let json = |arguments: &[&str]| -> serde_json::Value {
        let text = printed(&socket, arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    };
    let samples = json(&["ctl", "--json", "metrics"]);
    let value = |nic: &str| {
        let mut samples = samples.as_array().unwrap().iter();
        let found = samples
            .find(|sample| sample["name"] == "faultline_link_up" && sample["labels"]["nic"] == nic);
        found.unwrap()["value"].clone()
    };
    assert_eq!((value("a"), value("b c")), (1.into(), 1.into()));
    // As many as in the text.
    let text = printed(&socket, &["ctl", "metrics"]);
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(samples.as_array().unwrap().len(), lines);
    let done = json(&["ctl", "--json", "action", "b c", "drop-frames", "rx", "3"]);
    let action = serde_json::json!({"action": "drop_frames", "direction": "rx", "count": 3});
    assert_eq!(done, serde_json::json!({"nic": "b c", "done": action}));
    assert_eq!(printed(&socket, &["ctl", "action", "a", "reset"]), "");
    let file = directory.path().join("x.jsonl");
    let saved = json(&["trace", "--json", "-o", file.to_str().unwrap()]);
    let events = std::fs::read_to_string(&file).unwrap().lines().count() - 1;
    assert_eq!(
        (&saved["events"], &saved["lost"]),
        (&events.into(), &0.into())
    );
    for words in [
        &["ctl", "link", "a"][..],
        &["ctl", "show", "a"],
        &["ctl", "counters", "a"],
        &["ctl", "engine"],
        &["ctl", "pause"],
        &["ctl", "step"],
        &["ctl", "resume"],
        &["ctl", "dump", "a"],
    ] {
        assert!(
            json(&[words, &["--json"]].concat()).is_object(),
            "{words:?}"
        );
    }
}

#[test]
fn changes_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let _server = server(directory.path(), &["a", "b c"]);
    let link = printed(
        &socket,
        &[
            "ctl", "link", "a", "down", "--mtu", "1500", "--speed", "400",
        ],
    );
    assert!(
        link.starts_with("link               down, 400 Mb/s\nlink MTU           1500\n"),
        "{link}"
    );
    assert_eq!(printed(&socket, &["ctl", "link", "a"]), link);
    assert_eq!(
        printed(&socket, &["ctl", "action", "a", "drop-frames", "rx", "7"]),
        ""
    );
    let link = printed(&socket, &["ctl", "link", "a", "up", "--mtu", "0"]);
    assert!(
        link.contains("not limited") && link.contains("0, 7 to come"),
        "{link}"
    );
    assert!(printed(&socket, &["ctl", "pause"]).starts_with("paused            yes\n"));
    let step = printed(&socket, &["ctl", "step", "2", "--advance", "1000"]);
    assert!(step.starts_with("0 of 2 passes had work"), "{step}");
    assert!(printed(&socket, &["ctl", "resume"]).starts_with("paused            no\n"));
}

#[test]
fn an_unknown_command_is_answered_with_those_that_exist() {
    for (arguments, commands) in [
        (&["scenarios"][..], "serve, ctl, top, ui, trace, report"),
        (&["ctl", "nic"], "nics, ports, links, show, qps"),
        (
            &["ctl", "action", "a", "fetal"],
            "reset, fatal, fail-faults, drop-frames, lose-interrupts",
        ),
        (
            &["ctl", "action", "a", "foo"],
            "reset, fatal, fail-faults, drop-frames, lose-interrupts",
        ),
    ] {
        let output = run(None, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains(&format!("  tip: the commands are: {commands}")),
            "{error}"
        );
    }
}

#[test]
fn rules_are_injected_listed_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let _server = server(directory.path(), &["a", "b"]);
    let words = |text: &str| -> Vec<String> {
        let row = text.lines().nth(1).unwrap_or_default();
        row.split_whitespace().map(str::to_owned).collect()
    };
    let rule = "nic = 'a' on = { signal = 'x' } do = { port_down = {} }";
    let limits = ["--count", "1", "--for", "1h"];
    let injected = printed(&socket, &[&["ctl", "inject", rule][..], &limits].concat());
    assert_eq!(
        words(&injected)[..4],
        ["1", "running", "0", "0"],
        "{injected}"
    );
    assert!(injected.trim_end().ends_with(rule), "{injected}");
    for _ in 0..2 {
        printed(&socket, &["ctl", "scenario", "signal", "x"]);
    }
    let rules = printed(&socket, &["ctl", "rules"]);
    assert_eq!(words(&rules)[..4], ["1", "running", "1", "2"], "{rules}");
    let link = || printed(&socket, &["ctl", "link", "a"]);
    assert!(link().contains("down"), "{}", link());
    printed(&socket, &["ctl", "rules", "remove", "1"]);
    assert!(!link().contains("down"), "{}", link());
    assert_eq!(printed(&socket, &["ctl", "rules"]).lines().count(), 1);
    let third = "on = { signal = 'x', nth = 3 } do = { count = {} }";
    printed(&socket, &["ctl", "inject", third]);
    printed(&socket, &["ctl", "scenario", "signal", "x"]);
    let rules = printed(&socket, &["ctl", "rules"]);
    let miss = "rule 2 has not acted: 2 times all matched but nth";
    assert!(rules.contains(miss), "{rules}");
}

#[test]
fn nics_are_removed_and_added() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let mut server = server(directory.path(), &["a", "b"]);
    let state = |text: &str| {
        let row = text.lines().nth(1).unwrap_or_default();
        row.split_whitespace().nth(2).map(str::to_owned)
    };
    let removed = printed(&socket, &["ctl", "remove-nic", "a"]);
    assert_eq!(state(&removed).as_deref(), Some("absent"), "{removed}");
    assert!(!directory.path().join("a").exists());
    let added = printed(&socket, &["ctl", "add-nic", "a"]);
    assert_eq!(state(&added).as_deref(), Some("disabled"), "{added}");
    assert!(directory.path().join("a").exists());
    // The end of its thread was asked for, so the process goes on.
    let ended = std::pin::pin!(server.thread_ended());
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(ended.poll(&mut context), Poll::Pending);
}

#[test]
fn mistakes_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    let explained = |socket: Option<&Path>, arguments: &[&str], part: &str| {
        let output = run(socket, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        // A message with a drawn line begins as `faultline scenario check` prints it.
        let start = error.starts_with("Error: ") || error.starts_with("error: ");
        assert!(start && error.contains(part), "{error}");
    };
    explained(
        None,
        &["ctl", "nics"],
        "there is no socket /run/faultline/control.sock",
    );
    explained(Some(&socket), &["ctl", "nics"], "there is no socket");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    explained(Some(&socket), &["ctl", "nics"], "no process listens");
    explained(Some(directory.path()), &["ctl", "nics"], "is not a socket");
    let _server = server(directory.path(), &["a", "b c"]);
    explained(
        Some(&socket),
        &["ctl", "show", "x"],
        "there is no NIC \"x\"; the NICs are: a, b c (404",
    );
    explained(Some(&socket), &["ctl", "step"], "the engine is not paused");
    explained(
        Some(&socket),
        &["ctl", "action", "a", "fatal"],
        "not running",
    );
    let file = directory.path().join("typo.toml");
    std::fs::write(
        &file,
        "[[rule]]\non = { opcod = \"ACK\" }\ndo = { drop = {} }\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    explained(
        Some(&socket),
        &["ctl", "scenario", "start", file],
        "error: rule[0].on.opcod: unknown key `opcod`",
    );
    let other = directory.path().join("profile.toml");
    for (profile, part) in [
        ("slow-hots", "profile.toml:1:11"),
        ("absent.toml", "can't read the profile "),
    ] {
        let traffic = "[[traffic]]\nop = \"write\"\n";
        std::fs::write(&other, format!("profile = {profile:?}\n{traffic}")).unwrap();
        let start = &["ctl", "scenario", "start", other.to_str().unwrap()];
        explained(Some(&socket), start, "error: profile: ");
        explained(Some(&socket), start, part);
    }
    explained(
        Some(&socket),
        &["ctl", "scenario", "start", file],
        "^^^^^ did you mean `opcode`?\n",
    );
}

#[test]
fn completions_are_made_for_each_shell() {
    for (shell, part) in [
        ("bash", "complete -F _faultline"),
        ("zsh", "#compdef faultline"),
        ("fish", "complete -c faultline"),
    ] {
        let output = run(None, &["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains(part), "{shell}");
        assert!(script.contains("lose-interrupts"), "{shell}");
    }
}

/// Answers each request with this status and body.
fn false_server(socket: &Path, status: u16, body: &'static str) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n");
            let stream = stream.get_mut();
            stream.write_all((head + body).as_bytes()).unwrap();
        }
    });
}

#[test]
fn a_hostile_server_controls_neither_the_terminal_nor_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let socket = |name: &str| directory.path().join(name);
    let refusing = socket("refusing");
    false_server(&refusing, 404, "{\"error\":\"\\u001b[2J\\u009b31m gone\"}");
    let output = run(Some(&refusing), &["ctl", "nics"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(error.contains("?[2J") && error.contains(" gone"), "{error}");
    assert!(!error.contains(['\u{1b}', '\u{9b}']), "{error:?}");

    let listing = socket("listing");
    let context = "{\"context\":1,\"objects\":2,\"pid\":3,\"program\":\"\\u001b[2J\"}";
    let last: &'static str = format!("{{\"items\":[{context}],\"next\":null}}").leak();
    false_server(&listing, 200, last);
    for arguments in [&["ctl", "contexts", "a"][..], &["ctl", "dump", "a"]] {
        let text = printed(&listing, arguments);
        assert!(text.contains("[2J") && !text.contains('\u{1b}'), "{text:?}");
    }

    let endless = socket("endless");
    false_server(&endless, 200, "{\"items\":[],\"next\":0}");
    let output = run(Some(&endless), &["ctl", "contexts", "a"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("part 0 follows part 0"), "{error}");
}
