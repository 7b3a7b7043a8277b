//! Reading configs: the keys of experts that families have in common.

use mlx_core::Result;
use mlx_nn::{
    ClampedGate, Correction, ExpertsConfig, GroupScore, Groups, Routing, Rule, Rules, Scoring,
    SharedExpert,
};

use super::{activation, types_of};
use crate::config::Config;
use crate::config::plan::{DecoderConfig, MlpConfig};

/// transformers' defaults for the keys of experts that a config leaves out.
pub(crate) struct ExpertsDefaults {
    /// The key of the features inside an expert, and its default.
    pub intermediate_key: &'static str,
    pub intermediate: i32,
    pub n_experts: i32,
    pub top_k: i32,
    /// Whether the weights of the chosen experts are divided by their sum; `None` if the key
    /// `norm_topk_prob` decides.
    pub norm_topk_prob: Option<bool>,
}

/// The names of the key for the number of experts. For some families transformers reads all four.
/// It writes the second.
const KEYS: [&str; 4] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// The experts of a config, without a shared one.
///
/// # Errors
/// Sizes do not fit each other.
pub(crate) fn experts(
    c: &Config,
    hidden: i32,
    defaults: &ExpertsDefaults,
) -> Result<ExpertsConfig> {
    // `moe_k` is the name in ERNIE. The usual name takes precedence.
    let key = match c.value("num_experts_per_tok") {
        Some(_) => "num_experts_per_tok",
        None => "moe_k",
    };
    let top_k = c.size(key, Some(defaults.top_k))?;
    c.ignore(&["moe_k"]);
    experts_of(c, hidden, defaults, top_k)
}

