//! [`CausalLm`]: the parts around the layers of every decoder.

use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_nn::{
    Embedding, Head, KvShape, LayerKind, Linear, Module, Norm, NormConfig, RecurrentShape,
    Residual, StatePart, Step, module,
};

use crate::checkpoint::Names;
use crate::config::plan::DecoderConfig;
use crate::model::{DraftHead, Geometry, Model, NO_DRAFTS, TrainableHead};

mod draft_head;

/// One layer of a decoder.
pub trait DecoderLayer: Module {
    /// Computes the residual stream after the layer from that before it, both `[1, T, E]`. The last
    /// addition of the result may be pending. `state` is the index of the layer's state in the
    /// step's cache, or of the first one if it has several ([`Geometry::state_of`]). A layer may
    /// call [`Step::narrow`] after it has mixed tokens; it then omits the positions that are not
    /// read.
    ///
    /// # Errors
    /// The step has another number of rows or another width.
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual>;
}

/// A head for multi-token prediction that a model owns.
pub trait Predict: Module {
    /// Whether training can compute the head's loss: the head reads features after the model's final norm, and the
    /// model's output head reads the head's features.
    const IS_TRAINED: bool = true;

    /// The KV cache of the head's attention. `None` if the head is only loaded and written, and drafts nothing.
    fn kv(&self) -> Option<(LayerKind, KvShape)> {
        None
    }

    /// Whether the head reads the features before the model's final norm.
    fn reads_before_norm(&self) -> bool {
        false
    }

    /// The tokens' embeddings, if the head has an embedding of its own: `[1, T] -> [1, T, E]`
    ///
    /// # Errors
    /// The tokens are not integers.
    fn embed(&self, _tokens: &Array) -> Result<Option<Array>> {
        Ok(None)
    }

    /// Turns the head's features into the input of an output head: `[.., E] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    fn leave(&self, features: &Array) -> Result<Array> {
        Ok(features.clone())
    }

    /// The head's own output head, if it has one.
    fn output(&self) -> Option<&Linear> {
        None
    }

    /// The head's features at each position, from the embedded token of the position and the features of the position
    /// before it, all `[1, T, E]`. `state` is the index of the head's KV cache in the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn forward(
        &self,
        _embedded: &Array,
        _before: &Array,
        _state: usize,
        _step: &mut Step<'_>,
    ) -> Result<Array> {
        Err(Error::new(ErrorKind::Unsupported, NO_DRAFTS))
    }
}

impl Predict for () {}

/// The states of a head that drafts: its keys and values, and the last features that it has read.
const HEAD_STATES: usize = 2;

/// The operations before a decoder's first layer and after its last. The residual stream of the
/// layers between them is `[1, T, S]`; S may be larger than the features E of a token.
pub trait Ends: Module {
    /// Makes the stream from `tokens [1, T]` and their embeddings `[1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn enter(&self, _tokens: &Array, x: Array) -> Result<Array> {
        Ok(x)
    }

    /// The input of the final norm, `[1, T, E]`, from the stream.
    ///
    /// # Errors
    /// The shapes do not fit.
    fn leave(&self, x: Residual) -> Result<Residual> {
        Ok(x)
    }
}

impl Ends for () {}

#[derive(Clone)]
struct Backbone<L, E> {
    embed_tokens: Embedding,
    layers: Vec<L>,
    norm: Norm,
    ends: E,
}
module!(Backbone<L: Module, E: Module> { embed_tokens, layers, norm } flat { ends });

/// A decoder-only transformer: an embedding, layers, a final norm and an output head. It may also own a head for
/// multi-token prediction, a module set named `mtp`.
#[derive(Clone)]
pub struct CausalLm<L, M = (), E = ()> {
    model: Backbone<L, E>,
    /// `None`: the head is the embedding, or there is none.
    lm_head: Option<Linear>,
    is_headless: bool,
    mtp: Option<M>,
    geometry: Geometry,
    names: Names,
    embed_scale: Option<f32>,
    logit_scale: Option<f32>,
    softcap: Option<f32>,
    /// Bool `[V]`: the tokens that are never generated.
    excluded: Option<Array>,
    /// I32 `[V]`: the tokens whose embeddings the tokens have, if those are not all their own.
    embedded: Option<Array>,
    /// The index of the head's first state, if the head drafts.
    head_state: Option<usize>,
}
module!(CausalLm<L: Module, M: Module, E: Module> { model, lm_head, mtp }
        plain { is_headless, geometry, names, embed_scale, logit_scale, softcap, excluded, embedded, head_state });

