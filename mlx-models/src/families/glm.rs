//! GLM 4 of 2024 (arXiv:2406.12793): two norms a layer, gate and up in one projection, a rope on
//! half of each head, which pairs neighbouring features.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys;
use crate::decoders::pre_norm::Decoder;
use crate::families::glm4;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &glm4::DEFAULTS)?;
    config.attention.qkv_bias = c.or("attention_bias", true)?;
    Decoder::new(&config)
}

/// Gate and up are one matrix in published files and in those of MLX.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let gate_up = [("*.mlp.gate_proj.*", 1), ("*.mlp.up_proj.*", 1)];
    Ok(Rules::from([Rule::split(
        "*.mlp.gate_up_proj.*",
        1,
        gate_up,
    )
    .written()]))
}
