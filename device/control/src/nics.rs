//! The paths of NICs.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use faultline_nic::inspect::CqFill;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{Body, NoQuery, Segment};
use crate::view::{self, Action, ErrorBody, LinkChange, LinkView, NicName, NicSummary, NicView};
use faultline_daemon::engines::engine::Engine;
use faultline_daemon::log::of_nic::nic_span;
use faultline_daemon::observe::NicState;
use faultline_daemon::server::nic_sockets::{NicSockets, PresenceError};
use faultline_fabric::PortId;

/// Smallest MTU: RFC 791 demands that each link carries 68 bytes.
const MIN_MTU: u16 = 68;

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show, remove))
        .routes(routes!(counters))
        .routes(routes!(act))
        .routes(routes!(show_link, change_link))
}

/// The state of a NIC.
pub(crate) async fn state(access: &Access, name: &str) -> Result<NicState, ApiError> {
    let id = access.port(name)?;
    let state = access.call(id, move |engine| engine.nic_state(id)).await?;
    state.ok_or_else(|| ApiError::no_nic(name, &access.names))
}

/// What is shown of a NIC.
pub(crate) async fn view(access: &Access, name: &str) -> Result<NicView, ApiError> {
    let state = state(access, name).await?;
    let fullest_cq = fullest_cq(access, access.port(name)?).await?;
    Ok(NicView::new(name, &state, fullest_cq))
}

/// Completions in the fullest completion queue of a NIC, and completions that fit. The engine looks at some queues at a time.
pub(crate) async fn fullest_cq(access: &Access, id: usize) -> Result<(u64, u64), ApiError> {
    let mut fullest = CqFill::default();
    let mut from = Some(0);
    while let Some(place) = from {
        let work = move |engine: &mut Engine| engine.fullest_cq(id, place);
        let (fill, next) = access.call(id, work).await?;
        fullest = fill
            .filter(|fill| fill.share() >= fullest.share())
            .unwrap_or(fullest);
        from = next;
    }
    Ok((fullest.unread.into(), fullest.depth.into()))
}

/// All NICs.
#[utoipa::path(get, path = "/v1/nics", tag = "nics", operation_id = "list_nics",
    responses((status = 200, body = Vec<NicSummary>), (status = "4XX", body = ErrorBody)))]
async fn list(State(access): State<Access>, _: NoQuery) -> Result<Json<Vec<NicSummary>>, ApiError> {
    let mut nics = Vec::new();
    for name in access.names.iter() {
        nics.push(summary(&access, name).await?);
    }
    Ok(Json(nics))
}

async fn summary(access: &Access, name: &str) -> Result<NicSummary, ApiError> {
    let present = access.sockets.is_present(access.port(name)?);
    Ok(NicSummary::new(name, present, &state(access, name).await?))
}

/// Adds a NIC that is absent: its socket is created, and a client can attach it. The NIC is one of the configuration.
#[utoipa::path(post, path = "/v1/nics", tag = "nics", operation_id = "add_nic",
    request_body = NicName,
    responses((status = 200, body = NicSummary), (status = "4XX", body = ErrorBody)))]
async fn add(
    State(access): State<Access>,
    _: NoQuery,
    Body(nic): Body<NicName>,
) -> Result<Json<NicSummary>, ApiError> {
    change_presence(&access, &nic.name, NicSockets::add).await
}

