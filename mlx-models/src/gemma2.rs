//! Gemma 2 (arXiv:2408.00118): soft caps, a window on every second layer.

use mlx_core::Result;
use mlx_nn::Activation;

use crate::config::Config;
use crate::config::rope::{Dialect, RopeDefaults, context, rope, shared_by_layers};
use crate::family;
use crate::gemma::{Gemma, GemmaConfig};

pub(crate) fn load(c: &Config) -> Result<Gemma> {
    // An older name of sliding_window, in files that have both.
    c.ignore(&["sliding_window_size"]);
    causal(c)?;
    shared_by_layers(c)?;
    let n = family::n_layers(c, Some(26))?;
    let (heads, kv_heads, head_dim) = heads(c)?;
    let window = family::window(c, Some(4096))?;
    let max_positions = c.size("max_position_embeddings", Some(8192))?;
    let rope = rope(
        c,
        RopeDefaults {
            base: 10_000.0,
            head_dim,
            max_positions,
            dialect: Dialect::Plain,
        },
    )?;
    Gemma::new(&GemmaConfig {
        hidden: c.size("hidden_size", Some(2304))?,
        intermediate: c.size("intermediate_size", Some(9216))?,
        vocab: c.size("vocab_size", Some(256_000))?,
        heads,
        kv_heads,
        head_dim,
        query_pre_attn_scalar: c.positive("query_pre_attn_scalar", Some(256.0))?,
        layers: family::layer_kinds(c, n, window, |layer| layer % 2 == 0)?,
        max_positions: context(&rope, c.opt("max_position_embeddings")?),
        local_rope: rope.clone(),
        rope,
        norm_eps: c.positive("rms_norm_eps", Some(1e-6))? as f32,
        activation: activation(c)?,
        attention_bias: c.or("attention_bias", false)?,
        qk_norm: false,
        attn_softcap: softcap(c, "attn_logit_softcapping", Some(50.0))?,
        final_softcap: softcap(c, "final_logit_softcapping", Some(30.0))?,
        tied: family::tied(c, true)?,
    })
}

/// Query heads, key and value heads, and their size.
pub(crate) fn heads(c: &Config) -> Result<(i32, i32, i32)> {
    let head_dim = c.size("head_dim", Some(256))?;
    let heads = c.size("num_attention_heads", Some(8))?;
    let kv_heads = c.size("num_key_value_heads", Some(4))?;
    family::check_heads(c, heads, kv_heads, head_dim)?;
    Ok((heads, kv_heads, head_dim))
}

/// Gemma's activation is `hidden_activation`. `hidden_act` is ignored: early files have a wrong value there.
pub(crate) fn activation(c: &Config) -> Result<Activation> {
    c.ignore(&["hidden_act"]);
    Activation::parse(&c.or("hidden_activation", "gelu_pytorch_tanh".to_owned())?)
        .map_err(|error| c.unsupported(format!("hidden_activation: {error}")))
}

/// Refuses models with attention to later tokens.
pub(crate) fn causal(c: &Config) -> Result<()> {
    if c.or("use_bidirectional_attention", false)? {
        return Err(
            c.unsupported("use_bidirectional_attention is not supported: only causal text models")
        );
    }
    Ok(())
}

/// A soft cap; null switches it off, absence means `default`.
pub(crate) fn softcap(c: &Config, key: &str, default: Option<f64>) -> Result<Option<f32>> {
    if c.is_null(key) {
        return Ok(None);
    }
    match (c.value(key), default) {
        (None, None) => Ok(None),
        (_, default) => c.positive(key, default).map(|cap| Some(cap as f32)),
    }
}
