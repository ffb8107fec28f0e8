//! Tags in the sources of tests, `proves: NAME, NAME`, which stand at the assertions that the rows of `docs/compatibility.md`
//! rely on. A tag is a comment line of its own, directly above the code that it is about.
//!
//! Not checked: whether a test would fail without the code that it is said to prove. That is for the author and the
//! reviewer.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use crate::compatibility::{Answer, Section};
use crate::named::{is_name, provider_test, root, rust_tests, suite, tests_of};

/// Beginning of a tag, after the marker of its comment.
const TAG: &str = "proves: ";
/// Where tags may be. Tags elsewhere would belong to no test.
const FOLDERS: &[&str] = &[
    "guest-driver/provider/tests",
    "qemu-config/src/test",
    "tests/guest",
    "tests/harness/tests",
    "tests/simulator/tests",
];
const MAKEFILE: &str = "tests/guest/Makefile";
const PYVERBS: &str = "qemu-config/src/test/pyverbs_tests.rs";

/// One name of a tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// The file, below the top of the source tree.
    pub path: String,
    /// Its line, from 1.
    pub line: usize,
    /// The name of a row.
    pub name: String,
}

/// Lines of a file, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    path: String,
    lines: RangeInclusive<usize>,
}

/// The sources of tests, by path.
#[derive(Debug, Default)]
pub struct Sources(BTreeMap<String, String>);

impl Sources {
    /// The sources of this tree.
    ///
    /// # Panics
    ///
    /// If a file can't be read.
    pub fn read() -> Self {
        let mut files = BTreeMap::new();
        for folder in FOLDERS {
            add(&root(), &root().join(folder), &mut files);
        }
        Self(files)
    }

