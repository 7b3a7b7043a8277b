//! gpt-oss (arXiv:2508.10925): sinks, a window on every second layer, and experts with biases and a clamped gate.

use mlx_core::Result;
use mlx_nn::{ClampedGate, ExpertsConfig, RopeScaling, Rule, Rules};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::config::rope::context;
use crate::config::{Bits, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 201_088,
    hidden: 2880,
    intermediate: 2880,
    layers: 36,
    heads: 64,
    kv_heads: Some(8),
    head_dim: Some(64),
    max_positions: 131_072,
    norm_eps: 1e-5,
    theta: 150_000.0,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 2880,
    n_experts: 128,
    top_k: 4,
    // The family computes a softmax over the chosen experts only, which gives the same weights.
    norm_topk_prob: Some(true),
};

/// The rope of a config that has none.
const YARN: RopeScaling = RopeScaling::Yarn {
    factor: 32.0,
    original: 4096.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    amplitude: 1.346_573_590_279_972_7,
    truncate: false,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    // The gate's form is fixed, so `hidden_act` has no effect. The other keys are older names.
    c.ignore(&["hidden_act", "experts_per_token", "initial_context_length"]);
    let has_rope = ["rope_scaling", "rope_parameters"].map(|key| c.value(key).is_some());
    if has_rope == [false, false] {
        for rope in config.ropes.iter_mut().flatten() {
            rope.scaling = YARN;
            config.max_positions = context(rope, config.max_positions);
        }
    }
    let bias = c.or("attention_bias", true)?;
    (config.attention.qkv_bias, config.attention.out_bias) = (bias, bias);
    config.attention.sinks = true;
    let window = keys::window(c, Some(128))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| layer.is_multiple_of(2))?;
    let experts = ExpertsConfig {
        bias: true,
        clamp: Some(ClampedGate {
            rounds: false,
            alpha: c.positive("swiglu_alpha", Some(1.702))? as f32,
            limit: c.positive("swiglu_limit", Some(7.0))? as f32,
            shift: 1.0,
            bounds_result: false,
            activation: None,
        }),
        ..keys::experts(c, config.hidden, &EXPERTS)?
    };
    config.feed_forward.fill(MlpConfig::Experts(experts));
    Decoder::new(&config)
}

/// In published files the gate and up projections of an expert are one matrix, whose rows
/// alternate: packed as `blocks` of bytes with `scales`, or dense as `[in, out]`. MLX's files have
/// two matrices.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let features = source
        .config
        .size("intermediate_size", Some(DEFAULTS.intermediate))?;
    let gate_up = [
        ("*.switch_mlp.gate_proj.*", 1),
        ("*.switch_mlp.up_proj.*", 1),
    ];
    Ok(Rules::from([
        Rule::rename("*.mlp.router.*", "*.mlp.gate.*").written(),
        Rule::rename("*.mlp.experts.*", "*.mlp.switch_mlp.*").written(),
        Rule::transpose("*.switch_mlp.gate_up_proj", &[0, 2, 1]),
        Rule::transpose("*.switch_mlp.down_proj", &[0, 2, 1]),
        Rule::rename(
            "*.switch_mlp.gate_up_proj",
            "*.switch_mlp.gate_up_proj.weight",
        ),
        Rule::rename("*.switch_mlp.down_proj", "*.switch_mlp.down_proj.weight"),
        Rule::words("*.switch_mlp.*_proj_blocks"),
        Rule::rename("*.switch_mlp.*_proj_blocks", "*.switch_mlp.*_proj.weight"),
        Rule::rename("*.switch_mlp.*_proj_scales", "*.switch_mlp.*_proj.scales"),
        Rule::rename("*.switch_mlp.*_proj_bias", "*.switch_mlp.*_proj.bias"),
        Rule::split("*.switch_mlp.gate_up_proj.*", features, gate_up),
    ]))
}

/// The router keeps more bits, as in mlx-lm.
pub(crate) const BITS: &[(&str, Bits)] = &[("*.mlp.gate", Bits::EightUnlessMixed)];
