//! The paths of the objects of a NIC.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use faultline_nic::inspect::Listing;
use faultline_nic::{FaultPolicy, Nic};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{Body, NoQuery, Params, Segment};
use crate::objects::{
    ContextView, FaultView, Page, PageQuery, PolicyChange, QueuePairView, RegionView,
};
use crate::view::ErrorBody;
use faultline_daemon::engines::engine::Engine;
use faultline_daemon::log::of_nic::nic_span;

/// Largest number of objects of a response, which the engine copies at once.
pub(crate) const MAX_OBJECTS: u32 = 256;

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new()
        .routes(routes!(queue_pairs))
        .routes(routes!(queue_pair))
        .routes(routes!(set_policy))
        .routes(routes!(regions))
        .routes(routes!(faults))
        .routes(routes!(contexts))
}

/// A part of a list, of `limit` objects at most.
pub(crate) async fn page<I, T>(
    access: &Access,
    name: &str,
    from: u32,
    limit: u32,
    list: fn(&Nic, u32, usize) -> Listing<I>,
) -> Result<Page<T>, ApiError>
where
    I: Send + 'static,
    T: From<I>,
{
    let id = access.port(name)?;
    let work = move |engine: &mut Engine| {
        let port = engine.fabric.nics.get(id)?;
        Some(list(&port.nic, from, limit as usize))
    };
    let listing = access.call(id, work).await?;
    let listing = listing.ok_or_else(|| ApiError::no_nic(name, &access.names))?;
    Ok(Page {
        items: listing.items.into_iter().map(T::from).collect(),
        next: listing.next,
    })
}

/// The faults that the driver has not answered, the oldest first.
pub(crate) async fn fault_list(
    access: &Access,
    name: &str,
    limit: u32,
) -> Result<Vec<FaultView>, ApiError> {
    let id = access.port(name)?;
    let work = move |engine: &mut Engine| {
        let port = engine.fabric.nics.get(id)?;
        Some((engine.now(), port.nic.faults(limit as usize)))
    };
    let found = access.call(id, work).await?;
    let (now, faults) = found.ok_or_else(|| ApiError::no_nic(name, &access.names))?;
    let views = faults.iter().map(|fault| FaultView::new(fault, now));
    Ok(views.collect())
}

fn limit(query: &PageQuery) -> Result<u32, ApiError> {
    let limit = query.limit.unwrap_or(MAX_OBJECTS);
    if !(1..=MAX_OBJECTS).contains(&limit) {
        return Err(ApiError::bad(format!(
            "query: limit {limit} is out of range: it must be 1 to {MAX_OBJECTS}"
        )));
    }
    Ok(limit)
}

/// Queue pairs, work queues and RSS queue pairs.
#[utoipa::path(get, path = "/v1/nics/{name}/queue-pairs", tag = "objects", operation_id = "list_queue_pairs",
    params(
        ("name" = String, Path, description = "Name of the NIC"),
        ("from" = Option<u32>, Query, description = "Where to begin: `next` of the part before"),
        ("limit" = Option<u32>, Query, description = "Largest number of objects, 1 to 256; default 256"),
    ),
    responses((status = 200, body = Page<QueuePairView>), (status = "4XX", body = ErrorBody)))]
async fn queue_pairs(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<QueuePairView>>, ApiError> {
    let limit = limit(&query)?;
    let page = page(&access, &name, query.from, limit, Nic::queue_pairs).await?;
    Ok(Json(page))
}

fn no_queue_pair(name: &str, qpn: u32) -> ApiError {
    let message = format!("NIC {name} has no queue pair {qpn}");
    ApiError::new(StatusCode::NOT_FOUND, message)
}

/// A queue pair.
#[utoipa::path(get, path = "/v1/nics/{name}/queue-pairs/{qpn}", tag = "objects", operation_id = "show_queue_pair",
    params(
        ("name" = String, Path, description = "Name of the NIC"),
        ("qpn" = u32, Path, description = "Number of the queue pair"),
    ),
    responses((status = 200, body = QueuePairView), (status = "4XX", body = ErrorBody)))]
