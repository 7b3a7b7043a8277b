//! Hunyuan 1 with experts (A13B): in every layer experts of the dense MLP's size, and a shared expert.

use mlx_core::Result;
use mlx_nn::{ExpertsConfig, Rule, Rules, SharedExpert};
use serde_json::Value;

use crate::config::keys::{self, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::hunyuan_v1_dense as dense;

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 11_008,
    n_experts: 1,
    top_k: 1,
    norm_topk_prob: Some(true),
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "capacity_factor",
    "group_limited_greedy",
    "moe_drop_tokens",
    "moe_intermediate_size",
    "moe_layer_num_skipped",
    "moe_random_routing_dropped_token",
    "n_group",
    "norm_topk_prob",
    "num_shared_expert",
    "routed_scaling_factor",
    "topk_group",
    "use_mixed_mlp_moe",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = dense::config(c)?;
    c.ignore(IGNORED);
    let top = top_k(c, config.feed_forward.len())?;
    let experts = keys::experts_of(c, config.hidden, &EXPERTS, top[0])?;
    for (mlp, top_k) in config.feed_forward.iter_mut().zip(top) {
        if top_k > experts.n_experts {
            let n = experts.n_experts;
            return Err(c.error(format!("moe_topk {top_k} exceeds num_experts {n}")));
        }
        *mlp = MlpConfig::Experts(ExpertsConfig {
            top_k,
            shared: Some(SharedExpert {
                intermediate: experts.intermediate,
                bias: false,
                gate: false,
                clamp: None,
            }),
            ..experts
        });
    }
    Decoder::new(&config)
}

/// The number of experts for each token in each layer. The config has one number or a list.
fn top_k(c: &Config, n: usize) -> Result<Vec<i32>> {
    let given = c.value("moe_topk");
    if c.value("num_experts_per_tok").is_some() {
        return Ok(vec![c.size("num_experts_per_tok", None)?; n]);
    }
    if !given.is_some_and(Value::is_array) {
        return Ok(vec![c.size("moe_topk", Some(1))?; n]);
    }
    let list: Vec<i32> = c.required("moe_topk")?;
    if list.len() != n || list.iter().any(|&k| k < 1) {
        return Err(c.error(format!(
            "moe_topk must have a positive number for each of {n} layers"
        )));
    }
    Ok(list)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let rest = Rules::from([
        Rule::rename("*.mlp.gate.wg.*", "*.mlp.gate.*").written(),
        Rule::rename("*.mlp.shared_mlp.*", "*.mlp.shared_expert.*").written(),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ]);
    Ok(dense::names(source)?.and(&rest))
}
