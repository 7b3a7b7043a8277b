//! Embeddings of texts, and the relevance of pairs of texts.
//!
//! Texts are encoded on all cores, sorted by length and computed in batches of a limited number of
//! tokens. An encoder computes a batch without padding. A decoder computes it in one step that
//! stores nothing. On an engine, calls that wait at the same time share a batch if their texts fit
//! into it.

mod input;
mod pairs;
mod run;

pub(crate) use self::input::{EncodedTexts, TextIds, encode_texts};
pub use self::pairs::RerankOptions;
pub(crate) use self::pairs::encode_pairs;
pub(crate) use self::run::EmbedRun;

use crate::request::cancel::CancelToken;
use crate::work_sizes::WorkSizes;

/// The text that is put before each text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EmbedPrompt {
    /// The checkpoint's default prompt (`config_sentence_transformers.json`), if it has one.
    #[default]
    Default,
    /// None.
    None,
    /// The checkpoint's prompt with this name, such as `query` or `document`.
    Named(String),
    /// This text.
    Text(String),
}

/// Options of embeddings.
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    /// The text that is put before each text.
    pub prompt: EmbedPrompt,
    /// The number of leading features that are kept (Kusupati et al., arXiv:2205.13147). A vector
    /// of length 1 is then brought to length 1 again.
    pub dimensions: Option<usize>,
    /// Whether vectors have length 1; by default as the checkpoint's `modules.json` says, and true
    /// without such a file.
    pub normalize: Option<bool>,
    /// Whether a text with more tokens than the checkpoint's limit is cut, as in
    /// sentence-transformers. Otherwise it gives an error, as ids always do.
    pub truncate: bool,
    /// Most tokens of a forward pass; 4,096 on a CPU, 16,384 on a GPU. A longer text is computed
    /// alone.
    pub batch_tokens: usize,
    /// Cancels the call; texts that were not computed give an error.
    pub cancel: CancelToken,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            prompt: EmbedPrompt::Default,
            dimensions: None,
            normalize: None,
            truncate: true,
            batch_tokens: WorkSizes::of_device().texts,
            cancel: CancelToken::new(),
        }
    }
}

/// The embedding of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextEmbedding {
    /// The vector.
    pub values: Vec<f32>,
    /// The number of the text's tokens, those of the prompt and around it included.
    pub tokens: usize,
}
