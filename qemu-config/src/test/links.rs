//! The models of links, in suites with links in the configuration. A test on a link without losses shows nothing about
//! losses.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::cluster::Cluster;
use crate::command::capture;
use crate::emulator;
use crate::workspace::Workspace;

/// A direction of a link, as `faultline ctl links` shows it.
#[derive(Debug, Deserialize)]
struct Line {
    port: String,
    direction: String,
    lost: u64,
    reordered: u64,
}

/// Fails unless the links of a pair have lost and reordered frames since the emulators began, in both directions.
pub fn ensure_impaired(workspace: &Workspace, cluster: &Cluster) -> Result<()> {
    let program = emulator::build(workspace, cluster.plan.profile)?;
    let mut emulators = cluster.emulators().peekable();
    ensure!(emulators.peek().is_some(), "no emulator has links");
    for emulator in emulators {
        ensure_impaired_by(&lines(&program, &emulator.control)?)?;
    }
    Ok(())
}

fn lines(program: &Path, control: &Path) -> Result<Vec<Line>> {
    let text = capture(emulator::ctl(program, control).args(["--json", "links"]))?;
    serde_json::from_str(&text).with_context(|| format!("reading {text:?}"))
}

fn ensure_impaired_by(lines: &[Line]) -> Result<()> {
    for direction in ["tx", "rx"] {
        if !lines.iter().any(|line| line.direction == direction) {
            bail!("no link has a model of direction {direction}: {lines:?}");
        }
    }
    for line in lines {
        let Line {
            port,
            direction,
            lost,
            reordered,
        } = line;
        ensure!(
            *lost > 0 && *reordered > 0,
            "the link of {port} has lost {lost} frames and reordered {reordered} in direction {direction}: both must be more than 0"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ensure_impaired_in(text: &str) -> Result<()> {
        ensure_impaired_by(&serde_json::from_str::<Vec<Line>>(text).unwrap())
    }

    #[test]
    fn both_directions_must_lose_and_reorder() {
        let line = |direction: &str, lost: u64, reordered: u64| {
            format!(
                r#"{{"port": "nic0", "direction": "{direction}", "lost": {lost}, "queue_full": 0, "reordered": {reordered}}}"#
            )
        };
        let both = |rx: String| format!("[{}, {rx}]", line("tx", 5, 6));
        assert!(ensure_impaired_in(&both(line("rx", 1, 1))).is_ok());
        for (text, words) in [
            ("[]".to_owned(), "no link has a model of direction tx"),
            (
                format!("[{}]", line("tx", 5, 6)),
                "no link has a model of direction rx",
            ),
            (
                both(line("rx", 0, 1)),
                "nic0 has lost 0 frames and reordered 1 in direction rx",
            ),
            (
                both(line("rx", 1, 0)),
                "nic0 has lost 1 frames and reordered 0 in direction rx",
            ),
        ] {
            let error = ensure_impaired_in(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
