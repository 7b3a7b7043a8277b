//! OLMo 2 (arXiv:2501.00656): norms after attention and after MLP, and norms over all heads of q and k at once.

use mlx_core::Result;
use mlx_nn::{QkNorm, QkPlace};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::post_norm::PostNorm;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_304,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<PostNorm> {
    let c = source.config;
    PostNorm::new(&config(c, &DEFAULTS)?)
}

pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, defaults)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm {
        place: QkPlace::Projection,
        ..QkNorm::heads(config.norm.eps, 0.0)
    });
    Ok(config)
}
