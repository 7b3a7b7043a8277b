//! Hunyuan 4: several residual streams; latent attention with sinks and a gate, over the positions that the indexers of
//! some layers choose; experts with bounded gates.

use mlx_core::Result;
use mlx_nn::{GateFunction, HeadGate, IndexConfig, Rule, Rules, StreamsConfig};

use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::streams::{self, StreamsDecoder};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 120_832,
    hidden: 2816,
    intermediate: 6912,
    layers: 34,
    heads: 32,
    max_positions: 262_144,
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

const SIZES: LatentDefaults = LatentDefaults {
    query_rank: 1536,
    rank: 512,
    plain_dim: 192,
    rope_dim: 64,
    value_dim: 256,
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scale: 2.827,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 768,
            n_experts: 256,
            top_k: 8,
            norm_topk_prob: None,
        },
        true,
        1,
    )
};

/// Keys of published files that transformers does not read for results.
const IGNORED: &[&str] = &[
    "enable_lm_head_fp32",
    "first_k_dense_replace",
    "layer_types",
    "learnable_sink_init",
    "num_nextn_predict_layers",
    "output_router_logits",
];

pub(crate) fn load(source: &Source<'_>) -> Result<StreamsDecoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::latent(source, &DEFAULTS, &SIZES)?;
    let layers = config.layers.len();
    if let Some(latent) = &mut config.attention.latent {
        latent.sinks = true;
        latent.gate = Some(HeadGate {
            by_feature: true,
            function: GateFunction::Sigmoid,
        });
        let index = IndexConfig {
            heads: c.size("index_n_heads", Some(16))?,
            dim: c.size("index_head_dim", Some(128))?,
            top: c.size("index_topk", Some(2048))?,
            interleaved: false,
            rotates_end: true,
            norm_eps: config.norm.eps,
            pool: None,
        };
        keys::check_index(c, &index, latent.rope_dim)?;
        latent.index = Some(index);
    }
    config.attention.shares_index = shared(c, layers)?;
    keys::deepseek_experts_by_types(c, &mut config, &EXPERTS, EXPERTS.dense)?;
    let bound = keys::bounded_gate(c, 10.0)?;
    for mlp in &mut config.feed_forward {
        if let MlpConfig::Experts(experts) = mlp {
            experts.clamp = Some(bound);
        }
    }
    let streams = StreamsConfig {
        magnitude: c.positive("hc_magnitude", Some(2.0))? as f32,
        shifted: true,
        rounds: None,
        ..keys::streams(c, &config)?
    };
    streams::decoder(&config, streams, true)
}

/// For each layer, whether it uses the choice of an earlier indexer.
fn shared(c: &Config, n: usize) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 2] = [("full", false), ("shared", true)];
    let by_default = |layer: usize| layer > 0 && !(layer - 1).is_multiple_of(4);
    let shared = keys::types_of(c, "indexer_types", n, KNOWN, by_default)?;
    if shared.first() == Some(&true) {
        return Err(c.error("the first layer has no earlier one whose choice it could take"));
    }
    Ok(shared)
}

/// The names of published files, of those that transformers 5 keeps in memory, and of those that it writes: `hc_pre`
/// at another place, and every `gate_proj` as `linear_gate`.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::drop("model.mtp_layers.*", "a head for multi-token prediction"),
        Rule::rename("*.hc_pre.hc_*", "*.hc_*"),
        Rule::rename("*.hc_attn_layer.hc_*", "*.attn_hc.*"),
        Rule::rename("*.hc_mlp_layer.hc_*", "*.ffn_hc.*"),
        Rule::rename("model.hc_head.hc_head_*", "model.hc_head.hc_*"),
        Rule::rename("*.self_attn.learnable_sink_param", "*.self_attn.sinks"),
        Rule::rename("*.linear_gate.*", "*.gate_proj.*"),
        Rule::rename("*_hc.fn", "*_hc.mix").written(),
        Rule::rename("model.hc_head.hc_fn", "model.hc_head.mix").written(),
        Rule::rename("model.hc_head.hc_base", "model.hc_head.base").written(),
        Rule::rename("model.hc_head.hc_scale", "model.hc_head.scale").written(),
        Rule::rename("*.self_attn.gate_proj.*", "*.self_attn.g_proj.*").written(),
    ])
    .and(&keys::deepseek_expert_names()))
}
