//! The text model of the Gemma 4 that reads images without a tower: Gemma 4 without inputs for each layer and without
//! experts.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::Defaults;
use crate::families::gemma4::{self, Gemma4};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    max_positions: 262_144,
    ..gemma4::DEFAULTS
};

pub(crate) fn load(source: &Source<'_>) -> Result<Gemma4> {
    let c = source.config;
    // transformers' class of this model does not have these keys.
    c.ignore(&[
        "enable_moe_block",
        "hidden_size_per_layer_input",
        "moe_intermediate_size",
        "num_experts",
        "top_k_experts",
        "vocab_size_per_layer_input",
    ]);
    gemma4::build(source, gemma4::config(c, &DEFAULTS, 1024)?, None, None)
}
