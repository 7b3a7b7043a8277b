//! `GET /openapi.json`: the routes, their parameters and their answers, for programs.
//!
//! The document is written by hand. Bodies are read key by key, under the names of several APIs, so
//! no types are there to derive it from. Tests compare its routes with the table of routes and its
//! parameters with the guide, and send requests that are made from it.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::state::Shared;

const DOCUMENT: &str = include_str!("openapi.json");

pub(crate) async fn document(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let mut document: Value = serde_json::from_str(DOCUMENT).map_err(|_| ApiError::internal())?;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let url = match app.settings.path_prefix.as_str() {
        "" => "/",
        prefix => prefix,
    };
    document["servers"] = json!([{"url": url}]);
    Ok(Json(document))
}
