//! `faultline scenario` as a program.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Loses the first ACK, so that the WRITE is acknowledged after a retransmission.
const LOST_ACK: &str = r#"
title = "A lost ACK is asked for again"
[[traffic]]
name = "writes"
op = "write"
count = 1
[[rule]]
nic = "nic0"
on = { dir = "rx", opcode = "ACK", nth = 1 }
do = { drop = {} }
[[expect]]
diagnostic = { nic = "nic0", kind = "retried", count = 1 }
[[expect]]
traffic = { name = "writes", done = 1 }
"#;

fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command
        .current_dir(directory)
        .arg("scenario")
        .args(arguments);
    command.env_remove("RUST_BACKTRACE").output().unwrap()
}

/// Standard output and exit status.
#[track_caller]
fn printed(directory: &Path, arguments: &[&str]) -> (String, i32) {
    let output = run(directory, arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.code().unwrap())
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

/// Faults take as long as the profile says, of the file or of the command line.
#[test]
fn a_profile_is_that_of_the_file_or_of_the_command_line() {
    let scenario = |profile: &str| {
        format!(
            "profile = {profile:?}\n[[traffic]]\nname = \"writes\"\nop = \"write\"\ncount = 1\nremote = \"on_demand\"\n\
             [[expect]]\nlatency = {{ of = \"message\", traffic = \"writes\", percentile = 100, min = \"70ms\" }}\n"
        )
    };
    let directory = folder(&[
        ("slow.toml", &scenario("slow-host")),
        ("own.toml", &scenario("./profile.toml")),
        ("none.toml", &scenario("slow-hosts")),
        ("lost.toml", &scenario("./absent.toml")),
        ("profile.toml", "[latency]\nfault_service = \"70ms\"\n"),
    ]);
    for (arguments, wanted) in [
        (&["run", "slow.toml"][..], 0),
        (&["run", "own.toml"], 0),
        (&["run", "slow.toml", "--profile", "ideal"], 1),
        (
            &[
                "run",
                "slow.toml",
                "--profile",
                "./profile.toml",
                "--seeds",
                "1..2",
            ],
            0,
        ),
        (&["run", "slow.toml", "--profile", "idea"], 2),
        (&["run", "none.toml"], 2),
        (&["check", "none.toml"], 2),
        (&["check", "lost.toml"], 2),
    ] {
        let output = run(directory.path(), arguments);
        let status = output.status.code();
        assert_eq!(status, Some(wanted), "{arguments:?}: {output:?}");
    }
    let error = run(directory.path(), &["run", "none.toml"]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains("none.toml:1:11"), "{error}");
    assert!(error.contains("did you mean `slow-host`?"), "{error}");
    let error = run(directory.path(), &["run", "lost.toml"]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(
        error.starts_with("error: profile: can't read the profile ./absent.toml: "),
        "{error}"
    );
    assert!(error.contains(" lost.toml:1:11\n"), "{error}");
}

#[test]
fn junit_has_files_without_a_result_and_searches_for_seeds() {
    let unexpected = LOST_ACK.replace("count = 1 }", "count = 0 }");
    let directory = folder(&[("good.toml", LOST_ACK), ("bad.toml", &unexpected)]);
    let junit = |arguments: &[&str]| {
        let all = [arguments, &["--junit", "out.xml"]].concat();
        let status = run(directory.path(), &all).status.code();
        let text = fs::read_to_string(directory.path().join("out.xml")).unwrap();
        (status, text)
    };
    let (status, text) = junit(&["run", "good.toml", "absent.toml"]);
    assert_eq!(status, Some(2));
    assert!(text.contains("good.toml") && text.contains("absent.toml"));
    assert!(
        text.contains("errors=\"1\"") && text.contains("can't read")
            || text.contains("can&apos;t read"),
        "{text}"
    );
    let (status, text) = junit(&["run", "good.toml", "bad.toml", "--seeds", "1..3"]);
    assert_eq!(status, Some(1));
    assert!(text.contains("seed 1") && text.contains("seed 3"), "{text}");
    assert!(text.contains("failures=\"3\""), "{text}");
}

#[test]
fn a_rule_and_its_expectations_decide() {
    let unexpected = LOST_ACK.replace("count = 1 }", "count = 0 }");
    let unmatched = LOST_ACK.replace("nth = 1", "nth = 100");
    let directory = folder(&[
        ("a.toml", LOST_ACK),
        ("b.toml", &unexpected),
        ("c.toml", &unmatched),
    ]);
    let (text, status) = printed(directory.path(), &["run", "a.toml"]);
    assert_eq!(status, 0, "{text}");
    assert!(
        text.starts_with("a.toml: ok: A lost ACK is asked for again\n"),
        "{text}"
    );
    assert!(
        text.contains("  ok rule[0]: fired 1 times, expected 1..\n"),
        "{text}"
    );
    assert!(
        text.contains("  writes: 1 messages done, 0 failed"),
        "{text}"
    );
    let (text, status) = printed(directory.path(), &["run", "b.toml"]);
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("  FAILED expect[0] diagnostic: 1, expected 0\n"),
        "{text}"
    );
    let (text, status) = printed(directory.path(), &["run", "a.toml", "c.toml"]);
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("  FAILED rule[0]: fired 0 times, expected 1..\n"),
        "{text}"
    );
}

