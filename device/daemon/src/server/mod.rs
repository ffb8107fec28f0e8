//! The sockets and threads of the process.
//!
//! - `end_report`: reports of threads that have ended
//! - `function`: the PCI function that a vfio-user client sees
//! - [`nic_sockets`]: the sockets of the NICs, and their threads
//! - `socket_group`: the group whose members can connect to sockets
//! - [`supervisor`]: the process that holds the connections of clients while another serves them

mod end_report;
mod function;
pub mod nic_sockets;
mod socket_group;
pub mod supervisor;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use faultline_memory::FileMaps;
use faultline_ports::address::StreamAddress;
use faultline_ports::channel::{Bell, PortEnd};
use faultline_ports::stream::{Peers, StreamPort};
use faultline_ports::tap::TapPort;
use faultline_ports::vhost_net::VhostNetPort;
use faultline_vfio_user::{ListenError, Listener};
use rustix::fd::AsFd;
use rustix::fs::Gid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::engines::engine::LongestPass;
use crate::engines::{Engines, Process};
use crate::server::end_report::EndReport;
use crate::server::function::Function;
use crate::server::nic_sockets::{NicSockets, PresenceError};
use crate::server::socket_group::{GroupError, find_group};
use faultline_config::port::{PortEntry, PortKind};
use faultline_config::{Config, ConfigError, NicEntry};

