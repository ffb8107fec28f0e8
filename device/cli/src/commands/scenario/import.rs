//! `faultline scenario import`: scenarios from the files of other tools.

use std::fs::{self, File};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use faultline_scenario::lumina::{MAX_BYTES, import};

use super::load::UNREADABLE;
use crate::commands::{complain, print};

/// Make a scenario of a test file of Lumina (YAML).
///
/// The events become rules, the parameters of the traffic become tables `traffic`. What has no equivalent is a warning if the
/// scenario keeps its meaning without it, else an error. The exit status is 2 if no scenario was made.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// Lumina's file.
    file: PathBuf,
    /// Write the scenario to this file instead of the standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Import {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let name = self.file.display().to_string();
        let text = read(&self.file).with_context(|| format!("can't read {name}"))?;
        let styled = std::io::stderr().is_terminal();
        let imported = match import(&name, &text) {
            Ok(imported) => imported,
            Err(problems) => {
                complain(problems.draw(styled));
                return Ok(ExitCode::from(UNREADABLE));
            }
        };
        if !imported.warnings.list().is_empty() {
            complain(imported.warnings.draw(styled));
        }
        match &self.output {
            Some(path) => fs::write(path, &imported.text)
                .with_context(|| format!("can't write {}", path.display()))?,
            None => print(imported.text.as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads a file that is not too large, whatever it is: a pipe has no size.
fn read(path: &Path) -> anyhow::Result<String> {
    let limit = u64::try_from(MAX_BYTES)?;
    let mut text = String::new();
    File::open(path)?
        .take(limit.saturating_add(1))
        .read_to_string(&mut text)?;
    ensure!(
        text.len() <= MAX_BYTES,
        "it has more than {MAX_BYTES} bytes"
    );
    Ok(text)
}
