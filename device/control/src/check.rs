//! The path of the packet checker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::capture::{CaptureEnd, failed, interfaces};
use crate::error::ApiError;
use crate::extract::{Body, NoQuery};
use crate::view::ErrorBody;
use faultline_capture::checker::{PacketChecker, lock};
use faultline_capture::frame_checker::{Findings, FrameChecker};

/// How long a request waits for the judgement of the frames before it.
const MOST_BEHIND: Duration = Duration::from_secs(1);

/// Settings of a packet checker.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckStart {
    /// The adapters behind ports are Faultlines that exchange READY packets, too. Otherwise a READY packet between them and the NICs is
    /// a violation.
    #[serde(default)]
    pub ready: bool,
}

/// A checker whose capture ends with it.
#[derive(Debug)]
pub(crate) struct RunningCheck {
    checker: PacketChecker,
    capture: CaptureEnd,
}

impl RunningCheck {
    /// Starts a checker of all NICs and ports.
    pub(crate) async fn start(access: &Access, ready: bool) -> Result<Self, ApiError> {
        let started = PacketChecker::start(interfaces(access), access.engine_names.len(), ready);
        let (checker, feed) = started.map_err(|error| failed(&error))?;
        let capture = CaptureEnd::new(access);
        let begun = capture.begin(feed.ends, &feed.filter, &feed.share);
        begun.await?;
        Ok(Self { checker, capture })
    }

    /// Ends the checker, and lets `look` see the judge after the last frame.
    pub(crate) async fn stop<R: Send + 'static>(
        self,
        access: &Access,
        look: impl FnOnce(&FrameChecker) -> R + Send + 'static,
    ) -> Result<R, ApiError> {
        let Self { checker, capture } = self;
        let id = capture.id();
        access
            .call_all(move |engine| engine.io.captures.end(id))
            .await?;
        let judged = tokio::task::spawn_blocking(move || look(&lock(&checker.stop())));
        judged.await.map_err(|_| ApiError::engine_ended())
    }
}

/// The checker that requests start.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<Option<RunningCheck>>);

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(show, start, stop))
        .layer(Extension(Arc::<Checks>::default()))
}

fn none_runs() -> ApiError {
    ApiError::new(
        axum::http::StatusCode::NOT_FOUND,
        "no packet checker runs: `faultline ctl check start` or POST /v1/check starts one",
    )
}

/// What the packet checker has found until now.
#[utoipa::path(get, path = "/v1/check", tag = "check", operation_id = "show_check",
    responses((status = 200, body = Findings), (status = "4XX", body = ErrorBody)))]
async fn show(
    Extension(checks): Extension<Arc<Checks>>,
    _: NoQuery,
) -> Result<Json<Findings>, ApiError> {
    let running = checks.0.lock().await;
    let checker = &running.as_ref().ok_or_else(none_runs)?.checker;
    // The frames before the request are judged first, unless the checker is far behind.
    let captured = checker.captured();
    let start = Instant::now();
    while checker.judged() < captured && start.elapsed() < MOST_BEHIND {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(Json(checker.findings()))
}

/// Starts the packet checker: the frames of all NICs and ports are compared with the rules of the InfiniBand specification. It is a
/// capture, of which there can be few at a time. Frames that come faster than they are judged are lost to it, and counted.
#[utoipa::path(post, path = "/v1/check", tag = "check", operation_id = "start_check",
    request_body = CheckStart,
    responses((status = 200, body = Findings), (status = "4XX", body = ErrorBody)))]
async fn start(
    State(access): State<Access>,
    Extension(checks): Extension<Arc<Checks>>,
    _: NoQuery,
    Body(settings): Body<CheckStart>,
) -> Result<Json<Findings>, ApiError> {
    let mut running = checks.0.lock().await;
    if running.is_some() {
        return Err(ApiError::conflict(
            "a packet checker runs already: DELETE /v1/check ends it",
        ));
    }
    let started = RunningCheck::start(&access, settings.ready).await?;
    tracing::info!("packet checker started by request");
    let findings = started.checker.findings();
    *running = Some(started);
    Ok(Json(findings))
}

/// Ends the packet checker, and says what it has found.
#[utoipa::path(delete, path = "/v1/check", tag = "check", operation_id = "stop_check",
    responses((status = 200, body = Findings), (status = "4XX", body = ErrorBody)))]
async fn stop(
    State(access): State<Access>,
    Extension(checks): Extension<Arc<Checks>>,
    _: NoQuery,
) -> Result<Json<Findings>, ApiError> {
    let running = checks.0.lock().await.take().ok_or_else(none_runs)?;
    tracing::info!("packet checker stopped by request");
    running
        .stop(&access, FrameChecker::findings)
        .await
        .map(Json)
}
