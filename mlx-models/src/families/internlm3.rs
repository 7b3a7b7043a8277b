//! InternLM 3: Llama whose config has other keys for the biases.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_512,
    intermediate: 10_240,
    layers: 48,
    kv_heads: Some(2),
    head_dim: Some(128),
    max_positions: 32_768,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let either = |own: &str, usual: &str| match c.opt::<bool>(own)? {
        Some(given) => Ok(given),
        None => c.or(usual, false),
    };
    let (attention, mlp) = (
        either("qkv_bias", "attention_bias")?,
        either("bias", "mlp_bias")?,
    );
    if attention != mlp {
        return Err(c.unsupported(format!(
            "qkv_bias {attention} with bias {mlp} is not supported: both must be the same"
        )));
    }
    (config.attention.qkv_bias, config.attention.out_bias) = (attention, attention);
    keys::set_mlp_bias(&mut config, mlp);
    Decoder::new(&config)
}
