//! Scoring: the likelihood of a text.

use mlx_core::{Array, DType, eval, fast};
use mlx_nn::ModelCache;
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::forward;
use crate::model::frontend::{check_ids, check_positions};
use crate::request::cancel::CancelToken;
use crate::request::generation::Prompt;
use crate::work_sizes::WorkSizes;

/// Options of scoring.
#[derive(Clone, Debug)]
pub struct ScoreOptions {
    /// How many of the likeliest next tokens to return.
    pub top: usize,
    /// How many of the likeliest tokens to return at the place of each token; 0 returns none.
    pub top_each: usize,
    /// Tokens that are computed at a time; 512 on a CPU, 2,048 on a GPU.
    pub chunk: usize,
    /// Cancels the computation.
    pub cancel: CancelToken,
}

impl Default for ScoreOptions {
    fn default() -> Self {
        Self {
            top: 5,
            top_each: 0,
            chunk: WorkSizes::of_device().chunk,
            cancel: CancelToken::new(),
        }
    }
}

/// The score of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The text's tokens.
    pub tokens: Vec<u32>,
    /// The log probability (natural logarithm) of each token given those before it; none for the first.
    pub logprobs: Vec<Option<f32>>,
    /// The likeliest tokens at the place of each token and their log probabilities, best first. There are none for the
    /// first token, and the lists are empty if [`ScoreOptions::top_each`] is 0.
    pub top: Vec<Vec<(u32, f32)>>,
    /// One and the number of tokens that are likelier than the text's own at its place; none for the first token. The
    /// list is empty if [`ScoreOptions::top_each`] is 0.
    pub ranks: Vec<Option<u32>>,
    /// Negative log likelihood: minus the sum of the log probabilities.
    pub nll: f64,
    /// `e ^ (nll / n)` over the n tokens that have a log probability; 1 if there are none.
    pub perplexity: f64,
    /// The likeliest tokens after the text and their log probabilities, best first.
    pub next: Vec<(u32, f32)>,
}

impl Score {
    /// The JSON document of the command line. `token` returns the text of an id.
    pub fn to_json(&self, token: impl Fn(u32) -> Option<String>) -> Value {
        let next: Vec<Value> = self
            .next
            .iter()
            .map(|&(id, logprob)| json!({"id": id, "token": token(id), "logprob": logprob}))
            .collect();
        json!({
            "tokens": self.tokens,
            "logprobs": self.logprobs,
            "nll": self.nll,
            "perplexity": self.perplexity,
            "next": next,
        })
    }
}

/// The state of a scoring.
pub(crate) struct Scoring {
    tokens: Vec<u32>,
    options: ScoreOptions,
    cache: ModelCache,
    /// The number of computed tokens.
    done: usize,
    places: Places,
}

/// What is known of the places of tokens.
#[derive(Default)]
struct Places {
    logprobs: Vec<Option<f32>>,
    top: Vec<Vec<(u32, f32)>>,
    ranks: Vec<Option<u32>>,
}

impl Scoring {
    /// Checks the text and starts.
    ///
    /// # Errors
    /// The text is empty or too long for the model, or an id is not in the vocabulary.
    pub(crate) fn begin(
        model: &LoadedModel,
        prompt: Prompt,
        options: &ScoreOptions,
    ) -> Result<Self> {
        if options.chunk == 0 {
            return Err(Error::argument("chunk must be at least 1, given 0"));
        }
        model.frontend().check_generates()?;
        let tokens = model.prompt_ids(prompt)?;
        check_ids(&tokens, model.vocab())?;
        check_positions(tokens.len(), model.info().max_positions, "")?;
        let mut cache = model.new_cache(1);
        cache.expect(0, tokens.len());
        Ok(Self {
            options: options.clone(),
            cache,
            done: 0,
            places: Places {
                logprobs: vec![None],
                top: vec![Vec::new(); usize::from(options.top_each > 0)],
                ranks: vec![None; usize::from(options.top_each > 0)],
            },
            tokens,
        })
    }

