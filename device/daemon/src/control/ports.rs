//! The path of ports that lead out of the process.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Access;
use super::error::ApiError;
use super::extract::NoQuery;
use super::view::ErrorBody;
use crate::observe::ExternalState;

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
    /// Connections that were closed because of what the peer sent.
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
            malformed: state.malformed,
        }
    }
}

pub(super) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(list))
}

/// All ports that lead out of the process.
#[utoipa::path(get, path = "/v1/ports", tag = "ports", operation_id = "list_ports",
    responses((status = 200, body = Vec<PortView>), (status = "4XX", body = ErrorBody)))]
async fn list(State(access): State<Access>, _: NoQuery) -> Result<Json<Vec<PortView>>, ApiError> {
    let ports = access.call(|engine| engine.external_states()).await?;
    Ok(Json(ports.into_iter().map(PortView::from).collect()))
}
