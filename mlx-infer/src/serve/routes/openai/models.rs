//! `GET /v1/models` and `GET /v1/models/NAME`; `POST /v1/models/load` and `/v1/models/unload`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::keep_alive::KeepAlive;
use crate::serve::state::{App, Asked, Shared};

/// The list of models: one entry for each name that requests may give.
pub(crate) async fn list(
    State(app): State<Shared>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let is_anthropic = headers.contains_key("anthropic-version");
    let names = app.names();
    let data = names.iter().map(|name| {
        let asked = app.asked(Some(name))?;
        Ok(entry(&app, &asked, is_anthropic))
    });
    let data: Vec<Value> = data.collect::<Result<_, ApiError>>()?;
    Ok(Json(match is_anthropic {
        true => json!({
            "data": data, "has_more": false,
            "first_id": names.first(), "last_id": names.last(),
        }),
        false => json!({"object": "list", "data": data}),
    }))
}

/// One model.
pub(crate) async fn one(
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, ApiError> {
    let asked = app.asked(Some(&name))?;
    let is_anthropic = headers.contains_key("anthropic-version");
    Ok(Json(entry(&app, &asked, is_anthropic)))
}

/// Loads a model, and answers when it is in memory.
pub(crate) async fn load(
    State(app): State<Shared>,
    mut fields: Fields,
) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let (asked, keep_alive) = (of_body(&app, &mut fields)?, KeepAlive::take(&mut fields)?);
    let headers = fields.end(&[])?;
    if app.try_acquire(&asked, keep_alive)?.is_none() {
        app.acquire(&asked, keep_alive).await?;
    }
    Ok((headers, Json(changed(&app, &asked))))
}

/// Unloads a model, and answers when its memory is free.
pub(crate) async fn unload(
    State(app): State<Shared>,
    mut fields: Fields,
) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let asked = of_body(&app, &mut fields)?;
    let headers = fields.end(&[])?;
    app.pool.unload(asked.index).await?;
    Ok((headers, Json(changed(&app, &asked))))
}

/// The model of a body, which must name one.
fn of_body(app: &App, fields: &mut Fields) -> Result<Asked, ApiError> {
    let name: String = fields.require("model")?;
    app.asked(Some(&name))
}

/// The entry of a model that was loaded or unloaded, in llama.cpp's form.
fn changed(app: &App, asked: &Asked) -> Value {
    let mut entry = entry(app, asked, false);
    entry["success"] = true.into();
    entry
}

fn entry(app: &App, asked: &Asked, is_anthropic: bool) -> Value {
    let name = &asked.name;
    let about = app.pool.about(asked.index);
    if is_anthropic {
        let created = jiff::Timestamp::from_second(app.created as i64).unwrap_or_default();
        return json!({
            "type": "model", "id": name, "display_name": name,
            "created_at": created.to_string(), "max_input_tokens": about.context,
        });
    }
    let root = &app.pool.names_of(asked.index)[0];
    let mut entry = json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "mlx-infer",
        "root": root,
        "parent": asked.adapter.is_some().then_some(root),
        "max_model_len": about.context,
    });
    if app.pool.is_on_demand() {
        let status = app.pool.status(asked.index);
        entry["state"] = status.state.into();
        entry["progress"] = status.progress.into();
        entry["bytes"] = status.bytes.into();
        entry["pinned"] = status.is_pinned.into();
        entry["requests"] = status.requests.into();
        entry["error"] = status.error.into();
        entry["unloads_in"] = status.left.map(|left| left.as_secs_f64()).into();
    }
    entry
}
