//! Text generation on MLX: the library and the `mlx-infer` command.
//!
//! A [`LoadedModel`] is a checkpoint in memory: weights, tokenizer, chat template. It stays on the thread that loaded it.
//!
//! | to | use |
//! |---|---|
//! | continue one prompt or answer a chat | [`LoadedModel::generate`], [`LoadedModel::chat`]: a [`Generation`], an iterator over [`Event`]s |
//! | run a list of prompts | [`LoadedModel::batch_generate`]: [`Request`]s in, [`BatchResult`]s out |
//! | serve requests from many threads or async tasks | [`Engine`]: [`Engine::submit`] gives a [`Handle`], an iterator and a `Stream` |
//! | validate and tokenise on another thread | [`Frontend`], from [`Engine::frontend`] |
//! | choose among labels without generating | [`LoadedModel::classify`] |
//! | embed texts, or rank documents for a query | [`LoadedModel::embed`], [`LoadedModel::rerank`] |
//! | measure how likely a text is | [`LoadedModel::score`] |
//! | keep a computed prompt | [`PromptCache`] |
//! | load a model by its name on a hub | [`hub::Hub`] |
//! | set how tokens are chosen and when to stop | [`GenerateOptions`] with [`SamplingParams`]; read from JSON as [`RequestOptions`] |
//! | make a text match a JSON schema, a regular expression, a list or a grammar | [`GenerateOptions::grammar`]: a [`Grammar`] |
//! | change logits in code | [`Processor`] |
//! | put another back end behind the same calls | [`TextModel`] |
//! | run a model that only Python's mlx_lm has | [`MlxLm`]; [`backends`] tells what is there |
//!
//! Errors are of one type, [`Error`], with an [`ErrorKind`] to act on.
//!
//! What a program does not need can be left out by `default-features = false`:
//!
//! | feature, on by default | without it |
//! |---|---|
//! | `cli` | there is no command, nor what only a command calls in [`console`]; it brings the features below but `serve` and `mimalloc` |
//! | `clock` | a chat template that asks for the date (`strftime_now`) is refused, and `RenderOptions::now` does not exist |
//! | `default-model` | the binary holds no model: `LoadedModel::load_default` does not exist |
//! | `grammar` | there is no structured output: `Grammar` and `Constraint` do not exist |
//! | `hub` | models are loaded from folders only: the module `hub` does not exist |
//! | `serve` | there is no server: the module `serve` does not exist |
//! | `mimalloc` | the commands allocate by the system's `malloc` |
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
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "hub")]
pub mod hub;
#[cfg(feature = "serve")]
pub mod serve;

mod backend;
mod engine;
mod error;
mod grammar;
mod host;
mod json;
mod model;
mod request;
mod sampling;
mod tasks;
mod text;
mod work_sizes;

#[doc(no_inline)]
pub use {mlx_core, mlx_models, mlx_nn};

pub use backend::{
    Availability, BackEnd, Classification, MlxLm, MlxLmOptions, OnEvent, TextModel, backends,
    follow_engine, join_command, join_ranks, rank_here, refuse_ranks,
};
pub use engine::prompt_cache::PromptCache;
pub use engine::ranks::ranks_lost;
pub use engine::{Engine, EngineLoad, EngineOptions, Handle, PageLoad, PrefixDirLoad};
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "cli")]
pub use host::launch;
pub use host::{console, convert, input, output};
pub use mlx_models::ModelInfo;
pub use model::adapters::{MAX_ADAPTER_RANK, MAX_ADAPTERS};
pub use model::checked::Checked;
#[cfg(feature = "default-model")]
pub use model::default_model::files as default_model_files;
pub use model::finite::not_finite;
pub use model::frontend::Frontend;
pub use model::outline::{RankSizes, RanksOutline};
pub use model::{LoadOptions, LoadedModel, PartOptions};
pub use request::Request;
pub use request::cancel::CancelToken;
pub use request::generation::{Event, FinishReason, GenerateOptions, Generated, Prompt};
#[cfg(feature = "grammar")]
pub use request::grammar::{Constraint, Grammar};
pub use request::json_options::RequestOptions;
pub use request::limits::{Limits, PrefixDirLimits};
pub use request::metrics::Metrics;
pub use request::processor::{Processor, ProcessorError};
pub use request::reasoning::{MessageHeads, ReasoningBudget};
pub use request::repetition::RepetitionDetection;
pub use request::result::BatchResult;
pub use request::sampling::{Choice, SamplingParams};
pub use request::speculative::Speculative;
pub use tasks::batch::Batch;
pub use tasks::classify::{ClassifyOptions, ClassifyResult, LabelScores};
pub use tasks::embed::{EmbedOptions, EmbedPrompt, RerankOptions, TextEmbedding};
pub use tasks::generate::Generation;
pub use tasks::score::{Score, ScoreOptions};
pub use text::chat::{self, ChatTemplate, Message, RenderOptions};
pub use text::detokenize::Detokenizer;
pub use text::files::Files;
pub use text::stop::StopStrings;
pub use text::tokenizer::Tokenizer;
