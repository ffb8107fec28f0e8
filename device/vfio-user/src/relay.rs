//! Keeps the connections of clients while the server behind them ends and another one starts (docs/recovery.md).

use crate::ended::Ended;
use crate::kept::{Kept, Message};
use crate::listener::{Listener, connect_to};
use crate::message::Received;
use crate::pci_index;
use crate::protocol::{self, ClientLimits, Header, Request, finish};
use crate::server::Refusals;
use crate::socket::{Connection, Shutdown, Stop, peer_process, wait_any};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// Time for which a client waits for a server. QEMU waits for 5 s.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time limit of a server for a message with kept state.
const SETUP: Duration = Duration::from_secs(1);
/// Pause between two attempts to connect to a server.
const ATTEMPT: Duration = Duration::from_millis(5);
/// Servers that may end while they handle a request.
const MAX_SERVERS: u32 = 2;
/// Servers in a row that may end while they receive kept state. Then the state most likely causes their end, and all
/// clients wait. A server that ends for another reason has received its state before, which takes less than a
/// millisecond.
const MAX_SETUPS: u32 = 10;

/// Relays the messages of the clients of a socket to a server that may end and be started again.
pub struct Relay {
    listener: Listener,
    server: PathBuf,
    attached: Box<Attached>,
    kill: Box<Kill>,
}

/// Takes the process of a new client, if the system reports it.
type Attached = dyn Fn(Option<i32>) + Send + Sync;
/// Kills a process.
type Kill = dyn Fn(Pid) + Send + Sync;

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            listener, server, ..
        } = self;
        f.debug_struct("Relay")
            .field("listener", listener)
            .field("server", server)
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// Clients connect to `listener`, and servers listen on `server`. `attached` is called with the process of each client before a server
    /// serves the client. `kill` kills a server that does not take a map back: it might still access the memory.
    pub fn new(
        listener: Listener,
        server: impl Into<PathBuf>,
        attached: impl Fn(Option<i32>) + Send + Sync + 'static,
        kill: impl Fn(Pid) + Send + Sync + 'static,
    ) -> Self {
        Self {
            listener,
            server: server.into(),
            attached: Box::new(attached),
            kill: Box::new(kill),
        }
    }

    /// Serves clients one after the other until `shutdown` is triggered.
    pub fn run(&self, shutdown: &Shutdown) {
        self.listener.each_client(shutdown, |stream, others| {
            (self.attached)(peer_process(&stream));
            let mut session = Session {
                client: Connection::new(stream, shutdown, others),
                server: None,
                path: &self.server,
                kill: &self.kill,
                kept: Kept::default(),
                limits: ClientLimits::default(),
                last_id: 0,
                away: Some(Instant::now()),
                is_slow: false,
                failed_setups: 0,
                refusals: Refusals::default(),
            };
            session.run()
        });
    }
}

/// Why a request got no reply.
#[derive(Debug)]
enum NoReply {
    /// The server has ended, or has sent an invalid message. The connection is closed.
    Gone,
    /// The server is connected, and has not replied in time.
    Late,
    /// The session ends.
    Stop(Stop),
}

/// The reply of a server.
#[derive(Debug)]
struct Reply {
    header: Header,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// A client and its server.
struct Session<'a> {
    client: Connection<'a>,
    server: Option<Connection<'a>>,
    path: &'a Path,
    kill: &'a Kill,
    kept: Kept,
    limits: ClientLimits,
    /// Number of the last request to the server.
    last_id: u16,
    /// Since when there is no server.
    away: Option<Instant>,
    /// The server has once not replied in time, and has not replied since.
    is_slow: bool,
    /// Servers in a row that have ended while they received kept state.
    failed_setups: u32,
    refusals: Refusals,
}

impl<'a> Session<'a> {
    fn run(&mut self) -> Ended {
        loop {
            if let Err(stop) = self.message() {
                return stop.ended();
            }
        }
    }

    /// Waits for a message of the client, and handles it. Connects to a server meanwhile, if there is none.
    fn message(&mut self) -> Result<(), Stop> {
        self.wait_for_client()?;
        let mut body = Vec::new();
        match self.client.receive_request(&mut body)? {
            Some(header) => self.relay(&header, &body),
            None => Ok(()),
        }
    }

