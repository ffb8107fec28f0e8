//! The suite `scenarios`: the files of `tests/scenarios` that name programs for guests, and the commands of
//! `docs/tutorial-faults.md`.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use super::facts::{Facts, On, Row, SuiteFacts, facts, row, runs};
use super::host::When;
use super::sight::Test;
use super::sight::host_shell::HostShell;
use super::sight::tutorial::{Place, files, missing, steps};
use super::sight::watched::{SHORT, Watched};
use super::tally::{Tally, Verdict};
use super::traffic::works;
use crate::cluster::{Plan, configure};
use crate::command::{run_logged, say};
use crate::emulator::{self, Profile};
use crate::progress;
use crate::scenario::{Played, Request, for_simulator, play, with_profile};
use crate::workspace::Workspace;

/// Where the scenarios are.
const FOLDER: &str = "tests/scenarios";
const DOCUMENT: &str = "docs/tutorial-faults.md";

/// What it says of itself.
pub const SUITE: SuiteFacts = SuiteFacts {
    name: "scenarios",
    shows: "Programs in guests meet injected faults as `tests/scenarios` expects, and \
        the guests work afterwards.",
    runs: runs(
        On::First,
        On::First,
        "faults of the device, which do not depend on the kernel",
    ),
};

/// The tests. Those in guests have the names of their files.
pub const TESTS: &[Row<Test>] = &[
    row::<Test>(
        "command_timeout",
        "A verb fails whose command never completes; the driver recovers.",
        in_guests,
    ),
    row::<Test>(
        "damming",
        "With the imitated defect, a READ behind an RNR NAK waits for the ACK \
         timeout.",
        in_guests,
    ),
    row::<Test>(
        "failed_command",
        "A verb fails whose command is refused.",
        in_guests,
    ),
    row::<Test>(
        "killed_under_fault",
        "A process with a lost fault record can be killed.",
        in_guests,
    ),
    row::<Test>(
        "late_fault_record",
        "A late fault record only delays.",
        in_guests,
    ),
    row::<Test>("lost_ack", "A lost ACK costs a timeout.", in_guests),
    row::<Test>(
        "lost_acks",
        "A requester whose ACKs are lost ends with RETRY_EXC_ERR.",
        in_guests,
    ),
    row::<Test>(
        "lost_dreq",
        "A lost request to disconnect is sent again.",
        in_guests,
    ),
    row::<Test>(
        "lost_interrupt",
        "Waiting programs go on after a lost interrupt.",
        in_guests,
    ),
    row::<Test>(
        "moved_gid",
        "A connection ends when the GID it was made with moves, and a new one needs the new index.",
        in_guests,
    )
    .runs(runs(
        On::Nothing,
        On::First,
        "robustness::address_removed_under_traffic ends connections by their GID too",
    )),
    row::<Test>(
        "no_damming",
        "Without the defect, the RNR timer suffices.",
        in_guests,
    )
    .runs(runs(
        On::Nothing,
        On::First,
        "damming on NICs without the defect, for which guests boot; the simulator \
         plays both",
    )),
    row::<Test>(
        "overrun_program",
        "A program with an overrun CQ can be killed.",
        in_guests,
    )
    .runs(runs(
        On::Nothing,
        On::First,
        "killed_under_fault kills a program whose device does not answer",
    )),
    row::<Test>(
        "port_down",
        "Connections outlast a port that is down for 300 ms.",
        in_guests,
    ),
    row::<Test>(
        "refused_map",
        "A refused entry costs one more fault.",
        in_guests,
    ),
    row::<Test>(
        "refused_maps",
        "A second refusal ends the access.",
        in_guests,
    ),
    row::<Test>(
        "rnr_storm",
        "A hundred RNR NAKs end no connection with a retry count of 7.",
        in_guests,
    ),
    row::<Test>(
        "tutorial",
        "docs/tutorial-faults.md is executed, and prints what it shows.",
        tutorial,
    ),
];

/// The tests without guests.
pub const STEPS: &[Facts] = &[facts(
    "simulator",
    "Scenarios with simulated traffic pass there.",
)];

/// Runs the steps of this time whose names contain `filter`.
pub fn run_host(workspace: &Workspace, filter: &str, when: When, dir: &Path, tally: &mut Tally) {
    if when != When::Beside || !"simulator".contains(filter) {
        return;
    }
    let name = "scenarios::simulator";
    progress::begin(name);
    let started = Instant::now();
    let verdict = match simulate(workspace, dir) {
        Ok(()) => Verdict::Passed,
        Err(error) => Verdict::Failed(format!("{error:#}")),
    };
    tally.add(name, started.elapsed(), verdict);
}

