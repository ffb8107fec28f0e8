//! A process with its control server.

use faultline_config::Config;
use faultline_daemon::Server;
use faultline_daemon::server::StartError;

use crate::listen::{ControlError, ControlServer};

/// Why a process can't serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its NICs or ports can't be served.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The control server can't be started.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The system refused a thread.
    #[error("the system refused a resource")]
    System(#[from] std::io::Error),
}

/// Starts all threads of a process. The sockets exist when this returns.
///
/// # Errors
///
/// The configuration can't be used, or the system refuses a socket, a thread or another resource.
pub fn serve(config: &Config) -> Result<Server, ServeError> {
    let mut server = Server::start(config)?;
    if let Some((control, stop)) = ControlServer::new(config, server.engines(), server.sockets())? {
        server.add_service("control", move || control.run(), stop)?;
    }
    Ok(server)
}
