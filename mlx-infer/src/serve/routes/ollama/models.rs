//! `GET /api/tags`, `/api/ps` and `/api/version`, and `POST /api/show`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use mlx_core::QuantMode;
use mlx_models::ModelInfo;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::routes::ollama::ask::OllamaAsk;
use crate::serve::state::{App, Loaded, Shared};

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
    let loaded = app.ready()?;
    let models = app.names().map(|name| {
        let mut model = entry(name, loaded);
        model["modified_at"] = time(&app).into();
        model
    });
    Ok(Json(json!({"models": models.collect::<Vec<_>>()})))
}

/// The models in memory.
pub(super) async fn ps(State(app): State<Shared>) -> Result<Json<Value>, ApiError> {
    let loaded = app.ready()?;
    let info = loaded.frontend().info();
    let bytes = info.weight_bytes + loaded.engine.load().cache_bytes;
    let is_on_gpu = mlx_core::memory::of_device().is_ok_and(|device| device.is_some());
    let models = app.names().map(|name| {
        let mut model = entry(name, loaded);
        model["size"] = bytes.into();
        model["size_vram"] = if is_on_gpu { bytes } else { 0 }.into();
        model["expires_at"] = NEVER.into();
        model["context_length"] = info.max_positions.into();
        model
    });
    Ok(Json(json!({"models": models.collect::<Vec<_>>()})))
}

/// The facts about a model.
pub(super) async fn show(ask: OllamaAsk) -> Result<(HeaderMap, Json<Value>), ApiError> {
    let Ask {
        app,
        served,
        fields,
        ..
    } = ask.0;
    let loaded = app.ready()?;
    // `verbose` adds the vocabulary in Ollama.
    let headers = fields.end(&["verbose", "system", "template", "options"])?;
    let frontend = loaded.frontend();
    let info = frontend.info();
    let kind = &info.model_type;
    let mut facts = json!({
        "general.architecture": kind,
        "general.basename": served.name,
        "general.parameter_count": info.n_parameters,
    });
    for (name, value) in [
        ("context_length", json!(info.max_positions)),
        ("embedding_length", info.hidden.into()),
        ("block_count", info.layers.len().into()),
        ("vocab_size", info.vocab.into()),
    ] {
        facts[format!("{kind}.{name}")] = value;
    }
    let template = frontend.chat_template().ok();
    let template = template.and_then(|template| template.source("default"));
    let defaults = &loaded.defaults.sampling;
    let parameters = format!(
        "temperature {}\ntop_p {}\ntop_k {}\nmin_p {}\nrepeat_penalty {}",
        defaults.temperature,
        defaults.top_p,
        defaults.top_k,
        defaults.min_p,
        defaults.repeat_penalty
    );
    let format = loaded.reply_format().ok();
    let capabilities = [
        ("completion", true),
        ("tools", format.is_some()),
        (
            "thinking",
            format.is_some_and(|format| format.has_reasoning()),
        ),
        ("insert", loaded.infill("suffix").is_ok()),
    ];
    let capabilities = capabilities.into_iter().filter(|(_, has)| *has);
    let document = json!({
        "modelfile": format!("FROM {}\n", served.name),
        "parameters": parameters,
        "template": template.unwrap_or_default(),
        "details": details(loaded),
        "model_info": facts,
        "capabilities": capabilities.map(|(name, _)| name).collect::<Vec<_>>(),
        "modified_at": time(&app),
    });
    Ok((headers, Json(document)))
}

/// The time from which the server has its models.
fn time(app: &App) -> String {
    let time = jiff::Timestamp::from_second(app.created as i64).unwrap_or_default();
    time.to_string()
}

/// What lists of models say about one.
fn entry(name: &str, loaded: &Loaded) -> Value {
    let info = loaded.frontend().info();
    json!({
        "name": name,
        "model": name,
        "size": info.weight_bytes,
        "digest": digest(name, info),
        "details": details(loaded),
    })
}

/// A number that stands for a model under a name. It is not that of its files.
fn digest(name: &str, info: &ModelInfo) -> String {
    let text = format!(
        "{name}\n{}\n{}\n{}",
        info.model_type, info.n_parameters, info.weight_bytes
    );
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(loaded: &Loaded) -> Value {
    let info = loaded.frontend().info();
    let precision = match info.quantization {
        None => info.dtype.to_string().to_uppercase(),
        Some(scheme) if scheme.mode == QuantMode::Affine => format!("Q{}", scheme.bits),
        Some(scheme) => scheme.mode.to_string().to_uppercase(),
    };
    json!({
        "parent_model": "",
        "format": if loaded.frontend().is_gguf() { "gguf" } else { "safetensors" },
        "family": info.model_type,
        "families": [info.model_type],
        "parameter_size": size(info.n_parameters),
        "quantization_level": precision,
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
