//! Names of tests in documents, such as `simulator::keys::no_rkey_crosses_protection_domains`, and whether there are such tests.

use std::fs;
use std::path::{Path, PathBuf};

use crate::compatibility::quoted;

/// The top of the source tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the source tree.
///
/// # Panics
///
/// If it can't be read.
pub fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder of the source tree.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// Whether a character may be part of a name in Rust or C.
pub fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The text behind `from` up to the next `to`, or to the end.
///
/// # Panics
///
/// If the text lacks `from`.
pub fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text
        .split_once(from)
        .unwrap_or_else(|| panic!("no {from:?}"));
    rest.split_once(to).map_or(rest, |(part, _)| part)
}

/// The tests of the provider.
pub fn provider_test() -> String {
    "guest-driver/provider/tests/provider_test.c".to_owned()
}

/// A file with tests of the simulator or the harness.
pub fn rust_tests(place: &str, file: &str) -> String {
    format!("tests/{place}/tests/{file}.rs")
}

/// The file of a suite of the lab.
pub fn suite(name: &str) -> String {
    let file = name.replace('-', "_");
    match name {
        "robustness" | "keys" | "iwarp-recover" => format!("qemu-config/src/test/{file}.rs"),
        "iwarp-lossy" => suite("iwarp"),
        "wire-tcp" => suite("wire"),
        _ => format!("qemu-config/src/test/suites/{file}.rs"),
    }
}

/// Whether there is a test of this name, which says where to look.
pub fn exists(test: &str) -> bool {
    let text = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    // By a suite's table, or by a script that one names.
    let runs = |program: &str| {
        let folders = ["qemu-config/src/test/suites", "tests/guest/scripts"];
        let mut files = folders.iter().flat_map(|folder| files(folder));
        files.any(|file| {
            let text = fs::read_to_string(file).unwrap_or_default();
            text.split(|c| !is_name(c)).any(|word| word == program)
        })
    };
    let parts: Vec<&str> = test.split("::").collect();
    match parts[..] {
        ["pyverbs", name] => {
            text("qemu-config/src/test/pyverbs_tests.rs").contains(&format!("\"{name}\""))
        }
        ["provider", name] => text(&provider_test()).contains(&format!("TEST({name})")),
        // Others are for demonstrations.
        ["guest", name] => {
            text(&format!("tests/guest/{name}.c")).contains("int main(") && runs(name)
        }
        ["bench", name] => root()
            .join(format!("tests/harness/src/bin/bench/{name}.rs"))
            .is_file(),
        ["lab", folder, name] => text(&suite(folder)).contains(&format!("\"{name}\"")),
        [place @ ("simulator" | "harness"), file, name] => text(&rust_tests(place, file))
            .split_once(&format!("fn {name}("))
            .is_some_and(|(before, _)| before.trim_end().ends_with("#[test]")),
        _ => false,
    }
}

/// The tests that a note names.
pub fn tests_of(note: &str) -> Vec<&str> {
    let words = quoted(note).into_iter();
    words.filter(|word| word.contains("::")).collect()
}
