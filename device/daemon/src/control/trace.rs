//! The path of the trace ring.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Access;
use super::error::ApiError;
use super::extract::Params;
use super::view::{ErrorBody, TraceHeader, TraceQuery};

/// Largest number of records of a request, which the engine copies at once.
const MAX_RECORDS: u32 = 4096;

pub(super) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(part))
}

/// A part of the trace ring: JSON lines, the first of them a header.
#[utoipa::path(get, path = "/v1/trace", tag = "trace", operation_id = "read_trace",
    params(
        ("from" = Option<u64>, Query, description = "Number of the first record; default 0"),
        ("limit" = Option<u32>, Query, description = "Largest number of records, 1 to 4096; default 4096"),
    ),
    responses((status = 200, body = TraceHeader, content_type = "application/jsonl"), (status = "4XX", body = ErrorBody)))]
async fn part(
    State(access): State<Access>,
    Params(query): Params<TraceQuery>,
) -> Result<Response, ApiError> {
    let limit = query.limit.unwrap_or(MAX_RECORDS);
    if !(1..=MAX_RECORDS).contains(&limit) {
        return Err(ApiError::bad(format!(
            "query: limit {limit} is out of range: it must be 1 to {MAX_RECORDS}"
        )));
    }
    let from = query.from;
    let (now, part) = access
        .call(move |engine| {
            (
                engine.now(),
                engine.recorder.trace_part(from, limit as usize),
            )
        })
        .await?;
    let header = TraceHeader {
        nics: access.names.to_vec(),
        first: part.next - part.records.len() as u64,
        next: part.next,
        lost: part.lost,
        now: now.0,
    };
    // 4096 records are about half a megabyte of text, which takes some milliseconds.
    let text = tokio::task::spawn_blocking(move || {
        let mut text = serde_json::to_string(&header)?;
        for record in &part.records {
            text.push('\n');
            text.push_str(&serde_json::to_string(record)?);
        }
        text.push('\n');
        Ok::<_, serde_json::Error>(text)
    });
    let failed =
        |error: String| ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error);
    let text = text.await.map_err(|error| failed(error.to_string()))?;
    let text = text.map_err(|error| failed(error.to_string()))?;
    Ok(([(CONTENT_TYPE, "application/jsonl")], text).into_response())
}
