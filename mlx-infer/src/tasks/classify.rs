//! Classification: the next token of each text, or the label that fits it best. No text is
//! generated.
//!
//! Texts are encoded on all cores, sorted by length and packed into batches with a limited number of tokens. Each batch
//! is one forward pass, and the head runs only on each text's last token. The common prefix of all texts (an
//! instruction, the start of a template) is computed once. On an engine, calls that wait at the same time share a batch
//! if their texts fit into it.

mod batch;
mod labels;
mod run;

use rayon::prelude::*;

pub use self::labels::LabelScores;
pub(crate) use self::run::Run;

use crate::error::{Error, Result};
use crate::model::frontend::{Frontend, check_ids};
use crate::request::cancel::CancelToken;
use crate::request::generation::Prompt;
use crate::request::sampling::SamplingParams;
use crate::work_sizes::WorkSizes;

/// Options of classification.
#[derive(Clone, Debug)]
pub struct ClassifyOptions {
    /// The labels to choose from; without labels the answer is the next token.
    pub labels: Vec<String>,
    /// Most tokens of a forward pass, padding included; 4,096 on a CPU, 16,384 on a GPU.
    pub batch_tokens: usize,
    /// How the next token is chosen. For penalties the text counts as the prompt.
    pub sampling: SamplingParams,
    /// Return the logits of the next token.
    pub logits: bool,
    /// Put the tokenizer's own special tokens (such as `<bos>`) around texts. A chat template has
    /// already added them.
    pub add_special: bool,
    /// Cancels the call; texts that were not computed give an error.
    pub cancel: CancelToken,
}

impl Default for ClassifyOptions {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            batch_tokens: WorkSizes::of_device().texts,
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

/// A text that is being classified: its index in the input, its ids, and the ids of each label after it.
#[derive(Clone)]
struct Item {
    index: usize,
    ids: Vec<u32>,
    labels: Vec<Vec<u32>>,
}

impl Item {
    /// The number of positions that the text and its longest label need.
    fn positions(&self) -> usize {
        self.ids.len() + self.labels.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The text followed by all labels: every token whose logits are read.
    fn with_labels(&self) -> Vec<u32> {
        [&self.ids[..], &self.labels.concat()].concat()
    }
}

/// The ids of a text, and those of each label after it.
pub(crate) type LabelledIds = (Vec<u32>, Vec<Vec<u32>>);

/// The ids, or the reason why there are none.
pub(crate) type Encoded = Result<LabelledIds>;

impl Frontend {
    /// The ids of each text and of each label after it, computed on all cores. A text that already has an error keeps
    /// it.
    ///
    /// # Errors
    /// An option is out of range, or there are texts or labels and no tokenizer.
    pub(crate) fn encode(
        &self,
        prompts: Vec<Result<Prompt>>,
        options: &ClassifyOptions,
    ) -> Result<Vec<Encoded>> {
        self.check_generates()?;
        options.check(self.info().vocab as usize)?;
        let needs_text = !options.labels.is_empty();
        let tokenizer = match needs_text {
            true => Some(self.tokenizer()?),
            false => self.tokenizer_if_any(),
        };
        if tokenizer.is_none() && prompts.iter().any(|p| matches!(p, Ok(Prompt::Text(_)))) {
            // This call returns an error that names the missing file.
            self.tokenizer()?;
        }
        let (labels, add_special) = (&options.labels, options.add_special);
        let encode = |prompt| labels::encode(tokenizer, prompt, labels, add_special);
        let prompts = prompts.into_par_iter();
        Ok(prompts.map(|prompt| prompt.and_then(encode)).collect())
    }

    /// The same for prompts with labels of their own.
    ///
    /// # Errors
    /// There is no tokenizer.
    #[cfg(feature = "serve")]
    pub(crate) fn encode_each(&self, texts: Vec<(Vec<u32>, Vec<String>)>) -> Result<Vec<Encoded>> {
        let tokenizer = Some(self.tokenizer()?);
        let encode = |(ids, labels): (Vec<u32>, Vec<String>)| {
            labels::encode(tokenizer, Prompt::Tokens(ids), &labels, false)
        };
        Ok(texts.into_par_iter().map(encode).collect())
    }
}
