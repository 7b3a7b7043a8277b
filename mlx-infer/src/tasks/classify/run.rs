//! A classification in pieces: parts of long texts, batches of short ones, and labels. Each piece is one forward pass.

use std::collections::VecDeque;

use mlx_nn::ModelCache;

use super::batch::TextBatch;
use super::{ClassifyOptions, ClassifyResult, Encoded, Item, pack};
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::forward;
use crate::model::frontend::{check_ids, check_positions};
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
    /// Indices of items that are computed together.
    batches: VecDeque<Vec<usize>>,
    batch: Option<(Vec<usize>, TextBatch)>,
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
        let sizes = WorkSizes::of_device();
        let lens: Vec<usize> = items.iter().map(Item::positions).collect();
        let most_rows = (sizes.logits / model.vocab().max(1)).max(1);
        // With LongRoPE and dynamic NTK the embedding of a prefix depends on the length of the
        // whole text.
        let of = model.model();
        let common = match of.switches_after().or(of.grows_after()) {
            Some(_) => 0,
            None => common(&items),
        };
        Self {
            batches: pack::pack(&lens, options.batch_tokens, most_rows).into(),
            options: options.clone(),
            items,
            faults,
            common,
            shared: (common > 0).then(|| model.new_cache(1)),
            batch: None,
        }
    }

    /// Computes the next piece, and calls `on_done` with the index and result of each text that it finishes. Returns
    /// whether there are more pieces.
    pub(crate) fn advance(
        &mut self,
        model: &LoadedModel,
        on_done: &mut impl FnMut(usize, Result<ClassifyResult>),
    ) -> bool {
        for (index, error) in self.faults.drain(..) {
            on_done(index, Err(error));
        }
        if self.options.cancel.is_cancelled() {
            let error = Error::new(ErrorKind::Cancelled, "classification was cancelled");
            self.fail(&error, on_done);
            return false;
        }
        if let Some(shared) = &mut self.shared
            && shared.lens()[0] < self.common
        {
            let start = shared.lens()[0];
            let chunk =
                &self.items[0].ids[start..self.common.min(start + WorkSizes::of_device().chunk)];
            if let Err(error) = forward::prefill(model.model(), shared, chunk) {
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
                Err(error) => fail(&items, &error, on_done),
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
                Err(error) => fail(&items, &error, on_done),
            }
            self.batch = None;
        }
        !self.batches.is_empty()
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

fn fail(items: &[&Item], error: &Error, on_done: &mut impl FnMut(usize, Result<ClassifyResult>)) {
    for item in items {
        on_done(item.index, Err(Error::new(error.kind(), error.to_string())));
    }
}

/// The length of the prefix that all texts share, if it is computed separately. At least one token
/// of each text stays outside, for the head.
fn common(items: &[Item]) -> usize {
    let [first, rest @ ..] = items else { return 0 };
    if rest.is_empty() {
        return 0;
    }
    let common = rest.iter().fold(first.ids.len() - 1, |common, item| {
        let most = common.min(item.ids.len() - 1);
        (0..most)
            .find(|&at| item.ids[at] != first.ids[at])
            .unwrap_or(most)
    });
    if common < MIN_SHARED { 0 } else { common }
}
