//! Classification: for each text the next token, or the label that follows it best. Nothing is generated.
//!
//! Texts are encoded on all cores, sorted by length and packed into batches of so many tokens; each batch
//! is one masked forward pass, and the head runs on each text's last token alone. The common prefix of all texts (an instruction, the head
//! of a template) is computed once.

mod labels;
mod pack;

use mlx_core::DType;
use mlx_nn::{CacheOptions, ModelCache};
use rayon::prelude::*;

pub use self::labels::LabelScores;

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::forward;
use crate::frontend::{check_ids, check_positions};
use crate::generate::{Prompt, random_seed};
use crate::model::LoadedModel;
use crate::sampler::{History, Row, SamplingParams, sample};
use crate::score::MAX_LOGITS;

/// The shortest common prefix that is computed separately.
const MIN_SHARED: usize = 8;

/// Options of classification.
#[derive(Clone, Debug)]
pub struct ClassifyOptions {
    /// The labels to choose from; without any, the next token is the answer.
    pub labels: Vec<String>,
    /// Most tokens of a forward pass, padding included.
    pub batch_tokens: usize,
    /// How the next token is chosen. For penalties the text counts as a prompt.
    pub sampling: SamplingParams,
    /// Give the logits of the next token.
    pub logits: bool,
    /// Put the tokenizer's own tokens (such as `<bos>`) around texts. A chat template has added them already.
    pub add_special: bool,
    /// Cancels the call; texts that were not computed give an error.
    pub cancel: CancelToken,
}

impl Default for ClassifyOptions {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            batch_tokens: 4096,
            sampling: SamplingParams::default(),
            logits: false,
            add_special: true,
            cancel: CancelToken::new(),
        }
    }
}

impl ClassifyOptions {
    fn check(&self, vocab: usize) -> Result<()> {
        self.sampling.check()?;
        let biased: Vec<u32> = self.sampling.logit_bias.keys().copied().collect();
        check_ids(&biased, vocab)?;
        if self.batch_tokens == 0 {
            return Err(Error::argument("batch_tokens must be at least 1, given 0"));
        }
        for (at, label) in self.labels.iter().enumerate() {
            if label.is_empty() {
                let message = format!("label {at} is empty; expected at least one character");
                return Err(Error::argument(message));
            }
            if self.labels[..at].contains(label) {
                return Err(Error::argument(format!("label {label:?} is given twice")));
            }
        }
        Ok(())
    }
}

/// The result for a text.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifyResult {
    /// The next token.
    pub token: u32,
    /// The logits from which it was chosen, if requested.
    pub logits: Option<Vec<f32>>,
    /// The scores of the labels, if there are any.
    pub labels: Option<LabelScores>,
}

/// A text that is being classified: its place in the input, its ids, and the ids of each label behind it.
struct Item {
    index: usize,
    ids: Vec<u32>,
    labels: Vec<Vec<u32>>,
}

impl Item {
    /// Positions that it needs.
    fn positions(&self) -> usize {
        self.ids.len() + self.labels.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The text followed by all labels. It contains every token whose logits were read.
    fn with_labels(&self) -> Vec<u32> {
        [&self.ids[..], &self.labels.concat()].concat()
    }
}

impl LoadedModel {
    /// Finds for each text the token or label that follows it. Results are in the order of the texts. A text that is
    /// empty, too long or cannot be encoded gives an error in its place.
    ///
    /// ```
    /// # fn main() -> mlx_infer::Result<()> {
    /// use mlx_infer::{ClassifyOptions, LoadedModel};
    /// let model = LoadedModel::load_default()?;
    /// let options = ClassifyOptions {
    ///     labels: vec![" 4".into(), " 7".into()],
    ///     ..Default::default()
    /// };
    /// let sums = ["2 + 2 =", "3 + 4 ="].map(Into::into);
    /// for result in model.classify(sums.into(), &options)? {
    ///     let labels = result?.labels.unwrap();
    ///     println!("{} {:?}", options.labels[labels.best], labels.probabilities);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// An option is out of range, or there are labels and no tokenizer.
    pub fn classify(
        &self,
        prompts: Vec<Prompt>,
        options: &ClassifyOptions,
    ) -> Result<Vec<Result<ClassifyResult>>> {
        let mut results: Vec<_> = prompts.iter().map(|_| None).collect();
        self.classify_with(prompts, options, |index, result| {
            results[index] = Some(result);
        })?;
        Ok(results
            .into_iter()
            .map(|result| result.expect("every text gets a result"))
            .collect())
    }

