//! A request to a batch or an engine.

pub(crate) mod cancel;
pub(crate) mod generation;
pub(crate) mod grammar;
pub(crate) mod json_options;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod processor;
pub(crate) mod reasoning;
pub(crate) mod repetition;
pub(crate) mod result;
pub(crate) mod sampling;
pub(crate) mod speculative;

use std::fmt;

use crate::request::generation::{GenerateOptions, Prompt};
use crate::request::processor::{Processor, ProcessorError};

/// A prompt to continue in a batch or an engine, with its options.
pub struct Request {
    /// The prompt.
    pub prompt: Prompt,
    /// Its options.
    pub options: GenerateOptions,
    /// Changes the row's logits on the host.
    pub processor: Option<Processor>,
    /// The name of an adapter of [`EngineOptions::adapters`](crate::EngineOptions::adapters) or of
    /// [`Engine::load_adapter`](crate::Engine::load_adapter); `None` is the model as it was loaded.
    pub adapter: Option<String>,
    /// A factor of the adapter's correction: 1 is the adapter as it was trained, 0 the model without it.
    pub adapter_scale: f32,
}

impl Request {
    /// A request without a processor.
    pub fn new(prompt: impl Into<Prompt>, options: GenerateOptions) -> Self {
        Self {
            prompt: prompt.into(),
            options,
            processor: None,
            adapter: None,
            adapter_scale: 1.0,
        }
    }

    /// The request with an adapter.
    #[must_use]
    pub fn with_adapter(mut self, name: impl Into<String>) -> Self {
        self.adapter = Some(name.into());
        self
    }

    /// The request with a factor of its adapter's correction.
    #[must_use]
    pub fn with_adapter_scale(mut self, scale: f32) -> Self {
        self.adapter_scale = scale;
        self
    }

    /// The request with a processor.
    #[must_use]
    pub fn with_processor(
        mut self,
        processor: impl FnMut(&[u32], &mut [f32]) -> Result<(), ProcessorError> + Send + 'static,
    ) -> Self {
        self.processor = Some(Box::new(processor));
        self
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("prompt", &self.prompt)
            .field("options", &self.options)
            .field("processor", &self.processor.as_ref().map(|_| ".."))
            .field("adapter", &self.adapter)
            .field("adapter_scale", &self.adapter_scale)
            .finish()
    }
}
