//! `docs/experiments.md` and its pictures are what the simulations and the measured figures make.

use std::fs;
use std::path::{Path, PathBuf};

use faultline_experiments::document::{PICTURES, render};
use faultline_experiments::measured::Measured;

/// How to make the document again.
const AGAIN: &str = "`cargo lab experiments --simulator` makes the document again";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn read(name: &str) -> String {
    let path = docs().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The first line that differs, if one does.
fn difference<'a>(found: &'a str, wanted: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let (mut found, mut wanted) = (found.lines(), wanted.lines());
    (1..).find_map(|number| match (found.next(), wanted.next()) {
        (None, None) => Some(None),
        (found, wanted) if found == wanted => None,
        (found, wanted) => Some(Some((
            number,
            found.unwrap_or("the end"),
            wanted.unwrap_or("the end"),
        ))),
    })?
}

#[test]
fn the_document_has_the_simulated_and_measured_figures() {
    // Names and units of the measured figures are checked here.
    let measured =
        Measured::read(&read("experiments.json")).unwrap_or_else(|error| panic!("{error:#}"));
    let experiments =
        faultline_experiments::all(&measured).unwrap_or_else(|error| panic!("{error:#}"));
    let wanted = render(&experiments, &measured.machine);
    let found = read("experiments.md");
    if let Some((number, found, wanted)) = difference(&found, &wanted) {
        panic!("docs/experiments.md, line {number}:\n  {found}\nexpected\n  {wanted}\n{AGAIN}");
    }
    let pictures = experiments
        .iter()
        .flat_map(|experiment| &experiment.pictures);
    let mut names: Vec<String> = Vec::new();
    for picture in pictures {
        let name = format!("{PICTURES}/{}", picture.file);
        assert!(
            read(&name) == picture.svg,
            "docs/{name} has other figures. {AGAIN}"
        );
        names.push(picture.file.to_owned());
    }
    let files = fs::read_dir(docs().join(PICTURES)).expect("pictures");
    let mut files: Vec<String> = files
        .map(|file| {
            file.expect("a file")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    files.sort();
    assert_eq!(files, names, "pictures that the document does not show");
}

#[test]
fn each_experiment_has_the_published_figure_and_the_differences() {
    let document = read("experiments.md");
    let sections: Vec<&str> = document.split("\n## ").skip(1).collect();
    assert_eq!(sections.len(), 8);
    for section in sections {
        for part in [
            "**Asked.** ",
            "**Published.** ",
            "**Measured.** ",
            "**What differs.** ",
        ] {
            let text = section.split_once(part).map_or("", |(_, rest)| rest);
            assert!(
                text.lines().next().is_some_and(|line| line.len() > 40),
                "{part}: {section}"
            );
        }
        assert!(section.contains("\n|---"), "no table: {section}");
    }
}

#[test]
fn a_difference_is_found() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    assert_eq!(difference("a\nb\n", "a\nc\n"), Some((2, "b", "c")));
    assert_eq!(difference("a\n", "a\nb\n"), Some((2, "the end", "b")));
}
