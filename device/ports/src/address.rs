//! Addresses of stream sockets.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Address on which a stream socket listens, or to which it connects: `unix:PATH` or
/// `tcp:ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP socket. Names are not resolved, because that could take any time.
    Tcp(SocketAddr),
}

/// Not an address of a stream socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither unix:PATH nor tcp:ADDRESS:PORT, such as unix:/run/wire or tcp:192.0.2.1:9000"
)]
pub struct NotAnAddress(String);

impl FromStr for StreamAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let wrong = || NotAnAddress(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => address.parse().map(Self::Tcp).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed() {
        for text in ["unix:/run/wire", "tcp:127.0.0.1:9000", "tcp:[::1]:9000"] {
            assert_eq!(text.parse::<StreamAddress>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "unix:",
            "/run/wire",
            "tcp:localhost:9000",
            "tcp:127.0.0.1",
            "udp:1.2.3.4:5",
        ] {
            let message = text.parse::<StreamAddress>().unwrap_err().to_string();
            assert!(
                message.contains("neither unix:PATH nor tcp:ADDRESS:PORT"),
                "{message}"
            );
        }
    }
}
