//! How connections end.

use crate::socket::Stop;
use tracing::{error, info, warn};

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The client closed the connection between two messages.
    Disconnected,
    /// The connection closed inside a message, or the socket failed.
    Broken,
    /// A message had an invalid size, so the start of the next message is unknown.
    Desynchronized,
    /// The server behind a relay has another device than its predecessor.
    Changed,
    /// [`crate::Shutdown::trigger`] was called.
    Shutdown,
}

impl Stop {
    /// The end of a client's connection for this reason. Logs it.
    pub(crate) fn ended(self) -> Ended {
        match self {
            Self::Eof => {
                info!("vfio-user client disconnected");
                Ended::Disconnected
            }
            Self::Truncated => {
                warn!("vfio-user connection closed inside a message");
                Ended::Broken
            }
            Self::Io(errno) => {
                warn!("vfio-user socket failed: {errno}");
                Ended::Broken
            }
            Self::Desynchronized => Ended::Desynchronized,
            Self::Late => {
                warn!("vfio-user client does not read its replies");
                Ended::Broken
            }
            Self::Changed => {
                error!(
                    "the new server has another device, which the client can't learn; closing its connection"
                );
                Ended::Changed
            }
            Self::Shutdown => Ended::Shutdown,
        }
    }
}
