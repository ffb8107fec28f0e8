//! Plays a scenario in two guests that run.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::control::{SHORT, start, stop};
use super::file::{Programs, Request};
use super::runner::Runner;
use super::verdict::{self, Check, Verdict};
use crate::cluster::Cluster;
use crate::guest::{Guest, Outcome, Status};
use crate::protocol::Exec;
use crate::run::Prefixed;

/// The folder of the guests in which the program runs.
const FOLDER: &str = "/run/scenario";
/// Seconds for which the client waits for a server that listens nowhere. Help and tutorial name them.
const UNTIL_READY: u32 = 10;
/// How long a server may outlive its client.
const GRACE: Duration = Duration::from_secs(15);
/// The same after the client has failed: the server then waits in vain.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(2);
/// For the lab's own work between the steps of a run.
const MARGIN: Duration = Duration::from_secs(30);

/// The result of a scenario between guests.
#[derive(Debug)]
pub struct Played {
    name: String,
    /// Exit status that the client must have.
    wanted: i32,
    server: Outcome,
    client: Outcome,
    verdict: Verdict,
    /// The action `end` has ended the run, and the programs with it.
    is_ended: bool,
    /// What else went wrong.
    pub problems: Vec<String>,
}

/// Starts the scenario, runs the program in both guests, and ends the scenario. `print` gets each line of their outputs.
///
/// # Errors
/// If the scenario cannot be started, or a guest has ended. Other failures are in the result.
pub fn play(
    cluster: &Cluster,
    faultline: &Path,
    request: &Request,
    programs: &Programs,
    print: &dyn Fn(&str),
) -> Result<Played> {
    let [server, client] = cluster.guests.as_slice() else {
        bail!("a scenario needs two guests")
    };
    let control = &cluster
        .emulator
        .as_ref()
        .context("there is no emulator")?
        .control;
    let command = install(cluster, request, programs)?;
    let factor = cluster.plan.kernel.time_factor();
    let limit = programs.limit * factor;
    // The scenario runs from before the server begins until after it has ended. The file's limit is for the client.
    let whole = limit + Duration::from_secs(UNTIL_READY.into()) * factor + GRACE + MARGIN;
    start(faultline, control, request, Some(whole))?;
    let runner = Runner::new(cluster, faultline, control);
    let played = thread::scope(|scope| {
        let watching = scope.spawn(|| runner.watch());
        let outcomes = exchange(
            (server, client),
            &command,
            (limit, programs.status),
            print,
            &runner,
        );
        runner.end();
        let watched = watching.join();
        (outcomes, watched)
    });
    // The NICs are as before, even if the programs failed.
    let verdict = stop(faultline, control);
    let restored = runner.restore();
    let (outcomes, watched) = played;
    let (server, client) = outcomes?;
    match watched {
        Ok(watched) => watched?,
        Err(_) => bail!("the thread that watches the scenario has panicked"),
    }
    restored?;
    for guest in &cluster.guests {
        guest.fetch_folder("/tmp/artefacts", &guest.dir.join("artefacts"))?;
    }
    Ok(Played {
        name: request.file.display().to_string(),
        wanted: programs.status,
        server,
        client,
        verdict: verdict?,
        is_ended: runner.has_ended(),
        problems: Vec::new(),
    })
}

/// Copies the program and its files to the guests. Returns the command that runs it, without `server` or `client`.
fn install(cluster: &Cluster, request: &Request, programs: &Programs) -> Result<ProgramCommand> {
    let mut names = Vec::new();
    for guest in &cluster.guests {
        guest.must(
            &format!("rm -rf {FOLDER} /run/lab.gid_moves; mkdir {FOLDER}"),
            SHORT,
        )?;
    }
    for file in std::iter::once(&programs.script).chain(&request.files) {
        let content = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.file_name().context("a file has a name")?;
        let name = name.to_string_lossy().into_owned();
        for guest in &cluster.guests {
            guest.put(&format!("{FOLDER}/{name}"), &content)?;
        }
        names.push(name);
    }
    for guest in &cluster.guests {
        guest.must(&format!("chmod 755 {FOLDER}/*"), SHORT)?;
    }
    Ok(ProgramCommand {
        name: names.first().cloned().unwrap_or_default(),
        arguments: programs.arguments.clone(),
    })
}

/// A program in [`FOLDER`].
struct ProgramCommand {
    name: String,
    arguments: Vec<String>,
}

impl ProgramCommand {
    /// A script that runs it.
    fn exec(&self, role: &str) -> Exec {
        let words: Vec<String> = [format!("./{}", self.name), role.to_owned()]
            .into_iter()
            .chain(self.arguments.iter().cloned())
            .map(|word| quoted(&word))
            .collect();
        Exec {
            script: format!(
                "cd {FOLDER} && {}; status=$?; : >.ended; exit $status",
                words.join(" ")
            ),
            // bash reads this file before a script: its functions are there in scripts as well.
            env: vec![("BASH_ENV".to_owned(), "/lab/lib.sh".to_owned())],
            ..Exec::default()
        }
    }
}

