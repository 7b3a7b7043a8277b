//! Text generation on MLX: the library and the `mlx-infer` command.
//!
//! ```
//! # fn main() -> mlx_infer::Result<()> {
//! use mlx_infer::{GenerateOptions, LoadedModel};
//! # use std::ops::ControlFlow;
//! let model = LoadedModel::load_default()?; // or LoadedModel::load(dir, options)
//! let options = GenerateOptions { max_tokens: 8, ..Default::default() };
//! let generated = model.generate("The red fox", &options)?.run(|event| {
//!     print!("{}", event.text());
//!     ControlFlow::Continue(())
//! })?;
//! assert!(!generated.tokens.is_empty());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod console;
pub mod convert;
pub mod input;
pub mod output;

mod backend;
mod batch;
mod cancel;
mod classify;
mod default_model;
mod engine;
mod error;
mod generate;
mod metrics;
mod model;
mod prefix;
mod processor;
mod prompt_cache;
mod request;
mod sampler;
mod scheduler;
mod score;
mod text;

pub use backend::{Classification, OnEvent, TextModel};
pub use batch::BatchResult;
pub use cancel::CancelToken;
pub use classify::{ClassifyOptions, ClassifyResult, LabelScores};
pub use default_model::files as default_model_files;
pub use engine::{Engine, EngineLoad, EngineOptions, Handle};
pub use error::{Error, ErrorKind, Result};
pub use generate::{Event, FinishReason, GenerateOptions, Generated, Generation, Prompt};
pub use metrics::Metrics;
pub use mlx_models::ModelInfo;
pub use model::{LoadOptions, LoadedModel};
pub use processor::{Processor, ProcessorError};
pub use prompt_cache::PromptCache;
pub use request::Request;
pub use sampler::{Choice, History, Row, Sampled, SamplingParams, sample};
pub use scheduler::{CacheCost, Job, Limits, Piece, Plan, Scheduler};
pub use score::{Score, ScoreOptions};
pub use text::chat::{self, ChatTemplate, Message, RenderOptions};
pub use text::detokenize::Detokenizer;
pub use text::files::Files;
pub use text::stop::StopStrings;
pub use text::tokenizer::Tokenizer;
