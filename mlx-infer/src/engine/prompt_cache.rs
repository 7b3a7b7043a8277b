//! Prompt caches: the layer states of a prompt, from which texts with the same prefix can continue.

pub(crate) mod file;
#[cfg(test)]
mod tests;

use std::path::Path;

use mlx_core::eval;
use mlx_nn::ModelCache;

use crate::engine::prefix_tree::shared;
use crate::engine::scheduler::next_end;
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::model::forward;
use crate::model::frontend::{check_ids, check_positions};
use crate::request::generation::{GenerateOptions, Prompt};

/// The layer states of one row.
#[derive(Clone, Debug)]
pub(crate) struct PromptState {
    cache: ModelCache,
    embedding: Embedding,
}

/// How a rope whose angles depend on the length of the text embeds positions. Other ropes embed all
/// texts alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Embedding {
    /// The embedding of all texts with at most the original context length.
    Short,
    /// The embedding of all longer texts (LongRoPE).
    Long,
    /// An embedding that no text of another length has (dynamic NTK).
    Own,
}

impl Embedding {
    /// The embedding of a text with this number of tokens.
    pub(crate) fn of(model: &LoadedModel, tokens: usize) -> Self {
        let is_beyond = |length: Option<usize>| length.is_some_and(|length| tokens > length);
        let model = model.model();
        match (
            is_beyond(model.grows_after()),
            is_beyond(model.switches_after()),
        ) {
            (true, _) => Self::Own,
            (false, true) => Self::Long,
            (false, false) => Self::Short,
        }
    }

    /// Whether layer states with this embedding can be used for a text with the other one.
    fn serves(self, other: Self) -> bool {
        self == other && self != Self::Own
    }
}

impl PromptState {
    /// The first `len` positions of row `row`. They share pages with the row; recurrent states are
    /// copied, and evaluated.
    pub(crate) fn share(
        cache: &ModelCache,
        row: usize,
        len: usize,
        embedding: Embedding,
    ) -> Result<Self> {
        let cache = cache.prefix(row, len)?;
        eval(cache.arrays())?;
        Ok(Self { cache, embedding })
    }

    /// How many of the first `most` positions a text with this embedding can start from. A full
    /// ring has overwritten its first positions, and a recurrent layer has only the states of
    /// recorded lengths.
    pub(crate) fn longest(&self, most: usize, embedding: Embedding) -> usize {
        match self.embedding.serves(embedding) {
            true => self.cache.longest_prefix(0, most),
            false => 0,
        }
    }

    /// A cache with the first `len` positions, for a prompt of `positions`. It shares the pages.
    pub(crate) fn start(&self, len: usize, positions: usize) -> Result<ModelCache> {
        let mut cache = self.cache.prefix(0, len)?;
        cache.expect(0, positions);
        Ok(cache)
    }

    /// Bytes of its pages and states.
    pub(crate) fn nbytes(&self) -> usize {
        self.cache.nbytes()
    }

    /// Its cache, of one row.
    pub(crate) fn cache(&self) -> &ModelCache {
        &self.cache
    }

    /// How its positions are embedded.
    pub(crate) fn embedding(&self) -> Embedding {
        self.embedding
    }
}

/// The layer states of a prompt. A text that begins with the same tokens does not compute them again
/// ([`Generation::with_prompt_cache`](crate::Generation::with_prompt_cache)).
///
/// ```
/// # fn main() -> mlx_infer::Result<()> {
/// use std::ops::ControlFlow;
/// use mlx_infer::{GenerateOptions, LoadedModel, Prompt};
/// let model = LoadedModel::load_default()?;
/// let options = GenerateOptions { max_tokens: 8, ..Default::default() };
/// let story = model.prompt_cache("The red fox wanders through the forest.", &options)?;
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("story.safetensors");
/// model.save_prompt_cache(&story, &path)?;
///
/// let story = model.load_prompt_cache(&path)?;
/// let ids = story.followed_by(&model, " It is")?;
/// let mut generation = model.generate(ids, &options)?.with_prompt_cache(&story)?;
/// let generated = generation.run(|_| ControlFlow::Continue(()))?;
/// assert_eq!(generated.metrics.cached_tokens, story.tokens().len());
/// // The next turn begins with both.
/// let story = generation.into_prompt_cache()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PromptCache {
    ids: Vec<u32>,
    state: PromptState,
    /// The [serial](LoadedModel::serial) of the model that computed it.
    serial: u64,
}

