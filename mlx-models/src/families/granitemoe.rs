//! Granite 3 with experts in every layer.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::decoders::pre_norm::Decoder;
use crate::families::granite;

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 11_008,
    n_experts: 8,
    top_k: 2,
    // A softmax over the chosen experts only is the same.
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = granite::config(c)?;
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

/// Gate and up of all experts are one tensor in published files.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let gate_up = [
        ("*.mlp.switch_mlp.gate_proj.*", 1),
        ("*.mlp.switch_mlp.up_proj.*", 1),
    ];
    Ok(Rules::from([
        Rule::rename("*.block_sparse_moe.*", "*.mlp.*").written(),
        Rule::rename("*.mlp.router.layer.*", "*.mlp.gate.*").written(),
        Rule::split("*.mlp.input_linear.*", 1, gate_up),
        Rule::rename("*.mlp.output_linear.*", "*.mlp.switch_mlp.down_proj.*"),
    ]))
}
