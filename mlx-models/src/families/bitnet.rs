//! BitNet b1.58 (arXiv:2402.17764): extra norms before the output projections of attention and MLP; ternary matrices
//! (-1, 0, 1) with one scale each, packed in 2 bits; inputs rounded to 8 bits.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_256,
    hidden: 2560,
    intermediate: 6912,
    layers: 30,
    heads: 20,
    kv_heads: Some(5),
    norm_eps: 1e-5,
    activation: "relu2",
    theta: 500_000.0,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    config.norm.before_outputs = Some(config.norm.eps);
    Decoder::new(&config)
}