    fn wait_for_client(&mut self) -> Result<(), Stop> {
        loop {
            let Some(server) = &self.server else {
                if self.connect()? {
                    continue;
                }
                let client = (self.client.stream.as_fd(), PollFlags::IN);
                match self.wait([client], Some(after(ATTEMPT))) {
                    Err(Stop::Late) => continue,
                    result => return result.map(|_| ()),
                }
            };
            let fds = [&self.client, server].map(|side| (side.stream.as_fd(), PollFlags::IN));
            let [client, server] = self.wait(fds, None)?;
            if server {
                // A late reply, or the end.
                match self.reply() {
                    Ok(_) | Err(NoReply::Gone | NoReply::Late) => {}
                    Err(NoReply::Stop(stop)) => return Err(stop),
                }
            }
            if client {
                return Ok(());
            }
        }
    }

    fn wait<const N: usize>(
        &self,
        fds: [(BorrowedFd<'_>, PollFlags); N],
        deadline: Option<Instant>,
    ) -> Result<[bool; N], Stop> {
        wait_any(fds, self.client.shutdown, self.client.listener, deadline)
    }

    /// Handles a request of the client.
    fn relay(&mut self, header: &Header, body: &[u8]) -> Result<(), Stop> {
        if header.is_reply() {
            return Ok(());
        }
        let fds = std::mem::take(&mut self.client.fds);
        let (request, fds) = match self.parse(header, body, fds) {
            Ok(parsed) => parsed,
            Err(errno) => {
                self.refusals.log(header, errno);
                return self.client.refuse(header, errno);
            }
        };
        match self.carry_out(&request, header.command, body, &fds)? {
            Ok(mut reply) => {
                if !reply.header.is_error() {
                    if let Request::Version(limits) = request {
                        self.limits = limits;
                    }
                    self.kept.keep(request, body, &reply.body);
                }
                if header.no_reply() {
                    return Ok(());
                }
                let mut bytes = reply.header.with_id(header.id);
                bytes.append(&mut reply.body);
                finish(&mut bytes);
                let fds: Vec<_> = reply.fds.iter().map(AsFd::as_fd).collect();
                self.client.send(&bytes, &fds)
            }
            Err(errno) => {
                self.refusals.log(header, errno);
                self.client.refuse(header, errno)
            }
        }
    }

    /// Checks a request. Returns it with its own descriptors, and with duplicates that are sent on.
    fn parse<'b>(
        &self,
        header: &Header,
        body: &'b [u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(Request<'b>, Vec<OwnedFd>), Errno> {
        header.check()?;
        if self.client.fds_lost {
            return Err(Errno::MFILE);
        }
        let own: Result<Vec<OwnedFd>, _> = fds.iter().map(OwnedFd::try_clone).collect();
        let mut own = own.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        let request = protocol::parse(header.command, body, &mut own, self.limits)?;
        let is_version = matches!(request, Request::Version(_));
        if is_version == self.kept.has_begun() {
            return Err(Errno::INVAL);
        }
        Ok((request, fds))
    }

    /// Lets a server execute a request, or refuses it if there is no server in time. The outer error ends the session.
    fn carry_out(
        &mut self,
        request: &Request<'_>,
        command: u16,
        body: &[u8],
        fds: &[OwnedFd],
    ) -> Result<Result<Reply, Errno>, Stop> {
        let since = self.away.unwrap_or_else(Instant::now);
        let until = since.checked_add(PATIENCE).unwrap_or(since);
        for _ in 0..MAX_SERVERS {
            if !self.has_server(request, until)? {
                return Ok(self.agree_alone(request, command, Errno::TIMEDOUT));
            }
            let message = Message {
                command,
                body: body.to_vec(),
                fds: fds.iter().map(AsFd::as_fd).collect(),
            };
            // A slow server gets the request, so that it executes it when it continues, but its reply is not awaited.
            // An unmap is the exception: a server that does not reply is killed, because the memory is reused. It may
            // no longer be slow.
            let is_fatal = matches!(request, Request::DmaUnmap(..));
            let deadline = match self.is_slow && !is_fatal {
                true => Instant::now(),
                false => after(PATIENCE),
            };
            let result = self.ask(message, deadline).and_then(|reply| {
                if !reply.header.is_error() {
                    self.keep_config(request, deadline)?;
                }
                Ok(reply)
            });
            match result {
                Ok(reply) => return Ok(Ok(reply)),
                Err(NoReply::Gone) => {}
                // The server executes it before all later requests.
                Err(NoReply::Late) => {
                    match request {
                        // It may still access the memory, which the guest is about to use for something else.
                        Request::DmaUnmap(..) => self.kill_server()?,
                        // The server may accept it later, and would refuse a second one.
                        Request::Version(_) => drop(self.lose_server()),
                        // It may carry it out later.
                        Request::RegionWrite {
                            index: pci_index::CONFIG_REGION,
                            offset,
                            data,
                        } => self.kept.config_written(*offset, data.len()),
                        _ => {}
                    }
                    return Ok(self.agree_alone(request, command, Errno::TIMEDOUT));
                }
                Err(NoReply::Stop(stop)) => return Err(stop),
            }
        }
        error!(command, "a request has ended {MAX_SERVERS} servers");
        Ok(Err(Errno::IO))
    }

    /// The reply to a request without a reply of a server: its state is kept for the next server, or it is refused.
    fn agree_alone(
        &self,
        request: &Request<'_>,
        command: u16,
        errno: Errno,
    ) -> Result<Reply, Errno> {
        match self.kept.can_keep_alone(request) {
            true => Ok(Reply::success(command, request)),
            false => Err(errno),
        }
    }

    /// Waits until there is a server, or until the deadline, unless the request can be kept without one.
    fn has_server(&mut self, request: &Request<'_>, deadline: Instant) -> Result<bool, Stop> {
        while self.server.is_none() && !self.connect()? {
            if self.kept.can_keep_alone(request) || Instant::now() >= deadline {
                return Ok(false);
            }
            // Nothing is read of the client meanwhile.
            match self.wait([], Some(after(ATTEMPT))) {
                Ok(_) | Err(Stop::Late) => {}
                Err(stop) => return Err(stop),
            }
        }
        Ok(true)
    }

    /// Reads config space after a request that may have changed it.
    fn keep_config(&mut self, request: &Request<'_>, deadline: Instant) -> Result<(), NoReply> {
        match request {
            Request::RegionWrite {
                index: pci_index::CONFIG_REGION,
                offset,
                data,
            } => self.kept.config_written(*offset, data.len()),
            Request::Reset => {}
            _ => return Ok(()),
        }
        let Some(message) = self.kept.config_request() else {
            return Ok(());
        };
        let reply = self.ask(message, deadline)?;
        if !reply.header.is_error() {
            let data = reply.body.get(16..).unwrap_or_default();
            self.kept.keep_config(data);
        }
        Ok(())
    }

    /// Sends a request to the server and waits for the reply.
    fn ask(&mut self, message: Message<'_>, deadline: Instant) -> Result<Reply, NoReply> {
        self.last_id = self.last_id.wrapping_add(1);
        let id = self.last_id;
        let Some(server) = &mut self.server else {
            return Err(NoReply::Gone);
        };
        server.deadline = Some(deadline);
        let mut bytes = Header::request(id, message.command);
        bytes.extend(message.body);
        finish(&mut bytes);
        match server.send(&bytes, &message.fds) {
            Ok(()) => {}
            Err(Stop::Shutdown) => return Err(NoReply::Stop(Stop::Shutdown)),
            // A part may have been sent.
            Err(_) => return Err(self.lose_server()),
        }
        loop {
            let server = self.server.as_ref().ok_or(NoReply::Gone)?;
            let server = server.stream.as_fd();
            match self.wait([(server, PollFlags::IN)], Some(deadline)) {
                Ok(_) => {}
                Err(Stop::Late) => {
                    self.is_slow = true;
                    return Err(NoReply::Late);
                }
                Err(stop) => return Err(NoReply::Stop(stop)),
            }
            let reply = self.reply()?;
            if reply.header.id == id {
                return Ok(reply);
            }
        }
    }

    /// Receives a reply, which has begun to arrive.
    fn reply(&mut self) -> Result<Reply, NoReply> {
        let Some(server) = &mut self.server else {
            return Err(NoReply::Gone);
        };
        server.deadline = Some(after(PATIENCE));
        let mut body = Vec::new();
        match server.receive(&mut body) {
            Ok(Received::Message(header)) if header.is_reply() => {
                let fds = std::mem::take(&mut server.fds);
                self.is_slow = false;
                Ok(Reply { header, body, fds })
            }
            Err(Stop::Shutdown) => Err(NoReply::Stop(Stop::Shutdown)),
            _ => Err(self.lose_server()),
        }
    }

    /// Kills the server, and waits until it has ended.
    fn kill_server(&mut self) -> Result<(), Stop> {
        let deadline = after(SETUP);
        if let Some(server) = &self.server
            && let Some(pid) = peer_process(&server.stream).and_then(Pid::from_raw)
        {
            error!(?pid, "the server does not take a map back: killing it");
            (self.kill)(pid);
        }
        while let Some(server) = &self.server {
            match self.wait([(server.stream.as_fd(), PollFlags::IN)], Some(deadline)) {
                Ok(_) => {}
                Err(Stop::Late) => drop(self.lose_server()),
                Err(stop) => return Err(stop),
            }
            // A late reply, or the end.
            if let Err(NoReply::Stop(stop)) = self.reply() {
                return Err(stop);
            }
        }
        Ok(())
    }

    fn lose_server(&mut self) -> NoReply {
        if self.server.take().is_some() {
            warn!("the server has ended; the client waits for the next");
            self.away = Some(Instant::now());
            self.is_slow = false;
        }
        NoReply::Gone
    }

    /// Connects to a server, if one listens, and sends it the kept state of the client. Returns true if it is ready.
    fn connect(&mut self) -> Result<bool, Stop> {
        let Ok(stream) = connect_to(self.path) else {
            return Ok(false);
        };
        let Connection {
            shutdown, listener, ..
        } = self.client;
        self.server = Some(Connection::new(stream, shutdown, listener));
        self.is_slow = false;
        let kept = std::mem::take(&mut self.kept);
        let told = self.tell(&kept);
        self.kept = kept;
        match told {
            Ok(true) => self.failed_setups = 0,
            Ok(false) => return Err(Stop::Changed),
            Err(NoReply::Gone | NoReply::Late) => {
                self.server = None;
                self.failed_setups = self.failed_setups.saturating_add(1);
                if self.failed_setups < MAX_SETUPS {
                    return Ok(false);
                }
                error!(
                    "{MAX_SETUPS} servers in a row ended while the state of this client was restored: its connection is closed"
                );
                return Err(Stop::Changed);
            }
            Err(NoReply::Stop(stop)) => return Err(stop),
        }
        if let Some(since) = self.away.take()
            && self.kept.has_begun()
        {
            self.kept.eventfds().for_each(raise);
            let (maps, interrupts) = self.kept.numbers();
            let away = since.elapsed();
            info!(
                maps,
                interrupts,
                ?away,
                "a new server has the client's state; its device was reset"
            );
        }
        Ok(true)
    }

    /// Sends the kept state to a new server. Returns false if it has another device. Each of the messages may take
    /// [`SETUP`].
    fn tell(&mut self, kept: &Kept) -> Result<bool, NoReply> {
        let Some(version) = kept.version() else {
            return Ok(true);
        };
        if self.ask(version, after(SETUP))?.header.is_error() {
            return Ok(false);
        }
        for (request, known) in kept.descriptions() {
            let reply = self.ask(request, after(SETUP))?;
            if reply.header.is_error() || reply.body != known {
                return Ok(false);
            }
        }
        let mut refused: u32 = 0;
        for message in kept.messages() {
            let reply = self.ask(message, after(SETUP))?;
            refused = refused.saturating_add(u32::from(reply.header.is_error()));
        }
        if refused > 0 {
            error!(
                requests = refused,
                "the new server refuses requests that its predecessor has accepted"
            );
        }
        Ok(true)
    }
}

impl Reply {
    /// The reply of a server to a request that is only kept.
    fn success(command: u16, request: &Request<'_>) -> Self {
        let body = match request {
            Request::DmaUnmap(_, echo) => echo.to_vec(),
            _ => Vec::new(),
        };
        Self {
            header: Header::of_success(command),
            body,
            fds: Vec::new(),
        }
    }
}

/// The time after this pause.
fn after(pause: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(pause).unwrap_or(now)
}

/// Raises an interrupt. A counter that is full is raised already; writing to it might never end.
fn raise(eventfd: BorrowedFd<'_>) {
    let mut ready = [PollFd::from_borrowed_fd(eventfd, PollFlags::OUT)];
    if !matches!(poll(&mut ready, Some(&Timespec::default())), Ok(1)) {
        return;
    }
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}
