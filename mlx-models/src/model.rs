//! [`Model`]: the trait of every language model, and a model's sizes.

use std::ops::Range;

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{CacheOptions, Head, LayerKind, ModelCache, Module, Residual, Step};

use crate::checkpoint::Names;

mod draft_head;
pub(crate) mod encoder;
mod geometry;
mod info;

pub(crate) use draft_head::paired;
pub use draft_head::{DraftHead, Drafting, TrainableHead};
pub use encoder::{Encoder, TextGroup, Texts};
pub use geometry::{Geometry, LayerGeometry, kv_heads};
pub use info::{HeadInfo, ModelInfo, ModelTask};

/// A language model: tokens in, logits out. A model does not process text, and holds no cache.
///
/// [`hidden`](Self::hidden) and [`logits`](Self::logits) are separate, so that the output head runs only on those
/// positions of a prompt that are read.
pub trait Model: Module {
    /// `tokens [1, T]` (U32 or I32) -> `[1, T, S]`, the input of the first layer. Most models have
    /// `S = E`; in others the residual stream is wider than a token's features.
    ///
    /// # Errors
    /// The tokens are not integers.
    fn embed(&self, tokens: &Array) -> Result<Array>;

    /// The embeddings `[1, T, E]` of `tokens` `[1, T]`, from which [`embed`](Self::embed) makes the input of the first
    /// layer. Drafters read them.
    ///
    /// # Errors
    /// The tokens are not integers.
    fn embeddings(&self, tokens: &Array) -> Result<Array> {
        self.embed(tokens)
    }