    /// As [`classify`](Self::classify), but calls `on_done` with the index of a text and its result when its batch
    /// ends.
    ///
    /// # Errors
    /// As [`classify`](Self::classify).
    pub fn classify_with(
        &self,
        prompts: Vec<Prompt>,
        options: &ClassifyOptions,
        mut on_done: impl FnMut(usize, Result<ClassifyResult>),
    ) -> Result<()> {
        options.check(self.vocab())?;
        let mut items = Vec::with_capacity(prompts.len());
        for (index, encoded) in self.encode_all(prompts, options)?.into_iter().enumerate() {
            let checked = encoded.and_then(|(ids, labels)| {
                let item = Item { index, ids, labels };
                check_ids(&item.ids, self.vocab())?;
                let room = match item.labels.is_empty() {
                    true => "",
                    false => " (the text and its longest label)",
                };
                check_positions(item.positions(), self.info().max_positions, room)?;
                Ok(item)
            });
            match checked {
                Ok(item) => items.push(item),
                Err(error) => on_done(index, Err(error)),
            }
        }
        let shared = match self.share_prefix(&items) {
            Ok(shared) => shared,
            Err(error) => {
                for item in items {
                    on_done(item.index, Err(Error::new(error.kind(), error.to_string())));
                }
                return Ok(());
            }
        };
        let start = shared.as_ref().map_or(0, |cache| cache.lens()[0]);
        let lens: Vec<usize> = items.iter().map(Item::positions).collect();
        let most_rows = (MAX_LOGITS / self.vocab().max(1)).max(1);
        for batch in pack::pack(&lens, options.batch_tokens, most_rows) {
            let batch: Vec<&Item> = batch.into_iter().map(|at| &items[at]).collect();
            if options.cancel.is_cancelled() {
                for item in batch {
                    let error = Error::new(ErrorKind::Cancelled, "classification was cancelled");
                    on_done(item.index, Err(error));
                }
                continue;
            }
            match self.classify_batch(&batch, shared.as_ref(), start, options) {
                Ok(results) => {
                    for (item, result) in batch.iter().zip(results) {
                        on_done(item.index, result);
                    }
                }
                Err(error) => {
                    for item in batch {
                        on_done(item.index, Err(Error::new(error.kind(), error.to_string())));
                    }
                }
            }
        }
        Ok(())
    }

    /// The ids of each text and of each label behind it, on all cores.
    #[expect(clippy::type_complexity, reason = "pairs of plain lists")]
    fn encode_all(
        &self,
        prompts: Vec<Prompt>,
        options: &ClassifyOptions,
    ) -> Result<Vec<Result<(Vec<u32>, Vec<Vec<u32>>)>>> {
        let needs_text = !options.labels.is_empty();
        let tokenizer = match needs_text {
            true => Some(self.tokenizer()?),
            false => self.tokenizer_if_any(),
        };
        if tokenizer.is_none() && prompts.iter().any(|p| matches!(p, Prompt::Text(_))) {
            // This error names what is missing.
            self.tokenizer()?;
        }
        let labels = &options.labels;
        Ok(prompts
            .into_par_iter()
            .map(|prompt| labels::encode(tokenizer, prompt, labels, options.add_special))
            .collect())
    }

    /// Computes the common prefix of all texts: a cache of one row.
    fn share_prefix(&self, items: &[Item]) -> Result<Option<ModelCache>> {
        // With LongRoPE the length of the whole text decides how its prefix is embedded.
        let [first, rest @ ..] = items else {
            return Ok(None);
        };
        if rest.is_empty() || self.model().switches_after().is_some() {
            return Ok(None);
        }
        // At least one token of each text is left for the head.
        let common = rest.iter().fold(first.ids.len() - 1, |common, item| {
            let most = common.min(item.ids.len() - 1);
            (0..most)
                .find(|&at| item.ids[at] != first.ids[at])
                .unwrap_or(most)
        });
        if common < MIN_SHARED {
            return Ok(None);
        }
        let mut cache = self.new_cache(1);
        for chunk in first.ids[..common].chunks(512) {
            forward::prefill(self.model(), &mut cache, chunk)?;
        }
        Ok(Some(cache))
    }

    fn classify_batch(
        &self,
        items: &[&Item],
        shared: Option<&ModelCache>,
        start: usize,
        options: &ClassifyOptions,
    ) -> Result<Vec<Result<ClassifyResult>>> {
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
                    store: goes_on,
                    ..self.cache_options()
                };
                ModelCache::new(self.model().layers(), items.len(), options)
            }
        };
        for (row, item) in items.iter().enumerate() {
            cache.expect(row, item.positions());
        }
        let rows: Vec<&[u32]> = items.iter().map(|item| &item.ids[start..]).collect();
        let last = forward::last_hidden(self.model(), &mut cache, &rows)?;
        let logits = self.logits(&last)?;

        let histories: Vec<History> = items
            .iter()
            .map(|item| History::new(item.ids.clone()))
            .collect();
        let seed = options.sampling.seed.unwrap_or_else(random_seed);
        let rows: Vec<Row<'_>> = histories
            .iter()
            .map(|history| Row {
                params: &options.sampling,
                seed,
                history,
                ahead: 0,
                logprobs: None,
                mask: None,
            })
            .collect();
        let choices = sample(&logits, &rows, None)?.read_any()?;
        let mut kept = match options.logits {
            true => logits.astype(DType::F32)?.to_vec::<f32>()?,
            false => Vec::new(),
        };
        let scores = match options.labels.is_empty() {
            true => vec![None; items.len()],
            false => {
                let scores = self.score_labels(items, &logits, &mut cache)?;
                scores.into_iter().map(Some).collect()
            }
        };
        let vocab = logits.dim(-1)? as usize;
        let mut results = Vec::with_capacity(items.len());
        for (item, (choice, labels)) in items.iter().zip(choices.into_iter().zip(scores)) {
            let logits = options.logits.then(|| {
                let rest = kept.split_off(vocab);
                std::mem::replace(&mut kept, rest)
            });
            let is_nan = |scores: &LabelScores| scores.logprobs.iter().any(|lp| lp.is_nan());
            let is_fault = labels.as_ref().is_some_and(is_nan) && !self.options().allow_nan;
            results.push(match choice {
                Some(choice) if !is_fault => Ok(ClassifyResult {
                    token: choice.id,
                    logits,
                    labels,
                }),
                Some(_) | None => Err(self.not_finite(&item.with_labels())),
            });
        }
        Ok(results)
    }
}
