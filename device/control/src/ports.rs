//! The path of ports that lead out of the process.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::NoQuery;
use crate::view::ErrorBody;
use faultline_daemon::observe::{ExternalState, LinkModelState};
use faultline_fabric::link_model::LinkModelCounts;
use faultline_telemetry::Direction;

/// A port that leads out of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortView {
    /// Name of the configuration.
    pub name: String,
    /// It has a peer.
    pub connected: bool,
    /// Peers since the start.
    pub connections: u64,
    /// Frames from the peer.
    pub rx_frames: u64,
    /// Bytes of these.
    pub rx_bytes: u64,
    /// Frames to the peer.
    pub tx_frames: u64,
    /// Bytes of these.
    pub tx_bytes: u64,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// How often the port has begun to hold connections, because the peer takes too slowly.
    pub holds: u64,
    /// Connections that were closed because of what the peer sent, and frames and rings of a guest that were refused.
    pub malformed: u64,
}

impl From<ExternalState> for PortView {
    fn from(state: ExternalState) -> Self {
        let counts = state.counts;
        let dropped = state
            .drops()
            .map(|(reason, count)| (reason.to_owned(), count));
        Self {
            dropped: dropped.collect(),
            name: state.name,
            connected: state.is_connected,
            connections: state.connections,
            rx_frames: counts.rx_frames,
            rx_bytes: counts.rx_octets,
            tx_frames: counts.tx_frames,
            tx_bytes: counts.tx_octets,
            holds: counts.holds,
            malformed: state.malformed,
        }
    }
}

/// One direction of a link that has a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkModelView {
    /// Name of the NIC or of the port.
    pub port: String,
    /// `tx`: from the NIC, or to the peer of the port.
    pub direction: Direction,
    /// Frames that were lost at random.
    pub lost: u64,
    /// Frames that were lost because the queue was full.
    pub queue_full: u64,
    /// Frames that were sent twice.
    pub duplicated: u64,
    /// Frames that others have overtaken.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames that got the mark of congestion.
    pub marked: u64,
    /// Pauses of the senders that have begun, of all priorities together.
    pub pauses: u64,
    /// Pauses of the priorities in `pfc` of the link; empty without priority-based flow control.
    pub priorities: Vec<PriorityView>,
}

/// Pauses of a priority by a link (IEEE 802.1Qbb).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PriorityView {
    /// The priority: 0 to 7.
    pub priority: u8,
    /// Pauses that have begun.
    pub pauses: u64,
    /// Time for which it was paused.
    pub paused_ns: u64,
}

impl From<LinkModelState> for LinkModelView {
    fn from(state: LinkModelState) -> Self {
        let priorities = state.pauses_by_priority();
        let priorities = priorities.map(|(priority, counts)| PriorityView {
            priority,
            pauses: counts.pauses,
            paused_ns: counts.paused_ns,
        });
        let priorities = priorities.collect();
        let LinkModelCounts {
            lost,
            queue_full,
            duplicated,
            reordered,
            corrupted,
            marked,
            pauses,
            by_priority: _,
        } = state.counts;
        Self {
            port: state.port,
            direction: state.direction,
            lost,
            queue_full,
            duplicated,
            reordered,
            corrupted,
            marked,
            pauses,
            priorities,
        }
    }
}

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(list_links))
}

/// The directions of links that have a model, with what they have done.
#[utoipa::path(get, path = "/v1/links", tag = "ports", operation_id = "list_links",
    responses((status = 200, body = Vec<LinkModelView>), (status = "4XX", body = ErrorBody)))]
async fn list_links(
    State(access): State<Access>,
    _: NoQuery,
) -> Result<Json<Vec<LinkModelView>>, ApiError> {
    let lines = access.call_all(|engine| engine.link_model_states()).await?;
    let lines = lines.into_iter().flatten();
    Ok(Json(lines.map(LinkModelView::from).collect()))
}

/// All ports that lead out of the process.
#[utoipa::path(get, path = "/v1/ports", tag = "ports", operation_id = "list_ports",
    responses((status = 200, body = Vec<PortView>), (status = "4XX", body = ErrorBody)))]
async fn list(State(access): State<Access>, _: NoQuery) -> Result<Json<Vec<PortView>>, ApiError> {
    let ports = access.call_first(|engine| engine.external_states()).await?;
    Ok(Json(ports.into_iter().map(PortView::from).collect()))
}
