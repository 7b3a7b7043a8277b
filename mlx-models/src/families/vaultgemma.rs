//! VaultGemma (arXiv:2510.15001): Gemma 2 without the norms after attention and MLP.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::decoders::pre_norm::Decoder;
use crate::families::gemma2;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    Decoder::new(&gemma2::with_caps(source.config)?)
}

/// In files the norm before the MLP has Gemma's name.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([Rule::rename(
        "*.pre_feedforward_layernorm.*",
        "*.post_attention_layernorm.*",
    )
    .written()]))
}
