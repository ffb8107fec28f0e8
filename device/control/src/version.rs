//! The path of the version, and what a scrape reads of the process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use faultline_telemetry::ProcessSnapshot;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::extract::NoQuery;
use crate::view::ErrorBody;

/// Version of the program.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of the API: the first part of its paths.
const API_VERSION: &str = "1";

/// The version of the program and of its API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionView {
    /// Of the program.
    pub version: String,
    /// Of the API.
    pub api: String,
}

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(version))
}

/// The version of the program and of the API.
#[utoipa::path(get, path = "/v1/version", tag = "process", operation_id = "show_version",
    responses((status = 200, body = VersionView), (status = "4XX", body = ErrorBody)))]
async fn version(_: NoQuery) -> Json<VersionView> {
    Json(VersionView {
        version: VERSION.to_owned(),
        api: API_VERSION.to_owned(),
    })
}

/// Reads what the system knows of this process (proc_pid_status(5)). What it does not tell is 0.
pub(crate) fn process_snapshot(start: SystemTime) -> ProcessSnapshot {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let word = line.and_then(|line| line.split_whitespace().next());
        word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    ProcessSnapshot {
        version: VERSION,
        start: start.duration_since(UNIX_EPOCH).unwrap_or_default(),
        cpu: Duration::try_from(cpu).unwrap_or_default(),
        resident: number("VmRSS:").saturating_mul(1024),
        address_space: number("VmSize:").saturating_mul(1024),
        open_fds: u64::try_from(descriptors).unwrap_or(u64::MAX),
        max_fds: getrlimit(Resource::Nofile).current,
        threads: number("Threads:"),
    }
}
