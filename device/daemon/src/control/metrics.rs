//! The path of the metrics.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use faultline_telemetry::prometheus_text;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Access;
use super::error::ApiError;
use super::extract::NoQuery;
use super::view::ErrorBody;
use crate::engine::Engine;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Metrics of all NICs and of the engine, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "metrics", operation_id = "read_metrics",
    responses((status = 200, body = String, content_type = "application/openmetrics-text"), (status = "4XX", body = ErrorBody)))]
async fn metrics(State(access): State<Access>, _: NoQuery) -> Result<Response, ApiError> {
    let mut nics = Vec::new();
    for (id, name) in access.names.iter().enumerate() {
        let name = name.clone();
        let work = move |engine: &mut Engine| engine.nic_snapshot(id, name);
        nics.extend(access.call(work).await?);
    }
    let engine = access.call(|engine| engine.snapshot()).await?;
    let text = tokio::task::spawn_blocking(move || prometheus_text(&nics, &engine));
    let text = text
        .await
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}
