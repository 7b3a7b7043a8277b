//! What the configs of the pre-norm families have in common.

use mlx_core::Result;
use mlx_nn::{Activation, LayerKind};

use crate::config::Config;
use crate::config::rope::{Dialect, RopeDefaults, context, rope};
use crate::decoder::{DecoderConfig, MlpConfig};

/// The most layers that a config may have: more than any published model, and few enough to build.
const MAX_LAYERS: i32 = 1024;

/// The largest head size, and the largest product of heads and head size.
const MAX_HEAD_DIM: i32 = 8192;
const MAX_HEADS_WIDTH: i64 = 1 << 22;

/// The number of layers.
///
/// # Errors
/// It is missing or absurd.
pub(crate) fn n_layers(c: &Config, default: Option<i32>) -> Result<usize> {
    let n = c.size("num_hidden_layers", default)?;
    if n > MAX_LAYERS {
        return Err(c.error(format!(
            "num_hidden_layers must be at most {MAX_LAYERS}, found {n}"
        )));
    }
    Ok(n as usize)
}

/// The kind of each layer: `layer_types` if the config has them, else `fallback`.
///
/// # Errors
/// Unknown types, another number of them than layers, or a window that is not given.
pub(crate) fn layer_kinds(
    c: &Config,
    n: usize,
    window: Option<i32>,
    fallback: impl Fn(usize) -> bool,
) -> Result<Vec<LayerKind>> {
    const KNOWN: [(&str, bool); 2] = [("full_attention", false), ("sliding_attention", true)];
    layer_types(c, n, KNOWN, fallback)?
        .into_iter()
        .map(|sliding| match (sliding, window) {
            (false, _) => Ok(LayerKind::Full),
            (true, Some(_)) => Ok(kind(window)),
            (true, None) => Err(c.error(
                "layers have sliding_attention, but sliding_window is null or switched off",
            )),
        })
        .collect()
}

/// What `layer_types` says of each layer, if the config has them, else `fallback`.
///
/// # Errors
/// Types that are not `known`, or another number of them than layers.
pub(crate) fn layer_types<T: Copy, const N: usize>(
    c: &Config,
    n: usize,
    known: [(&str, T); N],
    fallback: impl Fn(usize) -> T,
) -> Result<Vec<T>> {
    let Some(types) = c.opt::<Vec<String>>("layer_types")? else {
        return Ok((0..n).map(fallback).collect());
    };
    if types.len() != n {
        let found = types.len();
        return Err(c.error(format!("layer_types has {found} entries for {n} layers")));
    }
    let kind = |name: &String| {
        let found = known.iter().find(|(known, _)| known == name);
        found.map(|&(_, kind)| kind).ok_or_else(|| {
            let known = known.map(|(name, _)| name).join(", ");
            c.unsupported(format!("layer type {name:?} is unknown; known: {known}"))
        })
    };
    types.iter().map(kind).collect()
}

/// The kind of a layer with this window; without one it keeps all positions.
pub(crate) fn kind(window: Option<i32>) -> LayerKind {
    window.map_or(LayerKind::Full, |window| LayerKind::Window(window as usize))
}

/// The value of `sliding_window`. Null means no window; an absent key means what transformers assumes.
///
/// # Errors
/// It is not a size.
pub(crate) fn window(c: &Config, default: Option<i32>) -> Result<Option<i32>> {
    if c.is_null("sliding_window") {
        c.ignore(&["sliding_window"]);
        return Ok(None);
    }
    match (c.value("sliding_window"), default) {
        (None, None) => Ok(None),
        (_, default) => c.size("sliding_window", default).map(Some),
    }
}

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
    pub layers: i32,
    pub heads: i32,
    /// As many as query heads, if `None`.
    pub kv_heads: Option<i32>,
    /// `hidden / heads`, if `None`.
    pub head_dim: Option<i32>,
    pub max_positions: i32,
    pub norm_eps: f64,
    pub rope: Dialect,
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
    let n = n_layers(c, Some(defaults.layers))?;
    let (heads, kv_heads, head_dim) = heads(c, hidden, defaults)?;
    let activation = Activation::parse(&c.or("hidden_act", "silu".to_owned())?)
        .map_err(|error| c.unsupported(format!("hidden_act: {error}")))?;
    let intermediate = c.size("intermediate_size", Some(defaults.intermediate))?;
    let rope = rope(
        c,
        RopeDefaults {
            base: 10_000.0,
            head_dim,
            max_positions: c.size("max_position_embeddings", Some(defaults.max_positions))?,
            dialect: defaults.rope,
        },
    )?;
    Ok(DecoderConfig {
        hidden,
        vocab: c.size("vocab_size", Some(defaults.vocab))?,
        heads,
        kv_heads,
        head_dim,
        layers: vec![LayerKind::Full; n],
        mlps: vec![
            MlpConfig::Dense {
                intermediate,
                bias: false,
                activation
            };
            n
        ],
        max_positions: context(&rope, c.opt("max_position_embeddings")?),
        rope,
        norm_eps: c.positive("rms_norm_eps", Some(defaults.norm_eps))? as f32,
        qkv_bias: false,
        out_bias: false,
        qk_norm: false,
        output_gate: false,
        delta: None,
        tied: tied(c, false)?,
    })
}
