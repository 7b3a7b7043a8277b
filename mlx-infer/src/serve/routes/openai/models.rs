//! `GET /v1/models` and `GET /v1/models/NAME`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::state::{App, Shared};

/// The list of models: one entry for each name that requests may give.
pub(crate) async fn list(State(app): State<Shared>, headers: HeaderMap) -> Json<Value> {
    let is_anthropic = headers.contains_key("anthropic-version");
    let names: Vec<&str> = app.names().collect();
    let data: Vec<Value> = names
        .iter()
        .map(|name| entry(&app, name, is_anthropic))
        .collect();
    Json(match is_anthropic {
        true => json!({
            "data": data, "has_more": false,
            "first_id": names.first(), "last_id": names.last(),
        }),
        false => json!({"object": "list", "data": data}),
    })
}

/// One model.
pub(crate) async fn one(
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let served = app.served(Some(&name))?;
    let is_anthropic = headers.contains_key("anthropic-version");
    Ok(Json(entry(&app, &served.name, is_anthropic)))
}

fn entry(app: &App, name: &str, is_anthropic: bool) -> Value {
    let positions = (app.loaded()).and_then(|loaded| loaded.frontend().info().max_positions);
    if is_anthropic {
        let created = jiff::Timestamp::from_second(app.created as i64).unwrap_or_default();
        return json!({
            "type": "model", "id": name, "display_name": name,
            "created_at": created.to_string(), "max_input_tokens": positions,
        });
    }
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "mlx-infer",
        "root": app.settings.names[0],
        "parent": (app.adapters().any(|adapter| adapter == name)).then_some(&app.settings.names[0]),
        "max_model_len": positions,
    })
}
