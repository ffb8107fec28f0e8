//! `cargo lab fuzz`: libFuzzer on the targets of `tests/fuzz`, at the lowest priority.
//!
//! An input takes 5 to 40 µs of a processor, 0.1 to 0.4 ms with targets that contain NICs (`responder`, `forger`, `commands`, `offload`) and with
//! `page_table`, and 1 to 2 ms with `scenario_run` and `fpdu`: give those fewer with `--runs`. A finding is a panic, a failed comparison, or an input that
//! takes a minute; its bytes are beside the log. It depends on its input alone: each input gets its own NICs.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
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

/// Inputs of a target that the repository keeps.
const KEPT: usize = 50;

/// Of the inputs in a control file of libFuzzer's merge, selects those that cover most together: each adds more
/// features than any other would, up to `most` of them. The file has the numbers of all inputs and of the old ones, the
/// paths of the inputs, and lines `FT INPUT FEATURE...`.
fn choose(control: &str, most: usize) -> Vec<PathBuf> {
    let mut lines = control.lines();
    let count = lines.next().and_then(|line| line.trim().parse().ok());
    lines.next();
    let paths: Vec<&str> = lines.by_ref().take(count.unwrap_or(0)).collect();
    let mut left: Vec<(&str, HashSet<u32>)> = Vec::new();
    for line in lines {
        let Some(line) = line.strip_prefix("FT ") else {
            continue;
        };
        let mut words = line.split_whitespace().map(str::parse::<u32>);
        if let Some(Ok(input)) = words.next()
            && let Some(path) = paths.get(input as usize)
        {
            left.push((path, words.flatten().collect()));
        }
    }
    let mut chosen = Vec::new();
    let mut covered = HashSet::new();
    while chosen.len() < most
        // Of several equal ones the first, because they are sorted by size.
        && let Some(best) = (0..left.len()).rev().max_by_key(|at| left[*at].1.len())
        && !left[best].1.is_empty()
    {
        let (path, features) = left.remove(best);
        covered.extend(features);
        chosen.push(path.into());
        for (_, features) in &mut left {
            features.retain(|feature| !covered.contains(feature));
        }
        left.retain(|(_, features)| !features.is_empty());
    }
    chosen
}

/// Runs each of the targets (all, if none is named) on `runs` inputs, at the lowest priority. New inputs stay in
/// `target/fuzz/corpus`; with `merge` the [`KEPT`] that cover most of it replace the corpus in the repository.
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
        let fuzz = |words: &[&OsStr]| {
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
            let control = logs.join(format!("{name}.merge"));
            let mut to = OsString::from("-merge_control_file=");
            to.push(&control);
            let words: [&OsStr; 7] = [
                // Unlike `-merge=1`, this records all features of each input, not only new ones.
                "-set_cover_merge=1".as_ref(),
                // An edge is a feature, not each count of it.
                "-use_counters=0".as_ref(),
                "-use_cmp=0".as_ref(),
                &to,
                fresh.as_ref(),
                corpus.as_ref(),
                found.as_ref(),
            ];
            ensure!(
                fuzz(&words)?.status.success(),
                "merging the corpus of {name} failed"
            );
            let control = fs::read_to_string(&control)
                .with_context(|| format!("reading {}", control.display()))?;
            let chosen = choose(&control, KEPT);
            ensure!(!chosen.is_empty(), "no input of {name} covers anything");
            let mut inputs = Vec::new();
            for path in chosen {
                let octets = fs::read(&path);
                let octets = octets.with_context(|| format!("reading {}", path.display()))?;
                inputs.push((path, octets));
            }
            fs::remove_dir_all(&corpus).context("removing the old corpus")?;
            fs::create_dir_all(&corpus).context("making the new corpus")?;
            for (path, octets) in &inputs {
                let to = corpus.join(path.file_name().unwrap_or_default());
                fs::write(&to, octets).with_context(|| format!("writing {}", to.display()))?;
            }
            println!("fuzz {name}: {} inputs kept", inputs.len());
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_cover_most_are_chosen() {
        let control = "4\n1\n/c/a\n/c/b\n/c/c\n/c/d\nSTARTED 0 1\nFT 0 1 2\nCOV 0 9\nSTARTED 1 5\nFT 1 1 2\n\
                       COV 1\nSTARTED 2 5\nFT 2 2 3 4\nSTARTED 3 6\nFT 3 5\nSTARTED 4 9\n";
        let names = |most| {
            let chosen = choose(control, most);
            let names = chosen.iter().map(|path| path.display().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(1), ["/c/c"]);
        assert_eq!(names(2), ["/c/c", "/c/a"]);
        assert_eq!(names(9), ["/c/c", "/c/a", "/c/d"]);
        assert!(choose("", 3).is_empty());
    }
}