/// Removes a NIC: its client is disconnected, the device is reset, the switch forgets the addresses behind it, and its socket is
/// removed. It can be added again.
#[utoipa::path(delete, path = "/v1/nics/{name}", tag = "nics", operation_id = "remove_nic",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = NicSummary), (status = "4XX", body = ErrorBody)))]
async fn remove(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Json<NicSummary>, ApiError> {
    change_presence(&access, &name, NicSockets::remove).await
}

/// Adds or removes a NIC. A thread waits for the end of its connection, and not the control server.
async fn change_presence(
    access: &Access,
    name: &str,
    change: fn(&NicSockets, PortId) -> Result<(), PresenceError>,
) -> Result<Json<NicSummary>, ApiError> {
    let (id, sockets) = (access.port(name)?, access.sockets.clone());
    let changed = tokio::task::spawn_blocking(move || change(&sockets, id)).await;
    let changed = changed.map_err(|_| ApiError::engine_ended())?;
    changed.map_err(|error| ApiError::conflict(format!("NIC {name}: {error}")))?;
    Ok(Json(summary(access, name).await?))
}

/// A NIC: state, configuration, limits, counters, number of objects.
#[utoipa::path(get, path = "/v1/nics/{name}", tag = "nics", operation_id = "show_nic",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = NicView), (status = "4XX", body = ErrorBody)))]
async fn show(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Json<NicView>, ApiError> {
    Ok(Json(view(&access, &name).await?))
}

/// Counters of a NIC, by name.
#[utoipa::path(get, path = "/v1/nics/{name}/counters", tag = "nics", operation_id = "show_counters",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = BTreeMap<String, u64>), (status = "4XX", body = ErrorBody)))]
async fn counters(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Json<BTreeMap<String, u64>>, ApiError> {
    let state = state(&access, &name).await?;
    Ok(Json(view::counters(&state.counters)))
}

/// Does something to a NIC, for tests of software.
#[utoipa::path(post, path = "/v1/nics/{name}/actions", tag = "nics", operation_id = "act_on_nic",
    params(("name" = String, Path, description = "Name of the NIC")),
    request_body = Action,
    responses((status = 204, description = "Done"), (status = "4XX", body = ErrorBody)))]
async fn act(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
    Body(action): Body<Action>,
) -> Result<StatusCode, ApiError> {
    let id = access.port(&name)?;
    let requested = action.clone();
    match action {
        Action::Reset {} => {
            let remains = access
                .call(id, move |engine| engine.reset_device(id))
                .await?;
            // Freeing them may take long.
            tokio::task::spawn_blocking(move || drop(remains));
        }
        Action::Fatal {} => {
            let work = move |engine: &mut Engine| {
                let now = engine.now();
                let port = engine.fabric.nics.get_mut(id)?;
                Some(port.nic.inject_fatal(now))
            };
            if access.call(id, work).await? != Some(true) {
                return Err(ApiError::conflict(format!(
                    "NIC {name} is not running, so it can't fail"
                )));
            }
        }
        Action::FailFaults {} => {
            let work = move |engine: &mut Engine| {
                let now = engine.now();
                let (Some(port), Some(ram)) = (
                    engine.fabric.nics.get_mut(id),
                    engine.fabric.memories.get(id),
                ) else {
                    return true;
                };
                let allowed = port.bus_master || !port.nic.is_running();
                if allowed {
                    port.nic.fail_faults(now, ram);
                }
                allowed
            };
            if !access.call(id, work).await? {
                return Err(ApiError::conflict(format!(
                    "bus mastering of NIC {name} is off, so it can't complete the requests that wait for pages"
                )));
            }
        }
        Action::DropFrames { direction, count } => {
            let work = move |engine: &mut Engine| {
                if let Some(port) = engine.fabric.nics.get_mut(id) {
                    port.faults.drop_frames(direction, count);
                }
            };
            access.call(id, work).await?;
        }
        Action::LoseInterrupts { count } => {
            let work = move |engine: &mut Engine| {
                if let Some(port) = engine.fabric.nics.get_mut(id) {
                    port.faults.lose_interrupts(count);
                }
            };
            access.call(id, work).await?;
        }
    }
    nic_span(&name).in_scope(|| tracing::info!(action = ?requested, "by request"));
    Ok(StatusCode::NO_CONTENT)
}

/// The link of a NIC.
#[utoipa::path(get, path = "/v1/nics/{name}/link", tag = "nics", operation_id = "show_link",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = LinkView), (status = "4XX", body = ErrorBody)))]
async fn show_link(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Json<LinkView>, ApiError> {
    let state = state(&access, &name).await?;
    Ok(Json((&state.link).into()))
}

/// Changes the link of a NIC.
#[utoipa::path(put, path = "/v1/nics/{name}/link", tag = "nics", operation_id = "change_link",
    params(("name" = String, Path, description = "Name of the NIC")),
    request_body = LinkChange,
    responses((status = 200, body = LinkView), (status = "4XX", body = ErrorBody)))]
async fn change_link(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
    Body(change): Body<LinkChange>,
) -> Result<Json<LinkView>, ApiError> {
    let id = access.port(&name)?;
    if let Some(mtu) = change.mtu.filter(|mtu| (1..MIN_MTU).contains(mtu)) {
        return Err(ApiError::bad(format!(
            "body: mtu {mtu} is too small: it must be 0 (not limited) or {MIN_MTU} to 65535"
        )));
    }
    nic_span(&name).in_scope(|| tracing::info!(?change, "link changed by request"));
    let work = move |engine: &mut Engine| {
        if let Some(port) = engine.fabric.nics.get_mut(id) {
            if let Some(up) = change.up {
                // The event is written to memory: in a pass, and not before the function may access memory.
                port.link_changed |= port.nic.change_link(up);
            }
            if let Some(mtu) = change.mtu {
                port.faults.set_mtu(Some(mtu).filter(|mtu| *mtu != 0));
            }
            if let Some(speed) = change.speed_mbps {
                port.nic.set_link_speed(speed);
            }
        }
        engine.nic_state(id)
    };
    let state = access.call(id, work).await?;
    let state = state.ok_or_else(|| ApiError::no_nic(&name, &access.names))?;
    Ok(Json((&state.link).into()))
}
