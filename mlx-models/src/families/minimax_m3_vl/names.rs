//! The names of MiniMax M3's tensors.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use super::config;
use crate::config::Source;
use crate::config::plan::MlpConfig;

/// The names of published files, of transformers', whose gates and ups are one matrix, and of MLX's.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = config(source.config)?;
    let mut rules = vec![Rule::drop("patch_merge_mlp.*", "not of the text model")];
    for (layer, mlp) in config.feed_forward.iter().enumerate() {
        if matches!(mlp, MlpConfig::Experts(_)) {
            let [from, to] =
                ["block_sparse_moe", "mlp"].map(|name| format!("model.layers.{layer}.{name}.*"));
            rules.push(Rule::rename(&from, &to).written());
        }
    }
    for part in ["q_proj", "k_proj", "q_norm", "k_norm"] {
        let from = format!("*.self_attn.index_{part}.*");
        let to = format!("*.self_attn.chooser.{part}.*");
        rules.push(Rule::rename(&from, &to).written());
    }
    for (from, to) in [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")] {
        let [from, to] = [from, to].map(|name| format!("*.mlp.experts.#.{name}.*"));
        rules.push(Rule::rename(&from, &to));
    }
    let bias = "*.mlp.gate.e_score_correction_bias";
    rules.push(Rule::rename(bias, "*.mlp.e_score_correction_bias"));
    rules.push(Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*").written());
    for (fused, gate, up) in [
        (
            "*.mlp.gate_up_proj.*",
            "*.mlp.gate_proj.*",
            "*.mlp.up_proj.*",
        ),
        (
            "*.mlp.shared_expert.gate_up_proj.*",
            "*.mlp.shared_expert.gate_proj.*",
            "*.mlp.shared_expert.up_proj.*",
        ),
        (
            "*.mlp.experts.gate_up_proj",
            "*.mlp.switch_mlp.gate_proj.weight",
            "*.mlp.switch_mlp.up_proj.weight",
        ),
    ] {
        rules.push(Rule::split(fused, 1, [(gate, 1), (up, 1)]));
    }
    let down = "*.mlp.switch_mlp.down_proj.weight";
    rules.push(Rule::rename("*.mlp.experts.down_proj", down));
    rules.push(Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"));
    Ok(Rules::from(rules))
}
