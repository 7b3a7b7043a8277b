//! Granite 3 with experts and a shared expert in every layer.

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

/// The gate and up projections of all experts are one tensor, and so are those of the shared
/// expert.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    // A file is written by the rules from bottom to top: these names before those of the experts around them.
    Ok(granitemoe::names(source)?.and(&granitemoe::shared_names("mlp.shared_expert", true)))
}