/// Reasons why a process cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The group of the sockets can't be used.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A socket can't be created.
    #[error("NIC {nic}")]
    Listen {
        /// Name of the NIC.
        nic: String,
        /// Reason and remedy.
        source: ListenError,
    },
    /// A port that leads out of the process can't be opened.
    #[error("port {port}")]
    Port {
        /// Name of the port.
        port: String,
        /// Reason.
        source: PortError,
    },
    /// The supervisor can't make its folder.
    #[error("can't make the folder of the supervisor in {}", parent.display())]
    SupervisorFolder {
        /// The parent folder.
        parent: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The PCI function can't be described.
    #[error(transparent)]
    Pci(#[from] faultline_pci::ConfigError),
    /// A NIC can't be served.
    #[error(transparent)]
    Nic(#[from] PresenceError),
    /// The system refused descriptors, memory or threads.
    #[error("the system refused a resource")]
    System(#[from] std::io::Error),
}

/// Reasons why an external port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The unix socket can't be created.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refuses to listen on a TCP address.
    #[error("cannot listen on {address}: {error}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The system refuses the TAP device.
    #[error(
        "cannot open the TAP device {interface}: {error}; it needs CAP_NET_ADMIN, or a device that `ip tuntap add` has made for this user"
    )]
    Tap {
        /// Name of the device.
        interface: String,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Another call to the system failed.
    #[error(transparent)]
    System(#[from] std::io::Error),
}

/// Starts a thread that reports its end.
fn spawn(
    name: String,
    ends: &UnboundedSender<String>,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let report = EndReport::new(name.clone(), ends.clone());
    std::thread::Builder::new().name(name).spawn(move || {
        let _report = report;
        work();
    })
}

/// Opens an external port. Returns the function of its thread. Adds files of unix sockets to `sockets`.
fn open_port(
    entry: &PortEntry,
    end: PortEnd,
    group: Option<Gid>,
    sockets: &mut Vec<Listener>,
) -> Result<Box<dyn FnOnce() + Send>, PortError> {
    let mut listen = |path: &PathBuf| -> Result<UnixListener, PortError> {
        let listener = Listener::listen_for(path, group)?;
        let socket = UnixListener::from(listener.as_fd().try_clone_to_owned()?);
        sockets.push(listener);
        Ok(socket)
    };
    let peers = match &entry.kind {
        PortKind::Listen(StreamAddress::Unix(path)) => Peers::Unix(listen(path)?),
        PortKind::Listen(StreamAddress::Tcp(address)) => {
            let listen = || {
                let socket = TcpListener::bind(address)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            let error = |error| PortError::Tcp {
                address: *address,
                error,
            };
            Peers::Tcp(listen().map_err(error)?)
        }
        PortKind::Connect(address, pause) => Peers::Connect(address.clone(), *pause),
        PortKind::Tap(interface) => {
            let error = |error| PortError::Tap {
                interface: interface.clone(),
                error,
            };
            let port = TapPort::new(interface, entry.mtu, end).map_err(error)?;
            return Ok(Box::new(|| port.run()));
        }
        PortKind::VhostUserNet(path) => {
            let port = VhostNetPort::new(listen(path)?, end);
            return Ok(Box::new(|| port.run()));
        }
    };
    let port = StreamPort::new(peers, end);
    Ok(Box::new(|| port.run()))
}

/// The group of a socket of the configuration, if it has one. `own`: the group that its NIC or port names.
fn socket_group(config: &Config, own: Option<&str>) -> Result<Option<Gid>, GroupError> {
    let name = own.or(config.socket_group.as_deref());
    name.map(find_group).transpose()
}

/// The group of the socket of a NIC.
fn nic_socket_group(config: &Config, nic: &NicEntry) -> Result<Option<Gid>, GroupError> {
    match &nic.supervised {
        None => socket_group(config, nic.socket_group.as_deref()),
        // A supervisor is the only client of its server.
        Some(_) => Ok(None),
    }
}

/// Listens on the sockets of all NICs, absent ones too: a supervisor has no others.
pub(crate) fn listen(config: &Config) -> Result<Vec<Listener>, StartError> {
    let listen = |nic: &NicEntry| listen_for(config, nic);
    config.nics.iter().map(listen).collect()
}

/// Listens on the socket of a NIC.
fn listen_for(config: &Config, nic: &NicEntry) -> Result<Listener, StartError> {
    let socket = Listener::listen_for(&nic.socket, nic_socket_group(config, nic)?);
    socket.map_err(|source| StartError::Listen {
        nic: nic.name.clone(),
        source,
    })
}

/// The threads of a running process. Dropping it stops them and removes the sockets.
#[derive(Debug)]
pub struct Server {
    sockets: NicSockets,
    engines: Engines,
    engine_threads: Vec<JoinHandle<()>>,
    /// Threads of external ports, and the bell that stops each.
    ports: Vec<(Arc<Bell>, JoinHandle<()>)>,
    /// Files of their unix sockets, which are removed with these.
    _port_sockets: Vec<Listener>,
    /// Threads that use the engines. Each ends when its sender is dropped.
    services: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
    /// Ends after the engines.
    log: Option<JoinHandle<()>>,
    end: UnboundedSender<String>,
    ends: UnboundedReceiver<String>,
}

impl Server {
    /// Starts all threads. The sockets exist when this returns.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        config.check()?;
        // A supervisor has the sockets of all NICs.
        let is_present = |nic: &NicEntry| nic.present || nic.supervised.is_some();
        let nics = config.nics.iter().enumerate();
        let present = nics.filter(|(_, nic)| is_present(nic));
        let sockets: Result<Vec<_>, StartError> = present
            .map(|(port, nic)| Ok((port, listen_for(config, nic)?)))
            .collect();
        let sockets = sockets?;
        let process = Process::new(config, Clock::new())?;
        let engines = process.handles;
        let mut port_sockets = Vec::new();
        let mut ports = Vec::new();
        for (entry, end) in config.ports.iter().zip(process.port_ends) {
            let bell = end.bell();
            let group = socket_group(config, entry.socket_group.as_deref())?;
            let run = open_port(entry, end, group, &mut port_sockets).map_err(|source| {
                StartError::Port {
                    port: entry.name.clone(),
                    source,
                }
            })?;
            ports.push((bell, run));
        }
        let mut places = Vec::new();
        for (port, (nic, shared)) in config.nics.iter().zip(process.shares).enumerate() {
            let (mac, id) = (nic.mac_address(), nic.pci_id(&config.defaults));
            let files = FileMaps::new(FileMaps::share(config.nics.len()));
            let mut function = Function::new(port, mac, id, shared, files, engines.clone())?;
            function.client_file = nic.supervised.as_ref().map(|files| files.client.clone());
            places.push((nic.clone(), nic_socket_group(config, nic)?, function));
        }
        let (end, ends) = unbounded_channel();
        let mut server = Self {
            sockets: NicSockets::new(places, end.clone()),
            engines,
            engine_threads: Vec::new(),
            ports: Vec::new(),
            _port_sockets: port_sockets,
            services: Vec::new(),
            log: None,
            end: end.clone(),
            ends,
        };
        let is_only = process.engines.len() == 1;
        for (name, engine) in process.engines {
            let thread = match is_only {
                true => "engine".to_owned(),
                false => format!("engine-{name}"),
            };
            let thread = spawn(thread, &end, move || engine.run())?;
            server.engine_threads.push(thread);
        }
        for (port, socket) in sockets {
            server.sockets.serve(port, socket)?;
        }
        for ((bell, run), entry) in ports.into_iter().zip(&config.ports) {
            let span = tracing::info_span!("port", name = entry.name);
            let thread = spawn(format!("port-{}", entry.name), &end, move || {
                span.in_scope(run);
            })?;
            server.ports.push((bell, thread));
        }
        // Without this thread the NICs work as before, so its end is not reported.
        let log = process.log;
        let thread = std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || log.run())?;
        server.log = Some(thread);
        Ok(server)
    }

    /// The engines, for services.
    pub fn engines(&self) -> Engines {
        self.engines.clone()
    }

    /// The sockets of the NICs, for services.
    pub fn sockets(&self) -> NicSockets {
        self.sockets.clone()
    }

    /// Starts a thread that uses the engines, such as the control server. `stop` requests its end before all other threads are stopped.
    /// [`Self::thread_ended`] reports an earlier end.
    pub fn add_service(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
        stop: oneshot::Sender<()>,
    ) -> std::io::Result<()> {
        let thread = spawn(name.to_owned(), &self.end, run)?;
        self.services.push((stop, thread));
        Ok(())
    }

    /// Maxima over the passes of all engines since the last call; `None` if an engine has ended.
    pub fn take_longest_pass(&self) -> Option<LongestPass> {
        self.engines.take_longest_pass()
    }

    /// Waits until a thread has ended unexpectedly, most likely by a panic, and returns its name. The process can't serve
    /// its NICs then.
    pub async fn thread_ended(&mut self) -> String {
        match self.ends.recv().await {
            Some(name) => name,
            // `self` keeps a sender.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.sockets.begin_stop();
        for (stop, thread) in self.services.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            drop(stop);
            if thread.join().is_err() {
                tracing::error!("thread {name} panicked");
            }
        }
        self.sockets.join();
        for (bell, thread) in self.ports.drain(..) {
            bell.stop();
            if thread.join().is_err() {
                tracing::error!("the thread of a port panicked");
            }
        }
        self.engines.stop();
        for thread in self.engine_threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("an engine panicked");
            }
        }
        if let Some(thread) = self.log.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes diagnostics panicked");
        }
    }
}
