//! Takes the pages of on-demand regions away from the NICs while a test runs. Programs of libibverbs and perftest write their buffers
//! before they register them, and registration maps the pages that are present, so they raise no page fault otherwise.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::command::capture;
use crate::emulator;
use crate::workspace::Workspace;

/// The scenario, with this period.
fn scenario(period: &str) -> String {
    format!(
        r#"
title = "Pages of on-demand regions are taken away again and again"
[[at]]
time = "5ms"
every = "{period}"
do = {{ evict = {{}} }}
"#
    )
}

/// Runs in all emulators of a pair until it is stopped.
pub struct Eviction {
    program: PathBuf,
    controls: Vec<PathBuf>,
}

impl Eviction {
    /// Starts it, for at most `limit`. The period should be several times as long as a page fault.
    pub fn start(
        workspace: &Workspace,
        cluster: &Cluster,
        period: &str,
        limit: Duration,
    ) -> Result<Self> {
        let program = emulator::build(workspace, cluster.plan.profile)?;
        let file = cluster.dir.join("eviction.toml");
        fs::write(&file, scenario(period))
            .with_context(|| format!("writing {}", file.display()))?;
        let limit = format!("{}ms", limit.as_millis());
        let mut started = Self {
            program,
            controls: Vec::new(),
        };
        for emulator in cluster.emulators() {
            let mut command = emulator::ctl(&started.program, &emulator.control);
            command.args(["scenario", "start", "--limit", &limit]);
            capture(command.arg(&file))?;
            started.controls.push(emulator.control.clone());
        }
        Ok(started)
    }

    /// Stops it.
    ///
    /// # Errors
    /// If it has ended before, or has never taken a page away.
    pub fn stop(self) -> Result<()> {
        for control in &self.controls {
            let mut command = emulator::ctl(&self.program, control);
            capture(command.args(["scenario", "stop"]))?;
        }
        Ok(())
    }
}
