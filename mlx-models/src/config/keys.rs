//! Reading configs: the keys that the pre-norm families have in common.

use mlx_core::Result;
use mlx_nn::{Activation, Growth, LayerKind};

use crate::config::Config;
use crate::config::plan::{AttentionPlan, DecoderConfig, HeadPlan, MlpConfig, NormPlan, ScalePlan};
use crate::config::rope::{Dialect, RopeDefaults, context, rope};

mod experts;
mod latent;
mod layers;
mod recurrent;
mod sharing;
mod streams;

pub(crate) use experts::{
    DeepSeekExperts, ExpertsDefaults, bounded_gate, corrected_routing, deepseek_expert_names,
    deepseek_experts, deepseek_experts_by_types, experts, experts_by_types, experts_of,
    joined_expert_names, routed_experts, shared_expert, sparse_layers,
};
pub(crate) use latent::{LatentDefaults, check_index, latent};
pub(crate) use layers::{
    RopeEntry, has_rope, kind, layer_kinds, layer_types, n_layers, rope_bases, rope_on_windows,
    ropes_by_entry, ropes_by_kind, types_of, window,
};
pub(crate) use recurrent::{
    convolutions, has_mlx_convolutions, has_published_convolutions, taps, time_steps,
};
pub(crate) use sharing::{shared_layers, unused_projections, with_sharing};
pub(crate) use streams::streams;

/// The largest head size, and the largest product of the number of heads and the head size.
const MAX_HEAD_DIM: i32 = 8192;
const MAX_HEADS_WIDTH: i64 = 1 << 22;

