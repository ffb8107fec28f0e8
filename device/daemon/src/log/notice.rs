//! Log messages of the engine thread that are not diagnostics of a NIC.
//!
//! The engine does not write them itself: the log may be a pipe whose reader has stopped, and a write would stop all NICs. They go
//! through the queue of `diagnostics`.

use faultline_abi::doorbell::Doorbell;
use faultline_memory::AccessError;
use faultline_wire::MacAddr;
use tracing::Level;

/// A message about a NIC.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A frame was dropped because its source address belongs to another NIC. The first of each client.
    ForgedSource(MacAddr),
    /// The peer of an external port has sent a frame from an address of the NIC. The first of each peer and NIC.
    AddressInUse {
        /// The address.
        address: MacAddr,
        /// Name of the port.
        port: String,
    },
    /// The file behind guest memory has lost a page. The first of each client.
    LostPage(AccessError),
    /// Doorbell pages and device memory are not clear after a reset.
    PagesNotCleared(std::io::Error),
    /// The thread that flushes guest memory does not start.
    NoFlushThread(std::io::Error),
    /// A doorbell was rung while the engine slept, and not written to the kick page. The first of each client.
    MissedWakeup {
        /// The doorbell page.
        page: u32,
        /// The doorbell.
        bell: Doorbell,
    },
    /// A request of a scenario or of a live rule cannot be executed.
    ScenarioProblem {
        /// Number of the live rule; 0: a scenario.
        set: u16,
        /// What was not done.
        problem: String,
    },
}

/// Kinds of notices: each has a limit of its own.
pub(crate) const KINDS: [&str; 7] = [
    "forged_source",
    "lost_page",
    "pages_not_cleared",
    "no_flush_thread",
    "scenario_problem",
    "address_in_use",
    "missed_wakeup",
];

impl Notice {
    /// Index in [`KINDS`].
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::ForgedSource(_) => 0,
            Self::LostPage(_) => 1,
            Self::PagesNotCleared(_) => 2,
            Self::NoFlushThread(_) => 3,
            Self::ScenarioProblem { .. } => 4,
            Self::AddressInUse { .. } => 5,
            Self::MissedWakeup { .. } => 6,
        }
    }

    /// The level: its importance to an operator.
    pub(crate) fn level(&self) -> Level {
        match self {
            Self::ForgedSource(_)
            | Self::AddressInUse { .. }
            | Self::MissedWakeup { .. }
            | Self::ScenarioProblem { .. } => Level::WARN,
            Self::LostPage(_) | Self::PagesNotCleared(_) | Self::NoFlushThread(_) => Level::ERROR,
        }
    }

    /// The message.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::ForgedSource(source) => format!(
                "dropped a frame with source address {source}, which belongs to another NIC; later ones are only counted \
                 (tx_bad_source). spoof_check = false allows such frames"
            ),
            Self::AddressInUse { address, port } => format!(
                "a frame from this NIC's address {address} has come in through port `{port}`: another NIC has the same address, and \
                 gets no frames from here, or the frame has come back in a loop. NICs of connected processes must have different \
                 names, or different values of `mac`"
            ),
            Self::LostPage(error) => format!(
                "{error}; the access fails, and later ones are only counted (dma_errors): free space in the file system, \
                 or reserve the memory (prealloc=on)"
            ),
            Self::PagesNotCleared(error) => {
                format!("can't clear doorbell pages and device memory: {error}")
            }
            Self::NoFlushThread(error) => format!(
                "can't start the thread that flushes memory, so FLUSH to persistence is refused until a thread can be \
                 created: {error}"
            ),
            Self::MissedWakeup { page, bell } => format!(
                "doorbell {:#x} of page {page} was rung while the engine slept, and not written to the kick page, so it has waited \
                 up to 250 ms; later ones are only counted (missed_wakeups). The driver needs a full barrier between storing a \
                 doorbell and reading `asleep`: MFENCE in a guest, where LOCKed instructions may be none",
                bell.to_bits()
            ),
            Self::ScenarioProblem { set: 0, problem } => format!("scenario: {problem}"),
            Self::ScenarioProblem { set, problem } => format!("live rule {set}: {problem}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Error;

    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own() {
        let notices = [
            Notice::ForgedSource(MacAddr([2, 0, 0, 0, 0, 1])),
            Notice::AddressInUse {
                address: MacAddr([2, 0, 0, 0, 0, 1]),
                port: "x".to_owned(),
            },
            Notice::LostPage(AccessError::Unmapped { addr: 1 }),
            Notice::PagesNotCleared(Error::other("x")),
            Notice::NoFlushThread(Error::other("x")),
            Notice::ScenarioProblem {
                set: 0,
                problem: "x".to_owned(),
            },
            Notice::MissedWakeup {
                page: 1,
                bell: Doorbell::from_bits(1 << 56),
            },
        ];
        let names: BTreeSet<_> = notices
            .iter()
            .filter_map(|notice| KINDS.get(notice.kind()))
            .collect();
        assert_eq!(names.len(), KINDS.len());
        assert!(notices.iter().all(|notice| !notice.text().is_empty()));
    }

    #[test]
    fn a_problem_names_its_live_rule() {
        let text = |set| {
            let problem = "x".to_owned();
            Notice::ScenarioProblem { set, problem }.text()
        };
        assert_eq!(
            (text(0), text(3)),
            ("scenario: x".into(), "live rule 3: x".into())
        );
    }
}
