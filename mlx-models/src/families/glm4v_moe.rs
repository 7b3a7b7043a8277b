//! GLM 4.5V and 4.6V (arXiv:2507.01006), the text tower: GLM 4.5 with biases.

use mlx_core::Result;
use mlx_nn::Rules;

use crate::config::Source;
use crate::config::keys::Defaults;
use crate::families::{deepseek_v3, glm4_moe};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_424,
    max_positions: 65_536,
    ..glm4_moe::DEFAULTS
};

pub(crate) fn load(source: &Source<'_>) -> Result<deepseek_v3::WithHeads> {
    glm4_moe::with_bias(source, &DEFAULTS, true)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    glm4_moe::names(source)
}
