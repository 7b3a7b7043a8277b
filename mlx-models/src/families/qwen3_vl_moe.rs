//! Qwen 3 VL with experts (arXiv:2511.21631), the text tower: Qwen 3 with experts, all of them in two tensors.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::decoders::pre_norm::Decoder;
use crate::families::{qwen3, qwen3_moe};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 2048,
    intermediate: 5632,
    layers: 24,
    heads: 16,
    kv_heads: Some(16),
    max_positions: 128_000,
    theta: 500_000.0,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1408,
    n_experts: 60,
    top_k: 4,
    // No config has a key for it.
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(&["sliding_window", "use_sliding_window", "max_window_layers"]);
    c.ignore(&["norm_topk_prob"]);
    let mut config = qwen3::config(c, &DEFAULTS)?;
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    keys::sparse_layers(c, experts, &mut config.feed_forward)?;
    Decoder::new(&config)
}

/// Published files have the experts' matrices as `[in, out]`, files of transformers 5 as
/// `[out, in]`, and older files have one tensor for each expert.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let gate_up = [
        ("*.mlp.switch_mlp.gate_proj.weight", 1),
        ("*.mlp.switch_mlp.up_proj.weight", 1),
    ];
    let by_columns = by_columns(source)?;
    let turned = ["gate_up_proj", "down_proj"]
        .into_iter()
        .filter(|_| by_columns)
        .map(|name| Rule::transpose(&format!("*.mlp.experts.{name}"), &[0, 2, 1]));
    let rules = [
        Rule::split("*.mlp.experts.gate_up_proj", 1, gate_up),
        Rule::rename(
            "*.mlp.experts.down_proj",
            "*.mlp.switch_mlp.down_proj.weight",
        ),
    ];
    Ok(Rules::from(turned.chain(rules)).and(&qwen3_moe::names(source)?))
}

/// Whether the matrices of the experts are stored `[in, out]`. If the two sizes of one tensor are
/// equal, those of the other tensor differ.
fn by_columns(source: &Source<'_>) -> Result<bool> {
    let c = source.config;
    let hidden = c.size("hidden_size", Some(DEFAULTS.hidden))?;
    for name in source.tensors.names() {
        let input = match name.rsplit_once(".mlp.experts.") {
            Some((_, "gate_up_proj")) => hidden,
            Some((_, "down_proj")) => {
                c.size("moe_intermediate_size", Some(EXPERTS.intermediate))?
            }
            _ => continue,
        };
        if let Some(&[_, rows, columns]) = source.tensors.shape(name)?.as_deref()
            && rows != columns
        {
            return Ok(rows == input);
        }
    }
    Ok(false)
}
