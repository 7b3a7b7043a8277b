//! `POST /sleep` and `/wake_up`, and `GET /is_sleeping`, under vLLM's names.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::http::guard;
use crate::serve::state::Shared;

/// Frees the memory of all models, once the requests in progress have ended. Answers when it is
/// free. If the client leaves, the server falls asleep nevertheless.
pub(crate) async fn sleep(
    State(app): State<Shared>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    guard::check_origin(&headers, &app.settings.cors_origins)?;
    let pool = app.pool.clone();
    let asleep = tokio::spawn(async move { pool.sleep().await });
    asleep.await.map_err(|_| ApiError::internal())??;
    Ok(Json(json!({"is_sleeping": true})))
}

/// Loads the models again that were in memory. Answers when they are.
pub(crate) async fn wake_up(
    State(app): State<Shared>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    guard::check_origin(&headers, &app.settings.cors_origins)?;
    let pool = app.pool.clone();
    let awake = tokio::spawn(async move { pool.wake_up().await });
    awake.await.map_err(|_| ApiError::internal())??;
    Ok(Json(json!({"is_sleeping": false})))
}

pub(crate) async fn is_sleeping(State(app): State<Shared>) -> Json<Value> {
    Json(json!({"is_sleeping": app.pool.is_asleep()}))
}
