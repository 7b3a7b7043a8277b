//! Qwen 3 with a mixture of experts (arXiv:2505.09388) in most layers.

use mlx_core::Result;
use mlx_nn::{Activation, ExpertsConfig, Rule, Rules};

use crate::config::Config;
use crate::config::rope::Dialect;
use crate::convert::Bits;
use crate::decoder::{Decoder, DecoderConfig, MlpConfig};
use crate::family::{self, Defaults};
use crate::qwen3;
use crate::registry::Source;

/// What transformers assumes about absent keys.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    hidden: 2048,
    intermediate: 6144,
    layers: 24,
    heads: 32,
    kv_heads: Some(4),
    head_dim: None,
    max_positions: 32_768,
    norm_eps: 1e-6,
    rope: Dialect::Plain,
};

/// What transformers assumes about the experts.
pub(crate) struct ExpertsDefaults {
    pub intermediate: i32,
    pub n_experts: i32,
    pub top_k: i32,
}

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate: 768,
    n_experts: 128,
    top_k: 8,
};

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    let mut config = qwen3::config(c, &DEFAULTS)?;
    // Unlike the dense models, transformers gives every layer the window, or none.
    let used = c.or("use_sliding_window", false)?;
    let window = family::window(c, Some(4096))?.filter(|_| used);
    c.ignore(&["max_window_layers"]);
    config.layers.fill(family::kind(window));
    let normed = c.or("norm_topk_prob", false)?;
    let experts = experts(c, config.hidden, &EXPERTS, normed)?;
    sparse(c, &mut config, experts)?;
    Decoder::new(&config)
}

/// The experts of a layer.
///
/// # Errors
/// More are chosen than there are.
pub(crate) fn experts(
    c: &Config,
    hidden: i32,
    defaults: &ExpertsDefaults,
    norm_topk_prob: bool,
) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig {
        hidden,
        intermediate: c.size("moe_intermediate_size", Some(defaults.intermediate))?,
        // transformers 5 writes the second name.
        n_experts: match c.value("num_experts") {
            Some(_) => c.size("num_experts", None)?,
            None => c.size("num_local_experts", Some(defaults.n_experts))?,
        },
        top_k: c.size("num_experts_per_tok", Some(defaults.top_k))?,
        norm_topk_prob,
        activation: Activation::parse(&c.or("hidden_act", "silu".to_owned())?)?,
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

/// Gives every `decoder_sparse_step`th layer experts, but not those of `mlp_only_layers`.
///
/// # Errors
/// These are no numbers.
pub(crate) fn sparse(c: &Config, config: &mut DecoderConfig, experts: ExpertsConfig) -> Result<()> {
    let every = c.size("decoder_sparse_step", Some(1))? as usize;
    let dense: Vec<usize> = c.or("mlp_only_layers", Vec::new())?;
    for (layer, mlp) in config.mlps.iter_mut().enumerate() {
        if (layer + 1) % every == 0 && !dense.contains(&layer) {
            *mlp = MlpConfig::Experts(experts);
        }
    }
    Ok(())
}

/// Published files have one tensor for each expert and projection; ours are stacked, as MLX's are.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([Rule::stack(
        "*.mlp.experts.#.*",
        "*.mlp.switch_mlp.*",
    )]))
}

/// The router keeps more bits: small differences of its scores choose other experts.
pub(crate) const BITS: &[(&str, Bits)] = &[("*.mlp.gate", Bits::EightUnlessMixed)];
