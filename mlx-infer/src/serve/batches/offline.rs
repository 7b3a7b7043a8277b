//! A file of a batch, answered without a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;

use super::answers::{BatchJob, Tally};
use super::drive::at_once;
use super::lines;
use crate::backend::BackEnd;
use crate::error::{Error, ErrorKind, Result};
use crate::host::output::Claim;
use crate::request::cancel::CancelToken;
use crate::serve::http::guard::Keys;
use crate::serve::pool::{Pool, PoolOptions, PooledModel};
use crate::serve::settings::ServeOptions;
use crate::serve::state::App;
use crate::serve::{http, routes};

/// How often a cancellation is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// A file of requests in the form of OpenAI's batches, and the file of their answers.
///
/// ```no_run
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::LoadedModel;
/// use mlx_infer::serve::{BatchFile, ServeOptions};
/// let batch = BatchFile::new("requests.jsonl", "answers.jsonl");
/// println!("{} requests", batch.check()?);
/// let options = ServeOptions::default();
/// let counts = batch.run(LoadedModel::load_default, options, &Default::default(), |_| ())?;
/// println!("{} failed", counts.failed);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BatchFile {
    /// The requests: an object with `custom_id`, `method`, `url` and `body` on each line.
    pub input: PathBuf,
    /// The answers, in the order in which they are computed. Requests that have an answer there are
    /// not computed again.
    pub output: PathBuf,
    /// The answers of requests that failed; `None` for [`output`](Self::output).
    pub errors: Option<PathBuf>,
}

/// Counts of the requests of a [`BatchFile`] that have an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Those with the status 200.
    pub completed: usize,
    /// Those with another status.
    pub failed: usize,
}

impl From<Tally> for BatchCounts {
    fn from(Tally { completed, failed }: Tally) -> Self {
        Self { completed, failed }
    }
}

impl BatchFile {
    /// All answers are in one file.
    pub fn new(input: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        Self {
            input: input.into(),
            output: output.into(),
            errors: None,
        }
    }

    /// Reads all requests, and returns their number.
    ///
    /// # Errors
    /// The file cannot be read, has no line, lines that are no requests, or two with the same
    /// `custom_id`; the message names the first.
    pub fn check(&self) -> Result<usize> {
        let shown = self.input.display();
        let (total, faults) = lines::check(&self.input, None, usize::MAX).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot read {shown}")).with_source(error)
        })?;
        let Some(fault) = faults.first() else {
            return Ok(total);
        };
        let message = fault["message"].as_str().unwrap_or_default();
        let line = match fault["line"].as_u64() {
            Some(line) => format!("line {line}: "),
            None => String::new(),
        };
        Err(Error::new(
            ErrorKind::Format,
            format!("{shown}: {line}{message}"),
        ))
    }

    /// Answers the requests that have no answer yet, with the routes of a server of these options
    /// (without its address). `told` gets the counts after each answer. A cancellation ends the
    /// requests in progress without an answer.
    ///
    /// # Errors
    /// The model cannot be loaded, a file cannot be read or written, another process writes an
    /// output, or it was cancelled.
    pub fn run<M: Into<BackEnd>>(
        &self,
        load: impl FnOnce() -> Result<M> + Send + 'static,
        options: ServeOptions,
        cancel: &CancelToken,
        told: impl FnMut(BatchCounts),
    ) -> Result<BatchCounts> {
        options.check()?;
        let errors = self
            .errors
            .as_ref()
            .filter(|errors| **errors != self.output);
        let mut claims = Vec::new();
        for output in [Some(&self.output), errors].into_iter().flatten() {
            let real = |path: &Path| path.canonicalize().ok();
            if real(output).is_some_and(|path| Some(path) == real(&self.input)) {
                let message = format!("{} is the file of the requests", output.display());
                return Err(Error::argument(message));
            }
            claims.push(Claim::new(output)?);
        }
        let options = ServeOptions {
            log: false,
            ..options
        };
        let model = PooledModel::once(options.names.clone(), load);
        let only = PoolOptions {
            on_demand: false,
            ..Default::default()
        };
        let pool = Pool::new(vec![model], only, options.clone(), Box::new(|_| ()))?;
        let keys = Arc::new(Keys::new(&[], None));
        let app = Arc::new(App::new(options, keys, pool.clone(), None));
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("mlx-batch")
            .enable_all()
            .build();
        let io = |error| Error::new(ErrorKind::Io, "cannot compute the batch").with_source(error);
        let runtime = runtime.map_err(io)?;
        for index in pool.at_start() {
            runtime.block_on(pool.load_at_start(index))?;
        }
        let job = BatchJob {
            input: &self.input,
            endpoint: None,
            output: &self.output,
            errors: errors.unwrap_or(&self.output),
            at_once: at_once(&app),
        };
        let stopped = async {
            while !cancel.is_cancelled() && !pool.has_ended() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let (mut told, mut counts) = (told, BatchCounts::default());
        let router = http::router(routes::table(), app.clone());
        let is_done = runtime.block_on(job.run(&router, stopped, |tally| {
            counts = tally.into();
            told(counts);
        }));
        match is_done.map_err(io)? {
            true => Ok(counts),
            false if cancel.is_cancelled() => Err(Error::new(ErrorKind::Cancelled, "cancelled")),
            false => Err(Error::new(ErrorKind::Closed, "the engine has ended")),
        }
    }
}
