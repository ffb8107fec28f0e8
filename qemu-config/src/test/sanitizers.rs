//! The suite `sanitizers`: tests of the emulator built with a sanitizer of the compiler. AddressSanitizer looks for
//! accesses outside of allocations, in all code that touches guest memory or descriptors; ThreadSanitizer for data
//! races between the engine and the threads that serve connections.
//!
//! The sanitizers are in the stable compiler, but need `RUSTC_BOOTSTRAP`. The standard library is not built with them
//! (this would need its source), so `qemu-config/thread-sanitizer.supp` suppresses what ThreadSanitizer takes for races
//! in it.

use std::path::Path;

use super::cargo::count_cargo_test;
use super::facts::{Row, SuiteFacts, by_name, chosen, row};
use super::tally::Tally;
use crate::workspace::Workspace;

/// If the target is specified, build scripts and macros are built without sanitizers.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "sanitizers",
    shows: "Tests of the emulator have no memory error, leak or data race.",
    runs: by_name("builds everything again"),
};

/// A sanitizer on the tests of some packages.
#[derive(Debug, Clone, Copy)]
pub struct Sanitized {
    sanitizer: &'static str,
    /// The tests, in arguments of `cargo test`.
    words: &'static [&'static str],
}

const fn address(name: &'static str, words: &'static [&'static str]) -> Row<Sanitized> {
    let sanitizer = "address";
    row(
        name,
        "AddressSanitizer finds nothing.",
        Sanitized { sanitizer, words },
    )
}

const fn thread(name: &'static str, words: &'static [&'static str]) -> Row<Sanitized> {
    let sanitizer = "thread";
    row(
        name,
        "ThreadSanitizer finds nothing.",
        Sanitized { sanitizer, words },
    )
}

/// Its tests.
pub const TESTS: &[Row<Sanitized>] = &[
    address("address-memory", &["-p", "faultline-memory"]),
    address("address-vfio-user", &["-p", "faultline-vfio-user"]),
    address("address-harness", &["-p", "faultline-harness"]),
    thread(
        "thread-daemon",
        // Without the model of the engine's sleep, whose threads take turns on one.
        &[
            "-p",
            "faultline-capture",
            "-p",
            "faultline-control",
            "-p",
            "faultline-daemon",
            "--lib",
        ],
    ),
    thread(
        "thread-process",
        &["-p", "faultline", "--test", "cli", "process::"],
    ),
    // The others have the engine work for a minute with sanitizers, and look for the same races.
    thread(
        "thread-harness",
        &[
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
    ),
];

/// Runs the steps whose names contain `filter`.
pub fn run(workspace: &Workspace, filter: &str, dir: &Path, tally: &mut Tally) {
    for Row { facts, run } in chosen(TESTS, filter) {
        let folder = workspace.root().join("target/sanitizers");
        let folder = folder.join(run.sanitizer).display().to_string();
        let mut words = vec!["test", "--no-fail-fast", "--target", TRIPLE];
        words.extend(["--target-dir", &folder]);
        words.extend(run.words);
        let variables = variables(workspace, run.sanitizer);
        let name = format!("sanitizers::{}", facts.name);
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
        // With a sanitizer, a backtrace takes longer than a test waits for the next output of the program.
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
