//! `cargo lab bench --counts`: instructions of the data path, which do not depend on the machine, compared with a baseline in the
//! repository.
//!
//! `tests/counts` executes one shape of work in each run, below callgrind. The environment is empty, addresses are not random, and
//! the C library has the same variants of its functions on all processors.

mod baseline;
mod callgrind;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::bench::write_records;
use crate::benchmark_page::{self, Section};
use crate::command::{capture, say, tail};
use crate::emulator::{Build, Profile};
use crate::host;
use crate::processor_time;
use crate::workspace::Workspace;

use baseline::{Baseline, MOST_DECREASE, MOST_GROWTH, Shape, Verdict, change};

/// The program, and its package.
const PROGRAM: &str = "faultline-counts";
/// The counts of an earlier version.
const BASELINE: &str = "tests/counts/baseline.toml";
/// The command that writes them.
const BLESS: &str = "cargo lab bench --counts --bless";
/// Functions in which callgrind counts.
const COUNTED: &str = "*counted_*";
/// First-level instruction cache: 32 KiB, 8 ways, lines of 64 octets.
const I1: &str = "32768,8,64";
/// Features that the C library must not use: other processors do not have them, or valgrind does not.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-AVX512VL";

/// What to count.
#[derive(Debug, Default)]
pub struct Request<'a> {
    /// Only shapes whose names contain this.
    pub only: Option<&'a str>,
    /// A file for the counts, in JSON.
    pub json: Option<&'a Path>,
    /// Write the baseline instead of comparing with it.
    pub bless: bool,
}

/// A shape that was counted.
struct Counted {
    name: String,
    operation: String,
    operations: u64,
    counts: Shape,
}

/// Counts and compares. Returns false if a shape has grown, or needs a new baseline.
pub fn run(workspace: &Workspace, request: &Request<'_>) -> Result<bool> {
    let compiler = compiler()?;
    let path = workspace.root().join(BASELINE);
    let before = match path.exists() {
        true => Baseline::read(&path)?,
        false => Baseline::default(),
    };
    let is_comparable = before.compiler == compiler;
    ensure!(
        is_comparable || request.bless || before.compiler.is_empty(),
        "the baseline is of {}, this is {compiler}: use that compiler (`rustup run VERSION cargo lab bench --counts`), or write a \
         new baseline: {BLESS}",
        before.compiler
    );
    let dir = workspace.new_run("counts")?;
    let counted = count(workspace, &dir, request.only)?;
    print(&counted, &before);
    if let Some(json) = request.json {
        write_records(json, &records(&counted, &before))?;
    }
    if request.bless {
        if request.only.is_none() {
            let rows = counted.iter().map(|shape| {
                let Shape {
                    instructions,
                    i1_misses,
                    ..
                } = shape.counts;
                (
                    shape.name.as_str(),
                    shape.operation.as_str(),
                    instructions,
                    i1_misses,
                )
            });
            let table = benchmark_page::instructions(&compiler, rows);
            benchmark_page::write(workspace, Section::Instructions, &table)?;
        }
        let shapes = counted.into_iter().map(|shape| (shape.name, shape.counts));
        let mut after = Baseline {
            compiler,
            shapes: match is_comparable && request.only.is_some() {
                true => before.shapes,
                false => Default::default(),
            },
        };
        after.shapes.extend(shapes);
        after.write(&path)?;
        say(format!("written: {}", workspace.shown(&path)));
        return Ok(true);
    }
    let complaints = complaints(&counted, &before, request.only.is_none());
    for complaint in &complaints {
        println!("\n{complaint}");
    }
    Ok(complaints.is_empty())
}

/// Instructions of each shape in the baseline.
#[cfg(test)]
pub fn instructions_of_baseline(workspace: &Workspace) -> Result<Vec<(String, f64)>> {
    let baseline = Baseline::read(&workspace.root().join(BASELINE))?;
    let shapes = baseline.shapes.into_iter();
    Ok(shapes
        .map(|(name, shape)| (name, shape.instructions))
        .collect())
}

/// The step of the suite `host`. Returns why nothing was compared, if so.
pub fn step(workspace: &Workspace, dir: &Path) -> Result<Option<String>> {
    if !has_baseline_features() {
        return Ok(Some(
            "the baseline is of x86-64 with SSE 4.1 and PCLMULQDQ".to_owned(),
        ));
    }
    let before = Baseline::read(&workspace.root().join(BASELINE))?;
    let compiler = compiler()?;
    if before.compiler != compiler {
        let why = format!(
            "the baseline is of {}, this is {compiler}; {BLESS} writes one",
            before.compiler
        );
        return Ok(Some(why));
    }
    let folder = dir.join("counts");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let counted = count(workspace, &folder, None)?;
    write_records(&dir.join("counts.json"), &records(&counted, &before))?;
    let complaints = complaints(&counted, &before, true);
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(None)
}