#[test]
fn the_seed_decides_the_trace() {
    let directory = folder(&[("a.toml", LOST_ACK)]);
    let trace = |seed: &str| {
        let (text, _) = printed(
            directory.path(),
            &["run", "--json", "--seed", seed, "a.toml"],
        );
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["passed"], true, "{json}");
        assert_eq!(json["nics"][0]["diagnostics"]["retried"], 1, "{json}");
        json["trace"].as_str().unwrap().to_owned()
    };
    assert_eq!(trace("5"), trace("5"));
    assert_ne!(trace("5"), trace("6"));
}

#[test]
fn the_smallest_seed_that_fails_is_found_and_repeats_it() {
    let rare = "[[traffic]]\nop = \"write\"\ncount = 4\nretry_count = 0\ntimeout = 8\n\
                [[rule]]\non = { dir = \"rx\", opcode = \"WRITE\", chance = 0.05 }\ndo = { drop = {} }\nfired = \"0..\"\n\
                [[expect]]\ncompletion = { status = \"RETRY_EXC_ERR\", count = 0 }";
    let directory = folder(&[("rare.toml", rare), ("a.toml", LOST_ACK)]);
    let path = directory.path();
    let (text, status) = printed(path, &["run", "--seeds", "1..100", "rare.toml"]);
    assert_eq!(status, 1, "{text}");
    let repeat = text.lines().last().unwrap();
    let (_, seed) = repeat.split_once("scenario run rare.toml --seed ").unwrap();
    assert_eq!(printed(path, &["run", "rare.toml", "--seed", seed]).1, 1);
    let first: u64 = seed.parse().unwrap();
    assert!(first > 1, "the file's own seed is to pass");
    let before = format!("1..{}", first - 1);
    let (text, status) = printed(path, &["run", "--seeds", &before, "rare.toml"]);
    assert_eq!(status, 0, "{text}");
    let (text, status) = printed(path, &["run", "--seeds", "1..100", "a.toml"]);
    assert_eq!(
        (text.as_str(), status),
        ("a.toml: passes with all 100 seeds\n", 0)
    );
}

#[test]
fn until_stops_at_an_event_and_prints_the_state() {
    let directory = folder(&[("a.toml", LOST_ACK)]);
    let until = |trigger: &str| printed(directory.path(), &["run", "a.toml", "--until", trigger]);
    let (text, _) = until("{ diagnostic = \"retried\" }");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json[0]["queue_pairs"].as_array().unwrap().len(),
        1,
        "{text}"
    );
    assert_eq!(json[1]["regions"].as_array().unwrap().len(), 1, "{text}");
    let output = run(
        directory.path(),
        &["run", "a.toml", "--until", "{ diagnostic = \"no\" }"],
    );
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--until") && said.contains("no"), "{said}");
}

#[test]
fn junit_has_a_case_for_each_check() {
    let unexpected = LOST_ACK.replace("count = 1 }", "count = 0 }");
    let directory = folder(&[("a.toml", LOST_ACK), ("b.toml", &unexpected)]);
    let files = ["run", "a.toml", "b.toml", "--junit", "out.xml"];
    assert_eq!(printed(directory.path(), &files).1, 1);
    let xml = fs::read_to_string(directory.path().join("out.xml")).unwrap();
    assert!(
        xml.contains(
            "<testsuites name=\"faultline scenario\" tests=\"10\" skipped=\"0\" failures=\"1\""
        ),
        "{xml}"
    );
    assert!(xml.contains("message=\"1, expected 0\""), "{xml}");
}

#[test]
fn wrong_files_are_drawn() {
    let directory = folder(&[("a.toml", LOST_ACK), ("wrong.toml", "sed = 7\n")]);
    for command in ["run", "check"] {
        let output = run(
            directory.path(),
            &[command, "wrong.toml", "a.toml", "none.toml"],
        );
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        for part in ["wrong.toml:1:1", "sed", "none.toml"] {
            assert!(said.contains(part), "{said}");
        }
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.starts_with("a.toml: "), "{printed}");
    }
    assert_eq!(printed(directory.path(), &["check", "a.toml"]).1, 0);
}

