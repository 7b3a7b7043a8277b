//! `POST /api/embed`, and its older form `/api/embeddings` for one text.

use std::time::Duration;

use axum::Json;
use axum::http::HeaderMap;
use serde::Serialize;

use crate::request::generation::Prompt;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Ask;
use crate::serve::routes::embeddings::{check_number, vectors};
use crate::serve::routes::ollama::ask::{OllamaAsk, take_unused_options};
use crate::serve::turn::params::OneOrMany;
use crate::tasks::embed::EmbedOptions;

/// The answer of `/api/embed`. Numbers are written as the shortest that are the same in F32, and
/// times in nanoseconds.
#[derive(Serialize)]
pub(super) struct EmbedAnswer {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The answer of `/api/embeddings`.
#[derive(Serialize)]
pub(super) struct EmbeddingAnswer {
    embedding: Vec<f32>,
}

/// The vectors of texts. They have length 1.
pub(super) async fn embed(mut ask: OllamaAsk) -> Result<(HeaderMap, Json<EmbedAnswer>), ApiError> {
    let texts = match ask.fields.take("input")? {
        None => Vec::new(),
        Some(OneOrMany::One(text)) if text.is_empty() => Vec::new(),
        Some(texts) => texts.list(),
    };
    let (headers, answer) = answered(ask, "input", texts, Some(true)).await?;
    Ok((headers, Json(answer)))
}

/// The vector of a text, of the length that the checkpoint gives it.
pub(super) async fn embeddings(
    mut ask: OllamaAsk,
) -> Result<(HeaderMap, Json<EmbeddingAnswer>), ApiError> {
    let text: Option<String> = ask.fields.take("prompt")?;
    let texts = text.filter(|text| !text.is_empty()).into_iter().collect();
    let (headers, answer) = answered(ask, "prompt", texts, None).await?;
    let embedding = answer.embeddings.into_iter().next().unwrap_or_default();
    Ok((headers, Json(EmbeddingAnswer { embedding })))
}

/// Embeds the texts of a request. A request without a text only loads the model.
async fn answered(
    mut ask: OllamaAsk,
    param: &str,
    texts: Vec<String>,
    normalize: Option<bool>,
) -> Result<(HeaderMap, EmbedAnswer), ApiError> {
    let truncate: Option<bool> = ask.fields.take("truncate")?;
    let dimensions: Option<usize> = ask.fields.take("dimensions")?;
    take_unused_options(&mut ask.fields)?;
    let (ask, loading) = ask.with_model().await?;
    let Ask {
        app,
        trace,
        served,
        fields,
    } = ask;
    let long = fields.long();
    let headers = fields.end(&[])?;
    let options = EmbedOptions {
        // Ollama's clients write 0 for all features.
        dimensions: dimensions.filter(|&n| n > 0),
        normalize,
        truncate: truncate.unwrap_or(true),
        ..Default::default()
    };
    let (embeddings, prompt_eval_count) = match texts.is_empty() {
        true => (Vec::new(), 0),
        false => {
            check_number(param, texts.len())?;
            let prompts = texts.into_iter().map(Prompt::Text).collect();
            vectors(&app, &served, param, prompts, (long, options)).await?
        }
    };
    let nanoseconds = |time: Duration| time.as_nanos() as u64;
    let answer = EmbedAnswer {
        model: served.name,
        embeddings,
        total_duration: nanoseconds(trace.elapsed()),
        load_duration: nanoseconds(loading),
        prompt_eval_count,
    };
    Ok((headers, answer))
}
