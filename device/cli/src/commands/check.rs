//! `faultline check`: captured packets against the rules of the InfiniBand specification.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use faultline_capture::check::{Findings, Unreadable, check};

use super::status::{NOTHING_JUDGED, UNUSABLE};
use super::{complain, show};

/// Check captured RoCEv2 packets against the rules of the InfiniBand specification.
///
/// The capture must contain both directions of a connection. Packets may have been lost behind the place of the capture, so
/// rules are not applied that depend on what an adapter has received. The exit status is 1 if a rule was violated, otherwise 2 if
/// the file can't be read to its end, 3 if it has no RoCE packet. Frames before the error are judged.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Capture file (pcapng or pcap); `-` is standard input.
    file: PathBuf,
    /// The adapters in the file are Faultlines that exchange READY packets (`ready` of their configuration). Without this
    /// option the opcode of READY is noted as a manufacturer's and not judged.
    #[arg(long)]
    ready: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let (found, error) = read(&self.file, self.ready);
        if let Some(error) = &error {
            let file = self.file.display();
            complain(format!("Error: can't check {file}: {error:#}"));
        }
        if let Some(found) = &found {
            show(self.json, found, Findings::text)?;
        }
        Ok(match (&found, &error) {
            (Some(found), _) if !found.violations.is_empty() => ExitCode::FAILURE,
            (_, Some(_)) => ExitCode::from(UNUSABLE),
            (Some(found), _) if found.packets == 0 && found.segments == 0 => {
                let (file, frames) = (self.file.display(), found.frames);
                complain(format!(
                    "Error: {file} has no RoCE packet and no whole iWARP connection among its {frames} frames, so nothing was judged"
                ));
                ExitCode::from(NOTHING_JUDGED)
            }
            _ => ExitCode::SUCCESS,
        })
    }
}

/// Returns the findings, if any frame was read, and the error that ended the reading.
fn read(path: &Path, ready: bool) -> (Option<Findings>, Option<anyhow::Error>) {
    let found = match path.as_os_str() == "-" {
        true => check(std::io::stdin().lock(), ready),
        false => match File::open(path) {
            Ok(file) => check(file, ready),
            Err(error) => return (None, Some(error.into())),
        },
    };
    match found {
        Ok(found) => (Some(found), None),
        Err(Unreadable { reason, before }) => {
            ((before.frames > 0).then_some(*before), Some(reason))
        }
    }
}