    /// Computes the next chunk of the text. Returns the score if that was the last.
    ///
    /// # Errors
    /// The computation fails, or was cancelled.
    pub(crate) fn advance(&mut self, model: &LoadedModel) -> Result<Option<Score>> {
        if self.options.cancel.is_cancelled() {
            return Err(Error::new(ErrorKind::Cancelled, "scoring was cancelled"));
        }
        let end = self.tokens.len().min(self.done + self.options.chunk);
        let chunk = &self.tokens[self.done..end];
        let hidden = forward::hidden(model.model(), &mut self.cache, &[chunk])?;
        let states = self.cache.arrays();
        eval(states.iter().chain([&hidden]))?;
        let targets = &self.tokens[self.done + 1..self.tokens.len().min(end + 1)];
        let places = &mut self.places;
        score_with_top(model, &hidden, targets, self.options.top_each, places)?;
        let is_nan = |logprob: &Option<f32>| logprob.is_some_and(f32::is_nan);
        if let Some(at) = places.logprobs.iter().position(is_nan)
            && !model.options().allow_nan
        {
            return Err(model.not_finite(&self.tokens[..at]));
        }
        let width = chunk.len() as i32;
        self.done = end;
        match end == self.tokens.len() {
            false => Ok(None),
            true => self
                .end(model, &hidden.slice_axis(1, width - 1, width)?)
                .map(Some),
        }
    }

    /// The score. `last`: the hidden state of the last token, `[1, 1, E]`.
    fn end(&mut self, model: &LoadedModel, last: &Array) -> Result<Score> {
        let next = next(model, last, self.options.top)?;
        if next.iter().any(|(_, logprob)| logprob.is_nan()) && !model.options().allow_nan {
            return Err(model.not_finite(&self.tokens));
        }
        let Places {
            logprobs,
            top,
            ranks,
        } = std::mem::take(&mut self.places);
        let found = logprobs.iter().flatten();
        let (nll, n) = found.fold((0.0, 0), |(sum, n), &lp| (sum - f64::from(lp), n + 1));
        Ok(Score {
            next,
            top,
            ranks,
            perplexity: (nll / f64::from(n.max(1))).exp(),
            tokens: std::mem::take(&mut self.tokens),
            logprobs,
            nll,
        })
    }
}

/// Appends the log probabilities of `targets`, the tokens after each position of `hidden` `[1, L, E]` (one fewer at
/// the end of the text). They are NaN if the logits have NaN.
pub(crate) fn score_chunk(
    model: &LoadedModel,
    hidden: &Array,
    targets: &[u32],
    logprobs: &mut Vec<Option<f32>>,
) -> Result<()> {
    let mut places = Places::default();
    score_with_top(model, hidden, targets, 0, &mut places)?;
    logprobs.append(&mut places.logprobs);
    Ok(())
}

/// The same with the ranks of the targets and the `n_top` likeliest tokens at their places, unless that is 0.
fn score_with_top(
    model: &LoadedModel,
    hidden: &Array,
    targets: &[u32],
    n_top: usize,
    places: &mut Places,
) -> Result<()> {
    let n_top = n_top.min(model.vocab());
    let rows = (WorkSizes::of_device().logits / model.vocab().max(1)).max(1);
    for (index, targets) in targets.chunks(rows).enumerate() {
        let start = (index * rows) as i32;
        let n = targets.len() as i32;
        let logits = model.logits(&hidden.slice_axis(1, start, start + n)?)?;
        let ids = Array::from_slice(targets, &[1, n, 1])?;
        let own = logits.take_along_axis(&ids, -1)?;
        let found = own.squeeze(-1)?.subtract(&fast::logsumexp(&logits)?)?;
        let found = found.to_vec::<f32>()?;
        places.logprobs.extend(found.into_iter().map(Some));
        if n_top > 0 {
            let likelier = logits.greater(&own)?.astype(DType::U32)?.sum(-1, false)?;
            let likelier = likelier.to_vec::<u32>()?.into_iter();
            places.ranks.extend(likelier.map(|count| Some(count + 1)));
            let found = likeliest(&logits.astype(DType::F32)?.squeeze(0)?, n_top)?;
            places.top.extend(found.chunks(n_top).map(<[_]>::to_vec));
        }
    }
    Ok(())
}

/// The `n` likeliest tokens after `hidden` `[1, 1, E]`.
fn next(model: &LoadedModel, hidden: &Array, n: usize) -> Result<Vec<(u32, f32)>> {
    let n = n.min(model.vocab());
    if n == 0 {
        return Ok(Vec::new());
    }
    likeliest(&model.logits(hidden)?.astype(DType::F32)?, n)
}

/// The `n` likeliest tokens of each row of `logits`, F32 `[.., V]`, with their log probabilities.
fn likeliest(logits: &Array, n: usize) -> Result<Vec<(u32, f32)>> {
    let (ids, values) = fast::top(logits, n)?;
    let values = values.subtract(fast::logsumexp(logits)?.expand_dims(-1)?)?;
    eval([&ids, &values])?;
    Ok(ids
        .to_vec::<u32>()?
        .into_iter()
        .zip(values.to_vec::<f32>()?)
        .collect())
}
