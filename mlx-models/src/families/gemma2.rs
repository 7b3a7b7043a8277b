//! Gemma 2 (arXiv:2408.00118): soft caps, a window on every second layer.

use mlx_core::Result;
use mlx_nn::NormKind;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::rope::shared_by_layers;
use crate::config::{Config, Source};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 256_000,
    hidden: 2304,
    intermediate: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    max_positions: 8192,
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    PreAndPostNorm::new(&with_caps(source.config)?)
}

/// The decoder of a config, with Gemma 2's soft caps and a window on every second layer.
pub(crate) fn with_caps(c: &Config) -> Result<DecoderConfig> {
    // An older name of `sliding_window`. Files with this key have both.
    c.ignore(&["sliding_window_size"]);
    shared_by_layers(c)?;
    let mut config = config(c, &DEFAULTS)?;
    let window = keys::window(c, Some(4096))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| layer % 2 == 0)?;
    config.attention.softcap = keys::softcap(c, "attn_logit_softcapping", Some(50.0))?;
    config.scales.logit_softcap = keys::softcap(c, "final_logit_softcapping", Some(30.0))?;
    Ok(config)
}

/// The decoder of [`common`], with the `query_pre_attn_scalar` of Gemma 2 and 3.
pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = common(c, defaults)?;
    // Early files have a wrong value at this key.
    c.ignore(&["hidden_act"]);
    let scalar = c.positive("query_pre_attn_scalar", Some(256.0))?;
    config.attention.scale = scalar.powf(-0.5) as f32;
    Ok(config)
}

/// The decoder of a config, with what all Gemmas have in common: norms that store `weight - 1`, and
/// embeddings scaled by the root of their size.
pub(crate) fn common(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    if c.or("use_bidirectional_attention", false)?
        && c.or("model_type", String::new())? != "gemma3_text"
    {
        return Err(
            c.unsupported("use_bidirectional_attention is not supported: only causal text models")
        );
    }
    let mut config = keys::decoder(c, defaults)?;
    config.norm.kind = NormKind::Rms(1.0);
    config.scales.embedding = Some(f64::from(config.hidden).sqrt() as f32);
    keys::attention_bias(c, &mut config)?;
    Ok(config)
}
