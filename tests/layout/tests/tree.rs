//! Rules of the source tree as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use faultline_layout::circles::{Source, circles, method_uses, uses};
use faultline_layout::named::{is_name, read};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("workspace root")
}

/// Crates of the workspace that each crate may use, beyond none. `tests/*` may use all of them.
const ALLOWED: &[(&str, &[&str])] = &[
    ("faultline-abi", &[]),
    ("faultline-wire", &[]),
    ("faultline-tcp", &["faultline-wire"]),
    (
        "faultline-nic",
        &["faultline-abi", "faultline-tcp", "faultline-wire"],
    ),
    ("faultline-memory", &[]),
    ("faultline-vfio-user", &[]),
    ("faultline-pci", &[]),
    ("faultline-ports", &["faultline-memory", "faultline-wire"]),
    (
        "faultline-fabric",
        &[
            "faultline-abi",
            "faultline-nic",
            "faultline-scenario",
            "faultline-wire",
        ],
    ),
    ("faultline-checker", &["faultline-wire"]),
    (
        "faultline-telemetry",
        &["faultline-abi", "faultline-nic", "faultline-wire"],
    ),
    (
        "faultline-scenario",
        &[
            "faultline-checker",
            "faultline-abi",
            "faultline-nic",
            "faultline-telemetry",
            "faultline-wire",
        ],
    ),
    (
        "faultline-simulation",
        &[
            "faultline-abi",
            "faultline-fabric",
            "faultline-nic",
            "faultline-checker",
            "faultline-scenario",
            "faultline-telemetry",
            "faultline-wire",
        ],
    ),
    (
        "faultline-config",
        &[
            "faultline-abi",
            "faultline-fabric",
            "faultline-nic",
            "faultline-ports",
            "faultline-scenario",
            "faultline-wire",
        ],
    ),
    (
        "faultline-capture",
        &[
            "faultline-fabric",
            "faultline-nic",
            "faultline-checker",
            "faultline-ports",
            "faultline-scenario",
            "faultline-wire",
        ],
    ),
    (
        "faultline-daemon",
        &[
            "faultline-abi",
            "faultline-capture",
            "faultline-config",
            "faultline-fabric",
            "faultline-memory",
            "faultline-nic",
            "faultline-pci",
            "faultline-ports",
            "faultline-scenario",
            "faultline-telemetry",
            "faultline-vfio-user",
            "faultline-wire",
        ],
    ),
    (
        "faultline-control",
        &[
            "faultline-abi",
            "faultline-capture",
            "faultline-config",
            "faultline-daemon",
            "faultline-fabric",
            "faultline-nic",
            "faultline-ports",
            "faultline-scenario",
            "faultline-telemetry",
            "faultline-vfio-user",
        ],
    ),
    // The engine is not compiled anew for a change of a command.
    (
        "faultline",
        &[
            "faultline-abi",
            "faultline-capture",
            "faultline-config",
            "faultline-control",
            "faultline-daemon",
            "faultline-files",
            "faultline-nic",
            "faultline-scenario",
            "faultline-simulation",
            "faultline-telemetry",
        ],
    ),
    ("faultline-files", &[]),
    // The device is not compiled for the lab.
    ("lab", &["faultline-files"]),
];

type Edges = BTreeMap<String, Vec<String>>;

/// Edges that are not allowed, as "from -> to".
fn forbidden(edges: &Edges) -> Vec<String> {
    let mut found = Vec::new();
    for (from, to) in edges {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| name == from) else {
            continue;
        };
        let bad = to.iter().filter(|name| !allowed.contains(&name.as_str()));
        found.extend(bad.map(|name| format!("{from} -> {name}")));
    }
    found
}

/// Ordinary and build dependencies between crates of the workspace.
fn edges() -> Edges {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let local = dependencies
                .iter()
                .filter(|d| d["path"].is_string() && d["kind"].as_str() != Some("dev"))
                .map(|d| text(&d["name"]))
                .collect();
            (text(&package["name"]), local)
        })
        .collect()
}

#[test]
fn dependencies_point_the_right_way() {
    let edges = edges();
    for (name, _) in ALLOWED {
        assert!(
            edges.contains_key(*name),
            "{name} is gone; update this test"
        );
    }
    assert_eq!(forbidden(&edges), Vec::<String>::new());
}

#[test]
fn a_forbidden_edge_is_found() {
    let bad = Edges::from([(
        "faultline-nic".into(),
        vec!["faultline-abi".into(), "faultline".into()],
    )]);
    assert_eq!(forbidden(&bad), ["faultline-nic -> faultline"]);
}

