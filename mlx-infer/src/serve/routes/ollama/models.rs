//! `GET /api/tags`, `/api/ps` and `/api/version`, and `POST /api/show`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::engine::Engine;
use crate::serve::http::error::ApiError;
use crate::serve::pool::About;
use crate::serve::routes::ollama::ask::OllamaAsk;
use crate::serve::state::{App, Shared};

/// The release of Ollama whose API this is. Programs refuse a server whose release is too old for
/// what they use.
const RELEASE: &str = "0.12.11";

/// The time until which a model is in memory that is never unloaded.
const NEVER: &str = "9999-12-30T00:00:00Z";

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": RELEASE, "server": concat!("mlx-infer ", env!("CARGO_PKG_VERSION"))}))
}

/// The models that requests may name.
pub(super) async fn tags(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let names = app.names();
    let models = names.iter().map(|name| {
        let mut model = entry(name, &app.pool.about(app.asked(Some(name))?.index));
        model["modified_at"] = time(&app).into();
        Ok(model)
    });
    let models: Vec<Value> = models.collect::<Result<_, ApiError>>()?;
    Ok(Json(json!({"models": models})))
}

/// The models in memory.
pub(super) async fn ps(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let is_on_gpu = mlx_core::memory::of_device().is_ok_and(|device| device.is_some());
    let mut models = Vec::new();
    for name in &app.names() {
        let index = app.asked(Some(name))?.index;
        let Some(load) = app.pool.with_engine(index, Engine::load) else {
            continue;
        };
        let about = app.pool.about(index);
        let bytes = about.bytes + load.cache_bytes + load.prefix_bytes;
        let left = app.pool.status(index).left;
        let until = left.and_then(|left| Timestamp::now().checked_add(left).ok());
        let mut model = entry(name, &about);
        model["size"] = bytes.into();
        model["size_vram"] = if is_on_gpu { bytes } else { 0 }.into();
        model["expires_at"] = until
            .map_or_else(|| NEVER.to_owned(), |time| time.to_string())
            .into();
        model["context_length"] = about.context.into();
        models.push(model);
    }
    Ok(Json(json!({"models": models})))
}

/// The facts about a model. It is not loaded for that.
pub(super) async fn show(ask: OllamaAsk) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let OllamaAsk {
        app, asked, fields, ..
    } = ask;
    // `verbose` adds the vocabulary in Ollama.
    let headers = fields.end(&["verbose", "system", "template", "options"])?;
    let about = app.pool.about(asked.index);
    let kind = &about.family;
    let mut facts = json!({
        "general.architecture": kind,
        "general.basename": asked.name,
        "general.parameter_count": about.parameters,
    });
    for (name, value) in [
        ("context_length", json!(about.context)),
        ("embedding_length", about.hidden.into()),
        ("block_count", about.layers.into()),
        ("vocab_size", about.vocab.into()),
    ] {
        facts[format!("{kind}.{name}")] = value;
    }
    let document = json!({
        "modelfile": format!("FROM {}\n", asked.name),
        "parameters": about.defaults,
        "template": about.template.as_deref().unwrap_or_default(),
        "details": details(&about),
        "model_info": facts,
        "capabilities": about.capabilities,
        "modified_at": time(&app),
    });
    Ok((headers, Json(document)))
}

/// The time from which the server has its models.
fn time(app: &App) -> String {
    let time = Timestamp::from_second(app.created as i64).unwrap_or_default();
    time.to_string()
}

/// What lists of models say about one.
fn entry(name: &str, about: &About) -> Value {
    json!({
        "name": name,
        "model": name,
        "size": about.bytes,
        "digest": digest(name, about),
        "details": details(about),
    })
}

/// A number that stands for a model under a name. It is not that of its files.
fn digest(name: &str, about: &About) -> String {
    let text = format!("{name}\n{}\n{:?}", about.family, about.context);
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(about: &About) -> Value {
    json!({
        "parent_model": "",
        "format": if about.is_gguf { "gguf" } else { "safetensors" },
        "family": about.family,
        "families": [about.family],
        "parameter_size": about.parameters.map(size).unwrap_or_default(),
        "quantization_level": about.precision,
    })
}

/// A number of parameters as Ollama writes it: `7.6B`, `494.0M`.
fn size(parameters: usize) -> String {
    let n = parameters as f64;
    match n {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e3 => format!("{:.1}K", n / 1e3),
        n => n.to_string(),
    }
}
