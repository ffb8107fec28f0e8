//! What can go wrong in the driver.

use faultline_abi::Status;

use crate::client::ClientError;

/// Why an operation of the control path failed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The socket.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The device refused a command.
    #[error("admin command {opcode:#x} was refused: {status:?}")]
    Admin {
        /// FAULTLINE_ADMIN_*.
        opcode: u16,
        /// Its reason.
        status: Status,
    },
    /// The device refused a translation command.
    #[error("translation command {opcode} was refused: {status:?}")]
    Translation {
        /// FAULTLINE_TQ_*.
        opcode: u8,
        /// Its reason.
        status: Status,
    },
    /// The device did not answer in time.
    #[error("no answer to {0}")]
    Timeout(&'static str),
    /// The device answered nonsense.
    #[error("the device's {what} is {value:#x}")]
    Nonsense {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The lent memory is used up.
    #[error("no memory left for {0}")]
    NoMemory(&'static str),
    /// A doorbell could not be rung.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl DriverError {
    /// The status with which the device refused a command.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Admin { status, .. } | Self::Translation { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// Why a doorbell could not be rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The ring stayed full for seconds.
    #[error("the doorbell ring of page {0} stays full")]
    Stuck(u32),
    /// The device has been reset since.
    #[error("the device has been reset or is gone")]
    Down,
    /// The device sleeps, and the kick did not reach it.
    #[error("the device can't be kicked")]
    Kick,
}

/// Why a work request was not posted. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full.
    #[error("the work queue is full")]
    Full,
    /// More scatter/gather entries than the queue was made for.
    #[error("too many scatter/gather entries")]
    TooManySges,
    /// More inline data than the queue was made for.
    #[error("too much inline data")]
    TooMuchInline,
    /// The request stands in the queue, but the device does not know.
    #[error(transparent)]
    Ring(#[from] RingError),
}
