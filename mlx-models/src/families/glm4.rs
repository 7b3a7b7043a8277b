//! GLM 4 of 2025: four norms a layer, gate and up in one projection, a rope on half of each head,
//! which pairs neighbouring features.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::Dialect;
use crate::decoders::pre_and_post_norm::PreAndPostNorm;

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 151_552,
    intermediate: 13_696,
    layers: 40,
    kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1.5625e-7,
    rope: Some(Dialect::Partial(0.5)),
    interleaved: true,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = c.or("attention_bias", true)?;
    PreAndPostNorm::new(&config)
}

/// Gate and up are one matrix in published files and in those of MLX; norms have other names.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let gate_up = [("*.mlp.gate_proj.*", 1), ("*.mlp.up_proj.*", 1)];
    let gate_up = Rule::split("*.mlp.gate_up_proj.*", 1, gate_up).written();
    Ok(Rules::from(std::iter::once(gate_up).chain(norm_names())))
}

/// The rules for the names of the norms.
pub(crate) fn norm_names() -> [Rule; 3] {
    let norm = |from: &str, to: &str| {
        Rule::rename(
            &format!("*.{from}_layernorm.*"),
            &format!("*.{to}_layernorm.*"),
        )
        .written()
    };
    [
        norm("post_attention", "pre_feedforward"),
        norm("post_self_attn", "post_attention"),
        norm("post_mlp", "post_feedforward"),
    ]
}
