//! Sockets and connections of the control server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use faultline_vfio_user::{ListenError, Listener};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::fd::AsFd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::access::Access;
use crate::api;
use crate::guard::{self, Guard};
use crate::impatient::{Endless, Impatient};
use crate::places::{Place, Places, Proof};
use faultline_config::Config;
use faultline_config::control::{self, ControlConfigError};
use faultline_daemon::engines::Engines;
use faultline_daemon::server::nic_sockets::NicSockets;

/// Largest number of connections of a listener at a time. Further clients wait, or take the place of one without a token.
const CONNECTIONS: usize = 32;
/// Time within which the header of a request must arrive; also the longest idle time of a connection.
const HEADER_TIME: Duration = Duration::from_secs(10);
/// Time within which a TCP connection must have had a request with the token.
const PROOF_TIME: Duration = Duration::from_secs(3);
/// Time that a client may read nothing of an answer that waits for it. Frees the place of a client that does not read.
const WRITE_TIME: Duration = Duration::from_secs(5);
/// Age at which a connection is closed, after the request that it is busy with. Frees the place of a client that reads slowly.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Time for that request.
const CLOSE_TIME: Duration = Duration::from_secs(10);
/// Largest number of header fields, and largest size of a header in bytes.
const HEADERS: usize = 64;
const HEADER_BYTES: usize = 16 << 10;
/// Pause after an error of `accept`, most likely too many open files: an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the control server can't be started.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The token can't be used.
    #[error(transparent)]
    Config(#[from] ControlConfigError),
    /// The unix socket can't be created.
    #[error("control socket")]
    Socket(#[from] ListenError),
    /// The TCP address can't be used.
    #[error("can't listen on control.listen = {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system refused a resource.
    #[error("the system refused a resource of the control server")]
    System(#[from] std::io::Error),
}

/// The sockets of the control server, before it runs.
#[derive(Debug)]
pub struct ControlServer {
    unix: Option<Listener>,
    tcp: Option<(std::net::TcpListener, Guard)>,
    access: Access,
    stopped: oneshot::Receiver<()>,
}

impl ControlServer {
    /// Creates the sockets. `None` if none is configured. The server ends when the sender is dropped.
    pub(crate) fn new(
        config: &Config,
        engines: Engines,
        sockets: NicSockets,
    ) -> Result<Option<(Self, oneshot::Sender<()>)>, ControlError> {
        let settings = &config.control;
        let unix = match &settings.socket {
            Some(path) => Some(listen_unix(path.clone())?),
            None => None,
        };
        let tcp = match (settings.listen, &settings.token_file) {
            (Some(address), Some(file)) => {
                let token = control::read_token(file)?;
                Some(listen_tcp(address, token)?)
            }
            (Some(address), None) => return Err(ControlConfigError::NoToken(address).into()),
            (None, _) => None,
        };
        if unix.is_none() && tcp.is_none() {
            return Ok(None);
        }
        let (stop, stopped) = oneshot::channel();
        let server = Self {
            unix,
            tcp,
            access: Access::new(engines, sockets, config),
            stopped,
        };
        Ok(Some((server, stop)))
    }

    /// Serves requests until the sender is dropped.
    pub(crate) fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(4)
            .build();
        match runtime {
            Ok(runtime) => {
                if let Err(error) = runtime.block_on(self.serve()) {
                    tracing::error!("the control server has ended: {error}");
                }
                // Requests in work are given up.
                runtime.shutdown_timeout(Duration::from_millis(100));
            }
            Err(error) => tracing::error!("the control server can't run: {error}"),
        }
    }

    async fn serve(self) -> std::io::Result<()> {
        let router = api::router(self.access);
        if let Some(listener) = &self.unix {
            let socket = StdUnixListener::from(listener.as_fd().try_clone_to_owned()?);
            let socket = UnixListener::from_std(socket)?;
            tracing::info!("control server on {}", listener.path().display());
            tokio::spawn(serve_unix(socket, router.clone()));
        }
        if let Some((socket, guard)) = self.tcp {
            let socket = TcpListener::from_std(socket)?;
            tracing::info!("control server on http://{}", socket.local_addr()?);
            let router = router.layer(from_fn_with_state(guard, guard::check));
            tokio::spawn(serve_tcp(socket, router));
        }
        // An error says that the sender was dropped.
        let _ = self.stopped.await;
        Ok(())
    }
}

fn listen_unix(path: PathBuf) -> Result<Listener, ControlError> {
    Ok(Listener::listen(path)?)
}

fn listen_tcp(
    address: SocketAddr,
    token: String,
) -> Result<(std::net::TcpListener, Guard), ControlError> {
    let listen = || {
        let socket = std::net::TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let guard = Guard::new(token, "control.token_file", socket.local_addr()?);
        Ok((socket, guard))
    };
    listen().map_err(|source| ControlError::Listen { address, source })
}

/// Only the owner can connect: each connection is as good as one with a token.
async fn serve_unix(socket: UnixListener, router: Router) {
    let places = Places::new(CONNECTIONS);
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                let proof = Proof::default();
                proof.give();
                let Some(place) = places.take(proof).await else {
                    return;
                };
                start(stream, router.clone(), place);
            }
            Err(error) => accept_failed(&error).await,
        }
    }
}

/// Serves a router to connections of a TCP socket, with the limits for their number, times and sizes. A connection that has no request with a
/// token ([`guard::check`]) ends early.
pub async fn serve_tcp(socket: TcpListener, router: Router) {
    let places = Places::new(CONNECTIONS);
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                let Some(place) = places.take(Proof::default()).await else {
                    return;
                };
                // Otherwise an answer in two parts takes 40 ms: until the peer acknowledges the first one.
                let _ = stream.set_nodelay(true);
                start(stream, router.clone(), place);
            }
            Err(error) => accept_failed(&error).await,
        }
    }
}

async fn accept_failed(error: &std::io::Error) {
    tracing::debug!("control server: can't accept a connection: {error}");
    sleep(ACCEPT_PAUSE).await;
}

/// Serves a connection in a task.
fn start<S>(stream: S, router: Router, place: Place)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let (proof, endless) = (place.proof.clone(), Endless::default());
        let stream = Impatient::new(stream, WRITE_TIME, endless.clone());
        tokio::select! {
            () = serve_connection(stream, router, proof.clone(), endless) => {}
            () = unproven(&proof) => {}
        }
        drop(place);
    });
}

/// Ends when a connection has to be closed because it has not had a request with the token: in time, or before another
/// connection needed its place.
async fn unproven(proof: &Proof) {
    tokio::select! {
        () = proof.evicted() => {}
        () = sleep(PROOF_TIME) => {}
    }
    if proof.is_given() {
        std::future::pending().await
    }
}

async fn serve_connection<S>(stream: S, router: Router, proof: Proof, endless: Endless)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let of_requests = endless.clone();
    let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let mut router = router.clone();
        request.extensions_mut().insert(proof.clone());
        request.extensions_mut().insert(of_requests.clone());
        async move {
            let request = request.map(axum::body::Body::new);
            let answer = tower_service::Service::call(&mut router, request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|never| match never {}))
        }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_headers(HEADERS)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        // Errors are those of the client.
        _ = connection.as_mut() => return,
        () = sleep(CONNECTION_TIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    if endless.is_set() {
        let _ = connection.await;
        return;
    }
    let _ = timeout(CLOSE_TIME, connection).await;
}
