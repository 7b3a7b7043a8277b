//! `/v1/batches`: requests in a file that are answered in the background.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Map, Value};

use super::files::{ListQuery, batches, disk, page, queried};
use crate::serve::batches::lines::ROUTES;
use crate::serve::batches::objects::{
    BatchObject, BatchState, RequestCounts, ordered_id, window_seconds,
};
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::serve::state::{App, Shared, now};

/// The number of batches of a list: the usual and the largest.
const LIST: (usize, usize) = (20, 100);

pub(crate) async fn create(
    State(app): State<Shared>,
    mut fields: Fields,
) -> Result<(HeaderMap, Json<BatchObject>), ApiError> {
    let batches = batches(&app)?;
    let input_file_id: String = fields.require("input_file_id")?;
    let endpoint: String = fields.require("endpoint")?;
    let completion_window: String = fields.require("completion_window")?;
    let metadata: Option<Map<String, Value>> = fields.take("metadata")?;
    if fields.has("output_expires_after") {
        let message = "output_expires_after is not supported: files stay until they are deleted";
        return Err(ApiError::bad("output_expires_after", message));
    }
    let headers = fields.end(&["output_expires_after"])?;
    if !ROUTES.contains(&endpoint.as_str()) {
        let message = format!(
            "endpoint must be one of {}, given {endpoint:?}",
            ROUTES.join(", ")
        );
        return Err(ApiError::bad("endpoint", message));
    }
    let seconds = window_seconds(&completion_window).ok_or_else(|| {
        let message = format!(
            "completion_window must be a time of 1s to 30d such as 24h, given {completion_window:?}"
        );
        ApiError::bad("completion_window", message)
    })?;
    match batches.store.file(&input_file_id) {
        Some(file) if file.purpose == "batch" => {}
        Some(file) => {
            let message = format!(
                "{input_file_id} has the purpose {}, expected batch",
                file.purpose
            );
            return Err(ApiError::bad("input_file_id", message));
        }
        None => {
            let message = format!("there is no file {input_file_id:?}");
            return Err(ApiError::bad("input_file_id", message));
        }
    }
    let now = now();
    let batch = BatchObject {
        id: ordered_id("batch_"),
        object: "batch".to_owned(),
        endpoint,
        errors: None,
        input_file_id,
        completion_window,
        status: BatchState::Validating,
        output_file_id: None,
        error_file_id: None,
        created_at: now,
        in_progress_at: None,
        expires_at: now + seconds,
        finalizing_at: None,
        completed_at: None,
        failed_at: None,
        expired_at: None,
        cancelling_at: None,
        cancelled_at: None,
        request_counts: RequestCounts::default(),
        metadata: metadata.map(Value::from),
    };
    batches.store.add_batch(batch.clone()).map_err(disk)?;
    // A server whose model is still loading begins with it then.
    if app.pool.is_started() {
        batches.begin(&app, &batch.id);
    }
    Ok((headers, Json(batch)))
}

fn found(app: &App, id: &str) -> Result<BatchObject, ApiError> {
    batches(app)?.store.batch(id).ok_or_else(|| {
        let message = format!("there is no batch {id:?}");
        ApiError::new(StatusCode::NOT_FOUND, message).with_param("batch_id")
    })
}

pub(crate) async fn list(
    State(app): State<Shared>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let query = queried(query)?;
    let all = batches(&app)?.store.batches();
    page(all, |batch| &batch.id, &query, LIST)
}

pub(crate) async fn one(
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<BatchObject>, ApiError> {
    found(&app, &id).map(Json)
}

pub(crate) async fn cancel(
    State(app): State<Shared>,
    Path(id): Path<String>,
) -> Result<Json<BatchObject>, ApiError> {
    found(&app, &id)?;
    let changed = batches(&app)?.store.change(&id, |batch| {
        if matches!(
            batch.status,
            BatchState::Validating | BatchState::InProgress
        ) {
            batch.enter(BatchState::Cancelling, now());
        }
    });
    let batch = changed.map_err(disk)?;
    match batch.status {
        BatchState::Cancelling | BatchState::Cancelled => Ok(Json(batch)),
        _ => {
            let message = format!("{id} has ended already, so it cannot be cancelled");
            Err(ApiError::new(StatusCode::CONFLICT, message).with_param("batch_id"))
        }
    }
}
