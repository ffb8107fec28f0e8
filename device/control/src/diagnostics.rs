//! The path of the diagnostics of a NIC.

use axum::Json;
use axum::extract::State;
use faultline_nic::inspect::Process;
use faultline_nic::{Diagnostic, Instant};
use faultline_telemetry::{DiagnosticKind, diagnostic_fields};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{NoQuery, Segment};
use crate::view::ErrorBody;
use faultline_daemon::engines::engine::Engine;
use faultline_daemon::log::diagnostics::{Owner, owner};

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Something that a NIC has reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiagnosticView {
    /// Kind, as in metrics and log.
    pub kind: String,
    /// The device clock in nanoseconds.
    pub at: u64,
    /// What it is about, by names: qpn, key, va, token and others.
    #[schema(value_type = Object)]
    pub fields: Value,
    /// The process that owns the object now, in its guest.
    pub pid: Option<u32>,
    /// Name of its program.
    pub program: Option<String>,
}

impl DiagnosticView {
    fn new((at, diagnostic, owner): (Instant, Diagnostic, Option<Owner>)) -> Self {
        let process = owner.and_then(|(pid, name)| Process::new(pid, name));
        Self {
            kind: DiagnosticKind::of(&diagnostic).name().to_owned(),
            at: at.0,
            fields: diagnostic_fields(&diagnostic),
            pid: process.as_ref().map(|process| process.pid),
            program: process.map(|process| process.name),
        }
    }
}

/// The newest diagnostics of a NIC, up to 8 of each kind, the newest first. The trace has all, but keeps them for a shorter time.
#[utoipa::path(get, path = "/v1/nics/{name}/diagnostics", tag = "objects", operation_id = "list_diagnostics",
    params(("name" = String, Path, description = "Name of the NIC")),
    responses((status = 200, body = Vec<DiagnosticView>), (status = "4XX", body = ErrorBody)))]
async fn list(
    State(access): State<Access>,
    Segment(name): Segment<String>,
    _: NoQuery,
) -> Result<Json<Vec<DiagnosticView>>, ApiError> {
    let id = access.port(&name)?;
    let work = move |engine: &mut Engine| {
        let nic = &engine.fabric.nics.get(id)?.nic;
        let recent = engine.io.recorder.recent(u16::try_from(id).ok()?);
        let owned = recent.into_iter().map(|(at, diagnostic)| {
            let owner = owner(nic, &diagnostic);
            (at, diagnostic, owner)
        });
        Some(owned.collect::<Vec<_>>())
    };
    let recent = access.call(id, work).await?;
    let recent = recent.ok_or_else(|| ApiError::no_nic(&name, &access.names))?;
    Ok(Json(recent.into_iter().map(DiagnosticView::new).collect()))
}
