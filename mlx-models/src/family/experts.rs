//! What the configs of families with experts have in common.

use mlx_core::Result;
use mlx_nn::ExpertsConfig;

use super::activation;
use crate::config::Config;
use crate::decoder::MlpConfig;

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
        // transformers 5 writes the second name for some families, and reads both.
        n_experts: match c.value("num_experts") {
            Some(_) => c.size("num_experts", None)?,
            None => c.size("num_local_experts", Some(defaults.n_experts))?,
        },
        top_k: c.size("num_experts_per_tok", Some(defaults.top_k))?,
        norm_topk_prob: match defaults.norm_topk_prob {
            Some(always) => always,
            None => c.or("norm_topk_prob", false)?,
        },
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
