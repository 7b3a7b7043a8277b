//! Jamba (arXiv:2403.19887): scans of the first Mamba and a few attention layers without a rope,
//! experts in every second layer.

use mlx_core::Result;
use mlx_nn::{LayerKind, RecurrenceConfig, Rule, Rules, SelectiveConfig, SelectiveNorms};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Bits, Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::mamba;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 65_536,
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 262_144,
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 14_336,
    n_experts: 16,
    top_k: 2,
    norm_topk_prob: Some(false),
};

/// Keys that choose between equal forms, and those that transformers computes from others.
const IGNORED: &[&str] = &[
    "calc_logits_for_entire_prompt",
    "layer_types",
    "layers_block_type",
    "layers_num_experts",
    "mamba_inner_layernorms",
    "num_logits_to_keep",
    "sliding_window",
    "use_associative_scan",
    "use_mamba_kernels",
    "use_mambapy",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let scan = scan(c, &config)?;
    config.recurrence = Some(RecurrenceConfig::Selective(scan));
    let attends = every(c, ["attn_layer_period", "attn_layer_offset"], [8, 4])?;
    for (layer, kind) in config.layers.iter_mut().enumerate() {
        *kind = match attends(layer) {
            true => LayerKind::Full,
            false => scan.kind(),
        };
    }
    let experts = keys::experts(c, config.hidden, &EXPERTS);
    let sparse = every(c, ["expert_layer_period", "expert_layer_offset"], [2, 1])?;
    // A single expert is a dense MLP.
    if c.or("num_experts", 16)? > 1 {
        let experts = experts?;
        for (layer, mlp) in config.feed_forward.iter_mut().enumerate() {
            if sparse(layer) {
                *mlp = MlpConfig::Experts(experts);
            }
        }
    }
    Decoder::new(&config)
}

fn scan(c: &Config, config: &DecoderConfig) -> Result<SelectiveConfig> {
    Ok(SelectiveConfig {
        hidden: config.hidden,
        inner: mamba::inner(c, config.hidden, c.size("mamba_expand", Some(2))?)?,
        state: c.size("mamba_d_state", Some(16))?,
        rank: mamba::rank(c, "mamba_dt_rank", config.hidden)?,
        taps: keys::taps(c, "mamba_d_conv", 4)?,
        bias: c.or("mamba_proj_bias", false)?,
        conv_bias: c.or("mamba_conv_bias", true)?,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norms: Some(SelectiveNorms {
            eps: config.norm.eps,
            weights: true,
        }),
    })
}

/// Whether a layer is one of those at `offset` within each period.
fn every(
    c: &Config,
    [period_key, offset_key]: [&str; 2],
    [period, offset]: [usize; 2],
) -> Result<impl Fn(usize) -> bool> {
    let period = c.size(period_key, Some(period as i32))? as usize;
    let offset: usize = c.or(offset_key, offset)?;
    if offset >= period {
        return Err(c.error(format!(
            "{offset_key} {offset} must be less than {period_key} {period}"
        )));
    }
    Ok(move |layer| layer % period == offset)
}

/// Published names. Files of MLX have stacked experts.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let conv = keys::convolutions(source.tensors, ".conv1d.weight")?;
    let gate_up = [
        ("*.feed_forward.switch_mlp.gate_proj.weight", 1),
        ("*.feed_forward.switch_mlp.up_proj.weight", 1),
    ];
    let rules = [
        Rule::stack("*.feed_forward.experts.#.*", "*.feed_forward.switch_mlp.*"),
        Rule::split("*.feed_forward.experts.gate_up_proj", 1, gate_up),
        Rule::rename(
            "*.feed_forward.experts.down_proj",
            "*.feed_forward.switch_mlp.down_proj.weight",
        ),
        Rule::rename("*.feed_forward.router.*", "*.feed_forward.gate.*").written(),
        Rule::rename("model.final_layernorm.*", "model.norm.*").written(),
        Rule::rename("*.mamba.*", "*.linear_attn.*").written(),
        Rule::rename("*.pre_ff_layernorm.*", "*.post_attention_layernorm.*").written(),
        Rule::rename("*.feed_forward.*", "*.mlp.*").written(),
    ];
    Ok(Rules::from(conv.into_iter().chain(rules)))
}

/// The router keeps more bits, as in mlx-lm.
pub(crate) const BITS: &[(&str, Bits)] = &[("*.mlp.gate", Bits::EightUnlessMixed)];
