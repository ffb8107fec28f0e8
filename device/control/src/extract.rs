//! Strict queries and bodies: unknown keys and wrong values are errors, which are JSON, too.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// The query of a request.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query: Result<Query<T>, QueryRejection> = Query::from_request_parts(parts, state).await;
        match query {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::bad(format!(
                "query: {}",
                said(&error.body_text())
            ))),
        }
    }
}

/// A query without keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// For paths that take no query.
pub(crate) type NoQuery = Params<Nothing>;

/// The JSON body of a request.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let json: Result<Json<T>, JsonRejection> = Json::from_request(request, state).await;
        match json {
            Ok(Json(value)) => Ok(Self(value)),
            Err(error) => {
                let status = match error.status() {
                    StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
                    status => status,
                };
                let message = match status {
                    StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                        "the header Content-Type must be application/json".to_owned()
                    }
                    _ => format!("body: {}", said(&error.body_text())),
                };
                Err(ApiError::new(status, message))
            }
        }
    }
}

/// A part of the path.
#[derive(Debug)]
pub(crate) struct Segment<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Segment<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        match path {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::bad(format!("path: {}", error.body_text()))),
        }
    }
}

/// The message without the prefix that says which part of the request it is about.
fn said(message: &str) -> &str {
    let prefixes = [
        "Failed to deserialize query string: ",
        "Failed to deserialize the JSON body into the target type: ",
        "Failed to parse the request body as JSON: ",
    ];
    let rest = prefixes
        .iter()
        .find_map(|prefix| message.strip_prefix(prefix));
    rest.unwrap_or(message)
}