/// [`experts`] with this number of experts for each token.
///
/// # Errors
/// The same as those of [`experts`].
pub(crate) fn experts_of(
    c: &Config,
    hidden: i32,
    defaults: &ExpertsDefaults,
    top_k: i32,
) -> Result<ExpertsConfig> {
    let experts = ExpertsConfig {
        hidden,
        intermediate: c.size(defaults.intermediate_key, Some(defaults.intermediate))?,
        n_experts: match KEYS.iter().find(|key| c.value(key).is_some()) {
            Some(key) => c.size(key, None)?,
            None => defaults.n_experts,
        },
        n_identities: 0,
        top_k,
        routing: Routing::softmax(match defaults.norm_topk_prob {
            Some(always) => always,
            None => c.or("norm_topk_prob", false)?,
        }),
        activation: activation(c, "hidden_act", "silu")?,
        clamp: None,
        bias: false,
        scales_inputs: false,
        shared: None,
        ungated: None,
        output_scale: None,
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
/// The value of a key has another type.
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

/// transformers' defaults for the keys of experts of DeepSeek's kind.
pub(crate) struct DeepSeekExperts {
    pub experts: ExpertsDefaults,
    pub scoring: Scoring,
    /// The correction bias that is added to the scores when experts are chosen.
    pub correction: Correction,
    /// The default of `norm_topk_prob`; `None` if the key has no effect.
    pub normed: Option<bool>,
    /// The number of dense layers at the start.
    pub dense: usize,
    /// The number of groups, the number of groups that a token may use, and how a group is scored.
    pub groups: Option<(i32, i32, GroupScore)>,
    pub scale: f64,
    pub shared: i32,
}

impl DeepSeekExperts {
    /// Experts of DeepSeek-V3's form, without groups.
    pub(crate) const fn corrected(experts: ExpertsDefaults, normed: bool, dense: usize) -> Self {
        Self {
            experts,
            scoring: Scoring::Sigmoid,
            correction: Correction::Vector,
            normed: Some(normed),
            dense,
            groups: Some((1, 1, GroupScore::TwoBest)),
            scale: 1.0,
            shared: 1,
        }
    }
}

/// Experts of DeepSeek-V3's form (arXiv:2412.19437): groups, a shared expert without a gate, and dense layers at the
/// start.
///
/// # Errors
/// Sizes do not fit each other.
pub(crate) fn deepseek_experts(
    c: &Config,
    config: &mut DecoderConfig,
    defaults: &DeepSeekExperts,
) -> Result<()> {
    let experts = routed_experts(c, config.hidden, defaults)?;
    let first: usize = c.or("first_k_dense_replace", defaults.dense)?;
    for mlp in config.feed_forward.iter_mut().skip(first) {
        *mlp = MlpConfig::Experts(experts);
    }
    Ok(())
}

/// [`deepseek_experts`] in the layers that `mlp_layer_types` calls sparse. Without the key, all
/// layers after the first `dense` have experts.
///
/// # Errors
/// The same as those of [`deepseek_experts`], or an unknown type.
pub(crate) fn deepseek_experts_by_types(
    c: &Config,
    config: &mut DecoderConfig,
    defaults: &DeepSeekExperts,
    dense: usize,
) -> Result<()> {
    let experts = routed_experts(c, config.hidden, defaults)?;
    experts_by_types(c, config, experts, |layer| layer >= dense)
}

/// Gives experts to the layers that `mlp_layer_types` calls sparse. Without the key `fallback` says
/// which layers have them.
///
/// # Errors
/// A type is unknown, or the list has another length than the number of layers.
pub(crate) fn experts_by_types(
    c: &Config,
    config: &mut DecoderConfig,
    experts: ExpertsConfig,
    fallback: impl Fn(usize) -> bool,
) -> Result<()> {
    const KNOWN: [(&str, bool); 2] = [("dense", false), ("sparse", true)];
    let n = config.feed_forward.len();
    let kinds = types_of(c, "mlp_layer_types", n, KNOWN, fallback)?;
    for (mlp, sparse) in config.feed_forward.iter_mut().zip(kinds) {
        if sparse {
            *mlp = MlpConfig::Experts(experts);
        }
    }
    Ok(())
}

/// The experts of DeepSeek-V3's form, for one layer.
///
/// # Errors
/// The same as those of [`deepseek_experts`].
pub(crate) fn routed_experts(
    c: &Config,
    hidden: i32,
    defaults: &DeepSeekExperts,
) -> Result<ExpertsConfig> {
    let mut experts = experts(c, hidden, &defaults.experts)?;
    experts.routing = Routing {
        scoring: defaults.scoring,
        softcap: None,
        correction: defaults.correction,
        groups: groups(c, &experts, defaults.groups)?,
        norm_topk_prob: match defaults.normed {
            Some(normed) => c.or("norm_topk_prob", normed)?,
            None => {
                c.ignore(&["norm_topk_prob"]);
                false
            }
        },
        least_sum: 0.0,
        added_to_sum: 0.0,
        scale: Some(c.positive("routed_scaling_factor", Some(defaults.scale))? as f32),
    };
    let shared = c.size("n_shared_experts", Some(defaults.shared))?;
    experts.shared = shared_expert(&experts, shared);
    Ok(experts)
}

/// The routing of DeepSeek-V3's form of experts.
///
/// # Errors
/// Sizes do not fit each other.
pub(crate) fn corrected_routing(
    c: &Config,
    experts: &ExpertsConfig,
    normed: bool,
) -> Result<Routing> {
    Ok(Routing {
        scoring: Scoring::Sigmoid,
        softcap: None,
        correction: Correction::Vector,
        groups: groups(c, experts, Some((1, 1, GroupScore::TwoBest)))?,
        norm_topk_prob: c.or("norm_topk_prob", normed)?,
        least_sum: 0.0,
        added_to_sum: 0.0,
        scale: Some(c.positive("routed_scaling_factor", Some(1.0))? as f32),
    })
}

/// The gate whose inputs are bounded by `swiglu_limit`.
///
/// # Errors
/// The limit is not a positive number.
pub(crate) fn bounded_gate(c: &Config, default: f64) -> Result<ClampedGate> {
    Ok(ClampedGate {
        rounds: false,
        alpha: 1.0,
        limit: c.positive("swiglu_limit", Some(default))? as f32,
        shift: 0.0,
        bounds_result: false,
        activation: None,
    })
}

/// A shared expert without a gate, of the size of `n` other experts.
pub(crate) fn shared_expert(experts: &ExpertsConfig, n: i32) -> Option<SharedExpert> {
    Some(SharedExpert {
        intermediate: n * experts.intermediate,
        bias: false,
        gate: false,
        clamp: None,
    })
}

/// The groups of experts, if the config has several.
fn groups(
    c: &Config,
    experts: &ExpertsConfig,
    defaults: Option<(i32, i32, GroupScore)>,
) -> Result<Option<Groups>> {
    let Some((n, top, score)) = defaults else {
        return Ok(None);
    };
    let n = c.size("n_group", Some(n))?;
    let top = c.size("topk_group", Some(top))?;
    let size = experts.n_experts / n;
    if experts.n_experts % n != 0 || top > n || top * size < experts.top_k {
        return Err(c.error(format!(
            "{} of {} experts cannot be chosen from {top} of {n} groups",
            experts.top_k, experts.n_experts
        )));
    }
    if n > 1 && size < 2 && score == GroupScore::TwoBest {
        return Err(c.error(format!("n_group {n} leaves groups of one expert")));
    }
    Ok((n > 1).then_some(Groups { n, top, score }))
}

/// The rules for the names of DeepSeek's form of experts.
pub(crate) fn deepseek_expert_names() -> Rules {
    Rules::from([
        Rule::rename(
            "*.mlp.gate.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        )
        .written(),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*").written(),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ])
    .and(&joined_expert_names())
}

/// The rules for transformers' two tensors with the matrices of all experts of a layer.
pub(crate) fn joined_expert_names() -> Rules {
    Rules::from([
        Rule::split(
            "*.mlp.experts.gate_up_proj",
            1,
            [
                ("*.mlp.switch_mlp.gate_proj.weight", 1),
                ("*.mlp.switch_mlp.up_proj.weight", 1),
            ],
        ),
        Rule::rename(
            "*.mlp.experts.down_proj",
            "*.mlp.switch_mlp.down_proj.weight",
        ),
    ])
}
