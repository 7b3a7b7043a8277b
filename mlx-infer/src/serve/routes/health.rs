//! `GET /health` and `GET /ready`.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::state::Shared;

/// Whether the process works: the engine's thread lives, or the model is still loading.
pub(crate) async fn health(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    match app.loaded() {
        Some(loaded) if !loaded.engine.is_alive() => {
            Err(ApiError::later(10, "the engine has ended"))
        }
        _ => Ok(Json(json!({"status": "ok"}))),
    }
}

/// Whether the server takes new requests: the model is loaded, the server is not draining, and the engine makes progress.
pub(crate) async fn ready(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    app.ready()?;
    match app.is_stuck() {
        true => Err(ApiError::later(
            10,
            "the engine has made no step for a minute",
        )),
        false => Ok(Json(json!({"status": "ready"}))),
    }
}
