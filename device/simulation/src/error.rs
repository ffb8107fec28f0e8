//! Reasons why a simulation can't be run, or can't continue.

use std::fmt;

/// Why a scenario can't be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// A value of the file is out of range.
    #[error("{key} is {value}: {allowed}")]
    Value {
        /// Path of the key in the file, such as `traffic[0].size`.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The memory of a host is too small for its traffic.
    #[error(
        "{host} has {bytes} bytes of memory, too few for {what}: make `size`, `count`, `depth`, `connections` or `page_frames` smaller"
    )]
    Memory {
        /// Name of the NIC.
        host: String,
        /// Its memory.
        bytes: u64,
        /// The traffic that did not fit.
        what: String,
    },
    /// A NIC has refused a command of its driver.
    #[error("{host}: {what}: {error}")]
    Driver {
        /// Name of the NIC.
        host: String,
        /// The request of the driver.
        what: String,
        /// The answer.
        error: crate::driver::Error,
    },
    /// The virtual clock does not advance: a defect of this program, not of the scenario.
    #[error(
        "the virtual clock does not advance after {at} ns: please report this with the scenario"
    )]
    Clock {
        /// Where it is.
        at: u64,
    },
}

/// Nothing can happen any more, but the traffic has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// When.
    pub at: u64,
    /// Each waiting connection, and its event.
    pub waiting: Vec<String>,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(
            f,
            "nothing can happen any more, and the traffic has not ended: "
        )?;
        let shown = self.waiting.iter().take(SHOWN);
        write!(f, "{}", shown.cloned().collect::<Vec<_>>().join("; "))?;
        match self.waiting.len().checked_sub(SHOWN) {
            Some(more @ 1..) => write!(f, "; and {more} more"),
            _ => Ok(()),
        }
    }
}
