//! All paths of the API together, and their description.

use std::sync::OnceLock;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::RefOr;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::error::ApiError;
use crate::extract::NoQuery;
use crate::view::{ErrorBody, TraceHeader};
use crate::{
    capture, check, diagnostics, dump, engine, lists, metrics, nics, pages, ports, rules, scenario,
    trace, version,
};

/// Longest body of a request in bytes.
const MAX_BODY: usize = 64 << 10;
/// Time within which the beginning of the response must be ready, reading the body included.
const REQUEST_TIME: Duration = Duration::from_secs(15);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Faultline control API",
        version = "1",
        description = "Observation and control of the NICs of a faultline process, over a unix socket or a loopback address."
    ),
    components(schemas(TraceHeader))
)]
struct Description;

fn routes() -> OpenApiRouter<Access> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(nics::router())
        .merge(lists::router())
        .merge(pages::router())
        .merge(diagnostics::router())
        .merge(dump::router())
        .merge(engine::router())
        .merge(ports::router())
        .merge(scenario::router())
        .merge(rules::router())
        .merge(trace::router())
        .merge(capture::router())
        .merge(check::router())
        .merge(metrics::router())
        .merge(version::router())
        .routes(routes!(openapi))
}

/// The OpenAPI description of the API as JSON.
pub fn description() -> Result<String, serde_json::Error> {
    let mut api = routes().into_openapi();
    describe_server_errors(&mut api);
    describe_token(&mut api);
    let mut text = api.to_pretty_json()?;
    text.push('\n');
    Ok(text)
}

/// The description of this API, as OpenAPI.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "process", operation_id = "show_openapi",
    responses((status = 200, body = serde_json::Value), (status = "4XX", body = ErrorBody)))]
async fn openapi(_: NoQuery) -> Result<Response, ApiError> {
    let text = made_description();
    let text =
        text.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}

/// The description, which the first request makes for all that follow.
fn made_description() -> Result<Bytes, serde_json::Error> {
    static MADE: OnceLock<Bytes> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return Ok(made.clone());
    }
    let text = Bytes::from(description()?);
    Ok(MADE.get_or_init(|| text).clone())
}

/// Each request may fail for the same reasons of the server.
fn describe_server_errors(api: &mut utoipa::openapi::OpenApi) {
    for path in api.paths.paths.values_mut() {
        let operations = [
            &mut path.get,
            &mut path.put,
            &mut path.post,
            &mut path.delete,
        ];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            let Some(RefOr::T(mut response)) = responses.get("4XX").cloned() else {
                continue;
            };
            response.description =
                "503: the engine has not answered in time, or has ended; 500: the answer could not be made".to_owned();
            responses.insert("5XX".to_owned(), RefOr::T(response));
        }
    }
}

/// The unix socket needs no token, a loopback address does.
fn describe_token(api: &mut utoipa::openapi::OpenApi) {
    let scheme = Http::builder()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "The token of control.token_file, on a loopback address. The unix socket needs none.",
        ))
        .build();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    let token = SecurityRequirement::new("token", Vec::<String>::new());
    api.security = Some(vec![SecurityRequirement::default(), token]);
}

/// Serves the API.
pub(crate) fn router(access: Access) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .fallback(no_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn(limit_time))
        .with_state(access)
}

async fn no_path(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::new(
        StatusCode::NOT_FOUND,
        format!("there is no path {path:?}; /v1/openapi.json describes those that exist"),
    )
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!(
            "{} is not allowed for {:?}; the header Allow has what is",
            request.method(),
            request.uri().path()
        ),
    )
}

/// Answers with 408 if a request takes too long, such as one whose body does not arrive.
async fn limit_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIME, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the request took longer than {REQUEST_TIME:?}"),
        )
        .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_made_once() {
        let [first, second] = [(); 2].map(|()| made_description().unwrap());
        assert_eq!(first, description().unwrap());
        assert_eq!(first.as_ptr(), second.as_ptr());
    }
}
