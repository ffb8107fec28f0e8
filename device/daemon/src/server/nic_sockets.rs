//! The sockets of the NICs, and the threads that serve them. A NIC is *present* while it has a socket: NICs are added and removed while
//! the process runs.
//!
//! A NIC that is removed keeps its place, its name and its settings. Its client is disconnected in the same way as by its own wish,
//! so the device is reset, and the switch forgets the addresses behind it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use faultline_config::NicEntry;
use faultline_fabric::PortId;
use faultline_vfio_user::{ListenError, Listener, Shutdown};
use rustix::fs::Gid;
use tokio::sync::mpsc::UnboundedSender;

use super::end_report::EndReport;
use super::function::Function;
use crate::log::of_nic::nic_span;

/// The sockets of the NICs of a process.
#[derive(Clone, Debug)]
pub struct NicSockets(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// By port.
    places: Mutex<Places>,
    /// By port: the NIC has a socket. Read without waiting for a NIC that is being removed.
    present: Box<[AtomicBool]>,
    ends: UnboundedSender<String>,
}

#[derive(Debug)]
struct Places {
    /// By port.
    all: Vec<Place>,
    /// The process stops: no NIC is added.
    has_stopped: bool,
}

/// A place for a NIC.
#[derive(Debug)]
struct Place {
    entry: NicEntry,
    group: Option<Gid>,
    state: State,
}

#[derive(Debug)]
enum State {
    Absent(Box<Function>),
    /// The thread returns its function.
    Present(Shutdown, JoinHandle<Option<Box<Function>>>),
    /// The thread has panicked.
    Lost,
}

/// Reasons why a NIC cannot be added or removed.
#[derive(Debug, thiserror::Error)]
pub enum PresenceError {
    /// It has a socket.
    #[error("the NIC is present already")]
    Present,
    /// It has none.
    #[error("the NIC is absent already")]
    Absent,
    /// A supervisor has the sockets.
    #[error(
        "a supervisor holds the socket of the NIC: NICs can't be added or removed with --supervisor"
    )]
    Supervised,
    /// The process stops, or the thread of the NIC has panicked.
    #[error("the NIC can't be served any more: restart faultline")]
    Lost,
    /// The socket can't be created.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refused a resource.
    #[error("the system refused a resource: {0}")]
    System(#[from] std::io::Error),
}

impl NicSockets {
    /// The places of NICs without sockets, by port.
    pub(super) fn new(
        places: impl IntoIterator<Item = (NicEntry, Option<Gid>, Function)>,
        ends: UnboundedSender<String>,
    ) -> Self {
        let place = |(entry, group, function)| Place {
            entry,
            group,
            state: State::Absent(Box::new(function)),
        };
        let all: Vec<Place> = places.into_iter().map(place).collect();
        Self(Arc::new(Inner {
            present: all.iter().map(|_| AtomicBool::new(false)).collect(),
            places: Mutex::new(Places {
                all,
                has_stopped: false,
            }),
            ends,
        }))
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        let places = self.0.places.lock();
        places.unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a NIC has a socket.
    pub fn is_present(&self, nic: PortId) -> bool {
        let present = self.0.present.get(nic);
        present.is_some_and(|present| present.load(Ordering::Relaxed))
    }

    fn set_present(&self, nic: PortId, value: bool) {
        if let Some(present) = self.0.present.get(nic) {
            present.store(value, Ordering::Relaxed);
        }
    }

    /// Creates the socket of a NIC and serves it.
    pub fn add(&self, nic: PortId) -> Result<(), PresenceError> {
        let mut places = self.places();
        if places.has_stopped {
            return Err(PresenceError::Lost);
        }
        let place = places.all.get_mut(nic).ok_or(PresenceError::Lost)?;
        if place.entry.supervised.is_some() {
            return Err(PresenceError::Supervised);
        }
        let socket = match place.state {
            State::Absent(_) => Listener::listen_for(&place.entry.socket, place.group)?,
            State::Present(..) => return Err(PresenceError::Present),
            State::Lost => return Err(PresenceError::Lost),
        };
        self.serve_place(nic, place, socket)
    }

    /// Serves a NIC on a socket that was created at the start.
    pub(super) fn serve(&self, nic: PortId, socket: Listener) -> Result<(), PresenceError> {
        let mut places = self.places();
        let place = places.all.get_mut(nic).ok_or(PresenceError::Lost)?;
        self.serve_place(nic, place, socket)
    }

    fn serve_place(
        &self,
        nic: PortId,
        place: &mut Place,
        socket: Listener,
    ) -> Result<(), PresenceError> {
        let shutdown = Shutdown::new()?;
        let name = format!("nic-{}", place.entry.name);
        let (reported, ends) = (name.clone(), self.0.ends.clone());
        let (stop, span) = (shutdown.clone(), nic_span(&place.entry.name));
        let mac = place.entry.mac_address();
        span.in_scope(|| tracing::info!(%mac, "serving on {}", socket.path().display()));
        // The thread gets the function when it runs: if it can't be started, the place keeps its function.
        let (give, take) = sync_channel::<Box<Function>>(1);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let report = EndReport::new(reported, ends);
            let mut function = take.recv().ok();
            if let Some(function) = function.as_deref_mut() {
                span.in_scope(|| socket.serve(function, &stop));
            }
            // It was asked to end. A panic is reported.
            report.withdraw();
            function
        })?;
        match std::mem::replace(&mut place.state, State::Lost) {
            State::Absent(function) => give.send(function).map_err(|_| PresenceError::Lost)?,
            other => {
                place.state = other;
                return Err(PresenceError::Present);
            }
        }
        place.state = State::Present(shutdown, thread);
        self.set_present(nic, true);
        Ok(())
    }

    /// Disconnects the client of a NIC and removes its socket. Returns when the device is reset.
    pub fn remove(&self, nic: PortId) -> Result<(), PresenceError> {
        let mut places = self.places();
        let place = places.all.get_mut(nic).ok_or(PresenceError::Lost)?;
        if place.entry.supervised.is_some() {
            return Err(PresenceError::Supervised);
        }
        match std::mem::replace(&mut place.state, State::Lost) {
            State::Present(shutdown, thread) => {
                shutdown.trigger();
                self.set_present(nic, false);
                let function = thread.join().ok().flatten();
                place.state = State::Absent(function.ok_or(PresenceError::Lost)?);
                nic_span(&place.entry.name).in_scope(|| tracing::info!("removed by request"));
                Ok(())
            }
            state @ State::Absent(_) => {
                place.state = state;
                Err(PresenceError::Absent)
            }
            State::Lost => Err(PresenceError::Lost),
        }
    }

    /// Asks all threads to end. No NIC is added from now on.
    pub(super) fn begin_stop(&self) {
        let mut places = self.places();
        places.has_stopped = true;
        for place in &places.all {
            if let State::Present(shutdown, _) = &place.state {
                shutdown.trigger();
            }
        }
    }

    /// Waits for the ends of all threads.
    pub(super) fn join(&self) {
        let mut places = self.places();
        for place in &mut places.all {
            if let State::Present(_, thread) = std::mem::replace(&mut place.state, State::Lost)
                && thread.join().is_err()
            {
                tracing::error!("a server thread panicked");
            }
        }
    }
}
