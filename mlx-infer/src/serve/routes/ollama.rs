//! Ollama's API, below `/api`. Its streams are lines of JSON.

mod ask;
mod chat;
mod embed;
mod generate;
mod models;
mod writer;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::routing::{any, get, post};

use crate::serve::http::error::ApiError;
use crate::serve::state::Shared;

/// The routes of Ollama's API.
pub(crate) fn table() -> Router<Shared> {
    let mut table = Router::new()
        .route("/api/chat", post(chat::chat))
        .route("/api/generate", post(generate::generate))
        .route("/api/embed", post(embed::embed))
        .route("/api/embeddings", post(embed::embeddings))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(models::show))
        .route("/api/version", get(models::version));
    for path in REFUSED {
        table = table.route(path, any(refused));
    }
    table
}

/// The routes that change the files of models.
const REFUSED: [&str; 6] = [
    "/api/pull",
    "/api/push",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/api/blobs/{digest}",
];

/// Refuses a change of the server's models.
async fn refused(uri: Uri) -> ApiError {
    let message = format!(
        "{} is not supported: the server's own flags name its models, and no request downloads, changes or deletes one",
        uri.path()
    );
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
}