/// The simulator has no ports; a configuration of `faultline serve` says which ones a process has.
#[test]
fn a_file_is_checked_for_the_nics_and_ports_of_a_configuration() {
    let rule = |place: &str| {
        format!("[[rule]]\n{place}\non = {{ dir = \"tx\" }}\ndo = {{ drop = {{}} }}\n")
    };
    let directory = folder(&[
        ("port.toml", &rule("port = \"wire\"")),
        ("nic.toml", &rule("nic = \"left\"")),
        ("none.toml", &rule("port = \"wier\"")),
        (
            "fabric.toml",
            "[[nic]]\nname = \"left\"\n[[port]]\nname = \"wire\"\nkind = \"tap\"\ninterface = \"fl0\"\n",
        ),
        ("wrong.toml", "[[port]]\nname = \"wire\"\nkind = \"tap\"\n"),
    ]);
    let check = |arguments: &[&str]| {
        let output = run(directory.path(), &[&["check"], arguments].concat());
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (said, output.status.code())
    };
    for file in ["port.toml", "nic.toml"] {
        assert_eq!(check(&[file]).1, Some(2), "{file}");
        let (said, status) = check(&[file, "--config", "fabric.toml"]);
        assert_eq!((said, status), (format!("{file}: no problem\n"), Some(0)));
    }
    let (said, status) = check(&["none.toml", "--config", "fabric.toml"]);
    assert_eq!(status, Some(2));
    assert!(
        said.contains("none.toml:2:8") && said.contains("did you mean `wire`?"),
        "{said}"
    );
    let (said, status) = check(&["port.toml", "--config", "wrong.toml"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("wrong.toml:3:8: port[0].kind: "), "{said}");
}

/// As by `faultline scenario check FILE 2>&1 | head -1`.
#[test]
fn a_reader_that_has_ended_is_no_panic() {
    let directory = folder(&[("wrong.toml", "sed = 7\n")]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.current_dir(directory.path()).stderr(writer);
    let status = command.args(["scenario", "check", "wrong.toml"]).status();
    assert_eq!(status.unwrap().code(), Some(2));
}

#[test]
fn a_negative_number_is_refused_as_a_value() {
    let output = run(Path::new("/"), &["run", "--seed", "-1", "a.toml"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said.contains("invalid value '-1' for '--seed <N>'"),
        "{said}"
    );
}

/// The simulated programs of a file for guests do nothing, and so its rules do not fire.
#[test]
fn a_file_without_traffic_explains_why_nothing_happens() {
    let rule = "[[rule]]\non = { opcode = \"READ\" }\ndo = { drop = {} }\n";
    let directory = folder(&[("guests.toml", rule)]);
    let (text, status) = printed(directory.path(), &["run", "guests.toml"]);
    assert_eq!(status, 1);
    assert!(text.starts_with("guests.toml: FAILED\n"), "{text}");
    assert!(text.contains("without `[[traffic]]`"), "{text}");
}

#[test]
fn all_that_happens_can_be_printed() {
    let directory = folder(&[("a.toml", LOST_ACK)]);
    let (text, _) = printed(directory.path(), &["run", "-v", "a.toml"]);
    let lines: Vec<&str> = text.lines().collect();
    let is_sent = |line: &&&str| line.contains(" nic0 tx RcWriteFirst");
    assert!(lines.iter().filter(is_sent).count() == 2, "{text}");
    assert!(
        lines.iter().any(|line| line.contains("completion qp ")),
        "{text}"
    );
}

/// The samples of Lumina's format become scenarios whose rules all fire.
#[test]
fn files_of_lumina_are_imported_and_run() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenario/tests/lumina");
    let directory = folder(&[]);
    for name in ["drop", "iter_2", "ecn", "corrupt_read"] {
        let (yaml, toml) = (format!("{name}.yml"), format!("{name}.toml"));
        fs::copy(samples.join(&yaml), directory.path().join(&yaml)).unwrap();
        let (text, status) = printed(directory.path(), &["import", &yaml]);
        assert_eq!(status, 0, "{name}");
        let (nothing, status) = printed(directory.path(), &["import", &yaml, "-o", &toml]);
        assert_eq!((nothing.as_str(), status), ("", 0));
        let written = fs::read_to_string(directory.path().join(&toml)).unwrap();
        assert_eq!(written, text, "{name}");
        assert_eq!(printed(directory.path(), &["check", &toml]).1, 0, "{name}");
        let (text, status) = printed(directory.path(), &["run", &toml]);
        assert_eq!(status, 0, "{text}");
    }
    let wrong = directory.path().join("wrong.yml");
    fs::write(&wrong, "traffic:\n  num-qps: none\n").unwrap();
    let output = run(directory.path(), &["import", "wrong.yml", "-o", "no.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("traffic: missing key `rdma-verb`"), "{text}");
    assert!(text.contains("wrong.yml:2:3"), "{text}");
    assert!(!directory.path().join("no.toml").exists());
    fs::write(&wrong, "#".repeat(1 << 20)).unwrap();
    let output = run(directory.path(), &["import", "wrong.yml"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("more than 262144 bytes"), "{text}");
}
