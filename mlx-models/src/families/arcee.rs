//! Arcee (AFM): Llama with an MLP without a gate, whose activation is a squared ReLU.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    hidden: 2560,
    intermediate: 18_432,
    max_positions: 4096,
    norm_eps: 1e-5,
    activation: "relu2",
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::ungated(&mut config);
    keys::mlp_bias(c, &mut config)?;
    Decoder::new(&config)
}
