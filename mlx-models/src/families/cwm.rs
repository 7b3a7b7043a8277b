//! Code World Model (arXiv:2510.02387): Llama 3 with a window on three of four layers.

use mlx_core::Result;
use serde_json::json;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_256,
    hidden: 6144,
    intermediate: 21_504,
    layers: 64,
    heads: 48,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let mut c = source.config.clone();
    if c.value("rope_parameters").is_none() && c.value("rope_scaling").is_none() {
        let scaling = json!({
            "rope_type": "llama3",
            "factor": 16.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        });
        c.set("rope_scaling", scaling);
    }
    let c = &c;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::mlp_bias(c, &mut config)?;
    c.ignore(&["attention_bias"]);
    let window = keys::window(c, Some(8192))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| layer % 4 != 0)?;
    Decoder::new(&config)
}
