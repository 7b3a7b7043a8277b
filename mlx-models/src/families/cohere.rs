//! Command R (Cohere): attention and MLP in parallel after one layer norm without bias, scaled logits. Command R+ has
//! norms on q and k.

use mlx_core::Result;
use mlx_nn::{NormKind, QkKind, QkNorm};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::parallel_residual::ParallelResidual;

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 256_000,
    hidden: 8192,
    intermediate: 22_528,
    layers: 40,
    heads: 64,
    max_positions: 8192,
    norm_eps_key: "layer_norm_eps",
    norm_eps: 1e-5,
    theta: 500_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<ParallelResidual> {
    let c = source.config;
    let mut config = config(c, &DEFAULTS)?;
    c.ignore(&["model_max_length"]);
    if c.or("use_qk_norm", false)? {
        config.attention.qk_norm = Some(QkNorm {
            kind: QkKind::LayerByHead { split: false },
            ..QkNorm::heads(config.norm.eps, 0.0)
        });
    }
    ParallelResidual::new(&config)
}

pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, defaults)?;
    config.norm.kind = NormKind::layer(false);
    keys::attention_bias(c, &mut config)?;
    config.scales.logits = Some(c.positive("logit_scale", Some(0.0625))? as f32);
    Ok(config)
}
