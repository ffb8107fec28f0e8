//! `cargo lab experiments`: measures the values that `docs/experiments.md` shows beside published figures, and writes
//! that page.
//!
//! The lab measures at the emulator's socket and in guests. The package `faultline-experiments` chooses the figures, runs the
//! simulations and writes the documents.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Plan};
use crate::command::say;
use crate::emulator::{self, Profile};
use crate::exchange::{self, Exchange, Ready};
use crate::workspace::Workspace;
use crate::{bench, host};

/// Parts of the harness's benchmark that the document needs.
const PARTS: [&str; 2] = ["paging", "keys"];
/// MiB of the regions that are registered. The package `faultline-experiments` has the same sizes.
const REGIONS: &str = "1 4 16 64 128 256";
/// Stages of a page fault, as the emulator's metrics name them.
const STAGES: [&str; 6] = ["interrupt", "wait", "map", "post", "data", "total"];
/// For a program in a guest.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures, unless the simulations alone are wanted, and makes the document. True if all went well.
pub fn run(workspace: &Workspace, plan: &Plan, simulator_only: bool) -> Result<bool> {
    let docs = workspace.root().join("docs");
    let mut arguments = vec!["--docs".into(), docs.into_os_string()];
    if !simulator_only {
        let dir = workspace.new_run("experiments")?;
        say(format!("logs: {}", workspace.shown(&dir)));
        let socket = dir.join("socket.json");
        write(&socket, &at_socket(workspace, &dir)?)?;
        let guest = dir.join("guest.json");
        let (figures, machine) = in_guests(workspace, plan, &dir)?;
        write(&guest, &figures)?;
        arguments.extend(["--socket".into(), socket.into_os_string()]);
        arguments.extend(["--guest".into(), guest.into_os_string()]);
        arguments.extend(["--machine".into(), machine.into()]);
    }
    say("simulations");
    let status = cargo(workspace)
        .args(["run", "--profile", Profile::Quick.name(), "--quiet"])
        .args(["--bin", "faultline-experiments", "--"])
        .args(arguments)
        .status()
        .context("starting the simulations")?;
    if status.success() {
        say("docs/experiments.md, experiments.json and images/experiments are written");
    }
    Ok(status.success())
}

fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace.root()).stdin(Stdio::null());
    command
}

