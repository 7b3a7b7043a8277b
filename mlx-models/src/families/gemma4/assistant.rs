//! [`Gemma4Assistant`]: the drafters of Gemma 4, small models without keys and values of their own. Their queries read
//! those of their target.

use mlx_core::ops::concat;
use mlx_core::ops::create::zeros;
use mlx_core::{Array, DType, Result};
use mlx_nn::{
    AttentionConfig, Checkpoint, Embedding, Head, KvShape, KvSource, LayerKind, Linear, Norm, Rule,
    Rules, Step, module,
};

use super::layer::Gemma4Layer;
use super::{DEFAULTS, config, sizes};
use crate::config::Config;
use crate::config::keys;
use crate::decoders::causal_lm::DecoderLayer;
use crate::draft_heads::drafted::{Reader, last_features};
use crate::model::{Drafting, Model, kv_heads, paired};

/// The drafter of a Gemma 4.
#[derive(Clone)]
pub(crate) struct Gemma4Assistant {
    pre_projection: Linear,
    post_projection: Linear,
    model: Layers,
    lm_head: Option<Linear>,
    masked_embedding: Option<Clusters>,
    /// The features of a token of the target.
    hidden: i32,
    /// For each layer, the state of the target whose keys and values it reads.
    held: Vec<usize>,
}
module!(Gemma4Assistant { pre_projection, post_projection, model, lm_head, masked_embedding } plain { hidden, held });

#[derive(Clone)]
struct Layers {
    embed_tokens: Embedding,
    layers: Vec<Gemma4Layer>,
    norm: Norm,
}
module!(Layers { embed_tokens, layers, norm });

/// A vocabulary in clusters. Only the tokens of the best clusters have logits of their own.
#[derive(Clone)]
struct Clusters {
    centroids: Linear,
    /// The tokens of each cluster: I32 `[C, V / C]`.
    tokens: Array,
    /// How many clusters are chosen.
    top: i32,
}
module!(Clusters { centroids } plain { tokens, top });

/// The tensor with the tokens in the order of their clusters.
const ORDER: &str = "masked_embedding.token_ordering";

/// Published files may have projections of keys and values, which no layer uses.
pub(crate) fn names() -> Rules {
    let unused = ["k_proj", "v_proj", "k_norm", "v_norm"].map(|name| {
        let tensors = format!("model.layers.*.self_attn.{name}.weight");
        Rule::drop(&tensors, "the layer reads keys and values of the target")
    });
    let order = Rule::drop(ORDER, "the order of the drafter's tokens");
    Rules::from(unused.into_iter().chain([order]))
}

/// The `model_type`s of the drafters. Each begins with that of its target.
pub(crate) const TYPES: [&str; 2] = ["gemma4_assistant", "gemma4_unified_assistant"];

