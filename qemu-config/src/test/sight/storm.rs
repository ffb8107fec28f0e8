//! Page faults on purpose: `fault_storm` in both guests.

use anyhow::{Context, Result, ensure};

use super::watched::{SHORT, Watched};
use crate::guest::{Outcome, Running};
use crate::protocol::Exec;

/// A storm that goes on.
pub struct Storm<'a> {
    owner: Running<'a>,
    peer: Running<'a>,
    /// Process id of the owner of the memory, in the first guest.
    pub pid: u64,
}

impl<'a> Storm<'a> {
    /// Starts one of a number of pages.
    pub fn start(watched: &Watched<'a>, pages: usize) -> Result<Self> {
        let exec = |script: String| Exec {
            script,
            ..Exec::default()
        };
        let owner = watched.server.start(&exec("exec fault_storm".into()))?;
        let found = watched.server.must(
            "lab_until 20 lab_listens 18620; pgrep -x fault_storm",
            SHORT,
        )?;
        let pid = found
            .trim()
            .parse()
            .with_context(|| format!("one process was expected, not {found:?}"))?;
        let script = format!("exec fault_storm $PEER_IP {pages}");
        let peer = watched.client.start(&exec(script))?;
        Ok(Self { owner, peer, pid })
    }

    /// Waits for its end.
    pub fn finish(self) -> Result<()> {
        let check = |outcome: Outcome, what: &str| {
            ensure!(
                outcome.success(),
                "{what} of the storm: {}\n{}",
                outcome.describe(),
                String::from_utf8_lossy(&outcome.both)
            );
            Ok(())
        };
        check(self.peer.wait_more(2 * SHORT)?, "the peer")?;
        check(self.owner.wait_more(SHORT)?, "the owner")
    }
}