/// A word for bash.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs the server and the client. The client begins when the server listens.
fn exchange<'a>(
    (server, client): (&'a Guest, &'a Guest),
    command: &ProgramCommand,
    (limit, wanted): (Duration, i32),
    print: &dyn Fn(&str),
    runner: &Runner<'a>,
) -> Result<(Outcome, Outcome)> {
    // Listeners that a guest has anyway are not the server's.
    let before = server.must("lab_listeners", SHORT)?;
    let serving = server.start(&command.exec("server"))?;
    server.run(&until_ready(before.trim()), SHORT)?;
    let mut lines = Prefixed::new("[client] ".into());
    let running = client.start(&command.exec("client"))?;
    runner.kill_at_end(client, running.id());
    let client = running.wait(limit, &mut |bytes| lines.pass(bytes, print))?;
    lines.pass_rest(print);
    let grace = match client.status {
        Status::Exited(0) if wanted == 0 => GRACE,
        _ => GRACE_AFTER_FAILURE,
    };
    let server = serving.wait_more(grace)?;
    let mut lines = Prefixed::new("[server] ".into());
    lines.pass(&server.both, print);
    lines.pass_rest(print);
    Ok((server, client))
}

/// Waits until there are more listeners than before, or the program has ended.
fn until_ready(before: &str) -> String {
    format!(
        "ready() {{ [ -e {FOLDER}/.ended ] || [ \"$(lab_listeners)\" -gt {before} ]; }}; \
         lab_until {UNTIL_READY} ready"
    )
}

impl Played {
    /// Rules, expectations and exit statuses. A program that the scenario has ended has no exit status of its own. The server's status counts only if the client is to succeed: if it is to fail,
    /// the server may wait in vain.
    fn checks(&self) -> Vec<Check> {
        let check = |name: &str, outcome: &Outcome, wanted: i32| Check {
            name: name.to_owned(),
            passed: outcome.status == Status::Exited(wanted),
            found: outcome.describe(),
            expected: format!("exit status {wanted}"),
        };
        let mut checks = self.verdict.checks.clone();
        if self.is_ended {
            return checks;
        }
        checks.push(check("client", &self.client, self.wanted));
        if self.wanted == 0 {
            checks.push(check("server", &self.server, 0));
        }
        checks
    }

    fn all_problems(&self) -> Vec<String> {
        [&self.verdict.problems[..], &self.problems].concat()
    }

    /// Returns true if everything is as the scenario wants it.
    pub fn passed(&self) -> bool {
        let checks = self.checks().iter().all(|check| check.passed);
        self.verdict.passed && checks && self.problems.is_empty()
    }

    /// The result, for a terminal.
    pub fn text(&self) -> String {
        let result = if self.passed() { "passed" } else { "failed" };
        let mut text = verdict::table(&self.checks());
        for problem in self.all_problems() {
            text += &format!("problem: {problem}\n");
        }
        let seconds = self.seconds();
        text + &format!("{} {result} after {seconds:.3} s\n", self.name)
    }

    /// The same as JUnit XML.
    pub fn junit(&self) -> String {
        let problems = self.all_problems();
        verdict::junit(&self.name, self.seconds(), &self.checks(), &problems)
    }

    fn seconds(&self) -> f64 {
        Duration::from_nanos(self.verdict.time_ns).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(wanted: i32, client: i32, server: i32) -> Played {
        let outcome = |code| Outcome {
            status: Status::Exited(code),
            stdout: Vec::new(),
            both: Vec::new(),
        };
        Played {
            name: "a.toml".to_owned(),
            wanted,
            server: outcome(server),
            client: outcome(client),
            verdict: Verdict {
                passed: true,
                time_ns: 1_500_000_000,
                ..Verdict::default()
            },
            is_ended: false,
            problems: Vec::new(),
        }
    }

    #[test]
    fn programs_must_end_as_wanted() {
        assert!(played(0, 0, 0).passed());
        assert!(!played(0, 1, 0).passed());
        assert!(!played(0, 0, 1).passed());
        assert!(!played(1, 0, 0).passed());
        // The server is killed if the client is to fail.
        assert!(played(1, 1, 137).passed());
        let mut other = played(0, 0, 0);
        other.verdict.passed = false;
        assert!(!other.passed());
        let mut other = played(0, 137, 137);
        assert!(!other.passed());
        other.is_ended = true;
        assert!(other.passed());
        let mut other = played(0, 0, 0);
        other.problems.push("a kernel warns".to_owned());
        assert!(!other.passed());
        let text = other.text();
        assert!(text.contains("problem: a kernel warns\n"), "{text}");
        assert!(text.ends_with("a.toml failed after 1.500 s\n"), "{text}");
    }

    #[test]
    fn words_are_quoted() {
        let command = ProgramCommand {
            name: "run it.sh".to_owned(),
            arguments: vec!["a'b".to_owned(), "$x".to_owned()],
        };
        let script = command.exec("client").script;
        assert!(
            script.starts_with(r"cd /run/scenario && './run it.sh' 'client' 'a'\''b' '$x'"),
            "{script}"
        );
    }
}
