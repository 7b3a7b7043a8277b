//! The table of routes, and a file for each: it reads the bodies, and writes the answers.

pub(crate) mod anthropic;
pub(crate) mod classify;
pub(crate) mod health;
pub(crate) mod infill;
pub(crate) mod openai;
pub(crate) mod page;
pub(crate) mod systemone;
pub(crate) mod tokenize;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};

use self::anthropic::messages;
use self::openai::{chat, completions, models, responses};
use super::http::error::ApiError;
use super::http::metrics;
use super::state::Shared;

/// All routes.
pub(super) fn table() -> Router<Shared> {
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        // Clients have base URLs with or without `/v1`.
        .merge(of_apis())
        .nest("/v1", of_apis())
        .route("/infill", post(infill::infill))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::info))
}

/// The routes of OpenAI's and Anthropic's APIs and of compatible servers, below `/v1`.
fn of_apis() -> Router<Shared> {
    Router::new()
        .route("/models", get(models::list))
        .route("/models/{*name}", get(models::one))
        .route("/chat/completions", post(chat::chat))
        .route("/messages", post(messages::messages))
        .route("/messages/count_tokens", post(messages::count_tokens))
        .route("/responses", post(responses::responses))
        .route("/responses/input_tokens", post(responses::input_tokens))
        .route("/responses/{id}", get(responses::stored))
        .route("/completions", post(completions::completions))
        .route("/classify", post(classify::classify))
        .route("/systemone", post(systemone::systemone))
        .route("/embeddings", post(no_embeddings))
}

async fn no_embeddings() -> ApiError {
    let message =
        "this server computes no embeddings: generative checkpoints are not trained for them";
    ApiError::new(StatusCode::NOT_FOUND, message)
}