async fn queue_pair(
    State(access): State<Access>,
    Segment((name, qpn)): Segment<(String, u32)>,
    _: NoQuery,
) -> Result<Json<QueuePairView>, ApiError> {
    let id = access.port(&name)?;
    let work = move |engine: &mut Engine| {
        let port = engine.fabric.nics.get(id)?;
        port.nic.queue_pair_info(qpn)
    };
    let info = access.call(id, work).await?;
    let info = info.ok_or_else(|| no_queue_pair(&name, qpn))?;
    Ok(Json(info.into()))
}

/// Sets the fault policy of a queue pair.
#[utoipa::path(put, path = "/v1/nics/{name}/queue-pairs/{qpn}/fault-policy", tag = "objects",
    operation_id = "set_fault_policy",
    params(
        ("name" = String, Path, description = "Name of the NIC"),
        ("qpn" = u32, Path, description = "Number of the queue pair"),
    ),
    request_body = PolicyChange,
    responses((status = 200, body = QueuePairView), (status = "4XX", body = ErrorBody)))]
async fn set_policy(
    State(access): State<Access>,
    Segment((name, qpn)): Segment<(String, u32)>,
    _: NoQuery,
    Body(change): Body<PolicyChange>,
) -> Result<Json<QueuePairView>, ApiError> {
    let id = access.port(&name)?;
    let policy = FaultPolicy::from(change.policy);
    let work = move |engine: &mut Engine| {
        let port = engine.fabric.nics.get_mut(id)?;
        port.nic.set_fault_policy(qpn, policy).ok()?;
        port.nic.queue_pair_info(qpn)
    };
    let info = access.call(id, work).await?;
    let info = info.ok_or_else(|| no_queue_pair(&name, qpn))?;
    nic_span(&name)
        .in_scope(|| tracing::info!(qpn, policy = policy.name(), "fault policy set by request"));
    Ok(Json(info.into()))
}

/// Memory keys.
#[utoipa::path(get, path = "/v1/nics/{name}/regions", tag = "objects", operation_id = "list_regions",
    params(
        ("name" = String, Path, description = "Name of the NIC"),
        ("from" = Option<u32>, Query, description = "Where to begin: `next` of the part before"),
        ("limit" = Option<u32>, Query, description = "Largest number of objects, 1 to 256; default 256"),
    ),
    responses((status = 200, body = Page<RegionView>), (status = "4XX", body = ErrorBody)))]
async fn regions(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<RegionView>>, ApiError> {
    let limit = limit(&query)?;
    let page = page(&access, &name, query.from, limit, Nic::regions).await?;
    Ok(Json(page))
}

/// The oldest 256 faults that the driver has not answered.
#[utoipa::path(get, path = "/v1/nics/{name}/faults", tag = "objects", operation_id = "list_faults",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = Vec<FaultView>), (status = "4XX", body = ErrorBody)))]
async fn faults(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Json<Vec<FaultView>>, ApiError> {
    Ok(Json(fault_list(&access, &name, MAX_OBJECTS).await?))
}

/// User contexts: processes of the guest that have opened the device.
#[utoipa::path(get, path = "/v1/nics/{name}/contexts", tag = "objects", operation_id = "list_contexts",
    params(
        ("name" = String, Path, description = "Name of the NIC"),
        ("from" = Option<u32>, Query, description = "Where to begin: `next` of the part before"),
        ("limit" = Option<u32>, Query, description = "Largest number of objects, 1 to 256; default 256"),
    ),
    responses((status = 200, body = Page<ContextView>), (status = "4XX", body = ErrorBody)))]
async fn contexts(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<ContextView>>, ApiError> {
    let limit = limit(&query)?;
    let page = page(&access, &name, query.from, limit, Nic::contexts).await?;
    Ok(Json(page))
}
