//! BitNet b1.58 (arXiv:2402.17764): norms also in front of the projections with which attention and MLP end; matrices of -1, 0 and 1
//! with one scale each, which are packed in 2 bits, and inputs that are rounded to 8 bits.

use mlx_core::Result;

use crate::config::Config;
use crate::decoder::Decoder;
use crate::family::{self, Defaults};

/// What transformers assumes about absent keys.
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

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    let mut config = family::decoder(c, &DEFAULTS)?;
    family::attention_bias(c, &mut config)?;
    config.sub_norms = Some(config.norm.eps);
    Decoder::new(&config)
}