/// Dependencies of a manifest that no source file of its package names, as "package: dependency". `tests` are the files of
/// tests, which alone may use development dependencies.
fn unused_dependencies(manifest: &str, sources: &str, tests: &str) -> Vec<String> {
    let uses = |text: &str, name: &str| {
        let name = name.replace('-', "_");
        text.split(|c: char| !c.is_alphanumeric() && !"_:.".contains(c))
            .any(|path| path == name || path.split("::").next() == Some(&name))
    };
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        } else if let Some((name, _)) = line.split_once(" = ")
            && section.ends_with("dependencies]")
            && !name.contains(' ')
        {
            let in_tests = section == "[dev-dependencies]" && uses(tests, name);
            if !in_tests && !uses(sources, name) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

/// The text of all Rust files below a folder, comments excluded; nothing if there is no such folder.
fn rust_code(folder: &Path) -> String {
    let mut code = String::new();
    if folder.is_dir() {
        for file in files(folder, &["rs"]) {
            let text = fs::read_to_string(&file).expect("source can be read");
            for line in text.lines() {
                code.push_str(line.split("//").next().unwrap_or_default());
                code.push('\n');
            }
        }
    }
    code
}

#[test]
fn every_dependency_is_used() {
    let root = root();
    let mut unused = Vec::new();
    let mut packages = 0;
    let mut inherited = String::new();
    for manifest in files(&root, &["toml"]) {
        let text = fs::read_to_string(&manifest).expect("manifest can be read");
        let folder = manifest.parent().expect("manifest is in a folder");
        if !manifest.ends_with("Cargo.toml") || folder == root {
            continue;
        }
        packages += 1;
        let (sources, tests) = (
            rust_code(&folder.join("src")),
            rust_code(&folder.join("tests")),
        );
        let names = unused_dependencies(&text, &sources, &tests);
        unused.extend(
            names
                .iter()
                .map(|name| format!("{}: {name}", folder.display())),
        );
        inherited.push_str(&text);
    }
    assert!(packages >= 10);
    let workspace = fs::read_to_string(root.join("Cargo.toml")).expect("manifest can be read");
    let (_, declared) = workspace
        .split_once("[workspace.dependencies]")
        .expect("workspace dependencies");
    let declared = declared.split("\n[").next().unwrap_or_default();
    for (name, _) in declared.lines().filter_map(|line| line.split_once(" = ")) {
        if !inherited.contains(&format!("\n{name} = ")) {
            unused.push(format!("workspace: {name}"));
        }
    }
    assert_eq!(unused, Vec::<String>::new());
}

#[test]
fn an_unused_dependency_is_found() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nserde-json = \"1\"\nbytes = \"1\"\n\
                    [dev-dependencies]\ntempfile = \"3\"\nloom = \"1\"\n[lints]\nworkspace = true\n";
    let sources = "use serde_json::Value; let bytes_left = input.bytes::<4>();";
    assert_eq!(
        unused_dependencies(manifest, sources, "tempfile::tempdir()"),
        ["bytes", "loom"]
    );
}

