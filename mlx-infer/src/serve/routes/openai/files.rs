//! `/v1/files`: the files of batches.

use std::fs::File;
use std::io::{Read, Write};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::multipart::{Field, MultipartRejection};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Multipart, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::serve::batches::drive::Batches;
use crate::serve::batches::objects::{FileObject, ordered_id};
use crate::serve::http::error::ApiError;
use crate::serve::state::{App, Shared, now};

/// The largest file, as in OpenAI's API for batches.
const MAX_FILE: u64 = 200 << 20;
/// Most bytes of a part that is not the file.
const MAX_PART: usize = 1 << 10;
/// Most files of a list.
const MAX_LIST: usize = 10_000;
/// Bytes of a file that are read at a time.
const BLOCK: usize = 64 << 10;

/// The batches of the server.
///
/// # Errors
/// Status 404: it keeps none.
pub(crate) fn batches(app: &App) -> Result<&std::sync::Arc<Batches>, ApiError> {
    app.batches.as_ref().ok_or_else(|| {
        let message = "this server keeps no files and batches: it was started without --batch-dir";
        ApiError::new(StatusCode::NOT_FOUND, message)
    })
}

/// The error of a file operation. Its details are for the log.
pub(crate) fn disk(error: std::io::Error) -> ApiError {
    tracing::warn!("the folder of batches: {error}");
    ApiError::internal()
}

/// Parameters of a list.
#[derive(Deserialize)]
pub(crate) struct ListQuery {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
    purpose: Option<String>,
}

/// A part of `all`, which is ordered by ids: after an id, at most `limit`, the newest first unless
/// the query says otherwise.
///
/// # Errors
/// Status 400: a parameter is out of range.
pub(crate) fn page<T: Serialize>(
    mut all: Vec<T>,
    id: impl Fn(&T) -> &str,
    query: &ListQuery,
    (usual, most): (usize, usize),
) -> Result<Json<Value>, ApiError> {
    match query.order.as_deref() {
        None | Some("desc") => all.reverse(),
        Some("asc") => {}
        Some(other) => {
            let message = format!("order must be asc or desc, given {other:?}");
            return Err(ApiError::bad("order", message));
        }
    }
    let limit = query.limit.unwrap_or(usual);
    if !(1..=most).contains(&limit) {
        let message = format!("limit must be from 1 to {most}, given {limit}");
        return Err(ApiError::bad("limit", message));
    }
    if let Some(after) = &query.after {
        let at = all.iter().position(|one| id(one) == after);
        let at = at.ok_or_else(|| {
            ApiError::bad(
                "after",
                format!("after: there is no {after:?} in this list"),
            )
        })?;
        all.drain(..=at);
    }
    let has_more = all.len() > limit;
    all.truncate(limit);
    Ok(Json(json!({
        "object": "list",
        "first_id": all.first().map(&id),
        "last_id": all.last().map(&id),
        "has_more": has_more,
        "data": all,
    })))
}

/// The parameters of a list.
///
/// # Errors
/// Status 400: one has another type.
pub(crate) fn queried(
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<ListQuery, ApiError> {
    let query = query.map_err(|error| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            format!("the query: {}", error.body_text()),
        )
    })?;
    Ok(query.0)
}

pub(crate) async fn list(
    State(app): State<Shared>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let query = queried(query)?;
    let mut files = batches(&app)?.store.files();
    files.retain(|file| {
        query
            .purpose
            .as_ref()
            .is_none_or(|purpose| file.purpose == *purpose)
    });
    page(files, |file| &file.id, &query, (MAX_LIST, MAX_LIST))
}

fn found(app: &App, id: &str) -> Result<FileObject, ApiError> {
    batches(app)?.store.file(id).ok_or_else(|| {
        let message = format!("there is no file {id:?}");
        ApiError::new(StatusCode::NOT_FOUND, message).with_param("file_id")
    })
}