/// The parts around the layers.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The model's sizes.
    pub geometry: Geometry,
    /// The final norm.
    pub norm: NormConfig,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether the head has a bias, if it is not the embedding.
    pub head_bias: bool,
    /// Embeddings are multiplied by this.
    pub embed_scale: Option<f32>,
    /// Logits are multiplied by this.
    pub logit_scale: Option<f32>,
    /// Soft cap of logits.
    pub softcap: Option<f32>,
}

impl<L> CausalLm<L> {
    /// A model with these layers. Its parameters have no values.
    ///
    /// # Errors
    /// There is no memory for an array's handle.
    pub fn around(layers: Vec<L>, around: Surroundings) -> Result<Self> {
        let (vocab, hidden) = (around.geometry.vocab, around.geometry.hidden);
        Ok(Self {
            model: Backbone {
                embed_tokens: Embedding::empty(vocab, hidden)?,
                layers,
                norm: Norm::empty(hidden, &around.norm)?,
                ends: (),
            },
            lm_head: if around.tied {
                None
            } else {
                Some(Linear::empty(hidden, vocab, around.head_bias)?)
            },
            is_headless: false,
            mtp: None,
            geometry: around.geometry,
            names: Names::none(),
            embed_scale: around.embed_scale,
            logit_scale: around.logit_scale,
            softcap: around.softcap,
            excluded: None,
            embedded: None,
            head_state: None,
        })
    }
}

impl<L: DecoderLayer> CausalLm<L> {
    /// A model with the layers that `layer` builds from a config.
    pub(crate) fn of(
        config: &DecoderConfig,
        layer: impl Fn(&DecoderConfig, usize) -> Result<L>,
    ) -> Result<Self> {
        let layers = (0..config.layers.len()).map(|index| layer(config, index));
        Self::around(layers.collect::<Result<_>>()?, config.surroundings()?)
    }
}

impl<L, M, E> CausalLm<L, M, E> {
    /// The model with this head for multi-token prediction.
    pub fn with_mtp<N>(self, mtp: Option<N>) -> CausalLm<L, N, E> {
        self.with(|model, _| (model, mtp))
    }

    /// The model whose logits of these tokens are minus infinity. Tokens outside of the vocabulary have no effect.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn without_tokens(self, tokens: &[i32]) -> Result<Self> {
        let vocab = self.geometry.vocab;
        let excluded: Vec<bool> = (0..vocab).map(|token| tokens.contains(&token)).collect();
        let excluded = match excluded.contains(&true) {
            true => Some(Array::from_slice(&excluded, &[vocab])?),
            false => None,
        };
        Ok(Self { excluded, ..self })
    }

    /// The model that reads `instead` where a text has one of these tokens. Tokens outside of the vocabulary have no
    /// effect.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_placeholders(self, tokens: &[i32], instead: i32) -> Result<Self> {
        let vocab = self.geometry.vocab;
        let is_there = |token: &i32| (0..vocab).contains(token);
        if !is_there(&instead) || !tokens.iter().any(is_there) {
            return Ok(self);
        }
        let read = |token| match tokens.contains(&token) {
            true => instead,
            false => token,
        };
        let embedded: Vec<i32> = (0..vocab).map(read).collect();
        let embedded = Some(Array::from_slice(&embedded, &[vocab])?);
        Ok(Self { embedded, ..self })
    }

    /// The model with these ends.
    pub fn with_ends<F>(self, ends: F) -> CausalLm<L, M, F> {
        self.with(|model, mtp| {
            let Backbone {
                embed_tokens,
                layers,
                norm,
                ..
            } = model;
            let model = Backbone {
                embed_tokens,
                layers,
                norm,
                ends,
            };
            (model, mtp)
        })
    }

    fn with<N, F>(
        self,
        change: impl FnOnce(Backbone<L, E>, Option<M>) -> (Backbone<L, F>, Option<N>),
    ) -> CausalLm<L, N, F> {
        let (model, mtp) = change(self.model, self.mtp);
        CausalLm {
            model,
            lm_head: self.lm_head,
            is_headless: self.is_headless,
            mtp,
            geometry: self.geometry,
            names: self.names,
            embed_scale: self.embed_scale,
            logit_scale: self.logit_scale,
            softcap: self.softcap,
            excluded: self.excluded,
            embedded: self.embedded,
            head_state: None,
        }
    }

    /// The head for multi-token prediction.
    pub fn mtp(&self) -> Option<&M> {
        self.mtp.as_ref()
    }
}

