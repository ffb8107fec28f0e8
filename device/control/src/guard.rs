//! What a TCP request must have: a `Host` header of this machine, and the token.
//!
//! Any program on the machine can connect to the port, also a browser that was told a name which now has the address
//! 127.0.0.1 (DNS rebinding). A unix socket has the permissions of its file instead.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use crate::error::ApiError;
use crate::places::Proof;

/// The port of the scheme `http`, which clients leave out of the `Host` header (RFC 9110, 4.2.3).
const HTTP_PORT: u16 = 80;

/// The checks of a TCP listener.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Checks>);

#[derive(Debug)]
struct Checks {
    token: String,
    /// Where the user finds the token.
    token_source: &'static str,
    /// Values of the `Host` header that are allowed.
    hosts: Vec<String>,
}

impl Guard {
    /// For a listener with this address. `token_source` tells a client without the token where it is.
    pub fn new(token: String, token_source: &'static str, address: SocketAddr) -> Self {
        let names = ["localhost", "127.0.0.1", "[::1]"];
        let port = address.port();
        let mut hosts = names.map(|name| format!("{name}:{port}")).to_vec();
        if port == HTTP_PORT {
            hosts.extend(names.map(str::to_owned));
        }
        Self(Arc::new(Checks {
            token,
            token_source,
            hosts,
        }))
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        self.check_host(headers)?;
        let mut tokens = headers.get_all(AUTHORIZATION).iter();
        let given = tokens.next().map(HeaderValue::as_bytes).unwrap_or_default();
        let (scheme, given) = given.split_at(given.len().min("Bearer ".len()));
        let same = self.0.token.as_bytes().ct_eq(given);
        if tokens.next().is_some() || !scheme.eq_ignore_ascii_case(b"Bearer ") || !bool::from(same)
        {
            return Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                format!(
                    "the header Authorization must be \"Bearer\" and the token of {}",
                    self.0.token_source
                ),
            ));
        }
        Ok(())
    }

    fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().map(HeaderValue::as_bytes).unwrap_or_default();
        let allowed = |name: &String| name.as_bytes().eq_ignore_ascii_case(host);
        if hosts.next().is_some() || !self.0.hosts.iter().any(allowed) {
            return Err(ApiError::new(
                StatusCode::MISDIRECTED_REQUEST,
                format!("the header Host must be one of {}", self.0.hosts.join(", ")),
            ));
        }
        Ok(())
    }
}

/// Refuses a request that lacks something, and closes its connection.
pub async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check(request.headers()) {
        Ok(()) => {
            if let Some(proof) = request.extensions().get::<Proof>() {
                proof.give();
            }
            next.run(request).await
        }
        Err(error) => refusal(error),
    }
}

/// The same for what needs no token: only the `Host` header is checked.
pub async fn check_host(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.check_host(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => refusal(error),
    }
}

fn refusal(error: ApiError) -> Response {
    let mut response = error.into_response();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if response.status() == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn status(headers: &[(&str, &str)]) -> Option<StatusCode> {
        status_at(9180, headers)
    }

    fn status_at(port: u16, headers: &[(&str, &str)]) -> Option<StatusCode> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let guard = Guard::new(TOKEN.to_owned(), "a file", address);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: axum::http::HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        let refused = guard.check(&map).err();
        refused.map(|error| error.into_response().status())
    }

    #[test]
    fn a_request_needs_the_host_and_the_token() {
        let good = format!("Bearer {TOKEN}");
        for host in [
            "localhost:9180",
            "127.0.0.1:9180",
            "[::1]:9180",
            "LOCALHOST:9180",
        ] {
            assert_eq!(status(&[("host", host), ("authorization", &good)]), None);
            let other = format!("bearer {TOKEN}");
            assert_eq!(status(&[("host", host), ("authorization", &other)]), None);
        }
        for host in [
            "localhost",
            "127.0.0.1:80",
            "evil.example:9180",
            "localhost:9180.evil",
        ] {
            let refused = status(&[("host", host), ("authorization", &good)]);
            assert_eq!(refused, Some(StatusCode::MISDIRECTED_REQUEST), "{host}");
        }
        let none = status(&[("authorization", &good)]);
        assert_eq!(none, Some(StatusCode::MISDIRECTED_REQUEST));
        let twice = [("host", "localhost:9180"), ("host", "evil:9180")];
        assert_eq!(status(&twice), Some(StatusCode::MISDIRECTED_REQUEST));
        for token in [
            "",
            "Bearer",
            "Bearer ",
            TOKEN,
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
        ] {
            let refused = status(&[("host", "localhost:9180"), ("authorization", token)]);
            assert_eq!(refused, Some(StatusCode::UNAUTHORIZED), "{token:?}");
        }
        let refused = status(&[("host", "localhost:9180")]);
        assert_eq!(refused, Some(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn port_80_needs_no_number() {
        let good = format!("Bearer {TOKEN}");
        for (host, expected) in [
            ("localhost", None),
            ("127.0.0.1", None),
            ("[::1]", None),
            ("127.0.0.1:80", None),
            ("127.0.0.1:81", Some(StatusCode::MISDIRECTED_REQUEST)),
            ("evil.example", Some(StatusCode::MISDIRECTED_REQUEST)),
        ] {
            let headers = [("host", host), ("authorization", good.as_str())];
            assert_eq!(status_at(80, &headers), expected, "{host}");
        }
    }
}
