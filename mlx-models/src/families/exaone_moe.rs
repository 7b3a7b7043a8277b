//! K-EXAONE: EXAONE 4's attention with norms before it and before the experts, which are of DeepSeek's kind.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults};
use crate::decoders::pre_norm::Decoder;
use crate::families::exaone4;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 102_400,
    intermediate: 16_384,
    kv_heads: Some(32),
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scale: 2.5,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 1024,
            n_experts: 64,
            top_k: 8,
            norm_topk_prob: None,
        },
        true,
        1,
    )
};

/// Keys of published files that transformers ignores, because the family has only one form, and
/// those of the head for multi-token prediction, which is not loaded.
const IGNORED: &[&str] = &[
    "mtp_loss_scaling_factor",
    "mtp_share_layers",
    "num_nextn_predict_layers",
    "output_router_logits",
    "scoring_func",
    "topk_method",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    exaone4::attention(c, &mut config)?;
    let mut experts = keys::routed_experts(c, config.hidden, &EXPERTS)?;
    let shared = c.size("num_shared_experts", Some(1))?;
    experts.shared = keys::shared_expert(&experts, shared);
    let dense = c.opt::<usize>("first_k_dense_replace")?;
    let listed = c.opt::<Vec<bool>>("is_moe_layer")?.unwrap_or_default();
    keys::experts_by_types(c, &mut config, experts, |layer| match dense {
        Some(dense) => layer >= dense,
        None => listed.get(layer).copied().unwrap_or(layer >= EXPERTS.dense),
    })?;
    Decoder::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let head = Rule::drop("mtp.*", "of a head for multi-token prediction");
    Ok(Rules::from([head]).and(&keys::deepseek_expert_names()))
}
