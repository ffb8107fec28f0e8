//! The suite `sanitizers`: tests of the emulator built with a sanitizer of the compiler. AddressSanitizer looks for accesses
//! outside of what was allocated, in all that touches guest memory or descriptors; ThreadSanitizer for data races between the
//! engine and the threads that serve connections.
//!
//! The sanitizers are in the stable compiler, but need `RUSTC_BOOTSTRAP`. The standard library is not built with them
//! (this would need its source), so `qemu-config/thread-sanitizer.supp` suppresses what ThreadSanitizer takes for races
//! in it.

use std::path::Path;

use super::cargo::count_cargo_test;
use super::tally::Tally;
use crate::workspace::Workspace;

/// If the target is specified, build scripts and macros are built without sanitizers.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// A sanitizer on the tests of some packages.
struct Step {
    name: &'static str,
    sanitizer: &'static str,
    /// The tests, in arguments of `cargo test`.
    words: &'static [&'static str],
}

const TESTS: &[Step] = &[
    Step {
        name: "address-memory",
        sanitizer: "address",
        words: &["-p", "faultline-memory"],
    },
    Step {
        name: "address-vfio-user",
        sanitizer: "address",
        words: &["-p", "faultline-vfio-user"],
    },
    Step {
        name: "address-harness",
        sanitizer: "address",
        words: &["-p", "faultline-harness"],
    },
    Step {
        name: "thread-daemon",
        sanitizer: "thread",
        // Without the model of the engine's sleep, whose threads take turns on one.
        words: &[
            "-p",
            "faultline-capture",
            "-p",
            "faultline-control",
            "-p",
            "faultline-daemon",
            "--lib",
        ],
    },
    Step {
        name: "thread-process",
        sanitizer: "thread",
        words: &["-p", "faultline", "--test", "cli", "process::"],
    },
    // The others have the engine work for a minute with sanitizers, and look for the same races.
    Step {
        name: "thread-harness",
        sanitizer: "thread",
        words: &[
            "-p",
            "faultline-harness",
            "--test",
            "harness",
            "--",
            "addresses::",
            "doorbell_pages::",
            "lifecycle::",
            "power::",
            "reset::",
            "transport::",
        ],
    },
];

/// Names of the steps.
pub const STEPS: [&str; TESTS.len()] = {
    let mut names = [""; TESTS.len()];
    let mut n = 0;
    while n < names.len() {
        names[n] = TESTS[n].name;
        n += 1;
    }
    names
};

/// Runs the steps whose names contain `filter`.
pub fn run(workspace: &Workspace, filter: &str, dir: &Path, tally: &mut Tally) {
    for step in TESTS.iter().filter(|step| step.name.contains(filter)) {
        let folder = workspace.root().join("target/sanitizers");
        let folder = folder.join(step.sanitizer).display().to_string();
        let mut words = vec!["test", "--no-fail-fast", "--target", TRIPLE];
        words.extend(["--target-dir", &folder]);
        words.extend(step.words);
        let variables = variables(workspace, step.sanitizer);
        let name = format!("sanitizers::{}", step.name);
        count_cargo_test(workspace, dir, &name, &words, &variables, tally);
    }
}

/// Environment of cargo and of the tests.
fn variables(workspace: &Workspace, sanitizer: &str) -> Vec<(&'static str, String)> {
    let suppressions = workspace.root().join("qemu-config/thread-sanitizer.supp");
    // The compiler requires consent to link with a library that was built without.
    let abi = match sanitizer {
        "thread" => " -Cunsafe-allow-abi-mismatch=sanitizer",
        _ => "",
    };
    vec![
        ("RUSTC_BOOTSTRAP", "1".into()),
        // Of a program with a sanitizer it takes longer than a test waits for what the program says next.
        ("RUST_BACKTRACE", "0".into()),
        ("RUSTFLAGS", format!("-Zsanitizer={sanitizer}{abi}")),
        // SIGBUS is for the handler of guest memory, and otherwise the end, as a test expects.
        ("ASAN_OPTIONS", "handle_sigbus=0".into()),
        (
            "TSAN_OPTIONS",
            format!(
                "halt_on_error=1:handle_sigbus=0:suppressions={}",
                suppressions.display()
            ),
        ),
    ]
}
