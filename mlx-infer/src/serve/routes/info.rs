//! `GET /server_info` and `GET /model_info`, from which SGLang's router learns the model's name and the server's sizes.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::state::Shared;

/// The server's version and sizes, and the facts about its first model. Paths are left out: a router would take them for
/// files that it can read.
pub(crate) async fn server(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let asked = app.asked(None)?;
    Ok(Json(json!({
        "served_model_name": app.pool.names_of(asked.index)[0],
        "version": env!("CARGO_PKG_VERSION"),
        "max_running_requests": app.settings.engine.limits.rows,
        "context_length": app.pool.about(asked.index).context,
    })))
}

/// The facts about the first model.
pub(crate) async fn model(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let asked = app.asked(None)?;
    let about = app.pool.about(asked.index);
    Ok(Json(json!({
        "served_model_name": app.pool.names_of(asked.index)[0],
        "model_type": about.family,
        "is_generation": about.capabilities.contains(&"completion"),
        "context_length": about.context,
    })))
}
