//! Back ends that generate text: their interface, the list of them, and whether they can be used.

mod engine;
mod mlx_lm;
mod ranks;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

pub use self::engine::follow_engine;
pub use self::mlx_lm::{MlxLm, MlxLmOptions};
pub use self::ranks::{join_command, join_ranks, rank_here, refuse_ranks};

use mlx_models::ModelInfo;

use crate::error::{Error, Result};
use crate::model::LoadedModel;
use crate::model::frontend::Frontend;
use crate::request::Request;
use crate::request::generation::{Event, GenerateOptions, Generated, Prompt};
use crate::request::limits::Limits;
use crate::request::metrics::Metrics;
use crate::request::result::BatchResult;
use crate::tasks::batch::Batch;
use crate::tasks::classify::{ClassifyOptions, ClassifyResult};
use crate::text::chat::{Message, RenderOptions};

/// A loaded model of any back end, for an [`Engine`](crate::Engine).
pub enum BackEnd {
    /// A model in this process.
    Native(Box<LoadedModel>),
    /// A model that Python's mlx_lm computes.
    MlxLm(Box<MlxLm>),
}

impl From<LoadedModel> for BackEnd {
    fn from(model: LoadedModel) -> Self {
        Self::Native(Box::new(model))
    }
}

impl From<MlxLm> for BackEnd {
    fn from(model: MlxLm) -> Self {
        Self::MlxLm(Box::new(model))
    }
}

impl BackEnd {
    /// Information about the model.
    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::Native(model) => model.info(),
            Self::MlxLm(model) => model.info(),
        }
    }

    /// The model behind the common interface of all back ends.
    pub fn text_model(&self) -> &dyn TextModel {
        match self {
            Self::Native(model) => model.as_ref(),
            Self::MlxLm(model) => model.as_ref(),
        }
    }

    /// The model's tokenizer, chat template and checks of requests.
    pub fn frontend(&self) -> &Frontend {
        match self {
            Self::Native(model) => model.frontend(),
            Self::MlxLm(model) => model.frontend(),
        }
    }

    /// A batch without requests, with these limits.
    ///
    /// # Errors
    /// A limit is 0, or the back end does not support it.
    pub fn batch(&self, limits: &Limits) -> Result<Batch<'_>> {
        match self {
            Self::Native(model) => model.batch(limits),
            Self::MlxLm(model) => model.batch(limits),
        }
    }
}

/// A back end of this version, and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Availability {
    /// Its name, for `--backend`.
    pub name: &'static str,
    /// A description, for `mlx-infer backends`.
    pub about: &'static str,
    /// Its version, or the reason why it cannot be used and a remedy.
    pub version: std::result::Result<String, String>,
    /// The program that it runs, if it is not this one.
    pub program: Option<PathBuf>,
}

/// Every back end, and whether it can be used here. `python` is the Python of mlx-lm ([`MlxLmOptions::python`]).
pub fn backends(python: Option<&Path>) -> Vec<Availability> {
    let python = mlx_lm::python::choose(python);
    vec![
        Availability {
            name: "native",
            about: "this program",
            version: Ok(env!("CARGO_PKG_VERSION").to_owned()),
            program: None,
        },
        Availability {
            name: mlx_lm::NAME,
            about: "Python's mlx_lm in a process of its own",
            version: mlx_lm::python::version(&python),
            program: Some(python),
        },
    ]
}

/// Called with every event; `Break` cancels the generation.
pub type OnEvent<'a> = dyn FnMut(&Event) -> ControlFlow<()> + 'a;

/// The classification of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Classification {
    /// The best label.
    pub label: String,
    /// The probability of each label, in the order in which they were given.
    pub probabilities: Vec<f32>,
}

/// A model that generates text, of any back end.
///
/// The default methods return an error of kind [`ErrorKind::Unsupported`](crate::ErrorKind), for back ends that do not
/// support them.
pub trait TextModel {
    /// Facts about the model.
    fn info(&self) -> &ModelInfo;

    /// The metrics of the last generation that has finished.
    fn metrics(&self) -> Metrics;

    /// Continues a prompt.
    ///
    /// # Errors
    /// The request is out of range, or the computation fails.
    fn generate(
        &self,
        prompt: &Prompt,
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Generated> {
        let _ = (prompt, options, on_event);
        Err(lacks("generate"))
    }

    /// Answers a conversation.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), or the conversation cannot be rendered.
    fn chat(
        &self,
        messages: &[Message],
        render: &RenderOptions,
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Generated> {
        let _ = (messages, render, options, on_event);
        Err(lacks("chat"))
    }

    /// Finds the label that fits each text best.
    ///
    /// # Errors
    /// The computation fails.
    fn classify(&self, texts: &[String], labels: &[String]) -> Result<Vec<Classification>> {
        let _ = (texts, labels);
        Err(lacks("classify"))
    }

    /// Continues several prompts at a time. An error of a request ends only that request.
    ///
    /// # Errors
    /// The back end fails as a whole.
    fn batch_generate(
        &self,
        requests: &[(Prompt, GenerateOptions)],
    ) -> Result<Vec<Result<Generated>>> {
        let _ = requests;
        Err(lacks("batch_generate"))
    }
}

fn lacks(method: &str) -> Error {
    Error::unsupported(format!("this back end does not offer {method}"))
}

impl TextModel for LoadedModel {
    fn info(&self) -> &ModelInfo {
        self.info()
    }

    fn metrics(&self) -> Metrics {
        self.metrics()
    }

    fn generate(
        &self,
        prompt: &Prompt,
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Generated> {
        self.generate(prompt.clone(), options)?.run(on_event)
    }

    fn chat(
        &self,
        messages: &[Message],
        render: &RenderOptions,
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Generated> {
        self.chat(messages, render, options)?.run(on_event)
    }

    fn classify(&self, texts: &[String], labels: &[String]) -> Result<Vec<Classification>> {
        if labels.is_empty() {
            return Err(Error::argument("classification needs at least one label"));
        }
        let options = ClassifyOptions {
            labels: labels.to_vec(),
            ..Default::default()
        };
        let prompts = texts.iter().map(|text| text.as_str().into()).collect();
        let classify = |result: Result<ClassifyResult>| {
            let scores = result?.labels.expect("there are labels");
            Ok(Classification {
                label: labels[scores.best].clone(),
                probabilities: scores.probabilities.iter().map(|&p| p as f32).collect(),
            })
        };
        let results = self.classify(prompts, &options)?;
        results.into_iter().map(classify).collect()
    }

    fn batch_generate(
        &self,
        requests: &[(Prompt, GenerateOptions)],
    ) -> Result<Vec<Result<Generated>>> {
        let requests = requests
            .iter()
            .map(|(prompt, options)| Request::new(prompt.clone(), options.clone()))
            .collect();
        let results = self.batch_generate(requests, &Limits::default())?;
        Ok(results
            .into_iter()
            .map(BatchResult::into_generated)
            .collect())
    }
}
