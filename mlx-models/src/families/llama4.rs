//! Llama 4: layers with rope attend within chunks of positions, layers without rope scale queries by their position;
//! experts with scaled inputs beside a shared expert. Also the text tower of the multimodal checkpoints.

use mlx_core::Result;
use mlx_nn::{ExpertsConfig, Growth, LayerKind, QkNorm, QkPlace, Routing, Rule, Rules, Scoring};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 202_048,
    hidden: 5120,
    intermediate: 8192,
    layers: 48,
    heads: 40,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 500_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 8192,
    n_experts: 16,
    top_k: 1,
    norm_topk_prob: Some(false),
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    // The noise is for training only; `for_llm_compressor` is the key of a quantising program.
    c.ignore(&["router_jitter_noise", "for_llm_compressor"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    let n = config.layers.len();
    let has_rope = keys::has_rope(c, n, true)?;
    let chunk = c.size("attention_chunk_size", Some(8192))?;
    let chunked = keys::kind(Some(chunk));
    let known = [
        ("chunked_attention", chunked),
        ("full_attention", LayerKind::Full),
    ];
    config.layers = keys::layer_types(c, n, known, |layer| match has_rope[layer] {
        true => chunked,
        false => LayerKind::Full,
    })?;
    config.attention.chunk = Some(chunk as usize);
    for (rope, has_rope) in config.ropes.iter_mut().zip(&has_rope) {
        *rope = rope.take().filter(|_| *has_rope);
    }
    if c.or("use_qk_norm", true)? {
        config.attention.qk_norm = Some(QkNorm {
            place: QkPlace::RotatedUnweighted,
            ..QkNorm::heads(config.norm.eps, 0.0)
        });
    }
    let growth = Growth {
        beta: c.or("attn_scale", 0.1)?,
        period: c.positive("floor_scale", Some(8192.0))? as f32,
        shift: 1.0,
        unrotated: true,
    };
    config.attention.query_growth = Some(growth).filter(|_| truthy(c, "attn_temperature_tuning"));
    let experts = experts(c, config.hidden)?;
    let dense = c.size("intermediate_size_mlp", Some(16_384))?;
    let sparse = sparse(c, n)?;
    for (layer, mlp) in config.feed_forward.iter_mut().enumerate() {
        match mlp {
            _ if sparse.contains(&layer) => *mlp = MlpConfig::Experts(experts),
            MlpConfig::Dense { intermediate, .. } => *intermediate = dense,
            _ => {}
        }
    }
    Decoder::new(&config)
}

/// Whether the value is true or a number that is not 0. Published configs have
/// `attn_temperature_tuning` as a bool or as a number.
fn truthy(c: &Config, key: &str) -> bool {
    match c.value(key) {
        Some(value) => *value != false && *value != 0,
        None => true,
    }
}

/// The layers with experts.
fn sparse(c: &Config, n: usize) -> Result<Vec<usize>> {
    let every = c.size("interleave_moe_layer_step", Some(1))? as usize;
    Ok(match c.opt("moe_layers")? {
        Some(layers) => layers,
        None => (every - 1..n).step_by(every).collect(),
    })
}

fn experts(c: &Config, hidden: i32) -> Result<ExpertsConfig> {
    let experts = keys::experts(c, hidden, &EXPERTS)?;
    Ok(ExpertsConfig {
        routing: Routing {
            scoring: Scoring::Sigmoid,
            ..experts.routing
        },
        scales_inputs: true,
        shared: keys::shared_expert(&experts, 1),
        ..experts
    })
}

/// In published files the matrices of experts are `[in, out]`. The gate and up projections are the
/// halves of one tensor.
pub(crate) fn names(_: &Source<'_>) -> Result<Rules> {
    let halves = [
        ("*.switch_mlp.gate_proj.weight", 1),
        ("*.switch_mlp.up_proj.weight", 1),
    ];
    Ok(Rules::from([
        Rule::rename("*.feed_forward.router.*", "*.mlp.gate.*").written(),
        Rule::rename("*.feed_forward.experts.*", "*.mlp.switch_mlp.*").written(),
        Rule::rename("*.feed_forward.*", "*.mlp.*").written(),
        Rule::transpose("*.switch_mlp.gate_up_proj", &[0, 2, 1]),
        Rule::transpose("*.switch_mlp.down_proj", &[0, 2, 1]),
        Rule::split("*.switch_mlp.gate_up_proj", 1, halves),
        Rule::rename("*.switch_mlp.down_proj", "*.switch_mlp.down_proj.weight"),
    ]))
}