impl Gemma4Assistant {
    /// The drafter that `outer`, its config.json, describes. `published` has the tensors under their published names, and
    /// `tensors` under those of parameters. The parameters have no values.
    ///
    /// # Errors
    /// The drafter has a form that is not supported, or belongs to another target.
    pub(crate) fn load(
        outer: &Config,
        published: &Checkpoint,
        tensors: &Checkpoint,
        (target, target_type): (&dyn Model, &str),
    ) -> Result<Self> {
        if !target_type.starts_with("gemma4") {
            return Err(outer.unsupported(format!(
                "the drafter reads keys and values of Gemma 4, and the model is of model_type {target_type:?}"
            )));
        }
        let sizes_of = target.geometry();
        let unified = outer.value("model_type").and_then(|kind| kind.as_str()) == Some(TYPES[1]);
        let default = if unified { 3840 } else { 1536 };
        let hidden = outer.size("backbone_hidden_size", Some(default))?;
        if hidden != sizes_of.hidden {
            return Err(outer.unsupported(format!(
                "the drafter is of another model: backbone_hidden_size is {hidden}, the model's hidden_size {}",
                sizes_of.hidden
            )));
        }
        let Some(c) = outer.object("text_config")? else {
            return Err(outer.error("text_config is missing"));
        };
        c.ignore(&[
            "num_kv_shared_layers",
            "num_experts",
            "top_k_experts",
            "moe_intermediate_size",
            "attention_k_eq_v",
        ]);
        for key in ["hidden_size_per_layer_input", "vocab_size_per_layer_input"] {
            if c.or(key, 0)? != 0 {
                return Err(c.unsupported(format!("{key} must be 0 in a drafter")));
            }
        }
        for key in ["enable_moe_block", "use_double_wide_mlp"] {
            if c.or(key, false)? {
                return Err(c.unsupported(format!("{key} must be false in a drafter")));
            }
        }
        let config = config(&c, &DEFAULTS, 512)?;
        if config.vocab != sizes_of.vocab {
            return Err(c.unsupported(format!(
                "the drafter has {} tokens, the model {}",
                config.vocab, sizes_of.vocab
            )));
        }
        let (mut layers, mut held) = (Vec::new(), Vec::new());
        for (index, (own_heads, head_dim)) in sizes::heads(&c, &config)?.into_iter().enumerate() {
            let kind = config.layers[index];
            let state = last_of_kind(target, kind).ok_or_else(|| {
                c.unsupported(format!(
                    "layer {index} of the drafter ({kind}) reads keys and values of such a layer, and the model has none"
                ))
            })?;
            let of_target = sizes_of.kv()[state];
            if of_target != Some(kv_heads(own_heads, head_dim)) {
                return Err(c.unsupported(format!(
                    "layer {index} of the drafter ({kind}) reads {own_heads} heads of {head_dim}, the model has \
                     {of_target:?}"
                )));
            }
            let rope = sizes::rope(&c, &config, kind, head_dim)?;
            let attention = AttentionConfig {
                kv_heads: own_heads,
                head_dim,
                value_norm: Some(config.norm.eps),
                source: KvSource::Earlier,
                ..config.attention_config()
            };
            let parts = (&attention, &rope, &config.feed_forward[index]);
            layers.push(Gemma4Layer::new(&config, parts)?);
            held.push(state);
        }
        let is_tied = outer.or(keys::TIED, true)?;
        let own = config.hidden;
        Ok(Self {
            pre_projection: Linear::empty(2 * hidden, own, false)?,
            post_projection: Linear::empty(own, hidden, false)?,
            model: Layers {
                embed_tokens: Embedding::empty(config.vocab, own)?,
                layers,
                norm: config.norm()?,
            },
            lm_head: match tensors.contains("lm_head.weight") && !is_tied {
                true => Some(Linear::empty(own, config.vocab, false)?),
                false => None,
            },
            masked_embedding: match outer.or("use_ordered_embeddings", false)? {
                true => Some(Clusters::load(outer, published, (own, config.vocab))?),
                false => {
                    outer.ignore(&["num_centroids", "centroid_intermediate_top_k"]);
                    None
                }
            },
            hidden,
            held,
        })
    }

    /// The drafter's features `[1, T, A]`, from embedded tokens and the target's features before them, both `[1, T, E]`.
    fn features(
        &self,
        target: &dyn Model,
        tokens: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let embedded = target.embeddings(tokens)?.astype(before.dtype())?;
        let x = self
            .pre_projection
            .forward(&concat(&[&embedded, before], -1)?)?;
        let x = step.before_tokens(&self.held, |step| {
            let mut x = x.into();
            for (layer, &state) in self.model.layers.iter().zip(&self.held) {
                x = layer.forward(x, state, step)?;
            }
            Ok(x)
        })?;
        let (_, normed) = x.normed(&self.model.norm)?;
        Ok(normed)
    }
}

/// The state of the target's last layer of a kind.
fn last_of_kind(target: &dyn Model, kind: LayerKind) -> Option<usize> {
    let sizes = target.geometry();
    let states = (0..sizes.layers().len()).map(|layer| sizes.state_of(layer));
    states.rev().find(|&state| sizes.states()[state] == kind)
}

