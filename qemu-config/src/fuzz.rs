//! `cargo lab fuzz`: libFuzzer on the targets of `tests/fuzz`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{say, tail};
use crate::workspace::Workspace;

/// Coverage of edges and comparisons, which the stable compiler has.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";
/// With a target named, cargo does not instrument build scripts and macros.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Octets of an input, seconds and MiB that it may take.
const LIMITS: [&str; 3] = ["-max_len=1024", "-timeout=60", "-rss_limit_mb=2048"];

/// The targets: each has a folder with its corpus.
fn targets(corpora: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(corpora).with_context(|| format!("{}", corpora.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn build(workspace: &Workspace) -> Result<PathBuf> {
    say("building the fuzzer (once; some minutes) …");
    let folder = workspace.root().join("target/fuzz");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--profile=fuzz", "--quiet", "-p", "faultline-fuzz"])
        .args(["--target", TRIPLE, "--target-dir"])
        .arg(&folder)
        .env("RUSTFLAGS", FLAGS)
        .current_dir(workspace.root())
        .stdin(Stdio::null())
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "the fuzzer does not build");
    Ok(folder.join(TRIPLE).join("fuzz/faultline-fuzz"))
}

/// Runs each of the targets (all, if none is named) on `runs` inputs, at the lowest priority. New inputs stay in
/// `target/fuzz/corpus`; with `merge` those that add coverage replace the corpus in the repository.
pub fn run(workspace: &Workspace, named: &[String], runs: u64, merge: bool) -> Result<bool> {
    let corpora = workspace.root().join("tests/fuzz/corpus");
    let known = targets(&corpora)?;
    if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
        bail!("no target {unknown:?}; there are {}", known.join(", "));
    }
    let fuzzer = build(workspace)?;
    let logs = workspace.new_run("fuzz")?;
    let mut good = true;
    for name in known
        .iter()
        .filter(|name| named.is_empty() || named.contains(name))
    {
        let (corpus, found) = (
            corpora.join(name),
            workspace.root().join("target/fuzz/corpus").join(name),
        );
        fs::create_dir_all(&found).with_context(|| format!("creating {}", found.display()))?;
        let fuzz = |words: &[&std::ffi::OsStr]| {
            Command::new("nice")
                .args(["-n", "19"])
                .arg(&fuzzer)
                .args(LIMITS)
                .arg(format!("-artifact_prefix={}/{name}-", logs.display()))
                .args(words)
                .env("FAULTLINE_FUZZ_TARGET", name)
                .stdin(Stdio::null())
                .output()
                .context("starting the fuzzer")
        };
        let count = format!("-runs={runs}");
        let output = fuzz(&[count.as_ref(), found.as_ref(), corpus.as_ref()])?;
        fs::write(logs.join(format!("{name}.log")), &output.stderr).context("writing a log")?;
        let text = String::from_utf8_lossy(&output.stderr);
        let done = text.lines().find(|line| line.contains("DONE"));
        match done {
            Some(line) if output.status.success() => println!("fuzz {name} ... ok: {line}"),
            _ => {
                good = false;
                println!(
                    "fuzz {name} ... FAILED; input and log: {}\n{}",
                    workspace.shown(&logs),
                    tail(&output.stderr, 20)
                );
                continue;
            }
        }
        if merge {
            let fresh = found.with_extension("merged");
            let _ = fs::remove_dir_all(&fresh);
            fs::create_dir_all(&fresh).with_context(|| format!("creating {}", fresh.display()))?;
            let words: [&std::ffi::OsStr; 6] = [
                "-merge=1".as_ref(),
                // Inputs for each edge, not for each count of it.
                "-use_counters=0".as_ref(),
                "-use_cmp=0".as_ref(),
                fresh.as_ref(),
                corpus.as_ref(),
                found.as_ref(),
            ];
            ensure!(
                fuzz(&words)?.status.success(),
                "merging the corpus of {name} failed"
            );
            fs::remove_dir_all(&corpus).context("removing the old corpus")?;
            fs::create_dir_all(&corpus).context("making the new corpus")?;
            for entry in fs::read_dir(&fresh)? {
                let from = entry?.path();
                let to = corpus.join(from.file_name().unwrap_or_default());
                fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
            }
        }
    }
    Ok(good)
}
