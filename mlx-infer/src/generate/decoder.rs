//! The model's side of one sequence: its cache, prefill and single steps.

use mlx_core::{Array, eval, memory};
use mlx_models::Model;
use mlx_nn::{CacheOptions, ModelCache};

use crate::error::{Error, ErrorKind, Result};

/// One sequence in a model.
pub(crate) struct Decoder<'m> {
    model: &'m dyn Model,
    options: CacheOptions,
    cache: ModelCache,
    chunk: usize,
}

/// Whether a prefill goes on after a chunk.
pub(crate) enum Progress {
    /// It does.
    Continue,
    /// It was cancelled.
    Cancelled,
}

impl<'m> Decoder<'m> {
    pub(crate) fn new(model: &'m dyn Model, options: CacheOptions, chunk: usize) -> Self {
        let cache = ModelCache::new(model.layers(), 1, options);
        Self {
            model,
            options,
            cache,
            chunk,
        }
    }

    /// Starts anew with these tokens and gives what the head makes of the last one: `[1, V]`, lazy. `None`
    /// if `between`, which is asked before each chunk, cancels. `start` is a cache that holds the first of
    /// them and expects them all.
    pub(crate) fn prefill(
        &mut self,
        ids: &[u32],
        start: Option<ModelCache>,
        mut between: impl FnMut() -> Progress,
    ) -> Result<Option<Array>> {
        self.cache = start.unwrap_or_else(|| {
            let mut cache = ModelCache::new(self.model.layers(), 1, self.options);
            cache.expect(0, ids.len());
            cache
        });
        let mut last = None;
        for chunk in ids[self.len()..].chunks(self.chunk) {
            if matches!(between(), Progress::Cancelled) {
                return Ok(None);
            }
            if last.is_some() {
                // The chunk before: its hidden states are not read, only what it left in the cache.
                eval(self.cache.arrays())?;
                memory::clear_cache()?;
            }
            last = Some(self.hidden(&Array::from_slice(chunk, &[1, chunk.len() as i32])?)?);
        }
        let hidden = last.ok_or_else(|| Error::argument("a prompt needs at least one token"))?;
        let end = hidden.dim(1)?;
        self.logits(&hidden.slice_axis(1, end - 1, end)?).map(Some)
    }

    /// Takes one more token, U32 `[1]`, and gives the logits after it: `[1, V]`, lazy.
    pub(crate) fn step(&mut self, token: &Array) -> Result<Array> {
        let hidden = self.hidden(&token.reshape(&[1, 1])?)?;
        self.logits(&hidden)
    }

    /// The sequence's one row.
    pub(crate) fn cache(&self) -> &ModelCache {
        &self.cache
    }

    /// Positions that the cache has been given.
    pub(crate) fn len(&self) -> usize {
        self.cache.lens()[0]
    }

    /// The hidden states after tokens `[1, L]`, which the cache keeps: `[1, L, E]`.
    pub(crate) fn hidden(&mut self, tokens: &Array) -> Result<Array> {
        let [_, width] = tokens.dims()?;
        let mut step = self.cache.begin(&[width as usize])?;
        let hidden = self.model.hidden(tokens, &mut step)?;
        step.commit_all()?;
        Ok(hidden)
    }

    /// Says how long the sequence will be, before its first token.
    pub(crate) fn expect(&mut self, positions: usize) {
        self.cache.expect(0, positions);
    }

    /// Computes what the last tokens left in the cache, and `hidden`.
    pub(crate) fn settle(&self, hidden: &Array) -> Result<()> {
        Ok(eval(self.cache.arrays().chain([hidden]))?)
    }

    fn logits(&self, hidden: &Array) -> Result<Array> {
        Ok(self.model.logits(hidden)?.squeeze(1)?)
    }
}

/// Checks ids against the embedding, which does not.
pub(crate) fn check_ids(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().position(|&id| id as usize >= vocab) {
        Some(at) => Err(Error::argument(format!(
            "token id {} at index {at} is outside the model's vocabulary of {vocab}",
            ids[at]
        ))),
        None => Ok(()),
    }
}

/// Checks that `needed` tokens have positions in the model.
pub(crate) fn check_positions(
    needed: usize,
    max_positions: Option<usize>,
    room_for: &str,
) -> Result<()> {
    match max_positions {
        Some(max) if needed > max => Err(Error::new(
            ErrorKind::Argument,
            format!(
                "{needed} tokens{room_for} exceed the model's {max} positions (max_position_embeddings)"
            ),
        )),
        _ => Ok(()),
    }
}
