//! Granite 3: Llama with multipliers of embeddings, attention scores, residuals and logits.

use mlx_core::Result;

use crate::config::plan::DecoderConfig;
use crate::config::{Bits, Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::llama;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    Decoder::new(&config(c)?)
}

pub(crate) fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = llama::config(c)?;
    multipliers(c, &mut config)?;
    Ok(config)
}

/// Reads the multipliers.
///
/// # Errors
/// A multiplier is not a positive number.
pub(crate) fn multipliers(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let multiplier = |key| c.positive(key, Some(1.0)).map(|number| number as f32);
    config.attention.scale = multiplier("attention_multiplier")?;
    config.scales.embedding = Some(multiplier("embedding_multiplier")?);
    config.scales.residual = Some(multiplier("residual_multiplier")?);
    config.scales.logits = Some(1.0 / multiplier("logits_scaling")?);
    Ok(())
}

/// Weights whose numbers are small, so that few bits would lose them. They keep more bits, as in
/// mlx-lm.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.self_attn.o_proj", Bits::EightUnlessMixed),
    ("*.mlp.down_proj", Bits::EightUnlessMixed),
    ("lm_head", Bits::EightUnlessMixed),
    ("*.mlp.gate", Bits::EightUnlessMixed),
];