/// Files below a folder with one of these extensions, build products excluded.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("folder can be read") {
            let path = entry.expect("entry can be read").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if extensions
                .iter()
                .any(|ext| path.extension().is_some_and(|e| e == *ext))
            {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn files_of_a_crate_use_each_other_in_one_direction() {
    let root = root();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for manifest in files(&root, &["toml"]) {
        let folder = manifest.parent().expect("manifest is in a folder");
        let source = folder.join("src");
        if !manifest.ends_with("Cargo.toml") || !source.is_dir() {
            continue;
        }
        let package = folder.strip_prefix(&root).expect("below the root");
        let package = package.to_string_lossy();
        let sources: Vec<Source> = files(&source, &["rs"])
            .iter()
            .map(|file| {
                let name = file.strip_prefix(&source).expect("below the folder");
                let text = fs::read_to_string(file).expect("source can be read");
                (name.to_string_lossy().into_owned(), text)
            })
            .filter(|(name, _)| !name.starts_with("bin/"))
            .collect();
        checked += sources.len();
        let mut uses = uses(&sources);
        // A queue pair of the firmware is one object with two halves, whose files call each other's methods.
        if !package.starts_with("firmware/") {
            for (pair, names) in method_uses(&sources) {
                uses.entry(pair).or_default().extend(names);
            }
        }
        let circles = circles(&uses);
        for ((user, used), names) in &circles {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            wrong.push(format!(
                "{package}: {user} uses {} of {used}, which uses {user} in turn: move what both need to a file of its own",
                names.join(", ")
            ));
        }
    }
    assert!(checked > 100, "only {checked} files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A change in a crate compiles it and those above it, so none may hold most of the emulator.
#[test]
fn no_crate_of_the_device_is_large() {
    const MOST_PERCENT: usize = 20;
    let root = root();
    let mut crates = Vec::new();
    for manifest in files(&root.join("device"), &["toml"]) {
        let source = manifest.with_file_name("src");
        if manifest.ends_with("Cargo.toml") && source.is_dir() {
            let texts = files(&source, &["rs"]);
            let texts = texts.iter().map(fs::read_to_string);
            let lines = texts.map(|text| text.expect("source can be read").lines().count());
            crates.push((manifest, lines.sum::<usize>()));
        }
    }
    assert!(crates.len() > 10, "only {} crates", crates.len());
    let all: usize = crates.iter().map(|(_, lines)| lines).sum();
    for (manifest, lines) in crates {
        assert!(
            lines * 100 <= all * MOST_PERCENT,
            "{}: {lines} of {all} lines",
            manifest.display()
        );
    }
}

/// Someone reads a file of the firmware in one go.
#[test]
fn files_of_the_firmware_are_short() {
    const LINES: usize = 700;
    let sources = files(&root().join("firmware/nic/src"), &["rs"]);
    assert!(sources.len() > 50, "only {} files", sources.len());
    for file in sources {
        let text = fs::read_to_string(&file).expect("source can be read");
        let lines = text.lines().count();
        assert!(lines <= LINES, "{}: {lines} lines", file.display());
    }
}

/// Lines of Rust code that use the keyword `unsafe`, comments and names such as `unsafe_code` excluded.
fn unsafe_lines(source: &str) -> Vec<&str> {
    source
        .lines()
        .filter(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "unsafe")
                && !code.contains('"')
        })
        .collect()
}

#[test]
fn unsafe_code_is_in_one_crate() {
    assert_eq!(
        unsafe_lines("let x = unsafe { y };\n// unsafe\n#![forbid(unsafe_code)]").len(),
        1
    );
    let root = root();
    let memory = root.join("device/memory");
    for file in files(&root, &["rs"]) {
        if file.starts_with(&memory) {
            continue;
        }
        let source = fs::read_to_string(&file).expect("source can be read");
        let lines = unsafe_lines(&source);
        assert!(lines.is_empty(), "{}: {lines:?}", file.display());
    }
}

/// Names that neither the firmware nor the fabric uses: threads, clocks, files, sockets.
const OUTSIDE: [&str; 10] = [
    "std::thread::",
    "std::fs",
    "std::net",
    "std::os",
    "std::io",
    "std::process",
    "std::time::SystemTime",
    "std::time::Instant",
    "rustix::",
    "tokio::",
];

/// Names of the outside world in Rust code.
fn outside(code: &str) -> Vec<&'static str> {
    let names = OUTSIDE.into_iter();
    names.filter(|name| code.contains(name)).collect()
}

#[test]
fn firmware_and_fabric_run_in_virtual_time() {
    let root = root();
    let folders = [
        "firmware/wire/src",
        "firmware/tcp/src",
        "firmware/nic/src",
        "device/fabric/src",
    ];
    for folder in folders {
        for file in files(&root.join(folder), &["rs"]) {
            let text = fs::read_to_string(&file).expect("source can be read");
            // Tests may.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code: String = code
                .lines()
                .map(|line| line.split("//").next().unwrap_or_default())
                .collect();
            assert_eq!(outside(&code), Vec::<&str>::new(), "{}", file.display());
        }
    }
    assert_eq!(
        outside("use std::time::Instant; std::thread::sleep(x);"),
        ["std::thread::", "std::time::Instant"]
    );
}

#[test]
fn every_crate_forbids_unsafe_code() {
    let root = root();
    let manifests = files(&root, &["toml"]);
    let crates = manifests.iter().filter(|file| file.ends_with("Cargo.toml"));
    let mut checked = 0;
    for manifest in crates {
        let source = manifest.with_file_name("src");
        let lib = ["lib.rs", "main.rs"]
            .iter()
            .map(|name| source.join(name))
            .find(|file| file.is_file());
        let Some(lib) = lib else { continue };
        if source.starts_with(root.join("device/memory")) {
            continue;
        }
        let text = fs::read_to_string(&lib).expect("source can be read");
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{}",
            lib.display()
        );
        checked += 1;
    }
    assert!(checked >= 10);
}

#[test]
fn guest_code_names_its_licence() {
    let folders =
        ["guest-driver", "tests/guest", "qemu-config/action"].map(|folder| root().join(folder));
    for file in folders.iter().flat_map(|folder| files(folder, &["c", "h"])) {
        let text = fs::read_to_string(&file).expect("source can be read");
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.contains("SPDX-License-Identifier"),
            "{}",
            file.display()
        );
    }
}

