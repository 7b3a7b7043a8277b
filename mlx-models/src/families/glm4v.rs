//! GLM 4.1V and 4.6V Flash (arXiv:2507.01006), the text tower: GLM 4 of 2025.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::config::rope::Dialect;
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::families::glm4;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    head_dim: None,
    rope: Some(Dialect::Partial(1.0)),
    max_positions: 32_768,
    norm_eps: 1e-5,
    ..glm4::DEFAULTS
};

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    let c = source.config;
    c.ignore(&["attention_bias"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = true;
    PreAndPostNorm::new(&config)
}
