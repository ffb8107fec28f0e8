//! The path of the metrics.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use faultline_telemetry::prometheus_text;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::NoQuery;
use crate::nics::fullest_cq;
use crate::version::process_snapshot;
use crate::view::ErrorBody;
use faultline_daemon::engines::engine::Engine;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Metrics of all NICs and engines, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "metrics", operation_id = "read_metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"), (status = "4XX", body = ErrorBody)))]
async fn metrics(State(access): State<Access>, _: NoQuery) -> Result<Response, ApiError> {
    let mut nics = Vec::new();
    for (id, name) in access.names.iter().enumerate() {
        let name = name.clone();
        let work = move |engine: &mut Engine| engine.nic_snapshot(id, name);
        if let Some(mut nic) = access.call(id, work).await? {
            nic.gauges.fullest_cq = fullest_cq(&access, id).await?;
            nics.push(nic);
        }
    }
    let mut engines = Vec::new();
    for (index, name) in access.engine_names.iter().enumerate() {
        let name = name.clone();
        let work = move |engine: &mut Engine| engine.snapshot(name);
        engines.push(access.call_engine(index, work).await?);
    }
    let fabric = access
        .call_first(|engine: &mut Engine| engine.fabric_snapshot())
        .await?;
    let start = access.start;
    let text = tokio::task::spawn_blocking(move || {
        let process = process_snapshot(start);
        prometheus_text(&nics, &fabric, &engines, process)
    });
    let text = text
        .await
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
