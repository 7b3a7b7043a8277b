//! The messages between this process and the bridge: one JSON document for each line.

use std::path::Path;

use mlx_core::DType;
use serde::{Deserialize, Serialize};

use crate::engine::sequence::Sequence;
use crate::request::generation::GenerateOptions;
use crate::request::sampling::Choice;

/// A message to the bridge.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(super) enum BridgeCommand<'a> {
    Load {
        model: &'a Path,
        adapter: Option<&'a Path>,
        dtype: Option<&'static str>,
        chunk: usize,
    },
    Generate(Box<BridgeGenerate<'a>>),
    Cancel {
        id: u64,
    },
}

/// A request in the form that the bridge takes.
#[derive(Serialize)]
pub(super) struct BridgeGenerate<'a> {
    id: u64,
    tokens: &'a [u32],
    max_tokens: usize,
    stop_ids: &'a [u32],
    logprobs: Option<usize>,
    temperature: f32,
    top_p: f32,
    top_k: usize,
    min_p: f32,
    seed: u64,
    repeat_penalty: f32,
    repeat_context: usize,
    presence_penalty: f32,
    frequency_penalty: f32,
    /// `None` for minus infinity, which JSON does not have.
    logit_bias: Vec<(u32, Option<f32>)>,
}

impl<'a> BridgeGenerate<'a> {
    pub(super) fn new(id: u64, sequence: &'a Sequence) -> Self {
        let row = sequence.row();
        let p = row.params;
        let finite = |x: f32| x.is_finite().then_some(x);
        Self {
            id,
            tokens: sequence.history().ids(),
            max_tokens: sequence.remaining(),
            stop_ids: sequence.stop_ids(),
            logprobs: row.logprobs,
            temperature: p.temperature,
            top_p: p.top_p,
            top_k: p.top_k,
            min_p: p.min_p,
            seed: row.seed,
            repeat_penalty: p.repeat_penalty,
            repeat_context: p.repeat_context,
            presence_penalty: p.presence_penalty,
            frequency_penalty: p.frequency_penalty,
            logit_bias: p
                .logit_bias
                .iter()
                .map(|(&id, &x)| (id, finite(x)))
                .collect(),
        }
    }
}

/// A message of the bridge.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum BridgeAnswer {
    Loaded(BridgeLoaded),
    Step(BridgeStep),
    Error {
        /// The requests that the message ends.
        ids: Vec<u64>,
        message: String,
    },
}

/// Information about the model after it was loaded.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BridgeLoaded {
    /// mlx_lm's version.
    pub(super) version: String,
    pub(super) vocab: i32,
    pub(super) parameters: usize,
    pub(super) bytes: usize,
    pub(super) dtype: String,
    /// Whether several requests are computed at a time.
    pub(super) batches: bool,
}

/// The result of a step.
#[derive(Deserialize)]
pub(super) struct BridgeStep {
    /// The requests whose prompts were computed further.
    pub(super) prompts: Vec<u64>,
    pub(super) tokens: Vec<BridgeToken>,
    /// Bytes of arrays.
    pub(super) active: usize,
    pub(super) peak: usize,
}

#[derive(Deserialize)]
pub(super) struct BridgeToken {
    pub(super) id: u64,
    token: u32,
    logprob: Option<f32>,
    #[serde(default)]
    top: Vec<(u32, f32)>,
    /// Whether the logits are finite.
    #[serde(default = "yes")]
    pub(super) finite: bool,
}

fn yes() -> bool {
    true
}

impl BridgeToken {
    pub(super) fn choice(self) -> Choice {
        Choice {
            id: self.token,
            logprob: self.logprob,
            top: self.top,
        }
    }
}

/// A number type's name in MLX's Python.
pub(super) fn python_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    }
}

/// The number type of this name, or single precision if this crate does not compute in that type.
pub(super) fn dtype(name: &str) -> DType {
    match name {
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        _ => DType::F32,
    }
}

/// Checks options for use with the bridge.
///
/// # Errors
/// The bridge does not support an option; the message names it.
pub(super) fn check(options: &GenerateOptions) -> crate::error::Result<()> {
    let default = GenerateOptions::default();
    let lacks = [
        ("grammar", options.grammar.is_some()),
        ("reasoning_budget", options.reasoning_budget.is_some()),
        (
            "repetition_detection",
            options.repetition_detection.is_some(),
        ),
        ("top_n_sigma", options.sampling.top_n_sigma != 0.0),
        ("xtc_probability", options.sampling.excludes_top()),
        ("dry_multiplier", options.sampling.penalises_repetitions()),
        ("speculative", options.speculative != default.speculative),
        ("min_tokens", options.min_tokens != default.min_tokens),
        (
            "prefill_chunk",
            options.prefill_chunk != default.prefill_chunk,
        ),
    ];
    match lacks.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => Err(crate::error::Error::unsupported(format!(
            "{name} is not supported by the mlx-lm back end; the native one has it"
        ))),
    }
}
