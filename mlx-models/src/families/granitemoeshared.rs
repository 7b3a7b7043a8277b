//! Granite 3 with experts in every layer, and one more that all tokens use.

use mlx_core::Result;
use mlx_nn::Rules;

use crate::config::Source;
use crate::decoders::pre_norm::Decoder;
use crate::families::{granite, granitemoe};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = granite::config(c)?;
    granitemoe::add_experts(c, &mut config, c.or("shared_intermediate_size", 0)?)?;
    Decoder::new(&config)
}

/// Gate and up are one tensor each, of all experts and of the one that all tokens use.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    // A file is written by the rules from bottom to top: these names before those of the experts around them.
    Ok(granitemoe::names(source)?.and(&granitemoe::shared_names("mlp.shared_expert", true)))
}
