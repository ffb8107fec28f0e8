//! Files of Lumina, right and wrong ones. `lumina/NAME.yml` becomes `lumina/NAME.toml`, with the warnings of
//! `lumina/NAME.txt`; `lumina/wrong/NAME.yml` has the problems of `lumina/wrong/NAME.txt`. With `FAULTLINE_BLESS=1` the
//! results are written anew.

#![allow(clippy::expect_used, reason = "a failure ends the test")]

use std::fs;
use std::path::{Path, PathBuf};

use faultline_scenario::lumina::{MAX_BYTES, import};
use faultline_scenario::problem::Problems;
use faultline_scenario::read;
use proptest::prelude::*;

fn files(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files: Vec<PathBuf> = fs::read_dir(root.join(folder))
        .expect("the folder exists")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "yml"))
        .collect();
    files.sort();
    files
}

/// Compares with the file, or writes it.
fn compare(differ: &mut Vec<String>, path: &Path, found: &str) {
    if std::env::var_os("FAULTLINE_BLESS").is_some() {
        fs::write(path, found).expect("writable");
    } else if fs::read_to_string(path).unwrap_or_default() != found {
        differ.push(format!("{}:\n{found}", path.display()));
    }
}

#[test]
fn each_file_becomes_its_scenario() {
    let files = files("lumina");
    assert!(files.len() >= 4);
    let mut differ = Vec::new();
    for path in files {
        let name = path.file_name().expect("name").to_string_lossy();
        let text = fs::read_to_string(&path).expect("readable");
        let imported = import(&name, &text).unwrap_or_else(|problems| panic!("{problems}"));
        let scenario = read::read(&name, &imported.text).expect("a scenario");
        scenario.plan_simulation().expect("a plan");
        compare(&mut differ, &path.with_extension("toml"), &imported.text);
        let warnings = format!("{}\n", imported.warnings);
        compare(&mut differ, &path.with_extension("txt"), &warnings);
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn each_wrong_file_has_its_drawn_problems() {
    let files = files("lumina/wrong");
    assert!(files.len() >= 9);
    let mut differ = Vec::new();
    for path in files {
        let name = path.file_name().expect("name").to_string_lossy();
        let text = fs::read_to_string(&path).expect("readable");
        let problems = import(&name, &text).expect_err("it is wrong");
        compare(
            &mut differ,
            &path.with_extension("txt"),
            &format!("{problems}\n"),
        );
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

fn refused(text: &str) -> String {
    import("a.yml", text).expect_err("refused").to_string()
}

#[test]
fn files_that_are_too_large_or_too_deep_are_refused() {
    let long = format!("a: {}", "x".repeat(MAX_BYTES));
    let found = refused(&long);
    assert!(found.contains("at most 262144 are allowed"), "{found}");
    let deep = format!("a: {}{}", "[".repeat(33), "]".repeat(33));
    assert!(refused(&deep).contains("deeper than 32 levels"));
    // The parser is not recursive either.
    assert!(refused(&"[".repeat(MAX_BYTES - 10)).starts_with("error: "));
    let events = "    - {qpn: 0, psn: 0, type: ecn, iter: 1}\n";
    let traffic = "traffic:\n  num-qps: 1\n  rdma-verb: read\n  num-msgs-per-qp: 1\n  mtu: 256\n  message-size: 1\n";
    let text = |count| format!("{traffic}  data-pkt-events:\n{}", events.repeat(count));
    assert!(import("a.yml", &text(64)).is_ok());
    assert!(refused(&text(65)).contains("the file has 65 events, at most 64"));
    let long = traffic
        .replace("size: 1\n", "size: 16777216\n")
        .replace("qp: 1\n", "qp: 300\n");
    let found = refused(&format!("{long}  data-pkt-events:\n{events}"));
    assert!(
        found.contains("19660800 packets, but there are 16777216 PSNs"),
        "{found}"
    );
}

/// A file that is accepted becomes a scenario that can be simulated; problems of any other can be drawn.
fn check(text: &str) {
    let drawn = |problems: &Problems, level: &str| {
        assert!(problems.to_string().starts_with(level));
        for problem in problems.list() {
            let span = problem.span(text).unwrap_or_default();
            assert!(text.get(span).is_some());
        }
    };
    match import("a.yml", text) {
        Ok(imported) => {
            let scenario = read::read("a.toml", &imported.text);
            let scenario = scenario.unwrap_or_else(|problems| panic!("{problems}"));
            let plan = scenario.plan_simulation();
            assert!(plan.is_ok(), "{plan:?}\n{}", imported.text);
            if !imported.warnings.list().is_empty() {
                drawn(&imported.warnings, "warning: ");
            }
        }
        Err(problems) => drawn(&problems, "error: "),
    }
}

/// A value of a file, right or wrong.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(vec![
            "1",
            "2",
            "0",
            "14",
            "1024",
            "4096",
            "write",
            "send_read",
            "all",
            "drop",
            "ecn",
            "corrupt",
            "2,1",
            "~",
            "[1]",
            "{a: 1}",
            "*x",
            "&x 1",
            "\"\\u00fc\"",
            "-1",
            "1e3",
            "!!str 1",
            "|\n  text",
        ])
        .prop_map(str::to_owned),
        any::<u64>().prop_map(|number| number.to_string()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_text_is_refused_or_imported(text in "[-a-z0-9:,{}\\[\\]&*!|>'\"#%@ \n\tü]{0,200}") {
        check(&text);
        check(&format!("traffic:\n  {text}"));
    }

    #[test]
    fn random_values_are_refused_or_imported(
        numbers in proptest::collection::vec(value(), 7),
        event in proptest::collection::vec(value(), 4),
        is_right in any::<bool>(),
    ) {
        let keys = ["num-msgs-per-qp", "num-qps", "rdma-verb", "mtu", "message-size", "tx-depth", "min-retransmit-timeout"];
        let mut text = "traffic:\n".to_owned();
        let right = ["2", "3", "read", "512", "3000", "1", "9"];
        for (place, key) in keys.iter().enumerate() {
            let value = if is_right { right[place] } else { numbers[place].as_str() };
            text += &format!("  {key}: {value}\n");
        }
        let keys = ["qpn", "psn", "type", "iter"];
        let event = keys.iter().zip(&event).map(|(key, value)| format!("{key}: {value}"));
        text += &format!("  data-pkt-events:\n    - {}\n", event.collect::<Vec<_>>().join("\n      "));
        check(&text);
    }
}
