//! Embeddings in pieces. Each piece is one forward pass over a batch of texts.

use std::collections::VecDeque;

use mlx_core::{Array, DType, eval};
use mlx_models::{SentenceModules, Texts};
use mlx_nn::{CacheOptions, ModelCache};

use super::input::{EncodedTexts, TextIds};
use super::pairs::{AnswerLogits, answers};
use super::{EmbedOptions, RerankOptions, TextEmbedding};
use crate::error::{Error, ErrorKind, Result};
use crate::model::{LoadedModel, forward};
use crate::request::cancel::CancelToken;
use crate::tasks::classify::pack::pack;
use crate::work_sizes::WorkSizes;

/// What is computed of a text.
enum Wanted {
    /// Its embedding: the number of leading features, and whether its length becomes 1.
    Vector {
        dimensions: Option<usize>,
        normalize: bool,
        prompt: usize,
    },
    /// The relevance of a pair.
    Relevance {
        answers: AnswerLogits,
        sigmoid: bool,
    },
}

struct Item {
    index: usize,
    ids: TextIds,
}

/// The state of a call that embeds texts or scores pairs.
pub(crate) struct EmbedRun {
    wanted: Wanted,
    cancel: CancelToken,
    items: Vec<Item>,
    /// Texts that cannot be computed, with their errors.
    faults: Vec<(usize, Error)>,
    batches: VecDeque<Vec<usize>>,
}

impl EmbedRun {
    /// Starts to embed texts that were encoded with these options.
    ///
    /// # Errors
    /// The checkpoint's modules are malformed or not supported, or embeddings have fewer dimensions
    /// than asked for.
    pub(crate) fn embed(
        model: &LoadedModel,
        encoded: EncodedTexts,
        options: &EmbedOptions,
    ) -> Result<Self> {
        let modules = model.sentence_modules()?;
        let dimensions = options
            .dimensions
            .or(model.frontend().sentence()?.dimensions);
        let most = modules.dimension() as usize;
        if let Some(dimensions) = dimensions.filter(|&dimensions| dimensions > most) {
            return Err(Error::argument(format!(
                "dimensions must be in 1..={most}, the size of the model's embeddings, given {dimensions}"
            )));
        }
        let wanted = Wanted::Vector {
            dimensions,
            normalize: options.normalize.unwrap_or(modules.normalizes()),
            prompt: match modules.includes_prompt() {
                true => 0,
                false => encoded.prompt,
            },
        };
        let batch = (options.batch_tokens, usize::MAX, &options.cancel);
        Ok(Self::begin(wanted, encoded, batch))
    }

    /// Starts to score pairs that were encoded with these options.
    ///
    /// # Errors
    /// The model does not score pairs.
    pub(crate) fn score(
        model: &LoadedModel,
        encoded: EncodedTexts,
        options: &RerankOptions,
    ) -> Result<Self> {
        let wanted = Wanted::Relevance {
            answers: answers(model.frontend())?,
            sigmoid: model.frontend().sentence()?.has_sigmoid && !options.logits,
        };
        // A decoder computes the logits of its whole vocabulary after each pair.
        let rows = WorkSizes::of_device().logits / model.vocab().max(1);
        let batch = (options.batch_tokens, rows.max(1), &options.cancel);
        Ok(Self::begin(wanted, encoded, batch))
    }

    /// A run with at most so many tokens and rows in a batch.
    fn begin(
        wanted: Wanted,
        encoded: EncodedTexts,
        (tokens, rows, cancel): (usize, usize, &CancelToken),
    ) -> Self {
        let (mut items, mut faults) = (Vec::with_capacity(encoded.texts.len()), Vec::new());
        for (index, text) in encoded.texts.into_iter().enumerate() {
            match text {
                Ok(ids) => items.push(Item { index, ids }),
                Err(error) => faults.push((index, error)),
            }
        }
        let lens: Vec<usize> = items.iter().map(|item| item.ids.0.len()).collect();
        Self {
            wanted,
            cancel: cancel.clone(),
            batches: pack(&lens, tokens, rows).into(),
            items,
            faults,
        }
    }

    /// Computes the next batch, and calls `on_done` with the index and result of each of its texts.
    /// The values of a pair are its relevance alone. Returns whether there are more batches.
    pub(crate) fn advance(
        &mut self,
        model: &LoadedModel,
        on_done: &mut impl FnMut(usize, Result<TextEmbedding>),
    ) -> bool {
        for (index, error) in self.faults.drain(..) {
            on_done(index, Err(error));
        }
        if self.cancel.is_cancelled() {
            for places in std::mem::take(&mut self.batches) {
                for at in places {
                    let error = Error::new(ErrorKind::Cancelled, "embedding was cancelled");
                    on_done(self.items[at].index, Err(error));
                }
            }
            return false;
        }
        let Some(places) = self.batches.pop_front() else {
            return false;
        };
        let items: Vec<&Item> = places.iter().map(|&at| &self.items[at]).collect();
        match self.compute(model, &items) {
            Ok(rows) => {
                for (item, values) in items.iter().zip(rows) {
                    let tokens = item.ids.0.len();
                    on_done(
                        item.index,
                        finite(values).map(|values| TextEmbedding { values, tokens }),
                    );
                }
            }
            Err(error) => {
                for item in &items {
                    on_done(item.index, Err(Error::new(error.kind(), error.to_string())));
                }
            }
        }
        !self.batches.is_empty()
    }