/// True if CRC-32 is calculated as in the baseline: crc32fast chooses by the features of the processor.
#[cfg(target_arch = "x86_64")]
fn has_baseline_features() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// The baseline is of another architecture.
#[cfg(not(target_arch = "x86_64"))]
fn has_baseline_features() -> bool {
    false
}

/// The compiler, with its host.
fn compiler() -> Result<String> {
    let text = capture(Command::new("rustc").arg("-vV"))?;
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let release = line("rustc ").context("rustc says no version")?;
    let host = line("host: ").context("rustc says no host")?;
    Ok(format!("rustc {release} for {host}"))
}

/// Builds the program.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    say("building the program whose instructions are counted …");
    let build = Build {
        profile: Profile::Quick,
        selection: ["-p", PROGRAM],
        name: PROGRAM,
        is_reproducible: true,
    };
    let program = build.run(workspace)?;
    // As callgrind writes it, also if the target folder is a link.
    fs::canonicalize(&program).with_context(|| format!("finding {}", program.display()))
}

/// Counts the shapes whose names contain `only`, as many at once as there are processors. Callgrind's files go to `dir`.
fn count(workspace: &Workspace, dir: &Path, only: Option<&str>) -> Result<Vec<Counted>> {
    host::ensure_valgrind(workspace)?;
    let program = build(workspace)?;
    let list = capture(Command::new(&program).arg("--list"))?;
    let all: Vec<(&str, &str)> = list
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .collect();
    let is_chosen = |(name, _): &&(&str, &str)| only.is_none_or(|only| name.contains(only));
    let chosen: Vec<(&str, &str)> = all.iter().filter(is_chosen).copied().collect();
    if chosen.is_empty() {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        bail!(
            "no shape has {:?} in its name; the shapes are {}",
            only.unwrap_or_default(),
            names.join(", ")
        );
    }
    let left: Mutex<VecDeque<(usize, (&str, &str))>> =
        Mutex::new(chosen.into_iter().enumerate().collect());
    let next = || {
        left.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    let work = || -> Result<(Vec<(usize, Counted)>, Duration)> {
        processor_time::begin();
        let mut counted = Vec::new();
        while let Some((place, (name, operation))) = next() {
            counted.push((place, count_one(&program, dir, name, operation)?));
        }
        Ok((counted, processor_time::end().unwrap_or_default()))
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut counted = thread::scope(|scope| -> Result<Vec<(usize, Counted)>> {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            match worker.join() {
                Ok(ended) => {
                    let (counted, took) = ended?;
                    all.extend(counted);
                    processor_time::add(took);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })?;
    counted.sort_by_key(|(place, _)| *place);
    Ok(counted.into_iter().map(|(_, counted)| counted).collect())
}

fn count_one(program: &Path, dir: &Path, name: &str, operation: &str) -> Result<Counted> {
    let file = dir.join(format!("{name}.callgrind"));
    // The working directory has no settings of valgrind, and without HOME there are no others.
    let mut command = Command::new("setarch");
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("GLIBC_TUNABLES", TUNABLES)
        .current_dir(dir)
        .args(["-R", "valgrind", "--tool=callgrind", "--cache-sim=yes"])
        .args([
            "--dump-line=no",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(format!("--I1={I1}"))
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .arg(name)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = processor_time::output(&mut command).context("starting valgrind")?;
    ensure!(
        output.status.success(),
        "the shape {name} fails:\n{}",
        tail(&output.stderr, 20)
    );
    let operations = String::from_utf8_lossy(&output.stdout);
    let operations: u64 = operations.trim().parse().with_context(|| {
        format!("the shape {name} has printed {operations:?}, not its number of operations")
    })?;
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let profile = callgrind::Profile::parse(&text, &program.to_string_lossy())
        .with_context(|| format!("reading {}", file.display()))?;
    ensure!(
        profile.instructions() > 0,
        "callgrind has counted nothing of the shape {name}"
    );
    let each = |count: u64| count as f64 / operations as f64;
    let functions = profile
        .functions
        .iter()
        .map(|(name, n)| (name.clone(), each(*n)));
    Ok(Counted {
        name: name.to_owned(),
        operation: operation.to_owned(),
        operations,
        counts: Shape {
            instructions: each(profile.instructions()),
            i1_misses: each(profile.i1_misses),
            copied: each(profile.copied),
            library: each(profile.library),
            functions: functions.collect(),
        },
    })
}

fn print(counted: &[Counted], before: &Baseline) {
    println!(
        "{:<66} {:>12} {:>9} {:>10} {:>10} {:>11}",
        "for each operation", "instructions", "change", "I1 misses", "copied", "C library"
    );
    for shape in counted {
        let Shape {
            instructions,
            i1_misses,
            copied,
            library,
            ..
        } = &shape.counts;
        let change = before
            .shapes
            .get(&shape.name)
            .map_or_else(String::new, |before| {
                format!("{:+.2} %", change(before, &shape.counts) * 100.0)
            });
        println!(
            "{:<66} {instructions:>12.1} {change:>9} {i1_misses:>10.1} {copied:>10.0} {library:>11.1}",
            format!("{}: {}", shape.name, shape.operation)
        );
    }
}

/// Problems of the counts. `is_whole`: all shapes were counted.
fn complaints(counted: &[Counted], before: &Baseline, is_whole: bool) -> Vec<String> {
    let mut complaints = Vec::new();
    for shape in counted {
        let name = &shape.name;
        let change = before
            .shapes
            .get(name)
            .map_or(0.0, |before| change(before, &shape.counts) * 100.0);
        complaints.push(match before.compare(name, &shape.counts) {
            Verdict::Same => continue,
            Verdict::Grown(functions) => format!(
                "{name}: {change:+.2} % instructions, more than {:+} %. Instructions of the functions that have grown, for each operation:\n    {}\n\
                 If that is intended: {BLESS}",
                MOST_GROWTH * 100.0,
                functions.join("\n    ")
            ),
            Verdict::Decreased => format!(
                "{name}: {change:+.2} % instructions, less than {:+} %: write a new baseline, so that the gain is kept: {BLESS}",
                -MOST_DECREASE * 100.0
            ),
            Verdict::New => format!("{name} is not in the baseline: {BLESS}"),
        });
    }
    let is_counted = |name: &String| counted.iter().any(|shape| shape.name == *name);
    let gone = before
        .shapes
        .keys()
        .filter(|name| is_whole && !is_counted(name));
    complaints
        .extend(gone.map(|name| format!("{name} is in the baseline and is no shape: {BLESS}")));
    complaints
}

/// The counts as `--json` writes figures, and with the operations of a run.
fn records(counted: &[Counted], before: &Baseline) -> Vec<serde_json::Value> {
    let record = |shape: &Counted| {
        let ratio = before
            .shapes
            .get(&shape.name)
            .map(|before| 1.0 + change(before, &shape.counts));
        json!({
            "name": shape.name,
            "operation": shape.operation,
            "operations": shape.operations,
            "value": shape.counts.instructions,
            "unit": "instructions",
            "against": ratio.map(|_| "baseline"),
            "ratio": ratio,
            "i1_misses": shape.counts.i1_misses,
            "copied": shape.counts.copied,
            "C library": shape.counts.library,
        })
    };
    counted.iter().map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(name: &str, instructions: f64) -> Counted {
        Counted {
            name: name.to_owned(),
            operation: "work".to_owned(),
            operations: 10,
            counts: Shape {
                instructions,
                functions: [("f".to_owned(), instructions)].into(),
                ..Shape::default()
            },
        }
    }

    #[test]
    fn each_deviation_is_a_complaint_with_the_command_that_accepts_it() {
        let shapes = ["same", "more", "less", "gone"]
            .map(|name| (name.to_owned(), counted(name, 1000.0).counts));
        let before = Baseline {
            compiler: String::new(),
            shapes: shapes.into(),
        };
        let now = [
            counted("same", 1002.9),
            counted("more", 1003.1),
            counted("less", 989.0),
            counted("new", 1.0),
        ];
        let found = complaints(&now, &before, true);
        let names: Vec<&str> = found
            .iter()
            .filter_map(|text| text.split([':', ' ']).next())
            .collect();
        assert_eq!(names, ["more", "less", "new", "gone"]);
        assert!(found[0].contains("f: 1000.0 -> 1003.1"), "{}", found[0]);
        assert!(found.iter().all(|text| text.contains(BLESS)), "{found:?}");
        // Only some were counted.
        assert_eq!(complaints(&now, &before, false).len(), 3);
        assert_eq!(records(&now, &before)[1]["ratio"], 1.0031);
    }
}
