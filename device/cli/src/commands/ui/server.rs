//! The HTTP server of the page, on a loopback address.
//!
//! The files of the page have no secrets and need no token. All else does: the script sends the token, which it has from the fragment of the
//! address, as a header. So no other page can ask, and no name that leads to 127.0.0.1 does.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use faultline_control::guard::{self, Guard};
use faultline_control::parts::Parts;
use faultline_control::view::{EngineChange, EngineView, ErrorBody, Step, Stepped};
use hyper::Method;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::super::client::{Refused, Remote};
use super::super::top::sample::printable;
use super::feed::Samples;
use super::maps::Maps;
use super::page;

/// Nothing from elsewhere, no inline script or style, in no frame (Content Security Policy level 3).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Length of a stream of samples: the listener closes a connection after a minute, and a browser takes a stream that is cut for an error.
const STREAM_TIME: Duration = Duration::from_secs(50);

const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        HeaderName::from_static("content-security-policy"),
        HeaderValue::from_static(POLICY),
    ),
    (
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    ),
    (
        HeaderName::from_static("referrer-policy"),
        HeaderValue::from_static("no-referrer"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cache-control"),
        HeaderValue::from_static("no-store"),
    ),
];

/// What the handlers share.
#[derive(Debug)]
struct Ui {
    remote: Remote,
    samples: Samples,
    maps: Maps,
}

/// Which page table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapQuery {
    nic: String,
    key: u32,
}

/// A refused request.
struct Failure(StatusCode, String);

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let refused = error.downcast_ref::<Refused>();
        let status = refused.map_or(StatusCode::BAD_GATEWAY, |refused| refused.status);
        Self(status, printable(&format!("{error:#}")))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

/// The paths of the page.
pub(super) fn router(
    remote: Remote,
    samples: Samples,
    interval: Duration,
    token: String,
    address: SocketAddr,
) -> Router {
    let source = "the address of the page (the part behind #)";
    let guard = Guard::new(token, source, address);
    let ui = Arc::new(Ui {
        maps: Maps::new(remote.clone(), interval),
        remote,
        samples,
    });
    let api = Router::new()
        .route("/api/samples", get(send_samples))
        .route("/api/pages", get(send_map))
        .route("/api/engine", put(change_engine))
        .route("/api/engine/step", post(step))
        .layer(from_fn_with_state(guard.clone(), guard::check))
        .with_state(ui);
    Router::new()
        .route("/", get(|| file("text/html; charset=utf-8", page::INDEX)))
        .route(
            "/page.css",
            get(|| file("text/css; charset=utf-8", page::STYLE)),
        )
        .route(
            "/page.js",
            get(|| file("text/javascript; charset=utf-8", page::SCRIPT)),
        )
        .merge(api)
        .layer(from_fn(check_origin))
        .layer(from_fn_with_state(guard, guard::check_host))
        .layer(from_fn(add_headers))
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

/// Refuses a request of another page. A browser names the origin of the page if it is another one, or if the request may change something.
async fn check_origin(request: Request, next: Next) -> Response {
    match has_own_origin(request.headers()) {
        true => next.run(request).await,
        false => {
            let error = "the header Origin must be the address of this page";
            Failure(StatusCode::FORBIDDEN, error.to_owned()).into_response()
        }
    }
}

fn has_own_origin(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let own = [b"http://", host.unwrap_or_default()].concat();
    let mut origins = headers.get_all(ORIGIN).iter();
    origins.all(|origin| origin.as_bytes().eq_ignore_ascii_case(&own))
}

async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    response.headers_mut().extend(HEADERS);
    response
}

async fn send_samples(State(ui): State<Arc<Ui>>) -> Response {
    let body = events(ui.samples.receive());
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// The samples as server-sent events (HTML, 9.2), the newest first of all. The stream ends after [`STREAM_TIME`], and the page asks
/// again; the connection ends if the browser reads nothing for 5 s. A browser that reads slowly misses samples: two of them wait for it at most.
fn events(mut samples: watch::Receiver<String>) -> Body {
    let (parts, received) = mpsc::channel(1);
    samples.mark_changed();
    tokio::spawn(async move {
        let mut end = pin!(sleep(STREAM_TIME));
        loop {
            tokio::select! {
                changed = samples.changed() => if changed.is_err() { return },
                () = parts.closed() => return,
                () = &mut end => return,
            }
            let sample = samples.borrow_and_update().clone();
            if sample.is_empty() {
                continue;
            }
            let event = format!("data: {sample}\n\n");
            if parts.send(Bytes::from(event)).await.is_err() {
                return;
            }
        }
    });
    Body::new(Parts::new(received, ()))
}

async fn send_map(
    State(ui): State<Arc<Ui>>,
    query: Result<Query<MapQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let Query(MapQuery { nic, key }) =
        query.map_err(|error| Failure(StatusCode::BAD_REQUEST, error.body_text()))?;
    Ok(Json(ui.maps.read(&nic, key).await?).into_response())
}

async fn change_engine(
    State(ui): State<Arc<Ui>>,
    change: Result<Json<EngineChange>, axum::extract::rejection::JsonRejection>,
) -> Result<Json<EngineView>, Failure> {
    let Json(change) = change.map_err(|error| Failure(error.status(), error.body_text()))?;
    let body = serde_json::to_vec(&change).map_err(anyhow::Error::from)?;
    Ok(Json(ui.remote.json(Method::PUT, "/v1/engine", body).await?))
}

async fn step(
    State(ui): State<Arc<Ui>>,
    step: Result<Json<Step>, axum::extract::rejection::JsonRejection>,
) -> Result<Json<Stepped>, Failure> {
    let Json(step) = step.map_err(|error| Failure(error.status(), error.body_text()))?;
    let body = serde_json::to_vec(&step).map_err(anyhow::Error::from)?;
    let path = "/v1/engine/step";
    Ok(Json(ui.remote.json(Method::POST, path, body).await?))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_slow_browser_misses_samples() {
        let (newest, samples) = watch::channel("0".to_owned());
        let body = events(samples);
        for n in 1..100 {
            newest.send_replace(n.to_string());
            yield_now().await;
        }
        drop(newest);
        let sent = body.collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&sent).unwrap();
        let all: Vec<&str> = text.split_terminator("\n\n").collect();
        assert!(all.len() <= 3, "{all:?}");
        assert_eq!(all.last(), Some(&"data: 99"));
    }

    #[tokio::test]
    async fn nothing_is_sent_before_there_is_a_sample() {
        let (newest, samples) = watch::channel(String::new());
        let body = events(samples);
        yield_now().await;
        newest.send_replace("1".to_owned());
        yield_now().await;
        drop(newest);
        let sent = body.collect().await.unwrap().to_bytes();
        assert_eq!(sent, "data: 1\n\n");
    }

    #[tokio::test]
    async fn a_browser_that_has_gone_is_forgotten() {
        let (newest, samples) = watch::channel(String::new());
        drop(events(samples));
        // There is no further sample.
        newest.closed().await;
    }
}
