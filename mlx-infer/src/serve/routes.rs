//! The table of routes, and a file for each: it reads the bodies, and writes the answers.

pub(crate) mod anthropic;
pub(crate) mod classify;
pub(crate) mod embeddings;
pub(crate) mod health;
pub(crate) mod infill;
pub(crate) mod info;
pub(crate) mod lora;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod openapi;
pub(crate) mod page;
pub(crate) mod rerank;
pub(crate) mod sleep;
pub(crate) mod systemone;
pub(crate) mod tokenize;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};

use self::anthropic::messages;
use self::openai::{batches, chat, completions, files, models, responses};
use super::http::metrics;
use super::state::Shared;

/// All routes.
pub(super) fn table() -> Router<Shared> {
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/server_info", get(info::server))
        .route("/get_server_info", get(info::server))
        .route("/model_info", get(info::model))
        .route("/get_model_info", get(info::model))
        // Clients have base URLs with or without `/v1`.
        .merge(of_apis())
        .nest("/v1", of_apis())
        .merge(ollama::table())
        .route("/sleep", post(sleep::sleep))
        .route("/wake_up", post(sleep::wake_up))
        .route("/is_sleeping", get(sleep::is_sleeping))
        .route("/v2/rerank", post(rerank::rerank))
        .route("/infill", post(infill::infill))
        .route("/lora-adapters", get(lora::list).post(lora::set_scales))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::info))
}

/// The routes of OpenAI's and Anthropic's APIs and of compatible servers, below `/v1`.
fn of_apis() -> Router<Shared> {
    Router::new()
        .route("/models", get(models::list))
        .route("/models/{*name}", get(models::one))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/load_lora_adapter", post(lora::load))
        .route("/unload_lora_adapter", post(lora::unload))
        .route("/chat/completions", post(chat::chat))
        .route(
            "/chat/completions/{id}",
            get(chat::stored).delete(chat::delete),
        )
        .route("/messages", post(messages::messages))
        .route("/messages/count_tokens", post(messages::count_tokens))
        .route("/responses", post(responses::responses))
        .route("/responses/input_tokens", post(responses::input_tokens))
        .route(
            "/responses/{id}",
            get(responses::stored).delete(responses::delete),
        )
        .route("/responses/{id}/cancel", post(responses::cancel))
        .route("/completions", post(completions::completions))
        .route("/classify", post(classify::classify))
        .route("/systemone", post(systemone::systemone))
        .route(
            "/files",
            get(files::list)
                .post(files::upload)
                .layer(DefaultBodyLimit::disable()),
        )
        .route("/files/{id}", get(files::one).delete(files::delete))
        .route("/files/{id}/content", get(files::content))
        .route("/batches", get(batches::list).post(batches::create))
        .route("/batches/{id}", get(batches::one))
        .route("/batches/{id}/cancel", post(batches::cancel))
        .route("/embeddings", post(embeddings::embeddings))
        .route("/rerank", post(rerank::rerank))
        .route("/score", post(rerank::score))
}
