//! `docs/compatibility.md` says what the code does, and names tests that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A line of a table.
#[derive(Debug)]
struct Row {
    name: String,
    supported: bool,
    note: String,
}

/// The rows below the heading that begins so.
fn rows(document: &str, heading: &str) -> Vec<Row> {
    let start = format!("## {heading}");
    let section = document
        .split("\n## ")
        .map(|section| format!("## {section}"))
        .find(|section| section.starts_with(&start))
        .unwrap_or_else(|| panic!("there is no section {heading:?}"));
    section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [name, supported, note] = cells[..] else {
                panic!("not three cells: {line}");
            };
            assert!(["yes", "no"].contains(&supported), "yes or no? {line}");
            assert!(!note.is_empty(), "neither test nor reason: {line}");
            Row {
                name: name.trim_matches('`').to_owned(),
                supported: supported == "yes",
                note: note.to_owned(),
            }
        })
        .collect()
}

/// What comes after `before` in each line that has it, as far as it is a name.
fn names_after(text: &str, before: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(before)
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| is_name(*c)).collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

/// The text from a line that holds `from` up to the next one that is `to`.
fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text
        .split_once(from)
        .unwrap_or_else(|| panic!("no {from:?}"));
    rest.split_once(to).map_or(rest, |(part, _)| part)
}

/// The fields that a table of operations sets.
fn operations(path: &str, table: &str) -> BTreeSet<String> {
    let text = read(path);
    let fields = part(&text, table, "\n};");
    fields
        .lines()
        .filter_map(|line| line.trim().strip_prefix('.')?.split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Names with this prefix in a text, prefix included.
fn constants(text: &str, prefix: &str) -> BTreeSet<String> {
    let found = names_after(text, prefix);
    found.iter().map(|name| format!("{prefix}{name}")).collect()
}

#[track_caller]
fn compare(heading: &str, code: &BTreeSet<String>) {
    let rows = rows(&read("docs/compatibility.md"), heading);
    let named: Vec<&String> = rows.iter().map(|row| &row.name).collect();
    let mut sorted = named.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(named, sorted, "{heading}: not in order, or twice");
    for row in &rows {
        // Some operations are set only to ask the kernel, which refuses; they say so.
        let asks_kernel = row.note.starts_with("it asks the kernel");
        assert_eq!(
            code.contains(&row.name),
            row.supported || asks_kernel,
            "{heading}: {}",
            row.name
        );
    }
    for name in code {
        assert!(named.contains(&name), "{heading}: {name} is missing");
    }
}

#[test]
fn operations_of_the_library_are_as_described() {
    let code = operations(
        "guest-driver/provider/faultline.c",
        "struct verbs_context_ops fl_ops = {",
    );
    assert!(code.len() > 40, "{code:?}");
    compare("Library", &code);
}

#[test]
fn operations_of_the_driver_are_as_described() {
    let mut code = operations(
        "guest-driver/kernel/faultline_verbs.c",
        "struct ib_device_ops faultline_dev_ops = {",
    );
    for attribute in ["owner", "driver_id", "uverbs_abi_ver", "device_group"] {
        assert!(code.remove(attribute), "{attribute}");
    }
    assert!(code.len() > 50, "{code:?}");
    compare("Driver", &code);
}

#[test]
fn capabilities_are_as_described() {
    let text = read("guest-driver/kernel/faultline_verbs.c");
    let flags = part(&text, "props->device_cap_flags =", ";");
    compare("Capabilities", &constants(flags, "IB_DEVICE_"));
}

#[test]
fn what_completions_tell_is_as_described() {
    let text = read("guest-driver/provider/cq.c");
    compare(
        "What completions tell",
        &constants(&text, "IBV_WC_EX_WITH_"),
    );
}

#[test]
fn builders_are_as_described() {
    let text = read("guest-driver/provider/qp.c");
    compare(
        "Work request builders",
        &constants(&text, "IBV_QP_EX_WITH_"),
    );
}

/// All sources of the provider.
fn provider() -> String {
    let directory = root().join("guest-driver/provider");
    let files = fs::read_dir(&directory).expect("the provider's directory");
    files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| fs::read_to_string(path).expect("a source file"))
        .collect()
}

#[test]
fn kinds_of_queues_are_as_described() {
    let text = provider();
    let mut code = constants(&text, "IBV_QPT_");
    code.extend(constants(&text, "IBV_SRQT_"));
    compare("Kinds of queues", &code);
}

#[test]
fn attributes_of_creation_are_as_described() {
    let text = provider();
    let mut code = constants(&text, "IBV_QP_INIT_ATTR_");
    for prefix in [
        "IBV_CQ_INIT_ATTR_",
        "IBV_CREATE_CQ_ATTR_",
        "IBV_SRQ_INIT_ATTR_",
        "IBV_PARENT_DOMAIN_INIT_ATTR_",
    ] {
        code.extend(constants(&text, prefix));
    }
    compare("Attributes of creation", &code);
}

#[test]
fn rights_are_as_described() {
    let known = read("guest-driver/kernel/faultline_ib.h");
    let hints = read("guest-driver/kernel/faultline_mr.c");
    let mut code = constants(
        part(&known, "#define FAULTLINE_MR_ACCESS", "\n\n"),
        "IB_ACCESS_",
    );
    code.extend(constants(
        part(&hints, "#define FAULTLINE_MR_HINTS", "\n\n"),
        "IB_ACCESS_",
    ));
    code.insert("IB_ACCESS_ON_DEMAND".to_owned());
    compare("Rights of regions", &code);
}

/// Whether there is a test of this name, which says where to look.
fn exists(test: &str) -> bool {
    let holds = |path: &str, what: &str| {
        fs::read_to_string(root().join(path)).is_ok_and(|text| text.contains(what))
    };
    let parts: Vec<&str> = test.split("::").collect();
    match parts[..] {
        ["pyverbs", name] => holds(
            "qemu-config/src/test/pyverbs_tests.rs",
            &format!("\"{name}\""),
        ),
        ["provider", name] => holds(
            "guest-driver/provider/tests/provider_test.c",
            &format!("TEST({name})"),
        ),
        ["guest", name] => holds(&format!("tests/guest/{name}.c"), "int main("),
        ["lab", name] => {
            let quoted = format!("\"{name}\"");
            holds("qemu-config/src/test/mod.rs", &quoted)
                || holds("qemu-config/src/test/table.rs", &quoted)
        }
        [place @ ("simulator" | "harness"), file, name] => holds(
            &format!("tests/{place}/tests/{file}.rs"),
            &format!("\nfn {name}()"),
        ),
        _ => false,
    }
}

/// The tests that a note names.
fn tests_of(note: &str) -> Vec<&str> {
    note.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.contains("::"))
        .collect()
}

#[test]
fn what_is_supported_names_a_test_and_every_test_exists() {
    let document = read("docs/compatibility.md");
    let headings: Vec<&str> = document
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert!(headings.len() >= 6, "{headings:?}");
    let mut count = 0;
    for heading in headings {
        for row in rows(&document, heading) {
            let tests = tests_of(&row.note);
            assert!(!row.supported || !tests.is_empty(), "no test: {row:?}");
            for test in tests {
                assert!(exists(test), "there is no test {test}: {row:?}");
                count += 1;
            }
        }
    }
    assert!(count > 150, "only {count}");
    assert!(!exists("pyverbs::test_that_there_is_not"));
    assert!(!exists("simulator::keys::invalidate"));
    assert!(!exists("elsewhere::test_create_dm"));
}
