//! The layers around every handler: connections, access, errors, traces, metrics.

pub(crate) mod background;
pub(crate) mod connection;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod guard;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod prefix;
pub(crate) mod room;
#[cfg(feature = "otel")]
pub(crate) mod spans;
pub(crate) mod sse;
pub(crate) mod tls;
pub(crate) mod trace;

use std::any::Any;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::state::Shared;
use crate::serve::MAX_BODY;
use crate::serve::http::error::ApiError;
use crate::serve::http::prefix::Outside;
use crate::serve::http::trace::Trace;

/// Routes that need no key.
const OPEN: &[&str] = &["/", "/health", "/ready", "/openapi.json"];

/// Marks a request that this process sends to itself: a line of a batch.
#[derive(Clone, Copy)]
pub(super) struct Inside;

/// A router of these routes, with the layers around their handlers.
pub(super) fn router(routes: Router<Shared>, app: Shared) -> Router {
    let cors = cors(&app.settings.cors_origins);
    let router = routes
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), around))
        .with_state(app);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// CORS headers for web pages of these origins.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origin = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok())),
    };
    let exposed = ["retry-after", "x-ignored-params", "x-request-id"];
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // For browsers `*` means all headers except `Authorization`, so the requested names are
        // mirrored.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.map(HeaderName::from_static));
    Some(layer)
}

/// Runs around every handler: sets the request's id, checks access, shapes errors, and ends with the line in the log.
async fn around(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let route = format!("{} {path}", request.method());
    let is_inside = request.extensions().get::<Inside>().is_some();
    let trace = trace::begin(app.clone(), request.headers(), route, is_inside);
    request.extensions_mut().insert(trace.clone());
    let admitted = match is_inside {
        true => Ok(()),
        false => admit(&app, &request, &path, &trace),
    };
    let response = match admitted {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    let mut response = shaped(response, &path, &trace);
    let id = HeaderValue::from_str(&trace.id).unwrap_or(HeaderValue::from_static("-"));
    for name in ["x-request-id", "request-id"] {
        let name = HeaderName::from_static(name);
        response.headers_mut().insert(name, id.clone());
    }
    trace.respond(response.status().as_u16());
    response
}

/// Whether a request may be handled.
fn admit(app: &Shared, request: &Request, path: &str, trace: &Trace) -> Result<(), ApiError> {
    if request.extensions().get::<Outside>().is_some() {
        let prefix = &app.settings.path_prefix;
        let message = format!("there is no {path} here; all paths begin with {prefix}");
        return Err(ApiError::new(StatusCode::NOT_FOUND, message));
    }
    let is_open = OPEN.contains(&path);
    guard::check_one_host(request.version(), request.headers())?;
    // A unix socket is reached by name through a proxy only.
    let is_by_address = app.settings.unix_socket.is_none();
    if is_by_address && app.settings.address.ip().is_loopback() && !app.keys.are_needed() {
        guard::check_host(request.headers())?;
    }
    if !is_open {
        let key = app.keys.check(request.headers())?;
        // A key with as many requests as it may have can still cancel one.
        if request.method() == Method::POST && !path.ends_with("/cancel") {
            trace.hold(app.keys.enter(key)?);
        }
    }
    Ok(())
}

/// Writes an error in the shape of the route's API.
fn shaped(mut response: Response, path: &str, trace: &Trace) -> Response {
    let status = response.status();
    let error = match response.extensions_mut().remove::<ApiError>() {
        Some(error) => error,
        // A path that is not UTF-8 does not reach a handler.
        None if status.is_client_error() => {
            let reason = status.canonical_reason().unwrap_or_default();
            ApiError::new(status, format!("the request cannot be read: {reason}"))
        }
        None => return response,
    };
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let is_anthropic = path == "/messages" || path.starts_with("/messages/");
    let (status, body) = match () {
        () if is_anthropic => (error.anthropic_status(), error.anthropic(&trace.id)),
        () if path.starts_with("/api/") => (error.status, error.ollama(&trace.id)),
        () => (error.status, error.openai(&trace.id)),
    };
    let mut shaped = (status, axum::Json(body)).into_response();
    let headers = std::mem::take(response.headers_mut());
    for (name, value) in headers {
        let is_of_body =
            |name: &HeaderName| *name == header::CONTENT_LENGTH || *name == header::CONTENT_TYPE;
        if let Some(name) = name.filter(|name| !is_of_body(name)) {
            shaped.headers_mut().insert(name, value);
        }
    }
    if status.is_server_error() {
        trace.blame(error.message);
    }
    shaped
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::internal().into_response()
}

async fn not_found(request: Request) -> ApiError {
    let path = request.uri().path();
    let message = match meant(path) {
        Some(meant) => format!("there is no {path} here; there is {meant}"),
        None => format!("there is no {path} here"),
    };
    ApiError::new(StatusCode::NOT_FOUND, message)
}

/// The route that a client means if its base URL ends in `/v1` and it adds `/v1` itself.
fn meant(path: &str) -> Option<String> {
    const COMMON: [&str; 5] = [
        "/chat/completions",
        "/completions",
        "/messages",
        "/models",
        "/responses",
    ];
    let rest = path.trim_start_matches("/v1").trim_end_matches('/');
    COMMON.contains(&rest).then(|| format!("/v1{rest}"))
}

async fn not_allowed(request: Request) -> ApiError {
    let message = format!(
        "{} does not take {}",
        request.uri().path(),
        request.method()
    );
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}
