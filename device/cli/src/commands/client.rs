//! A client of the control server.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use faultline_control::view::ErrorBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Environment variable with the path of the control socket.
pub(crate) const SOCKET_VARIABLE: &str = "FAULTLINE_CONTROL";
/// The control socket of the packaged service.
const PACKAGED_SOCKET: &str = "/run/faultline/control.sock";
/// Time limit for each part of a response.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Which control server to ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// Socket of the control server; default: the environment variable FAULTLINE_CONTROL, else
    /// /run/faultline/control.sock.
    #[arg(long, value_name = "SOCKET", global = true)]
    control: Option<PathBuf>,
}

impl Target {
    /// A client of this control server.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let variable = || std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        let socket = self.control.clone().or_else(|| variable().map(Into::into));
        let socket = socket.unwrap_or_else(|| PACKAGED_SOCKET.into());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let remote = Remote { socket };
        Ok(Client { remote, runtime })
    }
}

/// A control server. Each request has a connection of its own.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    socket: PathBuf,
}

/// A client that waits for each answer.
#[derive(Debug)]
pub(crate) struct Client {
    remote: Remote,
    runtime: Runtime,
}

impl Client {
    /// The server, and the runtime that asynchronous requests to it need.
    pub(crate) fn into_parts(self) -> (Remote, Runtime) {
        (self.remote, self.runtime)
    }

    /// Reads a value.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.json(Method::GET, path, Vec::new())
    }

    /// Sends a value and reads the answer.
    pub(crate) fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.json(method, path, serde_json::to_vec(body)?)
    }

    fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.remote.json(method, path, body))
    }

    /// Sends a request. `take` gets the parts of the answer.
    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.runtime
            .block_on(self.remote.exchange(method, path, body, take))
    }
}

impl Remote {
    /// Path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads a value.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.json(Method::GET, path, Vec::new()).await
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<T> {
        let mut answer = Vec::new();
        let take = |part: &[u8]| {
            answer.extend_from_slice(part);
            Ok(())
        };
        self.exchange(method, path, body, take).await?;
        // Requests that do something are answered without content.
        let answer = if answer.is_empty() {
            b"null"
        } else {
            answer.as_slice()
        };
        serde_json::from_slice(answer)
            .with_context(|| format!("the answer to {path} is not what this version expects"))
    }

    async fn connect(&self) -> anyhow::Result<UnixStream> {
        let path = self.socket.display();
        match UnixStream::connect(&self.socket).await {
            Ok(stream) => Ok(stream),
            Err(error) => match error.kind() {
                ErrorKind::NotFound => bail!(
                    "there is no socket {path}: start faultline serve with --control {path}, or give the path of its \
                     control socket with --control or {SOCKET_VARIABLE}"
                ),
                ErrorKind::ConnectionRefused if self.socket.is_dir() || self.socket.is_file() => {
                    bail!(
                        "{path} is not a socket: give the path of the control socket of faultline serve"
                    )
                }
                ErrorKind::ConnectionRefused => bail!(
                    "no process listens on {path}: start faultline serve with --control {path}"
                ),
                ErrorKind::PermissionDenied => bail!(
                    "no permission to connect to {path}: run this as root, or as the user that runs faultline serve"
                ),
                _ => Err(error).with_context(|| format!("can't connect to {path}")),
            },
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut answer = self.ask(method, path, body).await?;
        let silent = || self.silent();
        while let Some(part) = tokio::time::timeout(ANSWER_TIME, answer.part())
            .await
            .with_context(silent)??
        {
            take(&part)?;
        }
        Ok(())
    }

    fn silent(&self) -> String {
        format!(
            "{} has not answered in {ANSWER_TIME:?}",
            self.socket.display()
        )
    }

    /// Sends a request. Returns the answer, whose parts are still to be read.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<Answer> {
        let stream = TokioIo::new(self.connect().await?);
        let lost = format!("the connection to {} has ended", self.socket.display());
        let (mut sender, connection) =
            (http1::handshake(stream).await).with_context(|| lost.clone())?;
        let connection = Connection(tokio::spawn(async move {
            // The reader of the answer gets the error.
            let _ = connection.await;
        }));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let silent = || self.silent();
        let answer = tokio::time::timeout(ANSWER_TIME, sender.send_request(request));
        let response = answer
            .await
            .with_context(silent)?
            .with_context(|| lost.clone())?;
        let mut answer = Answer {
            response,
            lost,
            _connection: connection,
        };
        let status = answer.response.status();
        if status.is_success() {
            return Ok(answer);
        }
        let mut message = Vec::new();
        while let Some(part) = tokio::time::timeout(ANSWER_TIME, answer.part())
            .await
            .with_context(silent)??
        {
            message.extend_from_slice(&part);
        }
        let text = match serde_json::from_slice::<ErrorBody>(&message) {
            Ok(body) => body.error,
            Err(_) => String::from_utf8_lossy(&message).into_owned(),
        };
        match text.starts_with("error: ") {
            // A problem of a file, with the line where it is.
            true => bail!("{text}"),
            false => bail!("{text} ({status})"),
        }
    }
}

/// The task of a connection, which ends with this value.
#[derive(Debug)]
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    response: Response<Incoming>,
    /// Message of an error.
    lost: String,
    _connection: Connection,
}

impl Answer {
    /// A field of the header, if it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The next part; `None` after the last one.
    pub(crate) async fn part(&mut self) -> anyhow::Result<Option<Bytes>> {
        while let Some(frame) = self.response.frame().await {
            let frame = frame.with_context(|| self.lost.clone())?;
            if let Ok(part) = frame.into_data() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

/// A name as a part of a path (RFC 3986, 2.3).
pub(crate) fn segment(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded() {
        assert_eq!(segment("nic-0_a.b"), "nic-0_a.b");
        assert_eq!(segment("a/b ?ä"), "a%2Fb%20%3F%C3%A4");
    }
}
