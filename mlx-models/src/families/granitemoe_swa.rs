//! Granite 4.1 with windows, and experts in every layer.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::Defaults;
use crate::decoders::pre_norm::Decoder;
use crate::families::{granite_swa, granitemoe, granitemoeshared};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = granite_swa::config(c, &Defaults::LLAMA)?;
    granitemoe::add_experts(c, &mut config, c.or("shared_intermediate_size", 0)?)?;
    Decoder::new(&config)
}

/// The names of Granite with experts, and those of transformers, which has all experts in two
/// tensors.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let gate_up = [
        ("*.mlp.switch_mlp.gate_proj.weight", 1),
        ("*.mlp.switch_mlp.up_proj.weight", 1),
    ];
    let place = "*.block_sparse_moe";
    let stacked = Rules::from([
        Rule::rename(&format!("{place}.router.weight"), "*.mlp.gate.weight"),
        Rule::split(&format!("{place}.experts.gate_up_proj"), 1, gate_up),
        Rule::rename(
            &format!("{place}.experts.down_proj"),
            "*.mlp.switch_mlp.down_proj.weight",
        ),
    ]);
    Ok(stacked.and(&granitemoeshared::names(source)?))
}
