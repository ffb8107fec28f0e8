//! The path of the page table of a region.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use faultline_nic::inspect::{MAX_BUCKETS, PageMap};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::{Params, Segment};
use crate::view::ErrorBody;
use faultline_daemon::engines::engine::Engine;

/// Buckets if the request names no number.
const BUCKETS: u32 = 1024;

pub(crate) fn router() -> OpenApiRouter<Access> {
    OpenApiRouter::new().routes(routes!(pages))
}

/// Pages of an equal part of a region, each of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PageBucketView {
    /// All that this answer counts. Of a bucket that is in two answers, each counts a part.
    pub pages: u64,
    /// Present pages.
    pub present: u64,
    /// Present pages that the device may write. The kernel of the guest marks them dirty when it releases them.
    pub writable: u64,
    /// Pages whose fault the driver has not answered, of the oldest 256 faults of the NIC.
    pub faulting: u64,
}

/// A part of the page table of a region, in buckets of equal size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PageMapView {
    /// First address of the region.
    pub iova: u64,
    /// Bytes of the region.
    pub length: u64,
    /// Pages of a bucket, a power of two. The last bucket may have fewer.
    pub bucket_pages: u64,
    /// Number of the first bucket of this part, from 0.
    pub first: u64,
    /// The buckets.
    pub buckets: Vec<PageBucketView>,
    /// `from` of the next part, a page; `null`: this was the last. Its first bucket may be the last of this part: then their numbers of
    /// pages are to be added.
    pub next: Option<u64>,
}

/// Which part of a page table, and in how many buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageMapQuery {
    /// Most buckets of the whole region.
    pub buckets: Option<u32>,
    /// Where to begin: `next` of the part before.
    #[serde(default)]
    pub from: u64,
}

impl From<PageMap> for PageMapView {
    fn from(map: PageMap) -> Self {
        let buckets = map.buckets.iter().map(|bucket| PageBucketView {
            pages: bucket.pages,
            present: bucket.present,
            writable: bucket.writable,
            faulting: bucket.faulting,
        });
        Self {
            iova: map.iova,
            length: map.length,
            bucket_pages: map.bucket_pages,
            first: map.first,
            buckets: buckets.collect(),
            next: map.next,
        }
    }
}

/// The page table of a memory key, in buckets of equal size: which pages are present, writable, or awaited. An answer counts 65536 entries
/// of the table at most.
#[utoipa::path(get, path = "/v1/nics/{name}/regions/{key}/pages", tag = "objects", operation_id = "show_pages",
    params(
        ("name" = String, Path, description = "Name of the NIC"),
        ("key" = u32, Path, description = "The whole key"),
        ("buckets" = Option<u32>, Query, description = "Most buckets of the whole region, 1 to 4096; default 1024"),
        ("from" = Option<u64>, Query, description = "Where to begin: `next` of the part before"),
    ),
    responses((status = 200, body = PageMapView), (status = "4XX", body = ErrorBody)))]
async fn pages(
    State(access): State<Access>,
    Segment((name, key)): Segment<(String, u32)>,
    Params(query): Params<PageMapQuery>,
) -> Result<Json<PageMapView>, ApiError> {
    let buckets = query.buckets.unwrap_or(BUCKETS);
    if !(1..=MAX_BUCKETS).contains(&buckets) {
        return Err(ApiError::bad(format!(
            "query: buckets {buckets} is out of range: it must be 1 to {MAX_BUCKETS}"
        )));
    }
    let id = access.port(&name)?;
    let work = move |engine: &mut Engine| {
        let port = engine.fabric.nics.get(id)?;
        port.nic.page_map(key, buckets, query.from)
    };
    let map = access.call(id, work).await?;
    let map = map.ok_or_else(|| {
        let message = format!("NIC {name} has no memory key {key:#x} with a page table");
        ApiError::new(StatusCode::NOT_FOUND, message)
    })?;
    Ok(Json(map.into()))
}