    /// The names of all tags; or the problems of those that can't be read.
    pub fn tags(&self) -> (Vec<Tag>, Vec<String>) {
        let (mut found, mut wrong) = (Vec::new(), Vec::new());
        for (path, text) in &self.0 {
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                if !line.contains(TAG.trim_end()) {
                    continue;
                }
                let number = at + 1;
                let Some(names) = names_of_tag(line) else {
                    wrong.push(format!("{path}:{number}: not a tag: {}", line.trim()));
                    continue;
                };
                let below = lines.iter().skip(number);
                let mut code = below.map(|line| line.trim());
                let code = code.find(|line| names_of_tag(line).is_none());
                if code.is_none_or(|code| !code.contains(is_name)) {
                    wrong.push(format!("{path}:{number}: no code below this tag"));
                }
                found.extend(names.map(|name| Tag {
                    path: path.clone(),
                    line: number,
                    name: name.to_owned(),
                }));
            }
        }
        (found, wrong)
    }

    fn text(&self, path: &str) -> &str {
        self.0.get(path).map_or("", String::as_str)
    }

    /// Where the tags of a test may stand.
    fn spans(&self, test: &str) -> Vec<Span> {
        let parts: Vec<&str> = test.split("::").collect();
        match parts[..] {
            ["pyverbs", name] => {
                let text = self.text(PYVERBS);
                // A module, which may have the name of a test, is less indented.
                let is_name = |line: &str| *line == format!("{:12}\"{name}\",", "");
                above(text, is_name)
                    .map(|lines| span(PYVERBS, lines))
                    .into_iter()
                    .collect()
            }
            ["provider", name] => self.function(&provider_test(), name),
            ["guest", name] => self.program(name),
            ["lab", folder @ ("robustness" | "keys"), name] => {
                let mut spans = self.function(&suite(folder), name);
                let run: Vec<Span> = spans.iter().flat_map(|span| self.run_in(span)).collect();
                spans.extend(run);
                spans
            }
            ["lab", folder, name] => self.row(&suite(folder), name),
            [place @ ("simulator" | "harness"), file, name] => {
                self.function(&rust_tests(place, file), name)
            }
            _ => Vec::new(),
        }
    }

    /// A function of a file, and those of the same file that it calls.
    fn function(&self, path: &str, name: &str) -> Vec<Span> {
        let text = self.text(path);
        let all = functions(path, text);
        let Some(own) = all.iter().find(|function| function.name == name) else {
            return Vec::new();
        };
        let body: Vec<&str> = text
            .lines()
            .skip(*own.lines.start())
            .take(own.lines.end() - own.lines.start())
            .collect();
        let body = body.join("\n");
        let called = all
            .iter()
            .filter(|other| other.name != name && calls(&body, &other.name));
        std::iter::once(own)
            .chain(called)
            .map(|function| span(path, function.lines.clone()))
            .collect()
    }

    /// The functions of a program or kernel module for guests, or a script.
    fn program(&self, name: &str) -> Vec<Span> {
        let compiled = self.compiled(name);
        if !compiled.is_empty() {
            return compiled;
        }
        for extension in ["sh", "py"] {
            let path = format!("tests/guest/scripts/{name}.{extension}");
            if let Some(text) = self.0.get(&path) {
                let mut spans = vec![span(&path, 1..=text.lines().count())];
                // Programs that the script runs, and modules that it loads.
                spans.extend(words(text).flat_map(|word| self.compiled(word)));
                return spans;
            }
        }
        Vec::new()
    }

    fn compiled(&self, name: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        for path in self.sources_of(name) {
            let all = functions(&path, self.text(&path)).into_iter();
            spans.extend(all.map(|function| span(&path, function.lines)));
        }
        spans
    }

    /// The files that a program or module is made of, without those that programs share.
    fn sources_of(&self, name: &str) -> Vec<String> {
        let rule = format!("$(OUT)/{name}: ");
        let rule = self
            .text(MAKEFILE)
            .lines()
            .find_map(|line| line.strip_prefix(&rule));
        let files = match rule {
            Some(files) => files
                .split_whitespace()
                .filter(|&file| file != "common.c")
                .collect(),
            None => Vec::new(),
        };
        if !files.is_empty() {
            return files
                .iter()
                .map(|file| format!("tests/guest/{file}"))
                .collect();
        }
        let module = format!("tests/guest/kernel/{name}.c");
        self.0
            .contains_key(&module)
            .then_some(module)
            .into_iter()
            .collect()
    }

    /// A row of a suite's table with the comment above it, and what its commands run.
    fn row(&self, path: &str, name: &str) -> Vec<Span> {
        let text = self.text(path);
        let quoted = format!("\"{name}\"");
        let Some(lines) = above(text, |line| line.contains(&quoted)) else {
            return Vec::new();
        };
        let row = span(path, lines);
        let run = self.run_in(&row);
        std::iter::once(row).chain(run).collect()
    }

    /// The programs and scripts that these lines name.
    fn run_in(&self, span: &Span) -> Vec<Span> {
        let lines = self.text(&span.path).lines().skip(span.lines.start() - 1);
        let lines = lines.take(span.lines.end() + 1 - span.lines.start());
        let all = lines.flat_map(words);
        all.flat_map(|word| self.program(word)).collect()
    }
}

/// The files below a folder.
fn add(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            add(root, &path, files);
            continue;
        }
        let extension = path.extension().and_then(|e| e.to_str());
        if extension.is_none_or(|e| ["rs", "c", "h", "sh", "py"].contains(&e)) {
            let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let name = path.strip_prefix(root).unwrap_or(&path);
            files.insert(name.display().to_string(), text);
        }
    }
}

fn span(path: &str, lines: RangeInclusive<usize>) -> Span {
    Span {
        path: path.to_owned(),
        lines,
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_name(c)).filter(|word| !word.is_empty())
}

/// The names in a line that is a tag.
fn names_of_tag(line: &str) -> Option<impl Iterator<Item = &str>> {
    let line = line.trim();
    let text = line
        .strip_prefix("// ")
        .or_else(|| line.strip_prefix("# "))
        .or_else(|| line.strip_prefix("/* ")?.strip_suffix(" */"))?;
    let names = text.strip_prefix(TAG)?;
    let is_good = |name: &str| !name.is_empty() && name.chars().all(is_name);
    names.split(", ").all(is_good).then(|| names.split(", "))
}