    /// The residual stream `[1, T, S]` after decoder layer `index`, from that before it. A layer
    /// may omit features that no later layer reads, and positions that the step
    /// [omits](Step::narrow). The last addition may be left to the next layer's norm.
    ///
    /// # Errors
    /// The step has another number of tokens.
    ///
    /// # Panics
    /// The model has no layer of this index; see [`Geometry::layers`].
    fn layer(&self, index: usize, x: Residual, step: &mut Step<'_>) -> Result<Residual>;

    /// The end of the residual stream `[1, T, S]`: the features before the final norm and after it, both `[1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn norm(&self, x: Residual) -> Result<[Array; 2]>;

    /// `tokens [1, T]` (U32 or I32) -> the features before the final norm and after it, both `[1, T, E]`, or those of the
    /// tokens that the step [reads](Step::read_ends) if no head [drafts](Self::draft_head).
    ///
    /// # Errors
    /// The step has another number of tokens.
    fn run(&self, tokens: &Array, step: &mut Step<'_>) -> Result<[Array; 2]> {
        let mut x = Residual::from(self.embed(tokens)?);
        let layers = self.geometry().layers().len();
        // A head that drafts reads the features of all positions.
        let narrows = self.draft_head().is_none();
        for index in 0..layers {
            x = match narrows && index + 1 == layers {
                true => step.last_layer(|step| self.layer(index, x, step))?,
                false => self.layer(index, x, step)?,
            };
            step.start(&x, layers - index - 1)?;
        }
        self.norm(x)
    }

    /// `tokens [1, T]` (U32 or I32) -> `[1, T, E]` after the final norm, or those of the tokens that
    /// the step [reads](Step::read_ends). A [head that drafts](Self::draft_head) runs in
    /// the same step.
    ///
    /// # Errors
    /// The step has another number of tokens.
    fn hidden(&self, tokens: &Array, step: &mut Step<'_>) -> Result<Array> {
        let [x, hidden] = self.run(tokens, step)?;
        if let Some(head) = self.draft_head() {
            let features = head.input([&x, &hidden])?;
            head.follow(tokens, Some(&features), step)?;
        }
        step.read(&hidden)
    }

    /// The model as an encoder, if it is one. An encoder generates no text:
    /// [`hidden`](Self::hidden) and [`logits`](Self::logits) return errors.
    fn encoder(&self) -> Option<&dyn Encoder> {
        None
    }

    /// Enables drafts, if the model has a head for multi-token prediction: the head gets
    /// [states](DraftHead::states) after those of the layers, and [`draft_head`](Self::draft_head)
    /// returns it.
    fn enable_drafts(&mut self) {}

    /// The head that drafts, if the model has one and it is [enabled](Self::enable_drafts).
    fn draft_head(&self) -> Option<&dyn DraftHead> {
        None
    }

    /// [`draft_head`](Self::draft_head), or an error.
    ///
    /// # Errors
    /// No head drafts.
    fn drafting(&self) -> Result<&dyn DraftHead> {
        let missing = || Error::new(ErrorKind::Unsupported, NO_DRAFTS);
        self.draft_head().ok_or_else(missing)
    }

    /// The head whose loss training can compute, if the model has one. It need not be enabled for drafts.
    fn trainable_head(&self) -> Option<&dyn TrainableHead> {
        None
    }

    /// The indices of the states of the decoder's layers. Those of a head follow.
    fn decoder_states(&self) -> Range<usize> {
        0..self
            .draft_head()
            .map_or(self.states().len(), |head| head.states().start)
    }

    /// A copy of the model that shares its arrays, for another adapter.
    ///
    /// # Errors
    /// The family does not support it ([`CausalLm`](crate::decoders::causal_lm::CausalLm) does).
    fn duplicate(&self) -> Result<Box<dyn Model>> {
        let message = "models of this family cannot be held twice, with different adapters";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// The output head. It is [absent](Head::absent) if the checkpoint has none.
    fn head(&self) -> Head<'_>;

    /// Removes the output head: loading calls this, before parameters have values, if the checkpoint has none.
    ///
    /// # Errors
    /// Models of this type need one ([`CausalLm`](crate::decoders::causal_lm::CausalLm) does not).
    fn remove_head(&mut self) -> Result<()> {
        let message = "the files have no lm_head.weight, which models of this type need";
        Err(Error::new(ErrorKind::Format, message))
    }

    /// `[.., E] -> [.., V]`
    ///
    /// # Errors
    /// The shapes do not fit, or there is no head.
    fn logits(&self, hidden: &Array) -> Result<Array> {
        self.head().forward(hidden)
    }

    /// A cache for this number of rows, all empty, for [`forward`](Self::forward).
    fn new_cache(&self, rows: usize) -> ModelCache {
        ModelCache::new(self.states(), rows, CacheOptions::default())
    }

    /// The logits of all `tokens [B, L]` (U32 or I32) after what `cache` holds: `[B, L, V]`. The cache keeps the tokens.
    /// Rows of different lengths, rejected drafts and the last position alone need a [`Step`].
    ///
    /// ```
    /// use mlx_core::Array;
    /// use mlx_models::Model;
    /// use serde_json::json;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let config = json!({
    ///     "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    ///     "num_attention_heads": 2, "vocab_size": 40, "rms_norm_eps": 1e-5
    /// });
    /// let model = mlx_models::initialised("example", config, 7)?.model;
    /// let mut cache = model.new_cache(1);
    /// let logits = model.forward(&Array::from_slice(&[3u32, 1, 4], &[1, 3])?, &mut cache)?;
    /// assert_eq!(logits.shape(), [1, 3, 40]);
    /// let next = model.forward(&Array::from_slice(&[1u32], &[1, 1])?, &mut cache)?;
    /// assert_eq!(next.shape(), [1, 1, 40]);
    /// assert_eq!(cache.lens(), [4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The tokens are not integers of shape `[B, L]`, the cache has another number of rows, or it
    /// was made for another model. After an error the cache is unchanged.
    fn forward(&self, tokens: &Array, cache: &mut ModelCache) -> Result<Array> {
        let &[rows, width] = tokens.shape() else {
            let message = format!("tokens must be [B, L], given {:?}", tokens.shape());
            return Err(Error::new(ErrorKind::Shape, message));
        };
        if rows as usize != cache.rows() {
            let message = format!("tokens of {rows} rows, and a cache of {}", cache.rows());
            return Err(Error::new(ErrorKind::Shape, message));
        }
        if cache.kinds() != self.states() {
            let message = "the cache was made for a model with other layers";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let widths = vec![width as usize; rows as usize];
        let mut step = cache.begin(&widths)?;
        let hidden = self.hidden(&tokens.reshape(&[1, -1])?, &mut step)?;
        let logits = self.logits(&hidden)?;
        step.commit(&widths)?;
        logits.reshape(&[rows, width, -1])
    }

    /// The model's sizes, as it was built.
    fn geometry(&self) -> &Geometry;

    /// The model's sizes, to be changed when ranks divide its states. `None`: ranks cannot share the model.
    fn geometry_mut(&mut self) -> Option<&mut Geometry> {
        None
    }

    /// The names of the tensors in its files.
    fn names(&self) -> &Names {
        static NONE: Names = Names::none();
        &NONE
    }

    /// Loading calls this with the family's names. A model that does not keep them uses the names of its parameters for
    /// adapters and saved files.
    fn set_names(&mut self, _names: Names) {}

    /// The states of all layers between steps, for a [`ModelCache`](mlx_nn::ModelCache).
    fn states(&self) -> &[LayerKind] {
        self.geometry().states()
    }

    /// The length at which the rope changes (LongRoPE). A row that grows past it has to be computed again.
    fn switches_after(&self) -> Option<usize> {
        self.geometry().switches_after
    }

    /// The length beyond which the rope depends on the length of the prompt (dynamic NTK). The layer states of a longer
    /// prompt cannot begin another text.
    fn grows_after(&self) -> Option<usize> {
        self.geometry().grows_after
    }
}

pub(crate) const NO_DRAFTS: &str = "the head of this model drafts nothing";
