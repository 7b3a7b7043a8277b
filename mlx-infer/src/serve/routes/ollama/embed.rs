//! `POST /api/embed` and its older form `/api/embeddings`.

use axum::http::StatusCode;

use crate::serve::http::error::ApiError;
use crate::serve::routes::ollama::ask::OllamaAsk;

/// Refuses to embed texts.
pub(super) async fn embed(ask: OllamaAsk) -> ApiError {
    let message = format!(
        "{} computes no embeddings: generative checkpoints are not trained for them",
        ask.asked.name
    );
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
}