/// The entry of a Rust list whose line `is_it`, and the comment lines directly above. An entry begins, and ends, with the
/// indentation of its list.
fn above(text: &str, is_it: impl Fn(&str) -> bool) -> Option<RangeInclusive<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let named = lines
        .iter()
        .position(|line| !is_comment(line) && is_it(line))?;
    let indent = |line: &str| line.len() - line.trim_start().len();
    // The name may be in a line of its own, inside the brackets of its entry.
    let is_alone = lines[named].trim_start().starts_with('"');
    let is_plain = |at: usize| is_comment(lines[at]) || lines[at].trim_start().starts_with('"');
    let begin = match is_alone && named > 0 && !is_plain(named - 1) {
        true if lines[named - 1].trim_end().ends_with('(') => named - 1,
        _ => named,
    };
    let depth = indent(lines[begin]);
    // Calls that follow a row are indented more than it, or begin with a dot.
    let goes_on = |line: &str| indent(line) > depth || line.trim_start().starts_with([')', '.']);
    let end = (begin..lines.len()).find(|&at| {
        let is_entry_end = lines[at].trim_end().ends_with(',');
        is_entry_end && lines.get(at + 1).is_none_or(|next| !goes_on(next))
    });
    let first = (0..begin)
        .rev()
        .take_while(|&at| is_comment(lines[at]))
        .last();
    Some(first.unwrap_or(begin) + 1..=end.unwrap_or(begin) + 1)
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

#[derive(Debug)]
struct Function {
    name: String,
    lines: RangeInclusive<usize>,
}

/// The functions of a source file in Rust or C, as its formatter lays them out: a body ends with a brace that is
/// indented like its beginning.
fn functions(path: &str, text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rust = path.ends_with(".rs");
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let begin = match is_rust {
            true => rust_function(line),
            false => c_function(&lines, at),
        };
        let Some((name, indent)) = begin else {
            continue;
        };
        let end = format!("{indent}}}");
        let last = (at..lines.len()).find(|&at| lines[at] == end);
        let last = if is_rust && line.trim_end().ends_with('}') {
            at
        } else {
            last.unwrap_or(at)
        };
        found.push(Function {
            name: name.to_owned(),
            lines: at + 1..=last + 1,
        });
    }
    found
}

/// The name and the indentation of a function that begins in this line.
fn rust_function(line: &str) -> Option<(&str, &str)> {
    let code = line.trim_start();
    let (before, rest) = code.split_once("fn ")?;
    let is_prefix = |word: &str| ["const", "async"].contains(&word) || word.starts_with("pub");
    if !before.split_whitespace().all(is_prefix) {
        return None;
    }
    let name = words(rest).next().filter(|name| rest.starts_with(name))?;
    Some((name, &line[..line.len() - code.len()]))
}

/// The same if the line is the brace that opens a function's body.
fn c_function<'a>(lines: &[&'a str], at: usize) -> Option<(&'a str, &'a str)> {
    if lines[at] != "{" {
        return None;
    }
    let ends = |line: &str| line.is_empty() || line.starts_with(['}', '/', '#', ' ']);
    let signature = (0..at).rev().take_while(|&at| !ends(lines[at])).last()?;
    let name = lines[signature].split('(').next()?;
    Some((words(name).last()?, ""))
}

fn calls(body: &str, name: &str) -> bool {
    body.match_indices(name).any(|(at, _)| {
        let after = body[at + name.len()..].chars().next();
        !body[..at].ends_with(is_name) && after.is_some_and(|c| !is_name(c))
    })
}

