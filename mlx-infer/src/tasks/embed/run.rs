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
use crate::tasks::pack::{BatchLimit, BatchSize, pack};
use crate::tasks::shared::{RunShape, TextRun, renumbered};
use crate::work_sizes::WorkSizes;

/// What a forward pass computes of texts. Texts for which it is the same share a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PassKind {
    /// Embeddings, in which the tokens of a prompt at the start of each text do not count.
    Vectors { prompt: usize },
    /// The logits of the relevance of pairs.
    Logits(AnswerLogits),
}

/// What becomes of a text's numbers.
#[derive(Clone, Copy, Debug)]
enum Finish {
    /// The number of leading features, and whether the vector's length becomes 1.
    Vector {
        dimensions: Option<usize>,
        normalize: bool,
    },
    /// Whether a logit becomes a number from 0 to 1.
    Relevance { sigmoid: bool },
}

#[derive(Clone)]
struct Item {
    index: usize,
    ids: TextIds,
    finish: Finish,
}

/// The state of a call that embeds texts or scores pairs.
pub(crate) struct EmbedRun {
    kind: PassKind,
    cancel: CancelToken,
    items: Vec<Item>,
    /// Texts that cannot be computed, with their errors.
    faults: Vec<(usize, Error)>,
    limit: BatchLimit,
    batches: VecDeque<Vec<usize>>,
    has_failed: bool,
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
        let kind = PassKind::Vectors {
            prompt: match modules.includes_prompt() {
                true => 0,
                false => encoded.prompt,
            },
        };
        let finish = Finish::Vector {
            dimensions,
            normalize: options.normalize.unwrap_or(modules.normalizes()),
        };
        let limit = limit(model, options.batch_tokens, usize::MAX);
        Ok(Self::begin((kind, finish), encoded, limit, &options.cancel))
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
        let kind = PassKind::Logits(answers(model.frontend())?);
        let finish = Finish::Relevance {
            sigmoid: model.frontend().sentence()?.has_sigmoid && !options.logits,
        };
        // A decoder computes the logits of its whole vocabulary after each pair.
        let rows = WorkSizes::of_device().logits / model.vocab().max(1);
        let limit = limit(model, options.batch_tokens, rows.max(1));
        Ok(Self::begin((kind, finish), encoded, limit, &options.cancel))
    }

    fn begin(
        (kind, finish): (PassKind, Finish),
        encoded: EncodedTexts,
        limit: BatchLimit,
        cancel: &CancelToken,
    ) -> Self {
        let (mut items, mut faults) = (Vec::with_capacity(encoded.texts.len()), Vec::new());
        for (index, text) in encoded.texts.into_iter().enumerate() {
            match text {
                Ok(ids) => items.push(Item { index, ids, finish }),
                Err(error) => faults.push((index, error)),
            }
        }
        Self {
            faults,
            ..Self::of_items(kind, items, limit, cancel.clone())
        }
    }

    fn of_items(kind: PassKind, items: Vec<Item>, limit: BatchLimit, cancel: CancelToken) -> Self {
        let lens: Vec<usize> = items.iter().map(|item| item.ids.0.len()).collect();
        Self {
            kind,
            cancel,
            batches: pack(&lens, limit).into(),
            items,
            faults: Vec::new(),
            limit,
            has_failed: false,
        }
    }
}

impl TextRun for EmbedRun {
    type Found = TextEmbedding;

    fn shape(&self) -> Option<RunShape> {
        let size = BatchSize::of(self.items.iter().map(|item| item.ids.0.len()));
        Some(RunShape::without_prefix(size, self.limit))
    }

    fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind
    }

    fn together(runs: &[&Self], _: &LoadedModel) -> (Self, Vec<(usize, usize)>) {
        let waiting = runs.iter().map(|run| {
            let places = run.batches.iter().flatten();
            places.map(|&at| &run.items[at])
        });
        let (items, indices) = renumbered(waiting, |item| &mut item.index);
        let limit = runs[1..]
            .iter()
            .fold(runs[0].limit, |limit, run| limit.least(run.limit));
        let run = Self::of_items(runs[0].kind, items, limit, CancelToken::new());
        (run, indices)
    }

    /// The values of a pair are its relevance alone.
    fn advance(
        &mut self,
        model: &LoadedModel,
        on_done: &mut impl FnMut(usize, Result<TextEmbedding>),
    ) -> bool {
        self.report_faults(on_done);
        let Some(places) = self.batches.pop_front() else {
            return false;
        };
        let items: Vec<&Item> = places.iter().map(|&at| &self.items[at]).collect();
        match computed(model, self.kind, &items) {
            Ok(rows) => {
                for (item, row) in items.iter().zip(&rows) {
                    on_done(item.index, item.embedding(row));
                }
            }
            Err(error) => {
                self.has_failed = true;
                for item in &items {
                    on_done(item.index, Err(Error::new(error.kind(), error.to_string())));
                }
            }
        }
        !self.batches.is_empty()
    }

    fn report_faults(&mut self, on_done: &mut impl FnMut(usize, Result<TextEmbedding>)) {
        for (index, error) in self.faults.drain(..) {
            on_done(index, Err(error));
        }
        if self.cancel.is_cancelled() {
            for at in self.batches.drain(..).flatten() {
                let error = Error::new(ErrorKind::Cancelled, "embedding was cancelled");
                on_done(self.items[at].index, Err(error));
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }
}

impl Item {
    /// The result of the text, from the numbers of its row.
    fn embedding(&self, row: &[f32]) -> Result<TextEmbedding> {
        let values = match self.finish {
            Finish::Vector {
                dimensions,
                normalize,
            } => {
                let kept = &row[..dimensions.unwrap_or(row.len())];
                match normalize {
                    true => unit(kept),
                    false => kept.to_vec(),
                }
            }
            Finish::Relevance { sigmoid: true } => row
                .iter()
                .map(|&logit| (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32)
                .collect(),
            Finish::Relevance { sigmoid: false } => row.to_vec(),
        };
        Ok(TextEmbedding {
            values: finite(values)?,
            tokens: self.ids.0.len(),
        })
    }
}

/// What may be in a batch of this model.
fn limit(model: &LoadedModel, tokens: usize, rows: usize) -> BatchLimit {
    BatchLimit {
        tokens,
        rows,
        counts_padding: model.model().encoder().is_none(),
    }
}

/// The numbers of each text of a batch: its vector, or the logit of its relevance.
fn computed(model: &LoadedModel, kind: PassKind, items: &[&Item]) -> Result<Vec<Vec<f32>>> {
    let rows: Vec<(&[u32], &[u32])> = items
        .iter()
        .map(|item| (&item.ids.0[..], &item.ids.1[..]))
        .collect();
    let texts = Texts::with_types(&rows)?;
    match kind {
        PassKind::Vectors { prompt } => {
            let modules = model.sentence_modules()?;
            let vectors = embeddings(model, modules, &texts, &rows, prompt)?;
            let width = vectors.dim(-1)? as usize;
            let values = vectors.astype(DType::F32)?.to_vec::<f32>()?;
            Ok(values.chunks(width).map(<[f32]>::to_vec).collect())
        }
        PassKind::Logits(answers) => {
            let logits = relevance(model, answers, &texts, &rows)?;
            Ok(logits.into_iter().map(|logit| vec![logit]).collect())
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
