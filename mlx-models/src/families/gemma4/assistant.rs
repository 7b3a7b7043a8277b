//! [`Gemma4Assistant`]: the drafters of Gemma 4, small models without keys and values of their own. Their queries read
//! those of their target.

use mlx_core::Result;
use mlx_nn::{
    AttentionConfig, Checkpoint, Embedding, KvSource, LayerKind, Linear, Norm, Rule, Rules, module,
};

use super::layer::Gemma4Layer;
use super::{DEFAULTS, config, sizes};
use crate::config::Config;
use crate::config::keys;
use crate::model::{Model, kv_heads};

mod clusters;
mod reader;

use clusters::{Clusters, ORDER};

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
module!(Layers {
    embed_tokens,
    layers,
    norm
});

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
}

/// The state of the target's last layer of a kind.
fn last_of_kind(target: &dyn Model, kind: LayerKind) -> Option<usize> {
    let sizes = target.geometry();
    let states = (0..sizes.layers().len()).map(|layer| sizes.state_of(layer));
    states.rev().find(|&state| sizes.states()[state] == kind)
}