/// Problems of the tags of a document's rows. `goes_through` returns whether a test runs the code of a section.
pub fn differences(
    sections: &[Section],
    sources: &Sources,
    goes_through: impl Fn(&Section, &str) -> bool,
) -> Vec<String> {
    let (tags, mut wrong) = sources.tags();
    let mut is_used = vec![false; tags.len()];
    for section in sections {
        for row in &section.rows {
            let mut proved: Vec<&str> = Vec::new();
            for test in tests_of(&row.note) {
                let spans = sources.spans(test);
                let inside = |tag: &Tag| {
                    let mut spans = spans.iter();
                    spans.any(|span| span.path == tag.path && span.lines.contains(&tag.line))
                };
                let mut has_one = false;
                for (tag, is_used) in tags.iter().zip(&mut is_used) {
                    if row.names.contains(&tag.name) && inside(tag) {
                        (has_one, *is_used) = (true, true);
                        if goes_through(section, test) {
                            proved.push(&tag.name);
                        }
                    }
                }
                if !has_one {
                    wrong.push(format!("{:?}: {test} has no tag for them", row.names));
                }
            }
            let names = row.names.iter().filter(|_| row.answer == Answer::Yes);
            let missing = names.filter(|name| !proved.contains(&name.as_str()));
            wrong.extend(missing.map(|name| format!("{name}: no test of the row proves it")));
        }
    }
    let stale = tags.iter().zip(is_used).filter(|(_, is_used)| !is_used);
    wrong.extend(stale.map(|(tag, _)| {
        let Tag { path, line, name } = tag;
        format!("{path}:{line}: no row of {name} names this test")
    }));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compatibility::sections;

    const SIMULATOR: &str = "
#[test]
fn it_works() {
    let world = World::new();
    // proves: IBV_A, IBV_B
    assert!(world.works());
    helps(&world);
}

#[test]
fn another() {
    assert!(true);
}

fn helps(world: &World) {
    // proves: IBV_C
    assert!(world.helps());
}
";
    const PROGRAM: &str = "
static struct device device;

static void test_it(struct device *device,
		    int how)
{
	/* proves: IBV_D */
	WANT(it(device));
}

int main(void)
{
	test_it(&device, 1);
	return 0;
}
";
    const SUITE: &str = "
pub const TESTS: &[GuestTest] = &[
    alone(\"program\", \"program --option\"),
    // Of other people.
    // proves: IBV_E
    verbs(\"foreign\", \"ibv_pingpong\"),
    cm(
        \"script\",
        \"script server\",
    )
    .within(60),
    // proves: IBV_G
    cm(
        \"long\",
        \"long client\",
    ),
];
";
    const SCRIPT: &str = "#!/bin/bash
# proves: IBV_F
[ \"$(program)\" = right ] || exit 1
";
    const PYTHON: &str = "
        &[
            // proves: IBV_H
            \"test_first\",
            \"test_second\",
        ],
";
    const ROBUSTNESS: &str = "
fn killed(cluster: &Cluster) -> Result<()> {
    // proves: IBV_I
    cluster.must(\"script\")?;
    Ok(())
}
";
    const DOCUMENT: &str = "
## Names: `enum ibv_names`

| `IBV_A`, `IBV_B` | yes | `simulator::file::it_works` |
| `IBV_C` | yes | only a helper has it; `simulator::file::it_works` |
| `IBV_D` | yes | `guest::program`, `lab::suite::program`, `lab::suite::script` |
| `IBV_E` | yes | `lab::suite::foreign` |
| `IBV_F` | no | refused: `lab::suite::script`, `lab::robustness::killed` |
| `IBV_G` | yes | `lab::suite::long` |
| `IBV_H` | yes | `pyverbs::test_first` |
| `IBV_I` | partly | `lab::robustness::killed` |
| `IBV_J` | no | there is none |
";

    fn sources() -> BTreeMap<String, String> {
        let files = [
            ("tests/simulator/tests/file.rs", SIMULATOR),
            ("tests/guest/program.c", PROGRAM),
            (
                MAKEFILE,
                "$(OUT)/program: program.c common.c\n\t$(CC) -o $@ $<\n",
            ),
            ("tests/guest/scripts/script.sh", SCRIPT),
            ("qemu-config/src/test/suites/suite.rs", SUITE),
            ("qemu-config/src/test/robustness.rs", ROBUSTNESS),
            (PYVERBS, PYTHON),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        files.into_iter().collect()
    }

    /// What is wrong after `change`.
    fn wrong(change: impl Fn(&mut BTreeMap<String, String>, &mut String)) -> Vec<String> {
        let (mut files, mut document) = (sources(), DOCUMENT.to_owned());
        change(&mut files, &mut document);
        let sections = sections(&document).unwrap();
        differences(&sections, &Sources(files), |_, _| true)
    }

    fn replaced(path: &str, from: &str, to: &str) -> Vec<String> {
        wrong(|files, _| {
            let text = files.get_mut(path).unwrap();
            assert!(text.contains(from), "{from}");
            *text = text.replacen(from, to, 1);
        })
    }

    #[test]
    fn a_document_with_tagged_tests_is_right() {
        assert_eq!(wrong(|_, _| {}), Vec::<String>::new());
    }

    #[test]
    fn a_row_without_a_tag_is_named() {
        let path = "tests/simulator/tests/file.rs";
        assert_eq!(
            replaced(path, "    // proves: IBV_A, IBV_B\n", ""),
            [
                "[\"IBV_A\", \"IBV_B\"]: simulator::file::it_works has no tag for them",
                "IBV_A: no test of the row proves it",
                "IBV_B: no test of the row proves it",
            ]
        );
        assert_eq!(
            replaced(path, "IBV_A, IBV_B", "IBV_B"),
            ["IBV_A: no test of the row proves it"]
        );
        let gone = replaced(PYVERBS, "            // proves: IBV_H\n", "");
        assert_eq!(gone.len(), 2, "{gone:?}");
        // A row that says "no" needs no test, but the tests that it names must have a tag.
        let gone = replaced("tests/guest/scripts/script.sh", "# proves: IBV_F\n", "");
        assert_eq!(
            gone,
            [
                "[\"IBV_F\"]: lab::suite::script has no tag for them",
                "[\"IBV_F\"]: lab::robustness::killed has no tag for them",
            ]
        );
    }

    #[test]
    fn a_test_that_does_not_run_the_code_of_a_section_proves_nothing_of_it() {
        let sections = sections(DOCUMENT).unwrap();
        let found = differences(&sections, &Sources(sources()), |_, test| {
            !test.starts_with("pyverbs")
        });
        assert_eq!(found, ["IBV_H: no test of the row proves it"]);
    }

    #[test]
    fn a_tag_that_no_row_uses_is_named() {
        let stale = wrong(|_, document| {
            *document = document.replace("| `IBV_E` | yes | `lab::suite::foreign` |\n", "");
        });
        assert_eq!(
            stale,
            ["qemu-config/src/test/suites/suite.rs:5: no row of IBV_E names this test"]
        );
        let path = "tests/simulator/tests/file.rs";
        assert_eq!(
            replaced(path, "IBV_A, IBV_B", "IBV_A, IBV_B, IBV_OLD"),
            [format!("{path}:5: no row of IBV_OLD names this test")]
        );
    }

    #[test]
    fn a_tag_outside_of_the_named_test_does_not_count() {
        let path = "tests/simulator/tests/file.rs";
        let moved = wrong(|files, _| {
            let text = files.get_mut(path).unwrap();
            *text = text
                .replacen("    // proves: IBV_A, IBV_B\n", "", 1)
                .replacen(
                    "    assert!(true);",
                    "    // proves: IBV_A, IBV_B\n    assert!(true);",
                    1,
                );
        });
        assert_eq!(moved.len(), 5, "{moved:?}");
        assert_eq!(
            moved[3],
            format!("{path}:11: no row of IBV_A names this test")
        );
        // Nor does one of a function that the test does not call, of the row below, or outside of all functions.
        assert_eq!(replaced(path, "    helps(&world);\n", "").len(), 3);
        let suite = "qemu-config/src/test/suites/suite.rs";
        let moved = replaced(
            suite,
            "    alone(",
            "    // proves: IBV_E\n    other(\"x\", \"y\"),\n    alone(",
        );
        assert_eq!(
            moved,
            [format!("{suite}:3: no row of IBV_E names this test")]
        );
        // Calls in further lines belong to their row, and what is below them to the next one.
        let below = replaced(
            suite,
            "    // proves: IBV_E\n    verbs(\"foreign\", \"ibv_pingpong\"),",
            "    verbs(\"foreign\", \"ibv_pingpong\")\n        .shows(\"It works.\"),\n    // proves: IBV_E\n    other(\"x\"),",
        );
        assert_eq!(below.len(), 3, "{below:?}");
        let moved = replaced(
            "tests/guest/program.c",
            "int main(",
            "/* proves: IBV_D */\nint main(",
        );
        assert_eq!(
            moved,
            ["tests/guest/program.c:11: no row of IBV_D names this test"]
        );
    }

    #[test]
    fn a_tag_must_be_readable_and_above_code() {
        let path = "tests/simulator/tests/file.rs";
        for (bad, message) in [
            ("// proves: IBV_A and IBV_B", "not a tag"),
            ("// proves:", "not a tag"),
            ("/// proves: IBV_A", "not a tag"),
            ("let _ = 1; // proves: IBV_A, IBV_B", "not a tag"),
            ("// proves: IBV_A, IBV_B\n", "no code below this tag"),
        ] {
            let found = replaced(path, "// proves: IBV_A, IBV_B", bad);
            let first = found.first().map_or("", String::as_str);
            assert!(
                first.starts_with(&format!("{path}:5: {message}")),
                "{found:?}"
            );
        }
    }
}
