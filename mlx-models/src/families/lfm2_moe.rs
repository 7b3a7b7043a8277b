//! LFM2 with experts after a few dense layers. Sigmoids with a correction bias choose the experts.

use mlx_core::Result;
use mlx_nn::{Activation, Correction, Routing, Rule, Rules, Scoring};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::lfm2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    hidden: 2048,
    intermediate: 7168,
    ..lfm2::DEFAULTS
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1792,
    n_experts: 32,
    top_k: 4,
    norm_topk_prob: Some(true),
};

/// What the sum of the chosen probabilities is increased by. No config has a key for it.
const ADDED_TO_SUM: f32 = 1e-6;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = lfm2::config(c, &DEFAULTS)?;
    if c.value("layer_types").is_none() {
        return Err(c.error("layer_types is missing"));
    }
    lfm2::set_layers(c, &mut config, |_| true)?;
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.activation = Activation::Silu;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: match is_corrected(c)? {
            true => Correction::Vector,
            false => Correction::None,
        },
        norm_topk_prob: c.or("norm_topk_prob", true)?,
        added_to_sum: ADDED_TO_SUM,
        scale: Some(c.positive("routed_scaling_factor", Some(1.0))? as f32),
        ..experts.routing
    };
    let dense: usize = c.or("num_dense_layers", 2)?;
    for mlp in config.feed_forward.iter_mut().skip(dense) {
        *mlp = MlpConfig::Experts(experts);
    }
    Decoder::new(&config)
}

fn is_corrected(c: &Config) -> Result<bool> {
    c.or("use_expert_bias", true)
}

/// Files of MLX have other names for the parts of MLPs than published files, and stacked experts.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let own = Rules::from([
        Rule::stack("*.feed_forward.experts.#.*", "*.feed_forward.switch_mlp.*"),
        Rule::rename("*.w1.weight", "*.gate_proj.weight"),
        Rule::rename("*.w2.weight", "*.down_proj.weight"),
        Rule::rename("*.w3.weight", "*.up_proj.weight"),
        Rule::rename("*.feed_forward.*", "*.mlp.*").written(),
        Rule::rename("*.mlp.expert_bias", "*.mlp.e_score_correction_bias").written(),
    ]);
    let unused = Rule::drop("*.mlp.e_score_correction_bias", "use_expert_bias is false");
    let unused = (!is_corrected(source.config)?).then_some(unused);
    let own = own.and(&Rules::from(unused));
    Ok(own.and(&lfm2::layer_names(source)?))
}