/// Each kind of completion has its case in the provider and its entry in the kernel driver: one without would be a SEND to programs.
#[test]
fn guests_know_each_kind_of_completion() {
    let provider = read("guest-driver/provider/cq.c");
    let kernel = read("guest-driver/kernel/faultline_cq.c");
    let header = read("guest-driver/include/faultline_abi.h");
    let names = header.lines().filter_map(|line| {
        let name = line.strip_prefix("#define ")?.split(' ').next()?;
        let opcode = name.strip_prefix("FAULTLINE_WC_")?;
        let is_other = opcode.starts_with("STATUS_") || opcode.starts_with("FLAG_");
        (!is_other).then_some(name)
    });
    let mut count = 0;
    for name in names {
        count += 1;
        // Programs cannot post a fast registration; the kernel matches no tags.
        if name != "FAULTLINE_WC_REG_MR" {
            let case = format!("case {name}:");
            assert!(provider.contains(&case), "cq.c has no {case}");
        }
        if !name.contains("_TM_") {
            let mut words = kernel.split(|c| !is_name(c));
            assert!(
                words.any(|word| word == name),
                "faultline_cq.c has no {name}"
            );
        }
    }
    assert!(count >= 18, "{count}");
}

/// Files of tests that are modules of no program or of several, as "file: number of programs". `roots` are the texts of the
/// programs.
fn misplaced_modules(files: &[&str], roots: &[String]) -> Vec<String> {
    let programs = |file: &str| {
        let line = format!("mod {file};");
        let named = roots
            .iter()
            .filter(|text| text.lines().any(|other| other == line));
        named.count()
    };
    files
        .iter()
        .map(|file| (file, programs(file)))
        .filter(|(_, count)| *count != 1)
        .map(|(file, count)| format!("{file}: {count}"))
        .collect()
}

/// Cargo finds no files of tests in a crate that lists its test programs: a file without its `mod` line would not be compiled.
#[test]
fn each_file_of_tests_is_in_one_program() {
    let root = root();
    let mut crates = 0;
    for manifest in files(&root, &["toml"]) {
        let text = fs::read_to_string(&manifest).expect("manifest can be read");
        if !manifest.ends_with("Cargo.toml") || !text.contains("autotests = false") {
            continue;
        }
        crates += 1;
        let folder = manifest.parent().expect("manifest is in a folder");
        let programs: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("path = \"tests/")?.strip_suffix(".rs\""))
            .collect();
        let all: Vec<String> = fs::read_dir(folder.join("tests"))
            .expect("a folder of tests")
            .map(|entry| entry.expect("entry can be read").file_name())
            .filter_map(|name| Some(name.to_str()?.strip_suffix(".rs")?.to_owned()))
            .collect();
        let modules: Vec<&str> = all
            .iter()
            .map(String::as_str)
            .filter(|name| !programs.contains(name))
            .collect();
        assert!(modules.len() > 1, "{}", folder.display());
        let roots: Vec<String> = programs
            .iter()
            .map(|name| folder.join(format!("tests/{name}.rs")))
            .map(|path| fs::read_to_string(path).expect("a program can be read"))
            .collect();
        let misplaced = misplaced_modules(&modules, &roots);
        assert!(
            misplaced.is_empty(),
            "{}: files of tests and the number of their programs: {misplaced:?}",
            folder.display()
        );
    }
    assert!(crates >= 7, "only {crates} crates");
}

#[test]
fn a_file_of_tests_without_a_program_is_found() {
    let roots = ["mod a;\nmod b;\n", "mod b;\n// mod c;\n"].map(str::to_owned);
    assert_eq!(
        misplaced_modules(&["a", "b", "c"], &roots),
        ["b: 2", "c: 0"]
    );
}

#[test]
fn nothing_is_left_unfinished() {
    // Put together here so that this file does not find itself.
    let banned = ["todo", "unimplemented"].map(|name| format!("{name}!("));
    let silenced = format!("allow({}", "dead_code");
    for file in files(&root(), &["rs"]) {
        let text = fs::read_to_string(&file).expect("source can be read");
        // Helpers shared by several test programs are not all used by each.
        let inside = file.strip_prefix(root()).unwrap_or(&file);
        let in_src = inside.components().any(|part| part.as_os_str() == "src");
        for needle in banned.iter().chain(in_src.then_some(&silenced)) {
            assert!(
                !text.contains(needle.as_str()),
                "{}: {needle}",
                file.display()
            );
        }
    }
}
