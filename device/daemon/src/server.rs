//! Sockets and threads.

use std::thread::JoinHandle;

use faultline_vfio_user::{ListenError, Listener, Shutdown};

use crate::config::{Config, ConfigError};
use crate::engine::{Engine, EngineHandle};
use crate::function::Function;
use crate::port::BarTwo;

/// Why a process can't serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A socket.
    #[error("NIC {nic}: {source}")]
    Listen {
        /// Name of the NIC.
        nic: String,
        /// Why.
        source: ListenError,
    },
    /// The PCI function.
    #[error(transparent)]
    Pci(#[from] faultline_pci::ConfigError),
    /// Descriptors, memory or threads.
    #[error("the system refused a resource: {0}")]
    System(#[from] std::io::Error),
}

/// A running process: all its threads. Dropping it stops them and removes the sockets.
#[derive(Debug)]
pub struct Server {
    shutdown: Shutdown,
    engine: EngineHandle,
    engine_thread: Option<JoinHandle<()>>,
    listeners: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve. The sockets exist when this returns.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        let shutdown = Shutdown::new()?;
        let mut sockets = Vec::new();
        for nic in &config.nics {
            let socket = Listener::listen(&nic.socket).map_err(|source| StartError::Listen {
                nic: nic.name.clone(),
                source,
            })?;
            sockets.push(socket);
        }
        let (engine, handle) = Engine::new(config)?;
        let mut functions = Vec::new();
        for (port, nic) in config.nics.iter().enumerate() {
            let Some(bar) = engine.ports.get(port).map(|port| BarTwo::of(&port.nic)) else {
                continue;
            };
            let mac = nic.mac_address();
            functions.push(Function::new(&nic.name, port, mac, bar, handle.clone())?);
            tracing::info!(nic = %nic.name, %mac, "serving on {}", nic.socket.display());
        }
        let engine_thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || engine.run())?;
        let mut server = Self {
            shutdown: shutdown.clone(),
            engine: handle,
            engine_thread: Some(engine_thread),
            listeners: Vec::new(),
        };
        for ((socket, mut function), nic) in sockets.into_iter().zip(functions).zip(&config.nics) {
            let shutdown = shutdown.clone();
            let thread = std::thread::Builder::new()
                .name(format!("nic-{}", nic.name))
                .spawn(move || socket.serve(&mut function, &shutdown))?;
            server.listeners.push(thread);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.trigger();
        for thread in self.listeners.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a server thread panicked");
            }
        }
        self.engine.stop();
        if let Some(thread) = self.engine_thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine panicked");
        }
    }
}
