//! The interface of a back end that generates text.

use std::ops::ControlFlow;

use mlx_models::ModelInfo;

use crate::batch::BatchResult;
use crate::classify::{ClassifyOptions, ClassifyResult};
use crate::error::{Error, Result};
use crate::generate::{Event, GenerateOptions, Generated, Prompt};
use crate::metrics::Metrics;
use crate::model::LoadedModel;
use crate::request::Request;
use crate::scheduler::Limits;
use crate::text::chat::{Message, RenderOptions};

/// Gets every event; `Break` cancels the generation.
pub type OnEvent<'a> = dyn FnMut(&Event) -> ControlFlow<()> + 'a;

/// The classification of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Classification {
    /// The label that fits best.
    pub label: String,
    /// The probability of each label, in the order in which they were given.
    pub probabilities: Vec<f32>,
}

/// A model that generates text, of any back end.
///
/// The default methods give an error of kind [`ErrorKind::Unsupported`](crate::ErrorKind), for back ends that lack
/// them.
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

    /// Continues several prompts at a time; a request's error ends that request only.
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
