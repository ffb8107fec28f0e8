//! `faultline demo` as a program.

use std::process::{Command, Output};

use crate::terminal::run_in_terminal;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_faultline"));
    command.arg("demo").args(arguments);
    command.env_remove("NO_COLOR");
    command
}

fn printed(arguments: &[&str]) -> (String, Output) {
    let output = command(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (text, output)
}

#[test]
fn all_stories_or_one_are_shown() {
    let (all, output) = printed(&[]);
    assert!(output.status.success(), "{output:?}");
    let (list, _) = printed(&["--list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    for line in list.lines() {
        let (name, title) = line.split_once(' ').unwrap();
        assert!(
            all.contains(&format!("{}  ({name})", title.trim())),
            "{all}"
        );
        let (one, output) = printed(&[name]);
        assert!(output.status.success(), "{output:?}");
        assert!(one.contains(title.trim()) && one.len() < all.len(), "{one}");
    }
    for part in ["page fault", "RNR NAK", "✗", "the port is down", "▶", "◀"] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let (_, output) = printed(&["absent"]);
    assert_eq!(output.status.code(), Some(2));
}

/// The printed scenario can be changed and run.
#[test]
fn a_scenario_of_a_story_is_one_of_the_simulator() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine.toml");
    let (scenario, output) = printed(&["lost-ack", "--scenario"]);
    assert!(output.status.success(), "{output:?}");
    std::fs::write(&path, scenario).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_faultline"));
    let output = run.args(["scenario", "run"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_page_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("story.html");
    let shown = path.to_str().unwrap();
    let (_, output) = printed(&["--html", shown]);
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    let (_, output) = printed(&["--html", "/nonexistent/story.html"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("can't write /nonexistent/story.html"),
        "{error}"
    );
}

#[test]
fn colours_are_for_terminals_and_for_users_who_want_them() {
    let (coloured, status) = run_in_terminal(&mut command(&[]));
    assert!(
        status.success() && coloured.contains("\x1b[31m"),
        "{coloured}"
    );
    let (plain, _) = run_in_terminal(command(&[]).env("NO_COLOR", "1"));
    assert!(
        plain.contains("page fault") && !plain.contains('\x1b'),
        "{plain}"
    );
    let (piped, _) = printed(&[]);
    assert!(!piped.contains('\x1b'), "{piped}");
}