fn write(path: &Path, figures: &[Value]) -> Result<()> {
    let text = serde_json::to_string_pretty(figures).context("encoding figures")?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// The figures of the harness's benchmark.
fn at_socket(workspace: &Workspace, dir: &Path) -> Result<Vec<Value>> {
    let mut figures = Vec::new();
    for part in PARTS {
        say(format!("at the emulator's socket: {part}"));
        let file = dir.join(format!("bench-{part}.json"));
        let status = cargo(workspace)
            .args(bench::harness_arguments(Profile::Quick))
            .args(["--quick", "--only", part, "--json"])
            .arg(&file)
            .status()
            .context("starting the harness's benchmark")?;
        // It also fails if a figure is beyond its limit, on a busy machine. The figures are there then.
        let text = fs::read_to_string(&file)
            .with_context(|| format!("the benchmark ended with {status} and wrote no figures"))?;
        let part: Vec<Value> = serde_json::from_str(&text).context("reading the figures")?;
        figures.extend(part);
    }
    Ok(figures)
}

/// A figure as the benchmark writes its own.
fn figure(name: impl Into<String>, value: f64, unit: &str) -> Value {
    json!({ "name": name.into(), "value": value, "unit": unit })
}

/// Figures of guests, and the machine.
fn in_guests(workspace: &Workspace, plan: &Plan, dir: &Path) -> Result<(Vec<Value>, String)> {
    let program = emulator::build(workspace, plan.profile)?;
    let cluster = Cluster::boot(workspace, plan, dir)?;
    let [server, client] = cluster.guests.as_slice() else {
        bail!("the experiments need two guests")
    };
    say("in guests: memory that is not present");
    let exchange = Exchange {
        server: "odp_story".to_owned(),
        client: "odp_story $PEER_IP".to_owned(),
        ready: Ready::Tcp(18610),
        limit: LIMIT,
    };
    let report = exchange::run(server, client, &exchange)?;
    ensure!(report.success(), "odp_story failed:\n{}", report.text(20));
    let mut figures = story(&report.client.text())?;
    let control = &cluster.emulator.as_ref().context("no emulator")?.control;
    figures.extend(stages(&metrics(&program, control)?)?);
    say("in a guest: registration");
    let text = server.must(&format!("register_time {REGIONS}"), LIMIT)?;
    figures.extend(printed(&text)?);
    say("in a guest: the cost of each position");
    figures.extend(printed(&server.must("position_cost", LIMIT)?)?);
    say("in a guest: what the kernel can take");
    figures.extend(printed(&server.must("pages_taken", LIMIT)?)?);
    let troubles = cluster.troubles();
    ensure!(troubles.is_empty(), "{}", troubles.join("\n"));
    cluster.save_logs();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let accelerator = if host::has_kvm() {
        "KVM"
    } else {
        "no hardware virtualization (TCG)"
    };
    let versions = cluster.versions.iter();
    let versions: Vec<String> = versions
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let machine = format!(
        "{processors} processors, {accelerator}; {}",
        versions.join(", ")
    );
    Ok((figures, machine))
}

/// What `odp_story` prints.
fn story(text: &str) -> Result<Vec<Value>> {
    let last_of = |start: &str| -> Result<f64> {
        let line = text.lines().find(|line| line.starts_with(start));
        let found = line.and_then(|line| line.split_whitespace().last()?.parse().ok());
        found.with_context(|| format!("odp_story has not printed {start:?}:\n{text}"))
    };
    let times = [
        (
            "first touch of an absent page by the processor",
            "touched by its own processor",
        ),
        ("WRITE, page present", "written again, warm"),
        ("WRITE, page absent", "written remotely, absent before"),
        ("READ, page swapped out", "read back remotely"),
    ];
    let mut figures = Vec::new();
    for (name, start) in times {
        figures.push(figure(name, last_of(start)?, "us"));
    }
    let line = text.lines().find(|line| line.starts_with("pages pinned"));
    let counts: Vec<f64> = line
        .unwrap_or_default()
        .split([' ', ';'])
        .filter_map(|word| word.parse().ok())
        .collect();
    let [pinned, wrong] = counts[..] else {
        bail!("odp_story has not printed how many pages are pinned:\n{text}")
    };
    figures.push(figure("pages pinned", pinned, "pages"));
    figures.push(figure("wrong bytes", wrong, "bytes"));
    Ok(figures)
}

/// The emulator's metrics.
fn metrics(program: &Path, control: &Path) -> Result<String> {
    let output = Command::new(program)
        .args(["ctl", "metrics"])
        .env("FAULTLINE_CONTROL", control)
        .stdin(Stdio::null())
        .output()
        .context("starting faultline ctl")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "no metrics: {}", error.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The mean of each stage of a page fault over all NICs.
fn stages(metrics: &str) -> Result<Vec<Value>> {
    let sum_of = |kind: &str, stage: &str| -> f64 {
        let start = format!("faultline_fault_stage_seconds_{kind}{{");
        let label = format!("stage=\"{stage}\"");
        let lines = metrics.lines();
        let of_stage = lines.filter(|line| line.starts_with(&start) && line.contains(&label));
        let values =
            of_stage.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
        values.sum()
    };
    let mean = |stage: &&str| {
        let count = sum_of("count", stage);
        ensure!(
            count > 0.0,
            "the emulator has measured no stage {stage} of a fault"
        );
        let us = sum_of("sum", stage) / count * 1e6;
        Ok(figure(format!("fault stage {stage}"), us, "us"))
    };
    STAGES.iter().map(mean).collect()
}

/// Figures that a program prints: a name, a value and a unit in a line, with tabs between them.
fn printed(text: &str) -> Result<Vec<Value>> {
    let lines = text.lines().filter(|line| line.contains('\t'));
    let figures = lines.map(|line| {
        let words: Vec<&str> = line.split('\t').collect();
        let [name, value, unit] = words[..] else {
            bail!("a program has printed {line:?}")
        };
        let value = value.parse().with_context(|| format!("in {line:?}"))?;
        Ok(figure(name, value, unit))
    });
    figures.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_story_has_times_and_counts() {
        let text = "each of 4096 pages   before  after  faults   us/page\n\
                    written remotely, absent before    0   4096    4096     130.4\n\
                    written again, warm    4096   4096    0     21.5\n\
                    read back remotely    0   4096    4096     230.1\n\
                    touched by its own processor, absent before      9.2\n\
                    pages pinned: 0; wrong bytes: 3\n";
        let figures = story(text).unwrap();
        let values: Vec<f64> = figures
            .iter()
            .map(|f| f["value"].as_f64().unwrap())
            .collect();
        assert_eq!(values, [9.2, 21.5, 130.4, 230.1, 0.0, 3.0]);
        assert!(story("pages pinned: 0\n").is_err());
    }

    #[test]
    fn the_mean_of_a_stage_is_over_all_nics() {
        let of_stage = |stage: &str| {
            format!(
                "faultline_fault_stage_seconds_sum{{nic=\"nic0\",stage=\"{stage}\"}} 0.000002\n\
                 faultline_fault_stage_seconds_count{{nic=\"nic0\",stage=\"{stage}\"}} 1\n\
                 faultline_fault_stage_seconds_sum{{nic=\"nic1\",stage=\"{stage}\"}} 0.000004\n\
                 faultline_fault_stage_seconds_count{{nic=\"nic1\",stage=\"{stage}\"}} 2\n"
            )
        };
        let text: String = STAGES.map(of_stage).concat();
        let means = stages(&text).unwrap();
        assert_eq!(means.len(), STAGES.len());
        assert!(
            means
                .iter()
                .all(|mean| (mean["value"].as_f64().unwrap() - 2.0).abs() < 1e-9)
        );
        assert!(stages(&STAGES[1..].iter().map(|s| of_stage(s)).collect::<String>()).is_err());
    }

    #[test]
    fn a_printed_figure_has_a_name_a_value_and_a_unit() {
        let text = "registration of 1 MiB, pinned\t812.500\tus\n";
        let figures = printed(text).unwrap();
        assert_eq!(
            figures,
            [figure("registration of 1 MiB, pinned", 812.5, "us")]
        );
        assert!(printed("registration\tmany\tus\n").is_err());
    }
}