impl<L, M, E> Model for CausalLm<L, M, E>
where
    L: DecoderLayer + Clone + 'static,
    M: Predict + Clone + 'static,
    E: Ends + Clone + 'static,
{
    fn duplicate(&self) -> Result<Box<dyn Model>> {
        Ok(Box::new(self.clone()))
    }

    fn embed(&self, tokens: &Array) -> Result<Array> {
        let read = match &self.embedded {
            Some(embedded) => &embedded.take(tokens, 0)?,
            None => tokens,
        };
        self.model.ends.enter(read, self.embeddings(read)?)
    }

    fn embeddings(&self, tokens: &Array) -> Result<Array> {
        let mut x = self.model.embed_tokens.forward(tokens)?;
        // An embedding whose scales are bytes gives BF16, even in a model of another dtype.
        let own = self.model.norm.dtype();
        let own = own.or_else(|| self.model.embed_tokens.weight().dtype());
        if x.dtype() == DType::BF16 && own != Some(DType::BF16) {
            x = x.astype(DType::F32)?;
        }
        // The scalar takes the embedding's dtype: in bf16 the factor itself is rounded, as in training.
        if let Some(scale) = self.embed_scale {
            x = x.multiply(scale)?;
        }
        Ok(x)
    }

    fn layer(&self, index: usize, x: Residual, step: &mut Step<'_>) -> Result<Residual> {
        self.model.layers[index].forward(x, self.geometry.state_of(index), step)
    }

    fn norm(&self, x: Residual) -> Result<[Array; 2]> {
        let (x, normed) = self.model.ends.leave(x)?.normed(&self.model.norm)?;
        Ok([x, normed])
    }

    fn head(&self) -> Head<'_> {
        if self.is_headless {
            return Head::absent();
        }
        let embedding = &self.model.embed_tokens;
        Head::of(self.lm_head.as_ref(), embedding, self.softcap)
            .scaled(self.logit_scale)
            .without(self.excluded.as_ref())
    }

    fn remove_head(&mut self) -> Result<()> {
        (self.lm_head, self.is_headless) = (None, true);
        Ok(())
    }

    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn geometry_mut(&mut self) -> Option<&mut Geometry> {
        Some(&mut self.geometry)
    }

    fn names(&self) -> &Names {
        &self.names
    }

    fn enable_drafts(&mut self) {
        if let (Some((kind, kv)), None) = (self.mtp.as_ref().and_then(M::kv), self.head_state) {
            let last = RecurrentShape::new(&[StatePart::Window {
                name: "hidden",
                len: 1,
                width: self.geometry.hidden,
            }]);
            let states: [_; HEAD_STATES] = [kind, LayerKind::Recurrent(last.with_rerun())];
            self.head_state = Some(self.geometry.beside(kv, &states));
        }
    }

    fn draft_head(&self) -> Option<&dyn DraftHead> {
        self.head_state.map(|_| self as &dyn DraftHead)
    }

    fn trainable_head(&self) -> Option<&dyn TrainableHead> {
        let is_trained = |mtp: &M| M::IS_TRAINED && !mtp.reads_before_norm();
        let trained = self.mtp.as_ref().filter(|mtp| is_trained(mtp));
        trained.and_then(M::kv).map(|_| self as &dyn TrainableHead)
    }

    fn set_names(&mut self, names: Names) {
        self.names = names;
    }
}
