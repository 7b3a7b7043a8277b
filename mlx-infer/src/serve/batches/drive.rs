//! The life of a batch: checked, computed, cancelled, expired, complete.
//!
//! Each state is on disk before the next one begins, and each step may be repeated, so a batch
//! continues after a crash where it was.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use super::answers::BatchJob;
use super::lines::{self, EMBEDDINGS};
use super::objects::{BatchObject, BatchState};
use super::store::Store;
use crate::error::Result;
use crate::host::console;
use crate::serve::server::is_set;
use crate::serve::state::{Shared, now};
use crate::serve::{http, routes};

/// Most lines of a batch, as in OpenAI's API.
pub(crate) const MAX_LINES: usize = 50_000;

/// The batches of a server.
#[derive(Debug)]
pub(crate) struct Batches {
    pub(crate) store: Store,
    /// The batches that have a task.
    driven: Mutex<HashSet<String>>,
    /// Set when the server ends.
    stop: watch::Receiver<bool>,
}

impl Batches {
    /// Opens a folder.
    ///
    /// # Errors
    /// Another server uses it, or an object in it cannot be read.
    pub(crate) fn open(folder: &Path, stop: watch::Receiver<bool>) -> Result<Self> {
        Ok(Self {
            store: Store::open(folder)?,
            driven: Mutex::default(),
            stop,
        })
    }

    /// Goes on with all batches that have not ended, the oldest first.
    pub(crate) fn resume(self: &Arc<Self>, app: &Shared) {
        for batch in self.store.batches() {
            if !batch.status.is_final() {
                self.begin(app, &batch.id);
            }
        }
    }

    /// Starts the task of a batch, if it has none.
    pub(crate) fn begin(self: &Arc<Self>, app: &Shared, id: &str) {
        let driven = || self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        if !driven().insert(id.to_owned()) {
            return;
        }
        let (this, app, id) = (self.clone(), app.clone(), id.to_owned());
        tokio::spawn(async move {
            let stopped = is_set(this.stop.clone());
            let driven = tokio::select! {
                biased;
                () = stopped => Ok(()),
                driven = this.drive(&app, &id) => driven,
            };
            if let Err(error) = driven {
                console::note(&format!("batch {id} does not go on: {error}"));
                let failed = this.store.change(&id, |batch| {
                    let fault = json!({"code": "server_error", "line": null, "param": null, "message": "the server cannot read or write the files of the batch"});
                    batch.errors = Some(json!({"object": "list", "data": [fault]}));
                    batch.enter(BatchState::Failed, now());
                });
                if let Err(error) = failed {
                    console::note(&format!("batch {id} stays as it is on disk: {error}"));
                    this.store.give_up(&id);
                }
            }
        });
    }

    async fn drive(&self, app: &Shared, id: &str) -> io::Result<()> {
        let Some(batch) = self.store.batch(id) else {
            return Ok(());
        };
        let input = self.store.content(&batch.input_file_id);
        if batch.status == BatchState::Validating {
            let endpoint = batch.endpoint.clone();
            let path = input.clone();
            let checked = tokio::task::spawn_blocking(move || {
                lines::check(&path, Some(&endpoint), MAX_LINES)
            });
            let (total, faults) = checked.await.map_err(io::Error::other)??;
            let checked = self.store.change(id, |batch| {
                batch.request_counts.total = total;
                if !faults.is_empty() {
                    batch.errors = Some(json!({"object": "list", "data": faults}));
                    batch.enter(BatchState::Failed, now());
                }
            })?;
            if checked.status == BatchState::Failed {
                return Ok(());
            }
        }
        let output = self.store.answers(id, "output");
        let errors = self.store.answers(id, "errors");
        let job = BatchJob {
            input: &input,
            endpoint: Some(&batch.endpoint),
            output: &output,
            errors: &errors,
            at_once: match batch.endpoint.as_str() {
                // They share no step, and other requests take turns with each of them.
                EMBEDDINGS => 2,
                _ => at_once(app),
            },
        };
        let end = match batch.status {
            // It ended before the server did, and only its files were left to be made.
            BatchState::Finalizing => BatchState::Completed,
            _ => self.compute(app, &batch, &job).await?,
        };
        match end {
            BatchState::Completed => {
                self.store
                    .change(id, |batch| batch.enter(BatchState::Finalizing, now()))?;
            }
            BatchState::Expired => {
                let message = "the request was not computed before the batch expired";
                let tally = job.fail_rest("batch_expired", message)?;
                self.store.count(id, tally.completed, tally.failed);
            }
            _ => {}
        }
        let output = self.publish(id, "output")?;
        let errors = self.publish(id, "errors")?;
        self.store.change(id, |batch| {
            (batch.output_file_id, batch.error_file_id) = (output, errors);
            batch.enter(end, now());
        })?;
        Ok(())
    }

    /// Computes the requests of a batch when its turn comes. Returns how it ended.
    async fn compute(
        &self,
        app: &Shared,
        batch: &BatchObject,
        job: &BatchJob<'_>,
    ) -> io::Result<BatchState> {
        let left = Duration::from_secs(batch.expires_at.saturating_sub(now()));
        let expired = tokio::time::Instant::now() + left;
        let ended = async || {
            let is_cancelling = |batch: &BatchObject| batch.status == BatchState::Cancelling;
            tokio::select! {
                biased;
                () = self.store.until(&batch.id, is_cancelling) => BatchState::Cancelled,
                () = tokio::time::sleep_until(expired) => BatchState::Expired,
            }
        };
        // One batch at a time, in the order of their arrival.
        tokio::select! {
            biased;
            end = ended() => return Ok(end),
            () = self.store.until_first(&batch.id) => {}
        }
        self.store.change(&batch.id, |batch| {
            // A cancellation may have come meanwhile.
            if batch.status == BatchState::Validating {
                batch.enter(BatchState::InProgress, now());
            }
        })?;
        let router = http::router(routes::table(), app.clone());
        let mut end = BatchState::Completed;
        let stopped = async { end = ended().await };
        let count = |tally: super::answers::Tally| {
            self.store.count(&batch.id, tally.completed, tally.failed);
        };
        job.run(&router, stopped, count).await?;
        Ok(end)
    }

    /// Makes a file of the answers of a batch, and returns its id. `None` if there are none. Called
    /// again, it returns the same file.
    fn publish(&self, batch: &str, kind: &str) -> io::Result<Option<String>> {
        let id = format!("file-{}-{kind}", batch.trim_start_matches("batch_"));
        let name = format!("{batch}_{kind}.jsonl");
        let made = self
            .store
            .adopt(&id, &self.store.answers(batch, kind), name)?;
        Ok(made.then_some(id))
    }
}

/// How many requests of a batch are computed at a time: as many as the batch has rows, while half
/// of the queue stays free for others.
pub(crate) fn at_once(app: &Shared) -> usize {
    let engine = &app.settings.engine;
    engine.limits.rows.min(engine.max_requests / 2).max(1)
}
