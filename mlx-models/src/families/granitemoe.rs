//! Granite 3 with experts in every layer.

use mlx_core::Result;
use mlx_nn::{Rule, Rules, SharedExpert};

use crate::config::keys::{self, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::granite;

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 11_008,
    n_experts: 8,
    top_k: 2,
    // The family computes a softmax over the chosen experts only, which gives the same weights.
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = granite::config(c)?;
    add_experts(c, &mut config, 0)?;
    Decoder::new(&config)
}

/// Gives every layer experts and a shared expert with `shared` features inside; 0 means no shared
/// expert.
///
/// # Errors
/// `shared` is negative, or sizes do not fit each other.
pub(crate) fn add_experts(c: &Config, config: &mut DecoderConfig, shared: i32) -> Result<()> {
    if shared < 0 {
        return Err(c.error(format!(
            "shared_intermediate_size must not be negative, found {shared}"
        )));
    }
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.shared = (shared > 0).then_some(SharedExpert {
        intermediate: shared,
        bias: false,
        gate: false,
        clamp: None,
    });
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Ok(())
}

/// The rules for the names of the shared MLP, which is at the path `place` of a layer. Gate and up
/// are one tensor in files.
pub(crate) fn shared_names(place: &str, written: bool) -> Rules {
    let to = |name: &str| format!("*.{place}.{name}.*");
    let rules = [
        Rule::split(
            "*.shared_mlp.input_linear.*",
            1,
            [(&*to("gate_proj"), 1), (&*to("up_proj"), 1)],
        ),
        Rule::rename("*.shared_mlp.output_linear.*", &to("down_proj")),
    ];
    Rules::from(rules.map(|rule| if written { rule.written() } else { rule }))
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
