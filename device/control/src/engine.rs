//! The paths of the engine.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{Body, NoQuery};
use crate::view::{EngineChange, EngineView, ErrorBody, Step, Stepped};
use faultline_daemon::engines::engine::Engine;

/// Largest number of passes of a request: each may take a millisecond for each NIC.
const MAX_PASSES: u32 = 256;
/// Farthest that a request may move the device clock.
const MAX_ADVANCE: Duration = Duration::from_secs(3600);

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(show, change))
        .routes(routes!(step))
}

/// The state of all engines.
async fn view(access: &Access) -> Result<EngineView, ApiError> {
    let states = access.call_all(|engine| engine.engine_state()).await?;
    Ok(EngineView::new(
        &states,
        &access.engine_names,
        &access.names,
    ))
}

/// The engine.
#[utoipa::path(get, path = "/v1/engine", tag = "engine", operation_id = "show_engine",
    responses((status = 200, body = EngineView), (status = "4XX", body = ErrorBody)))]
async fn show(State(access): State<Access>, _: NoQuery) -> Result<Json<EngineView>, ApiError> {
    view(&access).await.map(Json)
}

/// Pauses the engine or ends a pause. In a pause all NICs and the device clock stand still; register accesses, changes of memory
/// maps and the heartbeat continue.
#[utoipa::path(put, path = "/v1/engine", tag = "engine", operation_id = "change_engine",
    request_body = EngineChange,
    responses((status = 200, body = EngineView), (status = "4XX", body = ErrorBody)))]
async fn change(
    State(access): State<Access>,
    _: NoQuery,
    Body(change): Body<EngineChange>,
) -> Result<Json<EngineView>, ApiError> {
    tracing::info!(paused = change.paused, "engine changed by request");
    let work = move |engine: &mut Engine| match change.paused {
        true => engine.pause(),
        false => engine.resume(),
    };
    access.call_gathered(work).await?;
    view(&access).await.map(Json)
}

/// Executes passes of a paused engine.
#[utoipa::path(post, path = "/v1/engine/step", tag = "engine", operation_id = "step_engine",
    request_body = Step,
    responses((status = 200, body = Stepped), (status = "4XX", body = ErrorBody)))]
async fn step(
    State(access): State<Access>,
    _: NoQuery,
    Body(step): Body<Step>,
) -> Result<Json<Stepped>, ApiError> {
    if !(1..=MAX_PASSES).contains(&step.passes) {
        return Err(ApiError::bad(format!(
            "body: passes {} is out of range: it must be 1 to {MAX_PASSES}",
            step.passes
        )));
    }
    let advance = Duration::from_micros(step.advance_us);
    if advance > MAX_ADVANCE {
        return Err(ApiError::bad(format!(
            "body: advance_us {} is out of range: it must be at most {}",
            step.advance_us,
            MAX_ADVANCE.as_micros()
        )));
    }
    let work = move |engine: &mut Engine| {
        if !engine.clock.is_stopped() {
            return None;
        }
        engine.clock.advance(advance);
        let worked = (0..step.passes).filter(|_| engine.step()).count();
        Some(Stepped {
            passes: step.passes,
            worked: u32::try_from(worked).unwrap_or(step.passes),
            device_time_ns: engine.now().0,
        })
    };
    let stepped = access.call_first(work).await?;
    stepped.map(Json).ok_or_else(|| {
        ApiError::conflict("the engine is not paused: pause it first (`faultline ctl pause`, or PUT /v1/engine {\"paused\": true})")
    })
}
