//! `GET /health` and `GET /ready`.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::state::Shared;

/// Whether the process works: no engine has ended that cannot be replaced.
pub(crate) async fn health(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    match app.pool.has_ended() {
        true => Err(ApiError::later(10, "the engine has ended")),
        false => Ok(Json(json!({"status": "ok"}))),
    }
}

/// Whether the server takes new requests: it is neither draining nor asleep, its engines make
/// progress, and the models are in memory that are loaded at its start.
pub(crate) async fn ready(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    app.accepts()?;
    app.pool.accepts(0)?;
    if !app.pool.is_started() {
        return Err(ApiError::later(5, "the pinned models are loading"));
    }
    match app.is_stuck() {
        true => Err(ApiError::later(
            10,
            "the engine has made no step for a minute",
        )),
        false => Ok(Json(json!({"status": "ready"}))),
    }
}
