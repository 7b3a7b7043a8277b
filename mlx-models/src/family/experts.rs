//! What the configs of families with experts have in common.

use mlx_core::Result;
use mlx_nn::{ExpertsConfig, Groups, Routing, Rule, Rules, Scoring, SharedExpert};

use super::activation;
use crate::config::Config;
use crate::decoder::{DecoderConfig, MlpConfig};

/// What transformers assumes about absent keys of experts.
pub(crate) struct ExpertsDefaults {
    /// The key of the features inside an expert, and its default.
    pub intermediate_key: &'static str,
    pub intermediate: i32,
    pub n_experts: i32,
    pub top_k: i32,
    /// Without a value, `norm_topk_prob` says it.
    pub norm_topk_prob: Option<bool>,
}

/// What families call the number of experts; transformers reads all of them for some, and writes the second.
const KEYS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// The experts of a config, without a shared one.
///
/// # Errors
/// Sizes that do not fit.
pub(crate) fn experts(
    c: &Config,
    hidden: i32,
    defaults: &ExpertsDefaults,
) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig {
        hidden,
        intermediate: c.size(defaults.intermediate_key, Some(defaults.intermediate))?,
        n_experts: match KEYS.iter().find(|key| c.value(key).is_some()) {
            Some(key) => c.size(key, None)?,
            None => defaults.n_experts,
        },
        top_k: c.size("num_experts_per_tok", Some(defaults.top_k))?,
        routing: Routing::softmax(match defaults.norm_topk_prob {
            Some(always) => always,
            None => c.or("norm_topk_prob", false)?,
        }),
        activation: activation(c, "hidden_act", "silu")?,
        clamp: None,
        bias: false,
        shared: None,
    };
    if experts.top_k > experts.n_experts {
        return Err(c.error(format!(
            "num_experts_per_tok {} exceeds num_experts {}",
            experts.top_k, experts.n_experts
        )));
    }
    Ok(experts)
}

/// Gives layers the experts: every `decoder_sparse_step`th, but not those of `mlp_only_layers`.
///
/// # Errors
/// A key has another type.
pub(crate) fn sparse_layers(
    c: &Config,
    experts: ExpertsConfig,
    mlps: &mut [MlpConfig],
) -> Result<()> {
    let every = c.size("decoder_sparse_step", Some(1))? as usize;
    let dense: Vec<usize> = c.or("mlp_only_layers", Vec::new())?;
    for (layer, mlp) in mlps.iter_mut().enumerate() {
        if (layer + 1) % every == 0 && !dense.contains(&layer) {
            *mlp = MlpConfig::Experts(experts);
        }
    }
    Ok(())
}

/// Experts as those of DeepSeek-V3 (arXiv:2412.19437): sigmoids, a correction of the choice, groups, a shared expert without
/// a gate, and dense layers in front.
///
/// # Errors
/// Sizes that do not fit.
pub(crate) fn corrected(
    c: &Config,
    config: &mut DecoderConfig,
    defaults: &ExpertsDefaults,
    normed: bool,
    dense: i32,
) -> Result<()> {
    let mut experts = experts(c, config.hidden, defaults)?;
    let groups = Groups {
        n: c.size("n_group", Some(1))?,
        top: c.size("topk_group", Some(1))?,
    };
    let (n, size) = (groups.n, experts.n_experts / groups.n);
    if experts.n_experts % n != 0 || groups.top > n || groups.top * size < experts.top_k {
        return Err(c.error(format!(
            "{} of {} experts cannot be chosen from {} of {n} groups",
            experts.top_k, experts.n_experts, groups.top
        )));
    }
    if n > 1 && size < 2 {
        return Err(c.error(format!("n_group {n} leaves groups of one expert")));
    }
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: true,
        groups: (n > 1).then_some(groups),
        norm_topk_prob: c.or("norm_topk_prob", normed)?,
        scale: Some(c.positive("routed_scaling_factor", Some(1.0))? as f32),
    };
    let shared = c.size("n_shared_experts", Some(1))?;
    experts.shared = Some(SharedExpert {
        intermediate: shared * experts.intermediate,
        gate: false,
    });
    let first: usize = c.or("first_k_dense_replace", dense as usize)?;
    for mlp in config.mlps.iter_mut().skip(first) {
        *mlp = MlpConfig::Experts(experts);
    }
    Ok(())
}

/// Names of [`corrected`] experts, and the layers for multi-token prediction behind the last, which are not read.
///
/// # Errors
/// The config has no number of layers.
pub(crate) fn corrected_names(c: &Config, layers: i32) -> Result<Rules> {
    let n = super::n_layers(c, Some(layers))?;
    let extra = (n..n + 8).map(|layer| {
        let reason = "of a head for multi-token prediction";
        Rule::drop(&format!("model.layers.{layer}.*"), reason)
    });
    let rest = [
        Rule::rename(
            "*.mlp.gate.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        )
        .written(),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*").written(),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ];
    Ok(Rules::from(extra.chain(rest)))
}
