//! `cargo lab scenario`: a program in two guests while a scenario makes faults in their NICs.

mod control;
mod file;
mod play;
mod runner;
pub mod verdict;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use faultline_files::check_writable;

pub use self::file::{Programs, Request};
pub use self::play::{Played, play};
use crate::cluster::{Cluster, Nic, Plan};
use crate::command::say;
use crate::emulator::{self, Emulator, Settings};
use crate::socket_folder::SocketFolder;
use crate::workspace::Workspace;

/// Boots two guests and plays a scenario in them. Returns true if it has passed.
pub fn run(
    workspace: &Workspace,
    plan: &Plan,
    request: &Request,
    junit: Option<&Path>,
) -> Result<bool> {
    ensure!(
        plan.guests == 2 && plan.nic == Nic::Faultline,
        "a scenario needs two guests with the NIC of this project: leave out --guests and --nic"
    );
    junit.map(check_writable).transpose()?;
    let dir = workspace.new_run("scenario")?;
    let program = emulator::build(workspace, plan.profile)?;
    let (plan, programs) = &checked(&program, request, plan, &dir)
        .map_err(|error| mistake(&program, &request.file).err().unwrap_or(error))?;
    say(format!("logs and artefacts: {}", workspace.shown(&dir)));
    let cluster = Cluster::boot(workspace, plan, &dir)?;
    let mut played = play(&cluster, &program, request, programs, &|line| {
        println!("{line}");
    })?;
    played.problems.extend(cluster.troubles());
    cluster.save_logs();
    print!("{}", played.text());
    if let Some(junit) = junit {
        std::fs::write(junit, played.junit())
            .with_context(|| format!("writing {}", junit.display()))?;
    }
    Ok(played.passed())
}

/// The plan with the profile that the scenario names. `None`: it names none.
pub fn with_profile(plan: &Plan, programs: &Programs) -> Option<Plan> {
    programs.nic_profile.as_ref().map(|profile| Plan {
        nic_profile: Some(profile.clone()),
        ..plan.clone()
    })
}

/// The plan with the scenario's profile, and the programs. The file has been read by the lab, and by an emulator without guests.
fn checked(program: &Path, request: &Request, plan: &Plan, dir: &Path) -> Result<(Plan, Programs)> {
    let programs = request.programs()?;
    let plan = with_profile(plan, &programs).unwrap_or_else(|| plan.clone());
    check(program, request, &plan, dir)
        .with_context(|| format!("checking {}", request.file.display()))?;
    Ok((plan, programs))
}

/// The mistake that `faultline scenario check` finds in a file, in its words: line, column, key, and allowed values.
fn mistake(program: &Path, file: &Path) -> Result<()> {
    let mut check = Command::new(program);
    let output = check.args(["scenario", "check"]).arg(file).output();
    let output = output.with_context(|| format!("starting {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(())
}

/// Reads the scenario with an emulator that has no guests, so that a mistake in the file is found before guests boot.
fn check(program: &Path, request: &Request, plan: &Plan, dir: &Path) -> Result<()> {
    let sockets = SocketFolder::new()?;
    let logs = dir.join("check");
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    let settings = Settings {
        config: plan.config.as_deref(),
        nic_profile: plan.nic_profile.as_deref(),
        ..Settings::default()
    };
    let emulator = Emulator::start(program, 0..2, &settings, sockets.path(), &logs)?;
    control::start(program, &emulator.control, request, None)
}

/// The scenarios in a folder with programs for guests, by name.
#[cfg(test)]
pub fn for_guests(folder: &Path) -> Result<Vec<PathBuf>> {
    files(folder, file::has_programs)
}

/// The scenarios in a folder with traffic for the simulator, by name.
pub fn for_simulator(folder: &Path) -> Result<Vec<PathBuf>> {
    files(folder, file::has_traffic)
}

fn files(folder: &Path, is_wanted: fn(&Path) -> Result<bool>) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "toml") && is_wanted(&path)? {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
