//! Texts that are computed together: a cache row for each, the logits after them, and the scores of their labels.

use mlx_core::{DType, eval};
use mlx_nn::{CacheOptions, ModelCache};

use super::labels::{add_rest_of, first_of_labels};
use super::{ClassifyOptions, ClassifyResult, Item, LabelScores};
use crate::engine::sequence::random_seed;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::model::forward;
use crate::request::sampling::Choice;
use crate::sampling::{History, Row, sample};
use crate::work_sizes::WorkSizes;

/// The state of a batch that is being computed.
pub(super) struct TextBatch {
    cache: ModelCache,
    /// The number of tokens of each text that are in the cache.
    done: usize,
    /// The results after the texts, once these are computed.
    behind: Option<Behind>,
}

struct Behind {
    /// The next token of each text; `None` if its logits are not finite.
    choices: Vec<Option<Choice>>,
    /// `[B, V]` in F32, flat, if they were asked for.
    logits: Vec<f32>,
    vocab: usize,
    /// For each text the sums of its labels' log probabilities, and the next label to compute.
    sums: Vec<Vec<f64>>,
    label: usize,
}

impl TextBatch {
    /// A batch of these texts. The rows start with the prefix in `shared`.
    pub(super) fn begin(
        model: &LoadedModel,
        items: &[&Item],
        shared: Option<&ModelCache>,
    ) -> Result<Self> {
        let done = shared.map_or(0, |cache| cache.lens()[0]);
        let goes_on = items
            .iter()
            .any(|item| item.labels.iter().any(|label| label.len() > 1));
        let mut cache = match shared {
            Some(shared) => {
                let mut cache = shared.clone();
                cache.select(&vec![0; items.len()])?;
                cache
            }
            None => {
                let options = CacheOptions {
                    store: goes_on || is_long(items, done),
                    ..model.cache_options()
                };
                ModelCache::new(model.model().states(), items.len(), options)
            }
        };
        for (row, item) in items.iter().enumerate() {
            cache.expect(row, item.positions());
        }
        Ok(Self {
            cache,
            done,
            behind: None,
        })
    }

    /// Computes the next piece: a part of a long text, the rest of the texts, or a label after them. Returns the
    /// results if that was the last piece.
    pub(super) fn advance(
        &mut self,
        model: &LoadedModel,
        items: &[&Item],
        options: &ClassifyOptions,
    ) -> Result<Option<Vec<Result<ClassifyResult>>>> {
        if self.behind.is_none() {
            if is_long(items, self.done) {
                let size = WorkSizes::of_device().chunk;
                let chunk = &items[0].ids[self.done..self.done + size];
                forward::prefill(model.model(), &mut self.cache, chunk)?;
                self.done += size;
                return Ok(None);
            }
            self.behind = Some(self.compute(model, items, options)?);
        } else if let Some(behind) = &mut self.behind {
            add_rest_of(
                model,
                behind.label,
                items,
                &mut self.cache,
                &mut behind.sums,
            )?;
            behind.label += 1;
        }
        let behind = self.behind.as_mut().expect("the texts are computed");
        // Labels of one token need no further step.
        let is_long = |label: &Vec<u32>| label.len() > 1;
        let goes_on = |at: usize| {
            items
                .iter()
                .any(|item| item.labels.get(at).is_some_and(is_long))
        };
        let labels = items
            .iter()
            .map(|item| item.labels.len())
            .max()
            .unwrap_or(0);
        behind.label += (behind.label..labels)
            .take_while(|&at| !goes_on(at))
            .count();
        match behind.label == labels {
            false => Ok(None),
            true => Ok(self
                .behind
                .take()
                .map(|behind| behind.results(model, items, options))),
        }
    }

    /// Computes the rest of the texts, and the logits after them.
    fn compute(
        &mut self,
        model: &LoadedModel,
        items: &[&Item],
        options: &ClassifyOptions,
    ) -> Result<Behind> {
        let rows: Vec<&[u32]> = items.iter().map(|item| &item.ids[self.done..]).collect();
        let last = forward::last_hidden(model.model(), &mut self.cache, &rows)?;
        let logits = model.logits(&last)?;
        let histories: Vec<History> = items
            .iter()
            .map(|item| History::new(item.ids.clone()))
            .collect();
        let seed = options.sampling.seed.unwrap_or_else(random_seed);
        let row = |history| Row {
            params: &options.sampling,
            seed,
            history,
            ahead: 0,
            logprobs: None,
            mask: None,
        };
        let rows: Vec<Row<'_>> = histories.iter().map(row).collect();
        let choices = sample(&logits, &rows, None)?.read_any()?;
        // The texts are evaluated now: other work may run before the labels, and its failure would
        // poison arrays that are not evaluated.
        eval(self.cache.arrays())?;
        Ok(Behind {
            choices,
            logits: match options.logits {
                true => logits.astype(DType::F32)?.to_vec::<f32>()?,
                false => Vec::new(),
            },
            vocab: logits.dim(-1)? as usize,
            sums: first_of_labels(items, &logits)?,
            label: 0,
        })
    }
}

impl Behind {
    fn results(
        self,
        model: &LoadedModel,
        items: &[&Item],
        options: &ClassifyOptions,
    ) -> Vec<Result<ClassifyResult>> {
        let mut logits = self.logits.chunks(self.vocab).map(<[f32]>::to_vec);
        let scored = |(sums, item): (Vec<f64>, &&Item)| {
            (!sums.is_empty()).then(|| LabelScores::of(&item.labels, sums))
        };
        let mut scores = self.sums.into_iter().zip(items).map(scored);
        let rows = items.iter().zip(self.choices);
        let result = |(item, choice): (&&Item, Option<Choice>)| {
            let (logits, labels) = (logits.next(), scores.next().flatten());
            let is_nan = |scores: &LabelScores| scores.logprobs.iter().any(|lp| lp.is_nan());
            let is_fault = labels.as_ref().is_some_and(is_nan) && !model.options().allow_nan;
            match choice {
                Some(choice) if !is_fault => Ok(ClassifyResult {
                    token: choice.id,
                    logits: logits.filter(|_| options.logits),
                    labels,
                }),
                Some(_) | None => Err(model.not_finite(&item.with_labels())),
            }
        };
        rows.map(result).collect()
    }
}

/// Whether a part of the text is computed first: it is the only text of its batch, and long.
fn is_long(items: &[&Item], done: usize) -> bool {
    matches!(items, [item] if item.ids.len() - done > WorkSizes::of_device().chunk)
}