fn simulate(workspace: &Workspace, dir: &Path) -> Result<()> {
    let program = emulator::build(workspace, Profile::Quick)?;
    let files = for_simulator(&workspace.root().join(FOLDER))?;
    ensure!(!files.is_empty(), "there are no scenarios in {FOLDER}");
    let mut command = Command::new(program);
    command.args(["scenario", "run"]).args(files);
    run_logged(
        "simulated scenarios",
        &mut command,
        &dir.join("simulated.log"),
    )
}

/// The scenario of a test's name; `root` is the project's folder.
fn request_of(root: &Path, name: &str) -> Request {
    Request::of_file(root.join(FOLDER).join(name).with_extension("toml"))
}

/// The guests of a test. The NICs of a scenario with a profile have this profile.
pub fn plan_of(root: &Path, name: &str, plan: &Plan) -> Plan {
    let programs = request_of(root, name).programs();
    // The test of a file reports its mistakes.
    let programs = programs.ok();
    let profiled = programs.and_then(|programs| with_profile(plan, &programs));
    profiled.unwrap_or_else(|| plan.clone())
}

/// Plays the scenario of the test's name in a pair of guests, which can be used again.
fn in_guests(watched: &Watched<'_>) -> Result<()> {
    let request = request_of(watched.workspace.root(), watched.name);
    let (played, output) = play_in(watched, &request)?;
    fs::write(watched.logs.join("output.log"), &output).context("writing a log")?;
    ensure!(played.passed(), "{output}");
    restore(watched)
}

/// Plays a scenario. Returns all that `cargo lab scenario` prints as well.
fn play_in(watched: &Watched<'_>, request: &Request) -> Result<(Played, String)> {
    let output = RefCell::new(String::new());
    let print = |line: &str| {
        let mut output = output.borrow_mut();
        output.push_str(line);
        output.push('\n');
    };
    let programs = request.programs()?;
    let played = play(
        watched.cluster,
        &watched.program,
        request,
        &programs,
        &print,
    )?;
    let output = output.into_inner() + &played.text();
    Ok((played, output))
}

/// Makes the guests ready for the next scenario: the driver is loaded again if its device has changed.
fn restore(watched: &Watched<'_>) -> Result<()> {
    for guest in [watched.server, watched.client] {
        guest.must("ip link set $NETDEV up", SHORT)?;
    }
    let Err(error) = works(watched.cluster) else {
        return Ok(());
    };
    say(format!("the driver is loaded again: {error:#}"));
    for guest in [watched.server, watched.client] {
        guest.must("modprobe -r faultline && modprobe faultline", SHORT)?;
        configure(guest, watched.plan)?;
    }
    works(watched.cluster)
}

/// Executes the tutorial: writes its files, plays its scenarios, and compares their output.
fn tutorial(watched: &Watched<'_>) -> Result<()> {
    let root = watched.workspace.root();
    let text =
        fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    let files = files(&text);
    let mut shell = HostShell::start(&watched.logs)?;
    let mut folder = watched.logs.clone();
    let mut log = String::new();
    let mut played = 0;
    for step in steps(&text) {
        ensure!(
            step.place == Place::Host,
            "{DOCUMENT}: {:?} is not on the host",
            step.command
        );
        let Some((command, wanted)) = scenario_command(&step.command)? else {
            folder = folder_after(&mut shell, &step.command)?;
            for (name, content) in &files {
                let is_plain = !name.contains('/') && !name.starts_with('.');
                ensure!(is_plain, "{DOCUMENT}: {name} is not in the folder");
                fs::write(folder.join(name), content).with_context(|| format!("writing {name}"))?;
            }
            continue;
        };
        let request = within(&folder, command);
        let (result, output) = play_in(watched, &request)?;
        let mut shown = output.replace(&format!("{}/", folder.display()), "");
        if !wanted {
            shown += &format!("{}\n", i32::from(!result.passed()));
        }
        log += &format!("--- {}\n{shown}", step.command);
        fs::write(watched.logs.join("tutorial.log"), &log).context("writing a log")?;
        ensure!(
            result.passed() == wanted,
            "{DOCUMENT}: {}:\n{shown}",
            step.command
        );
        if let Some(line) = missing(&step.shown, &shown) {
            bail!(
                "{DOCUMENT}: {}: the output has no line like {line:?} in this place:\n{shown}",
                step.command
            );
        }
        restore(watched)?;
        played += 1;
    }
    ensure!(played >= 3, "{DOCUMENT} plays {played} scenarios");
    Ok(())
}

