//! Reading configs: the keys that the pre-norm families have in common.

use mlx_core::Result;
use mlx_nn::{Activation, LayerKind, NormConfig};

use crate::config::Config;
use crate::config::rope::{Dialect, RopeDefaults, context, rope};
use crate::decoder::{DecoderConfig, MlpConfig};

mod experts;
mod latent;
mod layers;
mod recurrent;
mod sharing;

pub(crate) use experts::{
    Deep, ExpertsDefaults, corrected_routing, deep, deep_by_types, deep_names, experts, experts_of,
    shared_expert, sparse_layers,
};
pub(crate) use latent::{LatentDefaults, latent};
pub(crate) use layers::{
    has_rope, kind, layer_kinds, layer_types, n_layers, rope_on_windows, ropes_by_kind, types_of,
    window,
};
pub(crate) use recurrent::{
    convolutions, has_mlx_convolutions, has_published_convolutions, taps, time_steps,
};
pub(crate) use sharing::{shared_layers, unused_projections, with_sharing};

/// The largest head size, and the largest product of heads and head size.
const MAX_HEAD_DIM: i32 = 8192;
const MAX_HEADS_WIDTH: i64 = 1 << 22;

/// Checks that query heads are a multiple of key and value heads, and that no size is absurd.
///
/// # Errors
/// They are not, or one is.
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

/// Whether the output head is the embedding.
///
/// # Errors
/// It is not a bool.
pub(crate) fn tied(c: &Config, default: bool) -> Result<bool> {
    c.or("tie_word_embeddings", default)
}

/// What transformers' configuration class of a family assumes about keys that are absent.
pub(crate) struct Defaults {
    pub vocab: i32,
    pub hidden: i32,
    pub intermediate: i32,
    /// `intermediate_size` may be a list, one for each layer.
    pub intermediates: bool,
    pub layers: i32,
    pub heads: i32,
    /// As many as query heads, if `None`.
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
    /// How the rope is read that all layers share; `None` if a family has one for each kind of layer.
    pub rope: Option<Dialect>,
    /// Rope pairs neighbours.
    pub interleaved: bool,
}

impl Defaults {
    /// Llama's.
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

/// Query heads, key and value heads, and their size.
///
/// # Errors
/// They do not divide each other.
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
/// Sizes that do not fit.
pub(crate) fn decoder(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let hidden = c.size("hidden_size", Some(defaults.hidden))?;
    decoder_of_heads(c, defaults, heads(c, hidden, defaults)?)
}

/// [`decoder`] with these query heads, key and value heads, and features of a head that may be rotated.
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
        heads,
        kv_heads,
        head_dim,
        layers: vec![LayerKind::Full; n],
        mlps: intermediates.into_iter().map(dense).collect(),
        max_positions: rope
            .as_ref()
            .map_or(given_positions, |rope| context(rope, given_positions)),
        ropes: vec![rope; n],
        norm: NormConfig::rms(c.positive(defaults.norm_eps_key, Some(defaults.norm_eps))? as f32),
        attention_scale: (head_dim as f32).powf(-0.5),
        latent: None,
        shares_index: Vec::new(),
        qkv_bias: false,
        out_bias: false,
        qk_norm: None,
        qkv_clip: None,
        query_growth: None,
        alibi: None,
        sinks: false,
        chunk: None,
        attention_softcap: None,
        sub_norms: None,
        output_gate: false,
        recurrence: None,
        embed_scale: None,
        residual_scale: None,
        logit_scale: None,
        logit_softcap: None,
        head_bias: false,
        tied: tied(c, false)?,
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
/// It is unknown.
pub(crate) fn activation(c: &Config, key: &str, default: &str) -> Result<Activation> {
    Activation::parse(&c.or(key, default.to_owned())?)
        .map_err(|error| c.unsupported(format!("{key}: {error}")))
}

/// Reads `attention_bias`: of all four projections.
///
/// # Errors
/// It is not a bool.
pub(crate) fn attention_bias(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let bias = c.or("attention_bias", false)?;
    config.qkv_bias = bias;
    config.out_bias = bias;
    Ok(())
}

/// Reads `mlp_bias`: of all projections of dense layers.
///
/// # Errors
/// It is not a bool.
pub(crate) fn mlp_bias(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let bias = c.or("mlp_bias", false)?;
    set_mlp_bias(config, bias);
    Ok(())
}

/// Sets the bias of all projections of dense layers.
pub(crate) fn set_mlp_bias(config: &mut DecoderConfig, given: bool) {
    for mlp in &mut config.mlps {
        match mlp {
            MlpConfig::Dense { bias, .. } | MlpConfig::Plain { bias, .. } => *bias = given,
            MlpConfig::Learned { .. } | MlpConfig::Experts(_) => {}
        }
    }
}

/// Sets the size of dense layers.
pub(crate) fn set_intermediate(config: &mut DecoderConfig, size: i32) {
    for mlp in &mut config.mlps {
        if let MlpConfig::Dense { intermediate, .. } = mlp {
            *intermediate = size;
        }
    }
}

/// Makes MLPs without a gate of dense layers.
pub(crate) fn ungated(config: &mut DecoderConfig) {
    for mlp in &mut config.mlps {
        if let MlpConfig::Dense {
            intermediate,
            bias,
            activation,
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
