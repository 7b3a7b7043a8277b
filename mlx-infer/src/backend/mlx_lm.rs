//! The mlx-lm back end: Python's mlx_lm computes the tokens in a process of its own.
//!
//! As with the native back end, this crate handles the text: the tokenizer, the chat template, stop
//! strings and detokenisation. The process gets token ids and sampling settings, and returns ids.
//! So a checkpoint of a family that this version does not support can be used to generate, to chat
//! and to serve.
//!
//! | file | content |
//! |---|---|
//! | `bridge.py` | the program of the process |
//! | `protocol` | the messages |
//! | `child` | the process and its pipes |
//! | `start` | the start of a process, and the load of a model there |
//! | `request` | a request in progress |
//! | `session` | requests in progress, and a new process after one has ended |
//! | `python` | the choice of a Python, and its packages |
//! | `facts` | information about a model from config.json |

mod child;
mod facts;
mod protocol;
pub(super) mod python;
mod request;
mod session;
mod start;

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx_core::DType;
use mlx_models::ModelInfo;

pub(crate) use self::session::Session;
use self::start::BridgeStart;

use super::{OnEvent, TextModel};
use crate::engine::Decode;
use crate::error::{Error, Result};
use crate::model::checked::Checked;
use crate::model::frontend::{Frontend, Lacks, read_tokenizer};
use crate::request::Request;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, GenerateOptions, Generated, Prompt};
use crate::request::limits::Limits;
use crate::request::metrics::Metrics;
use crate::request::result::BatchResult;
use crate::tasks::batch::Batch;
use crate::text::chat::{Message, RenderOptions};
use crate::text::files::Files;

/// The name of the back end.
pub(super) const NAME: &str = "mlx-lm";

/// How mlx_lm is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlxLmOptions {
    /// The Python that has mlx_lm, or its virtual environment. By default that of
    /// `MLX_INFER_PYTHON`, else that of an active virtual environment, else `python3`.
    pub python: Option<PathBuf>,
    /// An adapter's folder, as mlx_lm reads it.
    pub adapter: Option<PathBuf>,
    /// Floating-point weights are converted to this; by default they stay as stored.
    pub dtype: Option<DType>,
    /// The process is ended if loading takes longer, or if it sends nothing for this long while it computes.
    pub timeout: Duration,
}

impl Default for MlxLmOptions {
    /// Five minutes.
    fn default() -> Self {
        Self {
            python: None,
            adapter: None,
            dtype: None,
            timeout: Duration::from_secs(300),
        }
    }
}

/// A model that Python's mlx_lm computes in a process of its own.
///
/// If the process ends, the requests in progress end with an error that quotes the last lines of its stderr, and the
/// next request starts a new process. Several requests are computed at a time if mlx_lm can join the caches of the
/// model, else one after the other. Grammars, speculation, processors, prompt caches, classification and scores are
/// errors of kind [`ErrorKind::Unsupported`](crate::ErrorKind).
///
/// ```no_run
/// # fn main() -> mlx_infer::Result<()> {
/// use mlx_infer::{Files, GenerateOptions, MlxLm, MlxLmOptions, TextModel};
/// # use std::ops::ControlFlow;
/// let files = Files::directory("checkpoints/a-new-family")?;
/// let model = MlxLm::load(files, MlxLmOptions::default())?;
/// let generated = model.generate(&"The red fox".into(), &GenerateOptions::default(), &mut |event| {
///     print!("{}", event.text());
///     ControlFlow::Continue(())
/// })?;
/// # Ok(())
/// # }
/// ```
pub struct MlxLm {
    frontend: Arc<Frontend>,
    session: RefCell<Session>,
    version: String,
}

impl MlxLm {
    /// Starts the process and loads a checkpoint there.
    ///
    /// # Errors
    /// There is no such Python, it has no mlx_lm, or mlx_lm refuses the checkpoint; or the tokenizer is malformed.
    pub fn load(files: Files, options: MlxLmOptions) -> Result<Self> {
        let started = Instant::now();
        // The small files come first, so that their faults are found before the weights are read.
        let (tokenizer, eos_ids) = read_tokenizer(&files)?;
        let config = facts::ModelConfig::read(&files)?;
        let start = BridgeStart::new(&files, &options);
        let (child, loaded) = start.run()?;
        let lacks = Lacks {
            name: NAME,
            check: protocol::check,
        };
        let frontend = Frontend::new(config.info(&loaded), files.clone(), tokenizer, eos_ids);
        let frontend = Arc::new(frontend.lacking(lacks));
        let version = loaded.version.clone();
        let session = Session::new(
            frontend.clone(),
            start,
            child,
            loaded.batches,
            started.elapsed(),
        );
        Ok(Self {
            frontend,
            session: RefCell::new(session),
            version,
        })
    }

    /// Checks options without a model.
    ///
    /// # Errors
    /// This back end does not support an option; the message names it.
    pub fn check_options(options: &GenerateOptions) -> Result<()> {
        protocol::check(options)
    }

