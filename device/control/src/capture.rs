//! The paths of captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use faultline_ports::channel::{self, EngineEnd};
use faultline_scenario::packet_filter::PacketFilter;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{NoQuery, Params, Segment};
use crate::impatient::Endless;
use crate::parts::Parts;
use crate::view::{CaptureQuery, CaptureView, ErrorBody};
use faultline_capture::capture::{CaptureFeed, CaptureFilter, MOST_CAPTURES, MOST_OCTETS, RING};
use faultline_capture::frame_checker::{Interface, InterfaceKind};
use faultline_capture::pcapng::CaptureStream;
use faultline_capture::share::{CaptureCount, CaptureShare};
use faultline_daemon::engines::engine::Engine;

/// Header of an answer that has the number of its capture.
const ID: &str = "faultline-capture";
/// Parts of a stream that wait for the connection, of some 64 KiB each.
const PARTS: usize = 4;

/// Number of the next capture of the process.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(capture))
        .routes(routes!(list))
        .routes(routes!(end))
}

/// Ends a capture when it is dropped.
#[derive(Debug)]
pub(crate) struct CaptureEnd {
    id: u64,
    access: Access,
}

impl CaptureEnd {
    /// The end of a capture that will have the next number.
    pub(crate) fn new(access: &Access) -> Self {
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            access: access.clone(),
        }
    }

    /// Number of the capture.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Begins the capture in all engines. Returns the time of the device clock.
    pub(crate) async fn begin(
        &self,
        ends: Vec<EngineEnd>,
        filter: &CaptureFilter,
        share: &Arc<CaptureShare>,
    ) -> Result<Duration, ApiError> {
        let id = self.id;
        let mut now = Duration::ZERO;
        for (index, engine_end) in ends.into_iter().enumerate() {
            let feed = CaptureFeed {
                engine: index,
                filter: filter.clone(),
                end: engine_end,
                share: Arc::clone(share),
            };
            let start = move |engine: &mut Engine| {
                let now = Duration::from_nanos(engine.now().0);
                engine.io.captures.start(id, feed).then_some(now)
            };
            // If this fails, the engines in which it has begun end it when this value is dropped.
            now = self.access.call_engine(index, start).await?.ok_or_else(|| {
                ApiError::conflict(format!(
                    "there are {MOST_CAPTURES} captures already (a packet checker counts as one): end one of them, see GET /v1/captures"
                ))
            })?;
        }
        match share.run() {
            true => Ok(now),
            false => Err(ApiError::conflict("the capture was ended when it began")),
        }
    }
}

impl Drop for CaptureEnd {
    fn drop(&mut self) {
        let id = self.id;
        self.access.post_all(move |engine| {
            engine.io.captures.end(id);
        });
    }
}

/// Captures frames: pcapng, which goes on until `count` frames, DELETE of `/v1/captures/{id}`, or the end of the connection. The
/// header `Faultline-Capture` has the number of the capture. Frames for which the reader is too slow are lost, and counted in the
/// interface statistics at the end.
#[utoipa::path(get, path = "/v1/capture", tag = "capture", operation_id = "capture",
    params(
        ("nic" = Option<String>, Query, description = "Names of NICs and ports, with commas between them; default: all"),
        ("qpn" = Option<u32>, Query, description = "Only packets to or from queue pairs of this number"),
        ("opcode" = Option<String>, Query, description = "Only packets of this opcode or group of opcodes, as in rules of scenarios"),
        ("snaplen" = Option<u32>, Query, description = "Octets that are kept of each frame, 1 to 65535; default 65535"),
        ("count" = Option<u64>, Query, description = "The capture ends after this number of frames"),
    ),
    responses((status = 200, content_type = "application/x-pcapng", body = [u8]), (status = "4XX", body = ErrorBody)))]