/// Runs a command of the host. Returns the working directory afterwards.
fn folder_after(shell: &mut HostShell, command: &str) -> Result<PathBuf> {
    let ended = shell.run(&format!("{command} && pwd"), SHORT)?;
    let printed = ended.output.lines().last();
    match (ended.status, printed) {
        (0, Some(folder)) => Ok(folder.into()),
        (status, _) => bail!(
            "{DOCUMENT}: {command}: exit status {status}:\n{}",
            ended.output
        ),
    }
}

/// The request of a command `cargo lab scenario …`, and whether the scenario must pass: not if the command shows its exit
/// status 1.
fn scenario_command(command: &str) -> Result<Option<(Request, bool)>> {
    let (command, wanted) = match command.strip_suffix("; echo $?") {
        Some(command) => (command, false),
        None => (command, true),
    };
    let Some(words) = command.strip_prefix("cargo ") else {
        return Ok(None);
    };
    let parsed = crate::Cli::try_parse_from(words.split_whitespace())
        .with_context(|| format!("{DOCUMENT}: {command}"))?;
    match parsed.command {
        crate::Command::Scenario {
            file,
            script,
            files,
            seed,
            ..
        } => {
            let request = Request {
                file,
                script,
                files,
                seed,
            };
            Ok(Some((request, wanted)))
        }
        _ => bail!("{DOCUMENT}: {command:?} plays no scenario"),
    }
}

/// The request with its files in `folder`.
fn within(folder: &Path, request: Request) -> Request {
    let place = |file: PathBuf| folder.join(file);
    Request {
        file: place(request.file),
        script: request.script.map(place),
        files: request.files.into_iter().map(place).collect(),
        seed: request.seed,
    }
}

#[cfg(test)]
mod tests {
    use faultline_scenario::{profile, read};

    use super::*;
    use crate::scenario::for_guests;
    use crate::test::violating::violates;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn every_scenario_for_guests_is_a_test() {
        let files = for_guests(&root().join(FOLDER)).unwrap();
        let names: Vec<_> = files.iter().filter_map(|file| file.file_stem()).collect();
        let tests = TESTS.iter().map(|row| row.facts.name);
        let tests: Vec<&str> = tests.filter(|name| *name != "tutorial").collect();
        assert_eq!(names, tests);
        for file in files {
            let request = Request::of_file(file);
            assert!(request.programs().is_ok(), "{request:?}");
        }
    }

    #[test]
    fn scenarios_with_a_profile_have_guests_of_their_own() {
        let plain = Plan::default();
        assert_eq!(plan_of(&root(), "lost_ack", &plain), plain);
        assert_eq!(plan_of(&root(), "tutorial", &plain), plain);
        let profile = plan_of(&root(), "damming", &plain).nic_profile.unwrap();
        assert!(profile.ends_with("profiles/damming.toml"), "{profile}");
    }

    /// True if NICs with this profile imitate defects of adapters.
    fn has_pitfalls(nic_profile: &str) -> bool {
        let profile = match profile::is_path(nic_profile) {
            true => {
                let text = fs::read_to_string(nic_profile).unwrap();
                profile::read(nic_profile, &text).unwrap()
            }
            false => profile::by_name(nic_profile).unwrap(),
        };
        profile.nic.pitfalls.is_some_and(|all| !all.is_empty())
    }

    /// Of all others the packet checker must find no violation, as in the simulator.
    #[test]
    fn scenarios_that_violate_the_specification_are_known() {
        let nics = ["nic0".to_owned(), "nic1".to_owned()];
        let names = TESTS.iter().map(|row| row.facts.name);
        for name in names.filter(|name| *name != "tutorial") {
            let request = request_of(&root(), name);
            let text = fs::read_to_string(&request.file).unwrap();
            let (_, plan) = read::load(name, &text, &nics).unwrap();
            let nic_profile = request.programs().unwrap().nic_profile;
            let violates_on_purpose =
                plan.illegal_rule().is_some() || nic_profile.is_some_and(|it| has_pitfalls(&it));
            let full = format!("scenarios::stable::{name}");
            assert_eq!(violates(&full).is_some(), violates_on_purpose, "{name}");
        }
    }

    #[test]
    fn commands_of_the_tutorial_are_understood() {
        let command = |text| scenario_command(text).unwrap();
        assert_eq!(command("ls"), None);
        let (request, passes) = command("cargo lab scenario a.toml --script b.sh").unwrap();
        assert_eq!((request.script, passes), (Some("b.sh".into()), true));
        let (request, passes) = command("cargo lab scenario a.toml; echo $?").unwrap();
        assert_eq!((request.file, passes), ("a.toml".into(), false));
        assert!(scenario_command("cargo lab demo").is_err());
    }
}
