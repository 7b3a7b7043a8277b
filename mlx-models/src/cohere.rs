//! Command R (Cohere): attention and MLP side by side behind a layer norm without bias, scaled logits.

use mlx_core::Result;
use mlx_nn::NormKind;

use crate::config::Config;
use crate::decoder::DecoderConfig;
use crate::family::{self, Defaults};
use crate::parallel::Parallel;

/// What transformers assumes about absent keys.
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

pub(crate) fn load(c: &Config) -> Result<Parallel> {
    if c.or("use_qk_norm", false)? {
        return Err(c.unsupported(
            "use_qk_norm true is not supported: only models without norms on q and k (Command R, Aya)",
        ));
    }
    Parallel::new(&config(c, &DEFAULTS)?)
}

pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = family::decoder(c, defaults)?;
    config.norm.kind = NormKind::layer(false);
    family::attention_bias(c, &mut config)?;
    config.logit_scale = Some(c.positive("logit_scale", Some(0.0625))? as f32);
    Ok(config)
}
