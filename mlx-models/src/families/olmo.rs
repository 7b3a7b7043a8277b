//! OLMo 1 (arXiv:2402.00838): layer norms without weight or bias; queries, keys and values are
//! clipped.

use mlx_core::Result;
use mlx_nn::NormKind;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;
use crate::families::olmoe;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_304,
    // No config has the key; the epsilon is fixed in transformers' class.
    norm_eps_key: "",
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qkv_clip = olmoe::clip(c)?;
    config.norm.kind = NormKind::BareLayer;
    Decoder::new(&config)
}