async fn capture(
    State(access): State<Access>,
    endless: Option<Extension<Endless>>,
    Params(query): Params<CaptureQuery>,
) -> Result<Response, ApiError> {
    let filter = filter(&access, &query)?;
    let engines = access.engine_names.len();
    let (engine_ends, thread_end) =
        channel::from_engines(engines, RING).map_err(|error| failed(&error))?;
    let share = CaptureShare::new(filter.ports.len(), engines);
    let end = CaptureEnd::new(&access);
    let snaplen = u32::try_from(filter.snaplen).unwrap_or(u32::MAX);
    let id = end.id;
    let now = end.begin(engine_ends, &filter, &share).await?;
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let (sender, parts) = mpsc::channel(PARTS);
    let stream = CaptureStream {
        interfaces: interfaces(&access),
        share,
        snaplen,
        count: query.count.unwrap_or(u64::MAX),
        origin: since_1970.saturating_sub(now),
    };
    let thread = std::thread::Builder::new().name("capture".to_owned());
    thread
        .spawn(move || stream.run(thread_end, &sender))
        .map_err(|error| failed(&error))?;
    tracing::info!(id, "capture begins");
    if let Some(Extension(endless)) = endless {
        endless.set();
    }
    let headers = [
        (CONTENT_TYPE.as_str(), "application/x-pcapng".to_owned()),
        (CONNECTION.as_str(), "close".to_owned()),
        (ID, id.to_string()),
    ];
    // The capture ends with the body.
    let body = Body::new(Parts::new(parts, end));
    Ok((headers, body).into_response())
}

pub(crate) fn failed(error: &std::io::Error) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// The interfaces of a capture.
pub(crate) fn interfaces(access: &Access) -> Vec<Interface> {
    let nics = access.names.iter().map(|name| (name, InterfaceKind::Nic));
    let externals = access.externals.iter();
    let externals = externals.map(|name| (name, InterfaceKind::Port));
    let named = nics.chain(externals).map(|(name, kind)| Interface {
        name: name.clone(),
        kind,
    });
    named.collect()
}

fn filter(access: &Access, query: &CaptureQuery) -> Result<CaptureFilter, ApiError> {
    let names = || access.names.iter().chain(access.externals.iter());
    let mut ports = vec![query.nic.is_none(); names().count()];
    for name in query.nic.iter().flat_map(|list| list.split(',')) {
        let port = names().position(|known| known == name);
        let chosen = port.and_then(|port| ports.get_mut(port));
        let all = || names().map(String::as_str).collect::<Vec<_>>().join(", ");
        *chosen.ok_or_else(|| {
            let message = format!("there is no NIC or port {name:?}; there are: {}", all());
            ApiError::new(StatusCode::NOT_FOUND, message)
        })? = true;
    }
    let packets = query.opcode.as_deref().map(PacketFilter::named).transpose();
    let snaplen = query.snaplen.map_or(MOST_OCTETS, |octets| {
        usize::try_from(octets).unwrap_or(usize::MAX)
    });
    if !(1..=MOST_OCTETS).contains(&snaplen) {
        return Err(ApiError::bad(format!(
            "query: snaplen {snaplen} is out of range: it must be 1 to {MOST_OCTETS}"
        )));
    }
    if query.count == Some(0) {
        return Err(ApiError::bad(
            "query: count 0 is out of range: it must be at least 1",
        ));
    }
    Ok(CaptureFilter {
        ports,
        qpn: query.qpn,
        packets: packets.map_err(|error| ApiError::bad(format!("query: {error}")))?,
        snaplen,
        is_for_checker: false,
    })
}

/// The captures that run.
#[utoipa::path(get, path = "/v1/captures", tag = "capture", operation_id = "list_captures",
    responses((status = 200, body = Vec<CaptureView>), (status = "4XX", body = ErrorBody)))]
async fn list(
    State(access): State<Access>,
    _: NoQuery,
) -> Result<Json<Vec<CaptureView>>, ApiError> {
    // Each engine has all captures, with common counters.
    let running = access
        .call_first(|engine| engine.io.captures.shares())
        .await?;
    let sum = |share: &CaptureShare, of: fn(&CaptureCount) -> &AtomicU64| {
        share
            .by_interface
            .iter()
            .map(|count| of(count).load(Ordering::Relaxed))
            .sum()
    };
    let views = running.into_iter().map(|(id, share)| CaptureView {
        id,
        frames: sum(&share, |count| &count.kept),
        lost: sum(&share, |count| &count.lost),
    });
    Ok(Json(views.collect()))
}

/// Ends a capture. Its stream has what was captured until then, and ends.
#[utoipa::path(delete, path = "/v1/captures/{id}", tag = "capture", operation_id = "end_capture",
    params(("id" = u64, Path, description = "Number of the capture")),
    responses((status = 204), (status = "4XX", body = ErrorBody)))]
async fn end(
    State(access): State<Access>,
    Segment(id): Segment<u64>,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    let work = move |engine: &mut Engine| engine.io.captures.end(id);
    let ended = access.call_all(work).await?;
    match ended.contains(&true) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            format!("there is no capture {id}; GET /v1/captures lists those that run"),
        )),
    }
}
