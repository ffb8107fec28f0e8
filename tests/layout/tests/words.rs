//! The length of the documentation that people write and read: pages of `docs`, README and CONTRIBUTING.

use std::fs;

use faultline_layout::named::{read, root};

/// Most words of all pages together, without generated ones.
const LIMIT: usize = 50_000;

/// Pages that programs write: `cargo test -p lab document::`, `cargo lab bench`, `cargo lab experiments`.
const GENERATED: [&str; 3] = [
    "docs/test-suites.md",
    "docs/benchmark-results.md",
    "docs/experiments.md",
];

/// A page without the parts that programs write between `<!-- name: begin -->` and `<!-- name: end -->`.
fn written_by_hand(page: &str) -> String {
    let mut is_generated = false;
    let lines = page.lines().filter(|line| {
        is_generated |= line.starts_with("<!-- ") && line.ends_with(": begin -->");
        let is_kept = !is_generated;
        is_generated &= !(line.starts_with("<!-- ") && line.ends_with(": end -->"));
        is_kept
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The number of words: groups of characters with a letter or a digit.
fn words(text: &str) -> usize {
    let is_word = |group: &&str| group.chars().any(char::is_alphanumeric);
    text.split_whitespace().filter(is_word).count()
}

#[test]
fn the_documentation_is_one_book() {
    let folder = fs::read_dir(root().join("docs")).expect("docs can be read");
    let names = folder.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("a name is UTF-8"));
    let pages = names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .filter(|name| !GENERATED.contains(&name.as_str()))
        .chain(["README.md", "CONTRIBUTING.md"].map(str::to_owned));
    let mut counts: Vec<(usize, String)> = pages
        .map(|name| (words(&written_by_hand(&read(&name))), name))
        .collect();
    counts.sort_unstable();
    assert!(counts.len() > 25, "only {} pages", counts.len());
    let sum: usize = counts.iter().map(|(count, _)| count).sum();
    let longest = counts.iter().rev().take(8);
    let longest: Vec<String> = longest.map(|(n, name)| format!("{n} {name}")).collect();
    assert!(
        sum <= LIMIT,
        "the documentation has {sum} words, {LIMIT} are allowed: write once what is written twice. The longest pages:\n{}",
        longest.join("\n")
    );
}

#[test]
fn words_are_counted_without_tables_marks_and_generated_parts() {
    assert_eq!(words("| a | b-c |\n|---|---|\n| `d(e)` — | 7 |"), 4);
    let page = "one\n<!-- list: begin -->\ntwo three\n<!-- list: end -->\nfour";
    assert_eq!(written_by_hand(page), "one\nfour");
    for name in GENERATED {
        assert!(root().join(name).is_file(), "{name} is no page");
    }
}
