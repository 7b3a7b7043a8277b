//! The prompt, options, events and result of a generation.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::request::cancel::CancelToken;
use crate::request::grammar::Constraint;
use crate::request::metrics::Metrics;
use crate::request::reasoning::ReasoningBudget;
use crate::request::repetition::RepetitionDetection;
use crate::request::sampling::{Choice, SamplingParams};
use crate::request::speculative::Speculative;
use crate::work_sizes::WorkSizes;

/// The text or the ids to continue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// A text. It is encoded with the tokens that the tokenizer puts around texts (such as `<bos>`).
    Text(String),
    /// These ids, unchanged.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Self::Tokens(ids)
    }
}

/// The options of a generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GenerateOptions {
    /// The sampling settings.
    pub sampling: SamplingParams,
    /// The most tokens to generate; the model's own limit may be lower.
    pub max_tokens: usize,
    /// Texts that end the generation; they are not part of the text.
    pub stop: Vec<String>,
    /// Tokens that end it, besides the checkpoint's own.
    pub stop_ids: Vec<u32>,
    /// Do not end at the checkpoint's own end tokens.
    pub ignore_eos: bool,
    /// The number of first tokens that cannot end the generation: end tokens and stop tokens are not chosen for them,
    /// and a stop string that one of them completes is text. The end of a grammar still ends the generation.
    pub min_tokens: usize,
    /// When an answer that repeats itself ends; `None` for never.
    pub repetition_detection: Option<RepetitionDetection>,
    /// Return the log probability of each token, and of this many of the likeliest tokens at its place.
    pub logprobs: Option<usize>,
    /// A grammar that the text must match. The request ends with [`FinishReason::Stop`] when the text is complete and
    /// cannot go on, and when the model ends a complete text. `max_tokens`, a stop string or a stop token can cut the
    /// text.
    pub grammar: Option<Constraint>,
    /// The most tokens of reasoning; `None` for no limit.
    pub reasoning_budget: Option<ReasoningBudget>,
    /// Special tokens that are nevertheless part of the text, such as the marks of a tool call.
    pub kept_special: Vec<u32>,
    /// Whether next tokens are drafted, so that several are computed at a time. The tokens stay the same.
    pub speculative: Speculative,
    /// Tokens of the prompt that are computed at a time; 512 on a CPU, 2,048 on a GPU.
    pub prefill_chunk: usize,
    /// Cancels the generation.
    #[serde(skip)]
    pub cancel: CancelToken,
}

impl Default for GenerateOptions {
    /// Greedy, at most 256 tokens.
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: 256,
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            repetition_detection: None,
            logprobs: None,
            grammar: None,
            reasoning_budget: None,
            kept_special: Vec::new(),
            speculative: Speculative::Off,
            prefill_chunk: WorkSizes::of_device().chunk,
            cancel: CancelToken::new(),
        }
    }
}

impl GenerateOptions {
    /// Checks all values.
    ///
    /// # Errors
    /// A value is outside its range; the message names it, the range and the value.
    pub fn check(&self) -> Result<()> {
        self.sampling.check()?;
        self.speculative.check()?;
        for (name, value) in [
            ("max_tokens", self.max_tokens),
            ("prefill_chunk", self.prefill_chunk),
        ] {
            if value == 0 {
                return Err(Error::argument(format!(
                    "{name} must be at least 1, given 0"
                )));
            }
        }
        if self.min_tokens > self.max_tokens {
            return Err(Error::argument(format!(
                "min_tokens must be at most max_tokens, {}, given {}",
                self.max_tokens, self.min_tokens
            )));
        }
        if let Some(at) = self.stop.iter().position(String::is_empty) {
            let message = format!("stop string {at} is empty; expected at least one character");
            return Err(Error::argument(message));
        }
        (self.repetition_detection.as_ref()).map_or(Ok(()), RepetitionDetection::check)?;
        (self.reasoning_budget.as_ref()).map_or(Ok(()), ReasoningBudget::check)?;
        self.grammar.as_ref().map_or(Ok(()), Constraint::check)
    }

    /// The tokens that end the text, for a model with these end tokens.
    pub(crate) fn ending(&self, eos_ids: &[u32]) -> Vec<u32> {
        let eos: &[u32] = if self.ignore_eos { &[] } else { eos_ids };
        [eos, &self.stop_ids].concat()
    }
}

/// The reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// An end token, a stop token, a stop string, or the end of a grammar.
    Stop,
    /// `max_tokens`, or the end of the model's positions.
    Length,
    /// [`CancelToken::cancel`].
    Cancelled,
    /// [`GenerateOptions::repetition_detection`].
    Repetition,
}

impl FinishReason {
    /// Its name in JSON: `stop`, `length`, `cancelled` or `repetition`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Repetition => "repetition",
        }
    }
}

/// An event of a generation. The texts of all events, joined, are the generated text.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token. The token that ends the text is an event too.
    Token {
        /// The token.
        choice: Choice,
        /// The text that is certain now. It may be empty, and never ends inside a character.
        text: String,
    },
    /// The end. No event follows it.
    Finish {
        /// The reason.
        reason: FinishReason,
        /// The text that was held back.
        text: String,
        /// Counts, times and memory.
        metrics: Metrics,
    },
}

impl Event {
    /// The text that this event adds.
    pub fn text(&self) -> &str {
        match self {
            Self::Token { text, .. } | Self::Finish { text, .. } => text,
        }
    }
}

/// A generation that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The text without end tokens and stop strings; `None` without a tokenizer.
    pub text: Option<String>,
    /// Every generated token, including the one that ended the text.
    pub tokens: Vec<Choice>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Counts, times and memory.
    pub metrics: Metrics,
}

impl Generated {
    /// The JSON document of the command line: `text`, `tokens`, `finish_reason`, `usage`, `timings`. `usage` has
    /// `cached_tokens`, if there are any, and for drafts `drafted_tokens`, `accepted_draft_tokens`,
    /// `accepted_by_position` and `tokens_per_step`.
    pub fn to_json(&self) -> Value {
        let m = &self.metrics;
        let ids: Vec<u32> = self.tokens.iter().map(|choice| choice.id).collect();
        let mut document = json!({
            "text": self.text,
            "tokens": ids,
            "finish_reason": self.reason.as_str(),
            "usage": {
                "prompt_tokens": m.prompt_tokens,
                "completion_tokens": m.decode_tokens,
                "total_tokens": m.prompt_tokens + m.decode_tokens,
            },
            "timings": {
                "load_s": m.load.as_secs_f64(),
                "prefill_s": m.prefill.as_secs_f64(),
                "decode_s": m.decode.as_secs_f64(),
                "time_to_first_token_s": m.time_to_first_token.as_secs_f64(),
                "total_s": m.total.as_secs_f64(),
                "prefill_tokens_per_s": m.prefill_tokens_per_s(),
                "decode_tokens_per_s": m.decode_tokens_per_s(),
                "peak_memory_bytes": m.peak_memory_bytes,
                "active_memory_bytes": m.active_memory_bytes,
            },
        });
        if m.cached_tokens > 0 {
            document["usage"]["cached_tokens"] = m.cached_tokens.into();
        }
        if m.drafted_tokens > 0 {
            document["usage"]["drafted_tokens"] = m.drafted_tokens.into();
            document["usage"]["accepted_draft_tokens"] = m.accepted_draft_tokens.into();
            document["usage"]["accepted_by_position"] = m.accepted_by_position().into();
            document["usage"]["tokens_per_step"] = m.tokens_per_step().into();
        }
        document
    }
}