impl Clusters {
    fn load(c: &Config, published: &Checkpoint, (hidden, vocab): (i32, i32)) -> Result<Self> {
        let count = c.size("num_centroids", Some(2048))?;
        let top = c.size("centroid_intermediate_top_k", Some(32))?;
        if vocab % count != 0 || top > count {
            return Err(c.error(format!(
                "num_centroids {count} must divide the {vocab} tokens, and centroid_intermediate_top_k {top} not exceed it"
            )));
        }
        let Some(order) = published.array(ORDER)? else {
            return Err(c.error(format!("the tensor {ORDER} is missing")));
        };
        if order.shape() != [vocab] {
            let shape = order.shape();
            return Err(c.error(format!(
                "{ORDER} must have {vocab} elements, found {shape:?}"
            )));
        }
        let tokens: Vec<i64> = order.astype(DType::I64)?.to_vec()?;
        if let Some(token) = tokens.iter().find(|token| !(0..i64::from(vocab)).contains(token)) {
            return Err(c.error(format!("{ORDER} has {token}, none of the {vocab} tokens")));
        }
        let tokens: Vec<i32> = tokens.into_iter().map(|token| token as i32).collect();
        Ok(Self {
            centroids: Linear::empty(hidden, count, false)?,
            tokens: Array::from_slice(&tokens, &[count, vocab / count])?,
            top,
        })
    }

    /// Logits `[N, V]` of features `[N, A]`. Tokens of other clusters have the least logit of the row less 1.
    fn logits(&self, embedding: &Embedding, features: &Array) -> Result<Array> {
        let [rows, hidden] = features.dims()?;
        let scores = self.centroids.forward(features)?;
        let best = scores.negative()?.argpartition(self.top - 1, -1)?;
        let best = best.slice_axis(1, 0, self.top)?;
        let chosen = self.tokens.take(&best, 0)?.reshape(&[rows, -1])?;
        let of_tokens = embedding.forward(&chosen)?;
        let logits = of_tokens.matmul(&features.reshape(&[rows, hidden, 1])?)?.squeeze(2)?;
        let least = logits.min(-1, true)?.subtract(1.0)?;
        let vocab = self.tokens.size() as i32;
        let others = zeros(&[rows, vocab], logits.dtype())?.add(&least)?;
        others.put_along_axis(&chosen, &logits, 1)
    }
}

impl Reader for Gemma4Assistant {
    fn duplicate(&self) -> Box<dyn Reader> {
        Box::new(self.clone())
    }

    fn reads(&self) -> Option<&[usize]> {
        None
    }

    fn states(&self) -> (KvShape, Vec<LayerKind>) {
        (kv_heads(0, 0), vec![last_features(self.hidden)])
    }

    /// The target's keys and values end before the first draft, and so do the positions of the drafts.
    fn manner(&self) -> Drafting {
        Drafting::Held
    }

    fn follow(
        &self,
        target: &dyn Model,
        first: usize,
        tokens: &Array,
        features: Option<&Array>,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let features = match features {
            Some(features) => features.clone(),
            None => {
                let dtype = target.embeddings(tokens)?.dtype();
                zeros(&[1, step.tokens() as i32, self.hidden], dtype)?
            }
        };
        let (tokens, before) = paired(tokens, &features, first, step)?;
        self.features(target, &tokens, &before, step)
    }

    fn draft(
        &self,
        target: &dyn Model,
        _first: usize,
        tokens: &Array,
        before: &Array,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let before = self.post_projection.forward(before)?;
        self.features(target, tokens, &before, step)
    }

    fn logits(&self, _: &dyn Model, features: &Array, first: Option<i32>) -> Result<Array> {
        let embedding = &self.model.embed_tokens;
        if let Some(clusters) = &self.masked_embedding {
            let shape = features.shape().to_vec();
            let hidden = shape[shape.len() - 1];
            let logits = clusters.logits(embedding, &features.reshape(&[-1, hidden])?)?;
            let vocab = logits.dim(1)?;
            let shape: Vec<i32> = shape[..shape.len() - 1].iter().copied().chain([vocab]).collect();
            return logits.reshape(&shape);
        }
        let head = Head::of(self.lm_head.as_ref(), embedding, None);
        match first {
            Some(first) => head.first(first, features),
            None => head.forward(features),
        }
    }
}