    /// mlx_lm's version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.session.borrow().load_time()
    }

    /// The model's tokenizer, chat template and checks of requests, which other threads can share.
    pub fn frontend(&self) -> &Arc<Frontend> {
        &self.frontend
    }

    /// A batch that requests join at any time. There can be only one, and no other generation while it exists.
    ///
    /// # Errors
    /// A limit is 0, or this back end does not support it.
    pub fn batch(&self, limits: &Limits) -> Result<Batch<'_>> {
        check_limits(limits)?;
        let mut session = self
            .session
            .try_borrow_mut()
            .map_err(|_| Error::argument("another batch of this model is under way"))?;
        session.set_rows(limits.rows);
        Ok(Batch::new(session, self.frontend.clone()))
    }

    /// Checks the options of an engine.
    ///
    /// # Errors
    /// This back end does not support one of them.
    pub(crate) fn check_engine(
        &self,
        adapters: &[(String, PathBuf)],
        limits: &Limits,
    ) -> Result<()> {
        if let Some((name, _)) = adapters.first() {
            return Err(Error::unsupported(format!(
                "adapter {name:?}: adapters by name are not supported by the mlx-lm back end; the native one has them"
            )));
        }
        check_limits(limits)
    }

    /// This back end as an engine runs it.
    pub(crate) fn into_session(self, rows: usize) -> Session {
        let mut session = self.session.into_inner();
        session.set_rows(rows);
        session.set_notes();
        session
    }

    fn run(&self, request: Request, on_event: &mut OnEvent<'_>) -> Result<Generated> {
        let mut session = self
            .session
            .try_borrow_mut()
            .map_err(|_| Error::argument("a batch of this model is under way"))?;
        let events: Rc<RefCell<VecDeque<Result<Event>>>> = Rc::default();
        let (sink, dropped) = (events.clone(), CancelToken::new());
        let sink = move |event| {
            sink.borrow_mut().push_back(event);
            ControlFlow::Continue(())
        };
        let requested = Instant::now();
        session.submit(
            self.frontend.checked(request)?,
            requested,
            dropped.clone(),
            None,
            Box::new(sink),
        );
        let mut result = BatchResult::new(self.frontend.tokenizer_if_any().is_some());
        loop {
            let event = events.borrow_mut().pop_front();
            let Some(event) = event else {
                session.advance();
                continue;
            };
            if let Ok(event) = &event
                && on_event(event).is_break()
            {
                dropped.cancel();
            }
            if result.take(event) {
                return result.into_generated();
            }
        }
    }
}

/// # Errors
/// A limit is 0, or this back end does not support it.
fn check_limits(limits: &Limits) -> Result<()> {
    limits.check()?;
    let default = Limits::default();
    let lacks = [
        ("cache_bytes", limits.cache_bytes.is_some()),
        ("prefix_dir", limits.prefix_dir.is_some()),
        ("prefix_host_bytes", limits.prefix_host_bytes > 0),
        (
            "prefix_bytes",
            ![0, default.prefix_bytes].contains(&limits.prefix_bytes),
        ),
        ("step_tokens", limits.step_tokens.is_some()),
    ];
    match lacks.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => Err(Error::unsupported(format!(
            "{name} is not supported by the mlx-lm back end; the native one has it"
        ))),
    }
}

impl TextModel for MlxLm {
    fn info(&self) -> &ModelInfo {
        self.frontend.info()
    }

    fn metrics(&self) -> Metrics {
        self.session.borrow().metrics()
    }

    fn generate(
        &self,
        prompt: &Prompt,
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Generated> {
        self.run(Request::new(prompt.clone(), options.clone()), on_event)
    }

    fn chat(
        &self,
        messages: &[Message],
        render: &RenderOptions,
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Generated> {
        let ids = self.frontend.chat_ids(messages, render)?;
        self.run(Request::new(ids, options.clone()), on_event)
    }

    fn batch_generate(
        &self,
        requests: &[(Prompt, GenerateOptions)],
    ) -> Result<Vec<Result<Generated>>> {
        let mut results: Vec<Option<Result<Generated>>> = requests.iter().map(|_| None).collect();
        let mut batch = self.batch(&Limits::default())?;
        for (index, (prompt, options)) in requests.iter().enumerate() {
            batch.submit(index, Request::new(prompt.clone(), options.clone()));
        }
        while !batch.is_idle() {
            for (index, result) in batch.advance() {
                results[index] = Some(result.into_generated());
            }
        }
        let ended = results
            .into_iter()
            .map(|result| result.expect("every request ends"));
        Ok(ended.collect())
    }
}

impl Decode<'static> for RefMut<'_, Session> {
    fn submit(
        &mut self,
        request: Checked,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<crate::engine::Queue>>,
        sink: crate::engine::Sink<'static>,
    ) {
        (**self).submit(request, requested, dropped, backlog, sink);
    }

    fn advance(&mut self) {
        (**self).advance();
    }

    fn cancel_all(&mut self) {
        (**self).cancel_all();
    }

    fn is_idle(&self) -> bool {
        (**self).is_idle()
    }

    fn is_stalled(&self) -> bool {
        (**self).is_stalled()
    }

    fn load(&self) -> crate::engine::EngineLoad {
        (**self).load()
    }
}