impl PromptCache {
    /// A copy of a cache of one row, which holds the states of these ids or of the first of them.
    pub(crate) fn copy(model: &LoadedModel, ids: &[u32], cache: &ModelCache) -> Result<Self> {
        let len = cache.lens()[0];
        let own = cache.detached()?;
        Ok(Self {
            ids: ids[..len].to_vec(),
            state: PromptState::share(&own, 0, len, Embedding::of(model, len))?,
            serial: model.serial(),
        })
    }

    /// The layer states.
    #[cfg(test)]
    pub(crate) fn state(&self) -> &PromptState {
        &self.state
    }

    /// The prompt's tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.ids
    }

    /// Bytes of the buffers.
    pub fn nbytes(&self) -> usize {
        self.state.nbytes()
    }

    /// The prompt followed by another one. A text is encoded without the special tokens that the tokenizer puts around
    /// texts (such as `<bos>`).
    ///
    /// # Errors
    /// There is a text and no tokenizer.
    pub fn followed_by(&self, model: &LoadedModel, rest: impl Into<Prompt>) -> Result<Prompt> {
        let rest = match rest.into() {
            Prompt::Tokens(ids) => ids,
            Prompt::Text(text) => model.tokenizer()?.encode(&text, false)?,
        };
        Ok(Prompt::Tokens([&self.ids[..], &rest].concat()))
    }

    /// A cache for the prompt `ids` that holds the common prefix of both, without the prompt's last
    /// token. With recurrent layers it is the longest such prefix whose length was recorded. `None`
    /// if they share no token, or if the layers no longer hold the prefix.
    pub(crate) fn start(&self, model: &LoadedModel, ids: &[u32]) -> Result<Option<ModelCache>> {
        let common = shared(&self.ids, ids).min(ids.len().saturating_sub(1));
        let len = self.state.longest(common, Embedding::of(model, ids.len()));
        if len == 0 {
            return Ok(None);
        }
        self.state.start(len, ids.len()).map(Some)
    }

    /// # Errors
    /// The cache belongs to another model.
    pub(crate) fn check(&self, model: &LoadedModel) -> Result<()> {
        if self.serial == model.serial() {
            return Ok(());
        }
        Err(Error::argument(
            "the prompt cache is of another model, or was made before an adapter was attached to this one",
        ))
    }

    /// Computes a prompt and keeps its layer states. Only the options `prefill_chunk` and `cancel` have an effect.
    ///
    /// # Errors
    /// The prompt is empty or too long for the model, an id is not in the vocabulary, or the call was cancelled.
    pub(crate) fn compute(
        model: &LoadedModel,
        prompt: Prompt,
        options: &GenerateOptions,
    ) -> Result<Self> {
        options.check()?;
        model.frontend().check_generates()?;
        let ids = model.prompt_ids(prompt)?;
        check_ids(&ids, model.vocab())?;
        check_positions(ids.len(), model.info().max_positions, "")?;
        let mut cache = model.new_cache(1);
        cache.expect(0, ids.len());
        let (mut start, chunk) = (0, options.prefill_chunk);
        while start < ids.len() {
            if options.cancel.is_cancelled() {
                let message = "the computation of the prompt was cancelled";
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
            let end = ids.len().min(start + chunk);
            let (end, is_recorded) = match model.is_recurrent() {
                true => next_end(ids.len(), chunk, start, end),
                false => (end, false),
            };
            forward::prefill(model.model(), &mut cache, &ids[start..end])?;
            if is_recorded {
                cache.record(0)?;
                eval(cache.arrays())?;
            }
            start = end;
        }
        Self::copy(model, &ids, &cache)
    }

    /// Writes it to a safetensors file, which appears whole or not at all.
    ///
    /// # Errors
    /// The cache is of another model, or the file cannot be written.
    pub(crate) fn save(&self, model: &LoadedModel, path: &Path) -> Result<()> {
        file::save(model, self, path)
    }

    /// Reads a file that [`save`](Self::save) wrote, with the same model.
    ///
    /// # Errors
    /// It cannot be read, is not such a file or is damaged, or was written with another model.
    pub(crate) fn load(model: &LoadedModel, path: &Path) -> Result<Self> {
        file::load(model, path)
    }
}
