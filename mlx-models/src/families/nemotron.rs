//! Nemotron 3 and 4 (arXiv:2402.16819): layer norms that store `weight - 1`, squared activations, rope on half of each
//! head.

use mlx_core::Result;
use mlx_nn::NormKind;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::Dialect;
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 256_000,
    hidden: 6144,
    intermediate: 24_576,
    heads: 48,
    max_positions: 4096,
    norm_eps_key: "norm_eps",
    norm_eps: 1e-5,
    activation: "relu2",
    rope: Some(Dialect::Partial(0.5)),
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.norm.kind = NormKind::Layer {
        bias: true,
        offset: 1.0,
    };
    keys::attention_bias(c, &mut config)?;
    keys::ungated(&mut config);
    keys::mlp_bias(c, &mut config)?;
    Decoder::new(&config)
}
