//! A classification in pieces: parts of long texts, batches of short ones, and labels. Each piece is one forward pass.

use std::collections::VecDeque;

use mlx_nn::ModelCache;

use super::batch::TextBatch;
use super::{ClassifyOptions, ClassifyResult, Encoded, Item};
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::forward;
use crate::model::frontend::{check_ids, check_positions};
use crate::request::cancel::CancelToken;
use crate::tasks::pack::{self, BatchLimit, BatchSize};
use crate::tasks::shared::{RunShape, TextRun, agreeing, renumbered};
use crate::work_sizes::WorkSizes;

/// The shortest common prefix that is computed once for all texts.
const MIN_SHARED: usize = 8;

/// The state of a classification.
pub(crate) struct Run {
    options: ClassifyOptions,
    items: Vec<Item>,
    /// Texts that cannot be computed, with their errors.
    faults: Vec<(usize, Error)>,
    /// The length of the common prefix of all texts, and a cache of one row with its first tokens. The length is 0
    /// without a prefix.
    common: usize,
    shared: Option<ModelCache>,
    limit: BatchLimit,
    /// Indices of items that are computed together.
    batches: VecDeque<Vec<usize>>,
    batch: Option<(Vec<usize>, TextBatch)>,
    has_failed: bool,
}

impl Run {
    /// Starts a classification of texts that were encoded with these options.
    pub(crate) fn begin(
        model: &LoadedModel,
        encoded: Vec<Encoded>,
        options: &ClassifyOptions,
    ) -> Self {
        let (mut items, mut faults) = (Vec::with_capacity(encoded.len()), Vec::new());
        for (index, encoded) in encoded.into_iter().enumerate() {
            let checked = encoded.and_then(|(ids, labels)| {
                let item = Item { index, ids, labels };
                check_ids(&item.ids, model.vocab())?;
                let room = match item.labels.is_empty() {
                    true => "",
                    false => " (the text and its longest label)",
                };
                check_positions(item.positions(), model.info().max_positions, room)?;
                Ok(item)
            });
            match checked {
                Ok(item) => items.push(item),
                Err(error) => faults.push((index, error)),
            }
        }
        Self::of_items(model, items, faults, options)
    }

    fn of_items(
        model: &LoadedModel,
        items: Vec<Item>,
        faults: Vec<(usize, Error)>,
        options: &ClassifyOptions,
    ) -> Self {
        // A decoder computes the logits of its whole vocabulary after each text.
        let rows = WorkSizes::of_device().logits / model.vocab().max(1);
        let limit = BatchLimit {
            tokens: options.batch_tokens,
            rows: rows.max(1),
            counts_padding: true,
        };
        let lens: Vec<usize> = items.iter().map(Item::positions).collect();
        // With LongRoPE and dynamic NTK the embedding of a prefix depends on the length of the
        // whole text.
        let of = model.model();
        let common = match of.switches_after().or(of.grows_after()) {
            Some(_) => 0,
            None => common(&items),
        };
        Self {
            batches: pack::pack(&lens, limit).into(),
            limit,
            options: options.clone(),
            items,
            faults,
            common,
            shared: (common > 0).then(|| model.new_cache(1)),
            batch: None,
            has_failed: false,
        }
    }

    /// Ends all texts that are not finished with this error.
    fn fail(&mut self, error: &Error, on_done: &mut impl FnMut(usize, Result<ClassifyResult>)) {
        let under_way = self.batch.take().map(|(places, _)| places);
        for places in under_way.into_iter().chain(self.batches.drain(..)) {
            let items: Vec<&Item> = places.iter().map(|&at| &self.items[at]).collect();
            fail(&items, error, on_done);
        }
    }
}

impl TextRun for Run {
    type Found = ClassifyResult;

    /// `None` if there are several batches, or a text that is computed in parts.
    fn shape(&self) -> Option<RunShape> {
        let first = self.items.first()?;
        let chunk = WorkSizes::of_device().chunk;
        let is_short = |item: &Item| item.ids.len() <= chunk;
        if self.batches.len() != 1 || !self.items.iter().all(is_short) {
            return None;
        }
        Some(RunShape {
            size: BatchSize::of(self.items.iter().map(Item::positions)),
            limit: self.limit,
            first: first.ids.clone(),
            agree: shared_tokens(&self.items),
            prefix: self.common,
        })
    }

