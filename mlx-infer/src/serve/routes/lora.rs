//! Adapters that come and go: vLLM's `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, and llama.cpp's
//! `GET /lora-adapters` and `POST /lora-adapters`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::serve::adapters::{self, ScaledAdapter, folder_of};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::state::Shared;

/// Loads an adapter, and answers when requests may name it.
pub(crate) async fn load(
    State(app): State<Shared>,
    mut fields: Fields,
) -> Result<(HeaderMap, String), ApiError> {
    let name: String = fields.require("lora_name")?;
    let path: String = fields.require("lora_path")?;
    let headers = fields.end(&["lora_int_id", "base_model_name"])?;
    app.accepts()?;
    let dir = folder_of(app.settings.adapters_dir.as_deref(), &path)?;
    let answer = format!("Success: LoRA adapter '{name}' added successfully.");
    adapters::load(&app, name, dir).await?;
    Ok((headers, answer))
}

/// Unloads an adapter, and answers when no request uses it any more.
pub(crate) async fn unload(
    State(app): State<Shared>,
    mut fields: Fields,
) -> Result<(HeaderMap, String), ApiError> {
    let name: String = fields.require("lora_name")?;
    let headers = fields.end(&["lora_int_id"])?;
    app.accepts()?;
    if app.settings.adapters_dir.is_none() {
        let message =
            "the server unloads no adapters on request: it was started without --adapters-dir";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message).with_param("lora_name"));
    }
    let answer = format!("Success: LoRA adapter '{name}' removed successfully.");
    adapters::unload(&app, name).await?;
    Ok((headers, answer))
}

/// The adapters, with their scales in requests that choose none.
pub(crate) async fn list(State(app): State<Shared>) -> Json<Value> {
    let list = app.pool.adapters().list();
    let list = list.iter().map(|adapter| {
        // Clients need not know where the server's folders are.
        let folder = adapter.dir.file_name().unwrap_or_default();
        json!({
            "id": adapter.id, "name": adapter.name, "path": folder.to_string_lossy(), "scale": adapter.scale,
        })
    });
    Json(list.collect())
}

/// Sets the scales in requests that choose no adapter.
pub(crate) async fn set_scales(
    State(app): State<Shared>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let content = headers.get(header::CONTENT_TYPE);
    let content = content.and_then(|value| value.to_str().ok()).unwrap_or("");
    let content = content.split(';').next().unwrap_or("").trim();
    if !content.eq_ignore_ascii_case("application/json") {
        let message = "expected a body with Content-Type: application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body =
        body.map_err(|rejection| ApiError::new(rejection.status(), rejection.body_text()))?;
    let scales: Vec<ScaledAdapter> = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body must be a list of objects with an id and a scale: {error}");
        ApiError::new(StatusCode::BAD_REQUEST, message)
    })?;
    app.pool.adapters().set_scales(&scales)?;
    Ok(Json(json!({"success": true})))
}
