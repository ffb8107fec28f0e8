//! Errors as JSON.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::view::ErrorBody;

/// An error of a request: status and message.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    pub(crate) fn no_nic(name: &str, names: &[String]) -> Self {
        let known = names.join(", ");
        Self::new(
            StatusCode::NOT_FOUND,
            format!("there is no NIC {name:?}; the NICs are: {known}"),
        )
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn engine_ended() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the engine has ended; restart faultline",
        )
    }

    pub(crate) fn engine_busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the engine has not answered in time; try again",
        )
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            error: self.message,
        };
        (self.status, Json(body)).into_response()
    }
}
