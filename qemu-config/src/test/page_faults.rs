//! Page faults of the NICs during a test. A test on demand whose pages are all present shows nothing about page faults.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::suites::Sides;
use crate::cluster::Cluster;
use crate::command::capture;
use crate::emulator;
use crate::workspace::Workspace;

/// Counter of the page faults that a NIC has raised.
const RAISED: &str = "page_faults";

/// The counters of the NICs of a pair; `None` for a guest with another adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFaults {
    server: Option<u64>,
    client: Option<u64>,
}

impl PageFaults {
    /// The present counts. The server is the second guest if the test is reversed.
    pub fn read(workspace: &Workspace, cluster: &Cluster, is_reversed: bool) -> Result<Self> {
        let program = emulator::build(workspace, cluster.plan.profile)?;
        let of_guest = |index| -> Result<Option<u64>> {
            let name = format!("nic{index}");
            let socket = format!("{name}.sock");
            let has_it = |emulator: &&emulator::Emulator| {
                let mut sockets = emulator.sockets.iter();
                sockets.any(|path| path.ends_with(&socket))
            };
            let emulator = cluster.emulators().find(has_it);
            let count = |of: &emulator::Emulator| raised(&program, &of.control, &name);
            emulator.map(count).transpose()
        };
        let (first, second) = (of_guest(0)?, of_guest(1)?);
        let (server, client) = match is_reversed {
            true => (second, first),
            false => (first, second),
        };
        Ok(Self { server, client })
    }

    /// Fails unless the NICs of these sides have raised page faults since `before`. Faults of another adapter are not
    /// known.
    pub fn ensure_more(self, before: Self, sides: Sides) -> Result<()> {
        let of_sides = [
            ("server", sides.has_server(), before.server, self.server),
            ("client", sides.has_client(), before.client, self.client),
        ];
        for (side, must, before, now) in of_sides {
            let (true, Some(before), Some(now)) = (must, before, now) else {
                continue;
            };
            ensure!(
                now >= before,
                "the NIC of the {side} had raised {before} page faults before the test and {now} after it: it was reset, \
                 so a test with the property `faulting` cannot be judged"
            );
            if now == before {
                bail!(
                    "the NIC of the {side} has raised no page fault: all pages that it used were present (counter {RAISED}: {now})"
                );
            }
        }
        Ok(())
    }
}

fn raised(program: &Path, control: &Path, nic: &str) -> Result<u64> {
    let arguments = ["--json", "counters", nic, "--all"];
    let text = capture(emulator::ctl(program, control).args(arguments))?;
    count_in(&text).with_context(|| format!("reading the counters of {nic}"))
}

fn count_in(text: &str) -> Result<u64> {
    let counters: BTreeMap<String, u64> =
        serde_json::from_str(text).with_context(|| format!("reading {text:?}"))?;
    let count = counters.get(RAISED);
    count
        .copied()
        .with_context(|| format!("there is no counter {RAISED}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(server: u64, client: u64) -> PageFaults {
        PageFaults {
            server: Some(server),
            client: Some(client),
        }
    }

    #[test]
    fn each_named_side_must_have_raised_faults() {
        let before = counts(3, 5);
        for (now, sides) in [
            (counts(4, 5), Sides::Server),
            (counts(3, 6), Sides::Client),
            (counts(4, 6), Sides::Both),
        ] {
            assert!(now.ensure_more(before, sides).is_ok(), "{now:?}");
        }
        for (now, sides, words) in [
            (before, Sides::Server, "the server has raised no page fault"),
            (counts(3, 9), Sides::Server, "the server has raised no"),
            (counts(9, 5), Sides::Client, "the client has raised no"),
            (counts(9, 5), Sides::Both, "the client has raised no"),
            (counts(3, 9), Sides::Both, "the server has raised no"),
            (counts(0, 9), Sides::Both, "it was reset"),
        ] {
            let error = now.ensure_more(before, sides).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn other_adapters_are_not_judged() {
        let mixed = PageFaults {
            server: Some(1),
            client: None,
        };
        assert!(mixed.ensure_more(mixed, Sides::Client).is_ok());
        assert!(mixed.ensure_more(mixed, Sides::Both).is_err());
    }

    #[test]
    fn the_counter_is_read() {
        assert_eq!(
            count_in(r#"{"page_faults": 7, "page_faults_joined": 9}"#).unwrap(),
            7
        );
        let error = count_in("{}").unwrap_err().to_string();
        assert!(error.contains("no counter page_faults"), "{error}");
        assert!(count_in("nonsense").is_err());
    }
}
