//! Log probabilities of tokens in OpenAI's two shapes.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::request::sampling::Choice;
use crate::serve::http::error::ApiError;
use crate::serve::http::fields::Fields;
use crate::tasks::score::Score;
use crate::text::detokenize::Detokenizer;
use crate::text::tokenizer::Tokenizer;

/// Most alternatives of a token.
pub(crate) const MAX_TOP: usize = 20;
/// Written in place of minus infinity, which JSON does not have, as in OpenAI's API.
const LEAST: f32 = -9999.0;

/// A token as text. Bytes that are no text are shown as `bytes:\xe2\x80`.
pub(crate) fn token_text(tokenizer: &Tokenizer, id: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let text = match str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let mut text = "bytes:".to_owned();
            for byte in &bytes {
                let _ = write!(text, "\\x{byte:02x}");
            }
            text
        }
    };
    (text, bytes)
}

/// A log probability as a number that JSON can hold.
pub(crate) fn number(logprob: f32) -> f32 {
    logprob.max(LEAST)
}

/// Checks a number of alternatives.
///
/// # Errors
/// It is out of range.
pub(crate) fn check_top(name: &str, top: usize) -> Result<usize, ApiError> {
    match top <= MAX_TOP {
        true => Ok(top),
        false => {
            let message = format!("{name} must be in 0..={MAX_TOP}, given {top}");
            Err(ApiError::bad(name, message))
        }
    }
}

/// Takes `logprobs` and `top_logprobs` of a conversation.
///
/// # Errors
/// `top_logprobs` is out of range, or given without `logprobs`.
pub(crate) fn of_chat(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let is_on = fields.take::<bool>("logprobs")?.unwrap_or(false);
    let top = fields.take::<usize>("top_logprobs")?;
    if !is_on && top.is_some_and(|top| top > 0) {
        let message = "top_logprobs needs logprobs: true";
        return Err(ApiError::bad("top_logprobs", message));
    }
    let top = check_top("top_logprobs", top.unwrap_or(0))?;
    Ok(is_on.then_some(top))
}

/// Takes `prompt_logprobs`: the number of alternatives of each token of the prompt.
///
/// # Errors
/// It is out of range, or the answer is a stream.
pub(crate) fn of_prompt(fields: &mut Fields, is_stream: bool) -> Result<Option<usize>, ApiError> {
    const NAME: &str = "prompt_logprobs";
    let top = match fields.take::<Value>(NAME)? {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(given) => match given.as_u64() {
            Some(top) => check_top(NAME, usize::try_from(top).unwrap_or(usize::MAX))?,
            None => {
                let message = format!("{NAME} must be in 0..={MAX_TOP}, given {given}");
                return Err(ApiError::bad(NAME, message));
            }
        },
    };
    match is_stream {
        true => Err(ApiError::bad(NAME, "prompt_logprobs cannot be streamed")),
        false => Ok(Some(top)),
    }
}

/// The log probabilities of a prompt in vLLM's form: for each token but the first, the `top`
/// likeliest tokens at its place and the token itself, by id.
pub(crate) fn list_of_prompt(tokenizer: &Tokenizer, score: &Score, top: usize) -> Value {
    let places = score.tokens.iter().zip(&score.logprobs).enumerate();
    let place = |(at, (&id, &logprob)): (usize, (&u32, &Option<f32>))| {
        let Some(logprob) = logprob else {
            return Value::Null;
        };
        let best = score.top.get(at).map_or(&[][..], Vec::as_slice);
        let shown = |id: u32, logprob: f32, rank: Option<u32>| {
            let entry = json!({
                "logprob": number(logprob), "rank": rank, "decoded_token": token_text(tokenizer, id).0,
            });
            (id.to_string(), entry)
        };
        let rank = score.ranks.get(at).copied().flatten();
        let mut entries = Map::from_iter([shown(id, logprob, rank)]);
        let best = best.iter().take(top).zip(1..);
        entries.extend(best.map(|(&(id, logprob), rank)| shown(id, logprob, Some(rank))));
        Value::Object(entries)
    };
    places.map(place).collect()
}

/// A token of a conversation's `logprobs.content`.
pub(crate) fn entry(tokenizer: &Tokenizer, choice: &Choice) -> Value {
    let one = |id: u32, logprob: f32| {
        let (text, bytes) = token_text(tokenizer, id);
        json!({"token": text, "logprob": number(logprob), "bytes": bytes})
    };
    let mut entry = one(choice.id, choice.logprob.unwrap_or(LEAST));
    let top = choice.top.iter().map(|&(id, logprob)| one(id, logprob));
    entry["top_logprobs"] = top.collect();
    entry
}

/// The `logprobs` of a completion: lists over its tokens.
pub(crate) struct Lists {
    tokenizer: Tokenizer,
    detokenizer: Detokenizer,
    /// Characters of the text before the next token.
    offset: usize,
    tokens: Vec<String>,
    logprobs: Vec<Option<f32>>,
    top: Vec<Option<Map<String, Value>>>,
    offsets: Vec<usize>,
}

impl Lists {
    /// Empty lists, at the beginning of a text.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            detokenizer: tokenizer.detokenizer(true),
            tokenizer: tokenizer.clone(),
            offset: 0,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            top: Vec::new(),
            offsets: Vec::new(),
        }
    }

    /// Adds a token. The token itself is always among its alternatives.
    pub(crate) fn push(&mut self, id: u32, logprob: Option<f32>, top: &[(u32, f32)]) {
        let text = |id| token_text(&self.tokenizer, id).0;
        self.tokens.push(text(id));
        self.logprobs.push(logprob.map(number));
        self.top.push(logprob.map(|logprob| {
            let mut alternatives: Map<String, Value> = top
                .iter()
                .map(|&(id, logprob)| (text(id), number(logprob).into()))
                .collect();
            alternatives.insert(text(id), number(logprob).into());
            alternatives
        }));
        self.offsets.push(self.offset);
        let piece = self.detokenizer.push(id).unwrap_or_default();
        self.offset += piece.chars().count();
    }

    /// The lists of the tokens since the last call.
    pub(crate) fn take(&mut self) -> Value {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.logprobs),
            "top_logprobs": std::mem::take(&mut self.top),
            "text_offset": std::mem::take(&mut self.offsets),
        })
    }
}
