//! Hunyuan 1, dense: norms on q and k after rope, and a rope base that a fixed `alpha` enlarges.

use mlx_core::Result;
use mlx_nn::{QkNorm, QkPlace, Rule, Rules};

use crate::config::Config;
use crate::config::rope::Dialect;
use crate::decoder::{Decoder, DecoderConfig};
use crate::family::{self, Defaults};
use crate::registry::Source;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 290_943,
    norm_eps: 1e-5,
    rope: Some(Dialect::Alpha),
    ..Defaults::LLAMA
};

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    Decoder::new(&config(c)?)
}

pub(crate) fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = family::decoder(c, &DEFAULTS)?;
    c.ignore(&["eod_token_id"]);
    family::attention_bias(c, &mut config)?;
    config.qk_norm = Some(QkNorm {
        place: QkPlace::Rotated,
        ..QkNorm::heads(config.norm.eps, 0.0)
    });
    Ok(config)
}

/// The norms on q and k have other names.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.query_layernorm.*", "*.q_norm.*").written(),
        Rule::rename("*.key_layernorm.*", "*.k_norm.*").written(),
    ]))
}