pub(crate) async fn one(
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<FileObject>, ApiError> {
    found(&app, &id).map(Json)
}

pub(crate) async fn delete(
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let file = found(&app, &id)?;
    let store = &batches(&app)?.store;
    let all = store.batches();
    let user = all
        .iter()
        .find(|batch| !batch.status.is_final() && batch.input_file_id == file.id);
    if let Some(batch) = user {
        let message = format!(
            "{} is the file of {}, which has not ended",
            file.id, batch.id
        );
        return Err(ApiError::bad("file_id", message));
    }
    let deleted = store.remove_file(&file.id).map_err(disk)?;
    Ok(Json(
        json!({"id": file.id, "object": "file", "deleted": deleted}),
    ))
}

pub(crate) async fn content(
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let file = found(&app, &id)?;
    let opened = File::open(batches(&app)?.store.content(&file.id)).map_err(disk)?;
    let blocks = stream::unfold(Some(opened), async |opened| {
        let mut opened = opened?;
        let mut block = vec![0; BLOCK];
        match opened.read(&mut block) {
            Ok(0) => None,
            Ok(n) => {
                block.truncate(n);
                Some((Ok(Bytes::from(block)), Some(opened)))
            }
            // The connection ends, so that the client sees that something is missing.
            Err(error) => Some((Err(error), None)),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/jsonl".to_owned()),
        (header::CONTENT_LENGTH, file.bytes.to_string()),
    ];
    Ok((headers, Body::from_stream(blocks)).into_response())
}

/// A content on disk that is removed unless it becomes a file.
struct Partial {
    path: std::path::PathBuf,
    file: File,
    bytes: u64,
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) async fn upload(
    State(app): State<Shared>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<FileObject>, ApiError> {
    let batches = batches(&app)?;
    let mut form = form.map_err(|_| {
        let message = "expected a body with Content-Type: multipart/form-data";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    })?;
    let id = ordered_id("file-");
    let limit = app.settings.client_timeout;
    let late = || {
        let message = format!("no part of the body came for {} s", limit.as_secs_f32());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    };
    let unread = |_| ApiError::new(StatusCode::BAD_REQUEST, "the form cannot be read");
    let (mut purpose, mut upload) = (None, None);
    while let Some(mut field) = (timeout(limit, form.next_field())
        .await
        .map_err(|_| late())?)
    .map_err(unread)?
    {
        let name = field.name().unwrap_or_default().to_owned();
        let mut part = match name.as_str() {
            "purpose" => Part::Text(Vec::new()),
            "file" if upload.is_none() => {
                let path = batches.store.partial(&id);
                let file = File::create(&path).map_err(disk)?;
                let bytes = 0;
                let filename = field.file_name().unwrap_or("upload.jsonl").to_owned();
                upload = Some((filename, Partial { path, file, bytes }));
                Part::File
            }
            other => {
                let message =
                    format!("{other}: not supported; there are file and purpose, once each");
                return Err(ApiError::bad(other, message));
            }
        };
        let chunk = async |field: &mut Field<'_>| {
            let chunk = timeout(limit, field.chunk()).await.map_err(|_| late())?;
            chunk.map_err(unread)
        };
        while let Some(bytes) = chunk(&mut field).await? {
            match (&mut part, &mut upload) {
                (Part::File, Some((_, partial))) => {
                    partial.bytes += bytes.len() as u64;
                    if partial.bytes > MAX_FILE {
                        let message = format!("the file is larger than {MAX_FILE} bytes");
                        let status = StatusCode::PAYLOAD_TOO_LARGE;
                        return Err(ApiError::new(status, message).with_param("file"));
                    }
                    partial.file.write_all(&bytes).map_err(disk)?;
                }
                (Part::Text(text), _) if text.len() + bytes.len() <= MAX_PART => {
                    text.extend_from_slice(&bytes);
                }
                _ => {
                    let message = format!("{name} is longer than {MAX_PART} bytes");
                    return Err(ApiError::bad(name, message));
                }
            }
        }
        if let Part::Text(text) = part {
            purpose = Some(String::from_utf8_lossy(&text).into_owned());
        }
    }
    match purpose.as_deref() {
        Some("batch") => {}
        None => return Err(ApiError::bad("purpose", "purpose is missing")),
        Some(other) => {
            let message = format!("purpose must be batch, given {other:?}");
            return Err(ApiError::bad("purpose", message));
        }
    }
    let Some((filename, partial)) = upload else {
        return Err(ApiError::bad("file", "file is missing"));
    };
    let file = FileObject::new(&id, filename, "batch", partial.bytes, now());
    batches
        .store
        .add_file(file.clone(), &partial.path)
        .map_err(disk)?;
    Ok(Json(file))
}

enum Part {
    File,
    Text(Vec<u8>),
}
