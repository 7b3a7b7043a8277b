//! Command A+: Cohere's parallel decoder with windows and experts, some of which every token uses.

use mlx_core::Result;
use mlx_nn::{LayerKind, Rules, Scoring};

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{MlpConfig, NormPlan};
use crate::config::rope::{self, Dialect, RopeDefaults};
use crate::decoders::parallel_residual::ParallelResidual;
use crate::families::{cohere, cohere2};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    head_dim: Some(128),
    rope: None,
    ..cohere::DEFAULTS
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 22_528,
    n_experts: 8,
    top_k: 2,
    // The softmax is over the chosen experts only, which gives the same weights.
    norm_topk_prob: Some(true),
};

pub(crate) fn load(source: &Source<'_>) -> Result<ParallelResidual> {
    let c = source.config;
    c.ignore(cohere2::IGNORED);
    c.ignore(&["output_router_logits"]);
    let mut config = cohere::config(c, &DEFAULTS)?;
    // transformers reads `rope_parameters`, and `rope_theta` without them.
    let rope = rope::rope_of_parameters(
        c,
        RopeDefaults {
            base: 10_000.0,
            head_dim: config.attention.head_dim,
            max_positions: c.size("max_position_embeddings", Some(DEFAULTS.max_positions))?,
            dialect: Dialect::Plain,
            interleaved: true,
        },
    )?;
    config.max_positions = rope::context(&rope, config.max_positions);
    config.ropes.fill(Some(rope));
    if let Some(eps) = c.opt::<f64>("rms_norm_eps")? {
        config.norm = NormPlan::rms(eps as f32);
    }
    let dense: usize = c.or("first_k_dense_replace", 0)?;
    let prefix_every = c.size("prefix_dense_sliding_window_pattern", Some(1))? as usize;
    let every = c.size("sliding_window_pattern", Some(4))? as usize;
    let window = keys::window(c, Some(4096))?;
    let n = config.layers.len();
    // The pattern of the layers with experts begins after the dense ones.
    config.layers = keys::layer_kinds(c, n, window, |layer| match layer.checked_sub(dense) {
        Some(layer) => (layer + 1) % every != 0,
        None => (layer + 1) % prefix_every != 0,
    })?;
    if c.value("prefix_dense_intermediate_size").is_some() {
        let size = c.size("prefix_dense_intermediate_size", None)?;
        keys::set_intermediate(&mut config, size);
    }
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    match c.or("expert_selection_fn", "softmax".to_owned())?.as_str() {
        "softmax" => c.ignore(&["norm_topk_prob"]),
        "sigmoid" => {
            experts.routing.scoring = Scoring::Sigmoid;
            experts.routing.norm_topk_prob = c.or("norm_topk_prob", true)?;
        }
        other => {
            return Err(c.unsupported(format!(
                "expert_selection_fn {other:?} is not supported; known: softmax, sigmoid"
            )));
        }
    }
    let strategy = c.or("shared_expert_combination_strategy", "average".to_owned())?;
    let shared: i32 = c.or("num_shared_experts", 0)?;
    if shared > 0 {
        experts.shared = keys::shared_expert(&experts, shared);
        experts.output_scale = match strategy.as_str() {
            "average" => Some(0.5),
            "sum" => None,
            other => {
                return Err(c.unsupported(format!(
                    "shared_expert_combination_strategy {other:?} is not supported; known: average, sum"
                )));
            }
        };
    }
    keys::experts_by_types(c, &mut config, experts, |layer| layer >= dense)?;
    // Layers without a window have no rope, except dense ones if all of them have no window.
    let kinds = config.layers.iter().zip(&config.feed_forward);
    for (rope, (kind, mlp)) in config.ropes.iter_mut().zip(kinds) {
        let is_dense = !matches!(mlp, MlpConfig::Experts(_));
        let keeps = *kind != LayerKind::Full || is_dense && prefix_every == 1;
        *rope = rope.take().filter(|_| keeps);
    }
    ParallelResidual::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(keys::deepseek_expert_names())
}
