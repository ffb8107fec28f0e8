//! `faultline ctl check`: the packet checker of a running process.

use anyhow::bail;
use faultline_capture::check::Findings;
use faultline_control::check::CheckStart;
use hyper::Method;

use super::client::Client;
use super::show;

const PATH: &str = "/v1/check";

#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub(crate) enum CheckCommand {
    /// Begin to compare the frames of all NICs and ports with the rules of the InfiniBand specification.
    Start {
        /// The adapters behind ports are Faultlines that exchange READY packets.
        #[arg(long)]
        ready: bool,
    },
    /// Show the findings until now.
    Show,
    /// End it, and print the findings. Fails if a rule was violated.
    Stop,
}

impl CheckCommand {
    pub(crate) fn run(self, client: &Client, json: bool) -> anyhow::Result<()> {
        match self {
            Self::Start { ready } => {
                let start = CheckStart { ready };
                let _: Findings = client.send(Method::POST, PATH, &start)?;
                Ok(())
            }
            Self::Show => show(json, &client.get::<Findings>(PATH)?, Findings::text),
            Self::Stop => {
                let found: Findings = client.send(Method::DELETE, PATH, &())?;
                show(json, &found, Findings::text)?;
                match found.violation_count {
                    0 => Ok(()),
                    count => bail!("{count} violations of the specification"),
                }
            }
        }
    }
}