    fn is_like(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|run| &run.options);
        own.sampling == others.sampling && own.logits == others.logits
    }

    fn together(runs: &[&Self], model: &LoadedModel) -> (Self, Vec<(usize, usize)>) {
        let waiting = runs.iter().map(|run| {
            let places = run.batches.iter().flatten();
            places.map(|&at| &run.items[at])
        });
        let (items, indices) = renumbered(waiting, |item| &mut item.index);
        let limits = runs.iter().map(|run| run.limit);
        let options = ClassifyOptions {
            batch_tokens: limits.map(|limit| limit.tokens).min().unwrap_or(1),
            cancel: CancelToken::new(),
            ..runs[0].options.clone()
        };
        (Self::of_items(model, items, Vec::new(), &options), indices)
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }

    fn advance(
        &mut self,
        model: &LoadedModel,
        on_done: &mut impl FnMut(usize, Result<ClassifyResult>),
    ) -> bool {
        self.report_faults(on_done);
        if self.batch.is_none() && self.batches.is_empty() {
            return false;
        }
        if let Some(shared) = &mut self.shared
            && shared.lens()[0] < self.common
        {
            let start = shared.lens()[0];
            let chunk =
                &self.items[0].ids[start..self.common.min(start + WorkSizes::of_device().chunk)];
            if let Err(error) = forward::prefill(model.model(), shared, chunk) {
                self.has_failed = true;
                self.fail(&error, on_done);
                return false;
            }
            return true;
        }
        if self.batch.is_none() {
            let Some(places) = self.batches.pop_front() else {
                return false;
            };
            let items: Vec<&Item> = places.iter().map(|&at| &self.items[at]).collect();
            match TextBatch::begin(model, &items, self.shared.as_ref()) {
                Ok(batch) => self.batch = Some((places, batch)),
                Err(error) => {
                    self.has_failed = true;
                    fail(&items, &error, on_done);
                }
            }
        }
        if let Some((places, batch)) = &mut self.batch {
            let items: Vec<&Item> = places.iter().map(|&at| &self.items[at]).collect();
            match batch.advance(model, &items, &self.options) {
                Ok(None) => return true,
                Ok(Some(results)) => {
                    for (item, result) in items.iter().zip(results) {
                        on_done(item.index, result);
                    }
                }
                Err(error) => {
                    self.has_failed = true;
                    fail(&items, &error, on_done);
                }
            }
            self.batch = None;
        }
        !self.batches.is_empty()
    }

    fn report_faults(&mut self, on_done: &mut impl FnMut(usize, Result<ClassifyResult>)) {
        for (index, error) in self.faults.drain(..) {
            on_done(index, Err(error));
        }
        if self.options.cancel.is_cancelled() {
            let error = Error::new(ErrorKind::Cancelled, "classification was cancelled");
            self.fail(&error, on_done);
        }
    }
}

fn fail(items: &[&Item], error: &Error, on_done: &mut impl FnMut(usize, Result<ClassifyResult>)) {
    for item in items {
        on_done(item.index, Err(Error::new(error.kind(), error.to_string())));
    }
}

/// The length of the prefix that all texts share, if it is computed separately.
fn common(items: &[Item]) -> usize {
    match items.len() {
        0 | 1 => 0,
        _ => Some(shared_tokens(items))
            .filter(|&common| common >= MIN_SHARED)
            .unwrap_or(0),
    }
}

/// The number of tokens with which all texts begin. At least one token of each text stays outside,
/// for the head.
fn shared_tokens(items: &[Item]) -> usize {
    let [first, rest @ ..] = items else { return 0 };
    let inside = |item: &Item| item.ids.len().saturating_sub(1);
    rest.iter().fold(inside(first), |common, item| {
        let most = common.min(inside(item));
        agreeing(&first.ids, &item.ids, most)
    })
}
