//! The suites and their tests for a reader: the lists that `cargo lab test` prints, and `docs/test-suites.md`.

use super::facts::On;
#[cfg(test)]
use super::facts::{Facts, Runs};
use super::suite::Suite;

/// Columns of a list for a person.
const WIDTH: usize = 110;
/// Columns of a run.
const RUN_WIDTH: usize = 7;

/// Prints every suite and its tests, with the runs that have them and the reasons.
pub fn list() {
    for suite in Suite::all() {
        println!("{}: {}", suite.name(), suite.facts().runs);
        for test in suite.tests() {
            match test.runs {
                Some(runs) => println!("    {}::{}: {runs}", suite.name(), test.name),
                None => println!("    {}::{}", suite.name(), test.name),
            }
        }
    }
}

/// Prints every suite and its tests, with their descriptions.
pub fn list_long() {
    print!("{}", long());
}

/// Output of [`list_long`]: a line for each test, longer texts in further lines.
fn long() -> String {
    let mut text =
        "The kernels of the default run, those of --all, and what each test shows.\n".to_owned();
    for suite in Suite::all() {
        let facts = suite.facts();
        let tests = suite.tests();
        let widest = tests.iter().map(|test| test.name.len()).max().unwrap_or(0);
        text += "\n";
        wrapped(&mut text, &format!("{}: ", facts.name), facts.shows);
        wrapped(&mut text, "    Runs: ", &facts.runs.to_string());
        for test in tests {
            let runs = test.runs.unwrap_or(facts.runs);
            let begin = format!(
                "    {:widest$}  {:RUN_WIDTH$}{:RUN_WIDTH$}",
                test.name,
                short(runs.default),
                short(runs.all)
            );
            let reason = test.runs.map(|runs| format!(" ({})", runs.reason));
            let shows = format!("{}{}", test.shows, reason.unwrap_or_default());
            wrapped(&mut text, &begin, &shows);
        }
    }
    text
}

/// Appends a text behind `begin`, with lines of limited length.
fn wrapped(text: &mut String, begin: &str, words: &str) {
    let indent = begin.chars().count();
    let mut line = begin.to_owned();
    let mut is_empty = true;
    for word in words.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            *text += line.trim_end();
            *text += "\n";
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    *text += line.trim_end();
    *text += "\n";
}

/// The kernels of a run in a column.
fn short(on: On) -> &'static str {
    match on {
        On::Nothing => "-",
        On::First => "first",
        On::Both => "both",
    }
}

/// `docs/test-suites.md`: the introduction, and a section for each suite.
#[cfg(test)]
fn page() -> String {
    let mut text = include_str!("introduction.md").to_owned();
    for suite in Suite::all() {
        let facts = suite.facts();
        let mut lines = vec![
            format!("## {}", facts.name),
            String::new(),
            facts.shows.to_owned(),
            in_page(facts.runs),
            String::new(),
        ];
        match same_before(suite) {
            Some(other) => {
                let tests = suite.tests().into_iter();
                let marked =
                    tests.filter_map(|test| Some(format!("`{}`{}", test.name, mark(test.runs?))));
                let marked: Vec<String> = marked.collect();
                let but = match marked.is_empty() {
                    true => String::new(),
                    false => format!("; {}", marked.join(", ")),
                };
                lines.push(format!("The tests of `{}`{but}.", other.name()));
            }
            None => lines.extend(
                groups(suite)
                    .into_iter()
                    .map(|(shows, names)| format!("- {}: {shows}", names.join(", "))),
            ),
        }
        text += &format!("\n{}\n", lines.join("\n").trim_end());
    }
    text
}

/// The first suite before this one that consists of the same table.
#[cfg(test)]
fn same_before(suite: Suite) -> Option<Suite> {
    let table = suite.table();
    let mut before = Suite::all().into_iter().take_while(|other| *other != suite);
    before.find(|other| !table.is_empty() && other.table() == table)
}

/// Runs, as the page shows them, with the reason if the default run has none.
#[cfg(test)]
fn in_page(runs: Runs) -> String {
    match (runs.default, runs.all) {
        (On::Nothing, On::Nothing) => format!("*[by name: {}]*", runs.reason),
        (On::Nothing, all) => format!("*[-/{}: {}]*", short(all), runs.reason),
        (default, all) => format!("*[{}/{}]*", short(default), short(all)),
    }
}

/// The mark of a test that has other runs than its suite; the introduction explains them.
#[cfg(test)]
fn mark(runs: Runs) -> &'static str {
    match (runs.default, runs.all) {
        (On::First, On::First) => "¹",
        (On::First, On::Both) => "²",
        (On::Both, On::Both) => "³",
        (On::Nothing, On::First) => "⁴",
        (On::Nothing, On::Both) => "⁵",
        (On::Nothing, On::Nothing) => "⁶",
        (On::Both, On::First) | (On::First | On::Both, On::Nothing) => {
            panic!("--all lacks a test of the default run")
        }
    }
}

/// Descriptions of the tests of a suite, each with the names of the tests, in the order of the first of them; those of
/// rdma-core have the names of their modules.
#[cfg(test)]
fn groups(suite: Suite) -> Vec<(&'static str, Vec<String>)> {
    let pyverbs = suite.pyverbs();
    let mut groups: Vec<(&'static str, Vec<String>)> = Vec::new();
    for Facts { name, shows, runs } in suite.tests() {
        let of_rdma_core = pyverbs.iter().find(|test| test.name == name);
        let name = of_rdma_core.map_or(name, |test| test.module);
        let name = format!("`{name}`{}", runs.map_or("", mark));
        match groups.iter_mut().find(|(known, _)| *known == shows) {
            Some((_, names)) if names.contains(&name) => (),
            Some((_, names)) => names.push(name),
            None => groups.push((shows, vec![name])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Words that a reader finds the page too long with.
    const MOST_WORDS: usize = 5500;

    #[test]
    fn the_page_has_the_contents_of_the_rows() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/test-suites.md");
        let page = page();
        if env::var_os("FAULTLINE_BLESS").is_some() {
            fs::write(&file, &page).unwrap();
        }
        let written = fs::read_to_string(&file).unwrap();
        let is_same = written == page;
        assert!(
            is_same,
            "docs/test-suites.md differs from the rows of the suites: FAULTLINE_BLESS=1 cargo test -p lab document:: writes it"
        );
        let words = page.split_whitespace().count();
        assert!(words <= MOST_WORDS, "{words} words");
    }

    #[test]
    fn each_test_has_a_line_in_the_long_list() {
        let text = long();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 20));
        for suite in Suite::all() {
            let (_, rest) = text.split_once(&format!("\n{}: ", suite.name())).unwrap();
            let section = rest.split("\n\n").next().unwrap();
            for test in suite.tests() {
                let line = |line: &str| line.trim_start().starts_with(&format!("{} ", test.name));
                assert!(section.lines().any(line), "{}", test.name);
            }
        }
    }

    #[test]
    fn long_texts_continue_below_their_beginning() {
        let mut text = String::new();
        wrapped(&mut text, "name  ", &"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("name  word") && lines[0].len() <= WIDTH);
        assert!(lines[1].starts_with("      word"));
    }
}
