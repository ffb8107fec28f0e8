//! `faultline scenario import`: scenarios from the files of other tools.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use faultline_daemon::log::output::is_coloured;
use faultline_scenario::lumina::{MAX_BYTES, import};

use crate::commands::status::{UNUSABLE, UnusableInput};
use crate::commands::{complain, print};

/// Make a scenario of a test file of Lumina (YAML).
///
/// The events become rules, the parameters of the traffic become tables `traffic`. A key without an equivalent is a
/// warning if the scenario keeps its meaning without it, else an error. The exit status is 2 if no scenario was made.
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
        if let Some(path) = &self.output {
            faultline_files::check_writable(path)?;
        }
        let name = self.file.display().to_string();
        let text = faultline_files::read(&self.file, MAX_BYTES);
        let text = text.with_context(|| UnusableInput::unread(&name))?;
        let styled = is_coloured(&std::io::stderr());
        let imported = match import(&name, &text) {
            Ok(imported) => imported,
            Err(problems) => {
                complain(problems.draw(styled));
                return Ok(ExitCode::from(UNUSABLE));
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