    /// The values of each text of a batch.
    fn compute(&self, model: &LoadedModel, items: &[&Item]) -> Result<Vec<Vec<f32>>> {
        let rows: Vec<(&[u32], &[u32])> = items
            .iter()
            .map(|item| (&item.ids.0[..], &item.ids.1[..]))
            .collect();
        let texts = Texts::with_types(&rows)?;
        match self.wanted {
            Wanted::Vector {
                dimensions,
                normalize,
                prompt,
            } => {
                let modules = model.sentence_modules()?;
                let vectors = embeddings(model, modules, &texts, &rows, prompt)?;
                let width = vectors.dim(-1)? as usize;
                let values = vectors.astype(DType::F32)?.to_vec::<f32>()?;
                let kept = dimensions.unwrap_or(width);
                let vector = |row: &[f32]| match normalize {
                    true => unit(&row[..kept]),
                    false => row[..kept].to_vec(),
                };
                Ok(values.chunks(width).map(vector).collect())
            }
            Wanted::Relevance { answers, sigmoid } => {
                let logits = relevance(model, answers, &texts, &rows)?;
                let score = |logit: f32| match sigmoid {
                    true => (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32,
                    false => logit,
                };
                Ok(logits.into_iter().map(|logit| vec![score(logit)]).collect())
            }
        }
    }
}

/// The embeddings of texts, F32 `[B, D]`.
fn embeddings(
    model: &LoadedModel,
    modules: &SentenceModules,
    texts: &Texts,
    rows: &[(&[u32], &[u32])],
    prompt: usize,
) -> Result<Array> {
    if let Some(encoder) = model.model().encoder() {
        return Ok(modules.embed(&encoder.encode(texts)?, texts, prompt)?);
    }
    if modules.reads_last() {
        return Ok(modules.finish(last_of_decoder(model, rows)?)?);
    }
    let mut cache = no_store(model, rows);
    let ids: Vec<&[u32]> = rows.iter().map(|(ids, _)| *ids).collect();
    let hidden = forward::hidden(model.model(), &mut cache, &ids)?;
    let flat = hidden.squeeze(0)?;
    Ok(modules.embed(&flat, texts, prompt)?)
}

/// The logits of the relevance of pairs.
fn relevance(
    model: &LoadedModel,
    answers: AnswerLogits,
    texts: &Texts,
    rows: &[(&[u32], &[u32])],
) -> Result<Vec<f32>> {
    let logits = match answers {
        AnswerLogits::Head => {
            let encoder = model.model().encoder();
            let encoder = encoder.ok_or_else(|| Error::unsupported("the model is no encoder"))?;
            encoder.classify(&encoder.encode(texts)?, texts)?
        }
        AnswerLogits::Tokens(yes, no) => {
            let logits = model.logits(&last_of_decoder(model, rows)?)?;
            let column = |id: u32| logits.slice_axis(1, id as i32, id as i32 + 1);
            match no {
                Some(no) => column(yes)?.subtract(&column(no)?)?,
                None => column(yes)?,
            }
        }
    };
    Ok(logits.astype(DType::F32)?.to_vec::<f32>()?)
}

/// The features of the last token of each text, `[B, E]`.
fn last_of_decoder(model: &LoadedModel, rows: &[(&[u32], &[u32])]) -> Result<Array> {
    let mut cache = no_store(model, rows);
    let ids: Vec<&[u32]> = rows.iter().map(|(ids, _)| *ids).collect();
    let last = forward::last_hidden(model.model(), &mut cache, &ids)?;
    eval([&last])?;
    Ok(last)
}

/// A cache that stores nothing, for rows that are computed in one step.
fn no_store(model: &LoadedModel, rows: &[(&[u32], &[u32])]) -> ModelCache {
    let options = CacheOptions {
        store: false,
        ..model.cache_options()
    };
    let mut cache = ModelCache::new(model.model().states(), rows.len(), options);
    for (row, (ids, _)) in rows.iter().enumerate() {
        cache.expect(row, ids.len());
    }
    cache
}

/// The vector of length 1 in the same direction; a vector of zeros stays as it is.
fn unit(values: &[f32]) -> Vec<f32> {
    let square = |sum: f64, &value: &f32| sum + f64::from(value) * f64::from(value);
    let length = values.iter().fold(0.0, square).sqrt().max(1e-12);
    let scaled = |&value: &f32| (f64::from(value) / length) as f32;
    values.iter().map(scaled).collect()
}

fn finite(values: Vec<f32>) -> Result<Vec<f32>> {
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(Error::new(
            ErrorKind::NotFinite,
            "the result has NaN or infinite numbers; a weight may have NaN, or float16 is too narrow for the model",
        )),
    }
}
