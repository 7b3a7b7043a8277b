//! MiniCPM 3: latent attention whose rope is scaled for long contexts, and the factors of MiniCPM.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults, LatentDefaults};
use crate::decoders::pre_norm::Decoder;
use crate::families::minicpm::{self, Factors};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 73_448,
    hidden: 2560,
    intermediate: 6400,
    layers: 62,
    heads: 40,
    max_positions: 32_768,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

const FACTORS: Factors = Factors {
    embedding: 12.0,
    depth: 1.4,
    base: 256.0,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(minicpm::IGNORED);
    let hidden = c.size("hidden_size", Some(DEFAULTS.hidden))?;
    let heads = c.size("num_attention_heads", Some(DEFAULTS.heads))?;
    let sizes = LatentDefaults {
        query_rank: 768,
        rank: 256,
        plain_dim: 64,
        rope_dim: 32,
        value_dim: (hidden / heads).max(1),
    };
    let mut config = keys::latent(source, &DEFAULTS, &sizes)?;
    keys::mlp_bias(c, &mut config)?;
    minicpm::factors(c, &mut config, &FACTORS)?;
    Decoder::new(&config)
}