/// Checks that the number of query heads is a multiple of that of KV heads, and that no size is too
/// large.
///
/// # Errors
/// It is not a multiple, or a size is too large.
pub(crate) fn check_heads(c: &Config, heads: i32, kv_heads: i32, head_dim: i32) -> Result<()> {
    if heads % kv_heads != 0 {
        return Err(c.error(format!(
            "num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )));
    }
    if head_dim > MAX_HEAD_DIM || i64::from(heads) * i64::from(head_dim) > MAX_HEADS_WIDTH {
        return Err(c.error(format!(
            "{heads} heads of {head_dim} are more than any model has"
        )));
    }
    Ok(())
}

/// The key for whether the output head is the embedding.
pub(crate) const TIED: &str = "tie_word_embeddings";

/// Whether the output head is the embedding.
///
/// # Errors
/// `tie_word_embeddings` is not a bool.
pub(crate) fn tied(c: &Config, default: bool) -> Result<bool> {
    c.or(TIED, default)
}

/// The defaults of transformers' configuration class of a family, for keys that a config leaves
/// out.
pub(crate) struct Defaults {
    pub vocab: i32,
    pub hidden: i32,
    pub intermediate: i32,
    /// Whether `intermediate_size` may be a list with one entry for each layer.
    pub intermediates: bool,
    pub layers: i32,
    pub heads: i32,
    /// The number of query heads, if `None`.
    pub kv_heads: Option<i32>,
    /// `hidden / heads`, if `None`.
    pub head_dim: Option<i32>,
    pub max_positions: i32,
    /// The key of the norms' epsilon, and its default.
    pub norm_eps_key: &'static str,
    pub norm_eps: f64,
    /// The key of the activation, which is empty if a family has none, and its default.
    pub activation_key: &'static str,
    pub activation: &'static str,
    pub theta: f64,
    /// How the keys of the rope are read that all layers share. `None` if the family has one rope
    /// for each kind of layer.
    pub rope: Option<Dialect>,
    /// Whether the rope pairs neighbouring features.
    pub interleaved: bool,
}

impl Defaults {
    /// The defaults of Llama.
    pub(crate) const LLAMA: Self = Self {
        vocab: 32_000,
        hidden: 4096,
        intermediate: 11_008,
        intermediates: false,
        layers: 32,
        heads: 32,
        kv_heads: None,
        head_dim: None,
        max_positions: 2048,
        norm_eps_key: "rms_norm_eps",
        norm_eps: 1e-6,
        activation_key: "hidden_act",
        activation: "silu",
        theta: 10_000.0,
        rope: Some(Dialect::Plain),
        interleaved: false,
    };
}

/// The numbers of query heads and of KV heads, and the head size.
///
/// # Errors
/// A size is invalid, or the sizes do not divide each other.
fn heads(c: &Config, hidden: i32, defaults: &Defaults) -> Result<(i32, i32, i32)> {
    let heads = c.size("num_attention_heads", Some(defaults.heads))?;
    let kv_heads = match c.is_null("num_key_value_heads") {
        true => heads,
        false => c.size(
            "num_key_value_heads",
            Some(defaults.kv_heads.unwrap_or(heads)),
        )?,
    };
    let head_dim = match (c.value("head_dim"), defaults.head_dim) {
        (Some(_), _) => c.size("head_dim", None)?,
        (None, Some(default)) => default,
        (None, None) if hidden % heads == 0 => hidden / heads,
        (None, None) => {
            return Err(c.error(format!(
                "hidden_size {hidden} is not a multiple of num_attention_heads {heads} and head_dim is missing"
            )));
        }
    };
    check_heads(c, heads, kv_heads, head_dim)?;
    Ok((heads, kv_heads, head_dim))
}

/// The pre-norm decoder that a config describes, with neither biases, norms on q and k nor windows.
///
/// # Errors
/// Sizes do not fit each other.
pub(crate) fn decoder(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let hidden = c.size("hidden_size", Some(defaults.hidden))?;
    decoder_of_heads(c, defaults, heads(c, hidden, defaults)?)
}

/// [`decoder`] with these numbers of query heads, KV heads, and features of a head that the rope
/// may rotate.
///
/// # Errors
/// The same as those of [`decoder`].
fn decoder_of_heads(
    c: &Config,
    defaults: &Defaults,
    (heads, kv_heads, head_dim): (i32, i32, i32),
) -> Result<DecoderConfig> {
    let hidden = c.size("hidden_size", Some(defaults.hidden))?;
    let n = n_layers(c, Some(defaults.layers))?;
    let activation = activation(c, defaults.activation_key, defaults.activation)?;
    let intermediates = intermediates(c, defaults, n)?;
    let dense = |intermediate| MlpConfig::Dense {
        intermediate,
        bias: false,
        activation,
        clamp: None,
    };
    let max_positions = c.size("max_position_embeddings", Some(defaults.max_positions))?;
    let given_positions = c.opt("max_position_embeddings")?;
    let rope = match defaults.rope {
        Some(dialect) => Some(rope(
            c,
            RopeDefaults {
                base: defaults.theta,
                head_dim,
                max_positions,
                dialect,
                interleaved: defaults.interleaved,
            },
        )?),
        None => None,
    };
    Ok(DecoderConfig {
        hidden,
        vocab: c.size("vocab_size", Some(defaults.vocab))?,
        max_positions: rope
            .as_ref()
            .map_or(given_positions, |rope| context(rope, given_positions)),
        layers: vec![LayerKind::Full; n],
        ropes: vec![rope; n],
        attention: AttentionPlan::plain(heads, kv_heads, head_dim),
        attentions: Vec::new(),
        recurrence: None,
        feed_forward: intermediates.into_iter().map(dense).collect(),
        norm: NormPlan::rms(c.positive(defaults.norm_eps_key, Some(defaults.norm_eps))? as f32),
        scales: ScalePlan::default(),
        head: HeadPlan {
            tied: tied(c, false)?,
            bias: false,
        },
    })
}

/// The features inside the MLP of each layer.
fn intermediates(c: &Config, defaults: &Defaults, n: usize) -> Result<Vec<i32>> {
    const KEY: &str = "intermediate_size";
    let listed = defaults.intermediates && c.value(KEY).is_some_and(serde_json::Value::is_array);
    if !listed {
        return Ok(vec![c.size(KEY, Some(defaults.intermediate))?; n]);
    }
    let sizes: Vec<i32> = c.required(KEY)?;
    if sizes.len() != n || sizes.iter().any(|size| !(1..=1 << 24).contains(size)) {
        return Err(c.error(format!("{KEY} must be {n} positive sizes, found {sizes:?}")));
    }
    Ok(sizes)
}

/// The activation that `key` names.
///
/// # Errors
/// The activation is not known.
pub(crate) fn activation(c: &Config, key: &str, default: &str) -> Result<Activation> {
    Activation::parse(&c.or(key, default.to_owned())?)
        .map_err(|error| c.unsupported(format!("{key}: {error}")))
}

/// Reads `attention_bias`: whether all four projections of attention have biases.
///
/// # Errors
/// `mlp_bias` is not a bool.
pub(crate) fn attention_bias(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let bias = c.or("attention_bias", false)?;
    config.attention.qkv_bias = bias;
    config.attention.out_bias = bias;
    Ok(())
}

/// Reads `mlp_bias`: whether all projections of the dense MLPs have biases.
///
/// # Errors
/// `attention_bias` is not a bool.
pub(crate) fn mlp_bias(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let bias = c.or("mlp_bias", false)?;
    set_mlp_bias(config, bias);
    Ok(())
}

/// Sets whether all projections of the dense MLPs have biases.
pub(crate) fn set_mlp_bias(config: &mut DecoderConfig, given: bool) {
    for mlp in &mut config.feed_forward {
        match mlp {
            MlpConfig::Dense { bias, .. } | MlpConfig::Plain { bias, .. } => *bias = given,
            MlpConfig::Paired { .. } | MlpConfig::Learned { .. } | MlpConfig::Experts(_) => {}
        }
    }
}

/// Sets the features inside the dense MLPs.
pub(crate) fn set_intermediate(config: &mut DecoderConfig, size: i32) {
    for mlp in &mut config.feed_forward {
        if let MlpConfig::Dense { intermediate, .. } = mlp {
            *intermediate = size;
        }
    }
}

/// Replaces the dense MLPs by MLPs without a gate.
pub(crate) fn ungated(config: &mut DecoderConfig) {
    for mlp in &mut config.feed_forward {
        if let MlpConfig::Dense {
            intermediate,
            bias,
            activation,
            ..
        } = *mlp
        {
            *mlp = MlpConfig::Plain {
                intermediate,
                bias,
                activation,
            };
        }
    }
}

/// The soft cap at `key`. Null means no cap, and an absent key means `default`.
///
/// # Errors
/// The value is not a positive number.
pub(crate) fn softcap(c: &Config, key: &str, default: Option<f64>) -> Result<Option<f32>> {
    if c.is_null(key) {
        return Ok(None);
    }
    match (c.value(key), default) {
        (None, None) => Ok(None),
        (_, default) => c.positive(key, default).map(|cap| Some(cap as f32)),
    }
}

/// The scaling of queries by their position. `beta` and the context length are those of the rope's
/// entry; without an entry they are `without_rope`.
///
/// # Errors
/// The scaling has no context length.
pub(crate) fn query_growth(c: &Config, without_rope: Option<(f64, f64)>) -> Result<Option<Growth>> {
    let (mut beta, mut original) = without_rope.unzip();
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(entry) = c.object(key)? {
            beta = beta.or(entry.opt::<f64>("llama_4_scaling_beta")?);
            original = original.or(entry.opt::<f64>("original_max_position_embeddings")?);
        }
    }
    match (beta, original) {
        (Some(beta), Some(original)) if original >= 1.0 => Ok(Some(Growth {
            beta: beta as f32,
            period: original as f32,
            shift: 0.0,
            unrotated: false,
        })),
        (None, _) => Ok(None),
        (Some(_), _) => Err(c.error("llama_4_scaling_beta needs original_max_position_embeddings")),
    }
}
