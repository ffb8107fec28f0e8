//! The path of a dump: all that is known of a NIC as one JSON object, written in parts.
//!
//! The next part is made when the client has read most of the one before, so a slow client costs no memory. The parts are not
//! of the same time.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use faultline_nic::Nic;
use faultline_nic::inspect::Listing;
use serde::Serialize;
use tokio::sync::mpsc::{Sender, channel};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{NoQuery, Segment};
use crate::lists::{MAX_OBJECTS, fault_list, page};
use crate::nics::view;
use crate::objects::{ContextView, QueuePairView, RegionView};
use crate::parts::Parts;
use crate::view::{ErrorBody, NicView};
use faultline_daemon::engines::engine::Engine;

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(dump))
}

/// All that is known of a NIC: an object with `nic`, `device` and a list of each kind of objects. It has no contents of the
/// guest's memory, no Q_Keys, and no match fields of flows.
#[utoipa::path(get, path = "/v1/nics/{name}/dump", tag = "nics", operation_id = "dump_nic",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody)))]
async fn dump(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Response, ApiError> {
    let nic = view(&access, &name).await?;
    let (parts, received) = channel(1);
    tokio::spawn(async move {
        // If the dump fails or the client is gone, the body ends early, which the client notices: the JSON is incomplete.
        let _ = write(&access, &name, nic, &parts).await;
    });
    let body = Body::new(Parts::new(received, ()));
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// The dump can't go on.
struct Broken;

impl From<ApiError> for Broken {
    fn from(_: ApiError) -> Self {
        Self
    }
}

impl From<serde_json::Error> for Broken {
    fn from(_: serde_json::Error) -> Self {
        Self
    }
}

async fn write(
    access: &Access,
    name: &str,
    nic: NicView,
    parts: &Sender<Bytes>,
) -> Result<(), Broken> {
    let faults = fault_list(access, name, MAX_OBJECTS).await?;
    let head = format!(
        "{{\"nic\":{},\n\"faults\":{},\n\"queue_pairs\":[",
        serde_json::to_string(&nic)?,
        serde_json::to_string(&faults)?
    );
    send(parts, head).await?;
    list::<_, QueuePairView>(access, name, Nic::queue_pairs, parts).await?;
    send(parts, "],\n\"regions\":[".to_owned()).await?;
    list::<_, RegionView>(access, name, Nic::regions, parts).await?;
    send(parts, "],\n\"contexts\":[".to_owned()).await?;
    list::<_, ContextView>(access, name, Nic::contexts, parts).await?;
    send(parts, "],\n\"device\":".to_owned()).await?;
    send(parts, device(access, name).await?).await?;
    rest(access, name, parts).await?;
    send(parts, "}\n".to_owned()).await
}

/// What belongs to no object: command queues, timers, GIDs, netdev.
async fn device(access: &Access, name: &str) -> Result<String, Broken> {
    let id = access.port(name)?;
    let work = move |engine: &mut Engine| Some(engine.fabric.nics.get(id)?.nic.device_info());
    let info = access.call(id, work).await?.ok_or(Broken)?;
    Ok(serde_json::to_string(&info)?)
}

/// The objects that have no path of their own.
async fn rest(access: &Access, name: &str, parts: &Sender<Bytes>) -> Result<(), Broken> {
    let to = Lists {
        access,
        name,
        parts,
    };
    to.add("queue_pair_attributes", Nic::queue_pair_details)
        .await?;
    to.add("completion_queues", Nic::completion_queues).await?;
    to.add("shared_receive_queues", Nic::shared_receive_queues)
        .await?;
    to.add("event_queues", Nic::event_queues).await?;
    to.add("protection_domains", Nic::protection_domains)
        .await?;
    to.add("xrc_domains", Nic::xrc_domains).await?;
    to.add("address_handles", Nic::address_handles).await?;
    to.add("flows", Nic::flows).await?;
    to.add("indirection_tables", Nic::indirection_tables)
        .await?;
    to.add("multicast_groups", Nic::multicast_groups).await?;
    to.add("listeners", Nic::listeners).await
}

/// Where lists are added to the object.
struct Lists<'a> {
    access: &'a Access,
    name: &'a str,
    parts: &'a Sender<Bytes>,
}

impl Lists<'_> {
    /// Adds a list whose objects are shown as the NIC describes them.
    async fn add<I: Send + Serialize + 'static>(
        &self,
        key: &str,
        list: fn(&Nic, u32, usize) -> Listing<I>,
    ) -> Result<(), Broken> {
        send(self.parts, format!(",\n\"{key}\":[")).await?;
        self::list::<I, I>(self.access, self.name, list, self.parts).await?;
        send(self.parts, "]".to_owned()).await
    }
}

async fn send(parts: &Sender<Bytes>, text: String) -> Result<(), Broken> {
    parts.send(text.into()).await.map_err(|_| Broken)
}

/// Writes the objects of a list, separated by commas.
async fn list<I, T>(
    access: &Access,
    name: &str,
    list: fn(&Nic, u32, usize) -> Listing<I>,
    parts: &Sender<Bytes>,
) -> Result<(), Broken>
where
    I: Send + 'static,
    T: From<I> + Serialize,
{
    let mut from = Some(0);
    let mut first = true;
    while let Some(place) = from {
        let part = page::<I, T>(access, name, place, MAX_OBJECTS, list).await?;
        let mut text = String::new();
        for item in &part.items {
            text.push_str(if first { "\n" } else { ",\n" });
            text.push_str(&serde_json::to_string(item)?);
            first = false;
        }
        // Also without text: a client that is gone is noticed here.
        send(parts, text).await?;
        from = part.next;
    }
    Ok(())
}
