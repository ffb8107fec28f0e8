//! The path of the trace ring.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use faultline_nic::{Diagnostic, Instant};
use faultline_telemetry::{Record, TraceEvent, TracePart};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::Params;
use crate::view::{ErrorBody, SnapshotQuery, TraceHeader, TraceQuery};
use faultline_daemon::engines::engine::Engine;

/// Largest number of records of a request, which the engine copies at once.
const MAX_RECORDS: u32 = 4096;
/// Records of a snapshot that the engine copies at once. That takes it about a millisecond.
const STEP: usize = 1 << 16;
/// Snapshots that are made or sent at the same time. Each takes some megabytes.
static SNAPSHOTS: Semaphore = Semaphore::const_new(4);
/// Time for which a request waits for another one's snapshot to be sent.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(2);

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(part))
        .routes(routes!(snapshot))
}

/// A copy of records, and what the engines say of them.
struct Copied {
    now: Instant,
    /// The range ends before this number.
    until: u64,
    recorded: Vec<u64>,
    part: TracePart,
}

/// Copies records of all engines from number `from` to `until`, or to the newest. `limit` is the largest number of records.
async fn copy(
    access: &Access,
    from: u64,
    mut until: Option<u64>,
    limit: usize,
) -> Result<Copied, ApiError> {
    let mut parts = Vec::new();
    let mut recorded: Vec<u64> = Vec::new();
    let mut now = Instant(0);
    for index in 0..access.engine_names.len() {
        let room = tokio::task::spawn_blocking(move || buffer(limit));
        let room = room.await.unwrap_or_default();
        let work = move |engine: &mut Engine| {
            let until = until.unwrap_or_else(|| engine.io.recorder.next_record());
            Copied {
                now: engine.now(),
                until,
                recorded: engine.io.recorder.recorded(),
                part: engine.io.recorder.trace_part(from..until, limit, room),
            }
        };
        let copied = access.call_engine(index, work).await?;
        until = Some(copied.until);
        recorded.resize(copied.recorded.len(), 0);
        for (sum, of_engine) in recorded.iter_mut().zip(copied.recorded) {
            *sum = sum.saturating_add(of_engine);
        }
        now = now.max(copied.now);
        parts.push(copied.part);
    }
    // Most processes have one engine, whose part needs no other order.
    let part = match parts.len() {
        1 => parts.pop(),
        _ => None,
    };
    Ok(Copied {
        now,
        until: until.unwrap_or_default(),
        recorded,
        part: part.unwrap_or_else(|| TracePart::merge(parts, from, limit)),
    })
}

/// An empty buffer for records whose pages are in memory, so that the engine does not wait for them.
fn buffer(records: usize) -> Vec<Record> {
    let filler = Record {
        at: Instant(0),
        nic: 0,
        event: TraceEvent::Nic(Diagnostic::Reset),
    };
    let mut buffer = vec![filler; records];
    buffer.clear();
    buffer
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
    let limit = limit as usize;
    let copied = copy(&access, from, None, limit).await?;
    answer(&access, copied, None).await
}

/// All records that the rings have at one point in time: JSON lines, the first of them a header. What comes while they are sent
/// overwrites none of them.
#[utoipa::path(get, path = "/v1/trace/snapshot", tag = "trace", operation_id = "snapshot_trace",
    params(("from" = Option<u64>, Query, description = "Number of the first record; default 0"),),
    responses((status = 200, body = TraceHeader, content_type = "application/jsonl"), (status = "4XX", body = ErrorBody)))]
async fn snapshot(
    State(access): State<Access>,
    Params(query): Params<SnapshotQuery>,
) -> Result<Response, ApiError> {
    // Its client may read slowly, so the place is free when the text is sent, not when it is made.
    let Ok(Ok(place)) = timeout(SNAPSHOT_WAIT, SNAPSHOTS.acquire()).await else {
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "other clients read as many snapshots as are sent at the same time; try again, or read parts of the trace (/v1/trace)",
        ));
    };
    let mut copied = copy(&access, query.from, None, STEP).await?;
    let until = copied.until;
    // Larger rings take several steps. The oldest records come first, and a step copies them much faster than the NICs make new
    // ones, so none of them is overwritten meanwhile.
    while copied.part.next < until {
        let more = copy(&access, copied.part.next, Some(until), STEP)
            .await?
            .part;
        copied.part.next = more.next;
        copied.part.lost = copied.part.lost.saturating_add(more.lost);
        copied.part.records.extend(more.records);
    }
    answer(&access, copied, Some(place)).await
}

/// A text that has a place among the snapshots until it is sent, or its connection has ended.
struct Text {
    text: String,
    _place: Option<SemaphorePermit<'static>>,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

async fn answer(
    access: &Access,
    copied: Copied,
    place: Option<SemaphorePermit<'static>>,
) -> Result<Response, ApiError> {
    let Copied {
        now,
        recorded,
        part,
        ..
    } = copied;
    let header = TraceHeader {
        nics: access.names.to_vec(),
        first: part.first,
        next: part.next,
        lost: part.lost,
        recorded,
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
    let failed = |error: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    let text = text.await.map_err(|error| failed(error.to_string()))?;
    let text = text.map_err(|error| failed(error.to_string()))?;
    let text = Bytes::from_owner(Text {
        text,
        _place: place,
    });
    Ok(([(CONTENT_TYPE, "application/jsonl")], text).into_response())
}
