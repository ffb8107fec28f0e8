//! `faultline ctl scenario` on the emulator of the guests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::file::Request;
use super::verdict::Verdict;
use crate::command::tail;
use crate::emulator::ctl;

/// For what takes a moment.
pub(super) const SHORT: Duration = Duration::from_secs(60);

/// Starts the scenario, with a limit instead of the file's.
pub(super) fn start(
    faultline: &Path,
    control: &Path,
    request: &Request,
    limit: Option<Duration>,
) -> Result<()> {
    let mut command = ctl(faultline, control);
    command.args(["scenario", "start", "--runner"]);
    command.arg(&request.file);
    if let Some(limit) = limit {
        command.args(["--limit", &format!("{}ms", limit.as_millis())]);
    }
    if let Some(seed) = request.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    let output = command.output().context("starting faultline")?;
    ensure!(
        output.status.success(),
        "the scenario does not start:\n{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(())
}

/// Ends the scenario. A verdict that is not good is no error.
pub(super) fn stop(faultline: &Path, control: &Path) -> Result<Verdict> {
    let output = ctl(faultline, control)
        .args(["--json", "scenario", "stop"])
        .output()
        .context("starting faultline")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "the scenario does not stop ({}):\n{}",
            output.status,
            tail(&output.stderr, 20)
        )
    })
}
