//! DeepSeek V4: several residual streams; attention over the last positions and over compressed blocks of all others, all
//! or those that an indexer chooses; experts that tokens choose by their numbers in the first layers.

use mlx_core::Result;
use mlx_nn::{
    CompressedAttention, Correction, ExpertsConfig, ExpertsMlp, LayerKind, StreamMixer, StreamsHead,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::{Config, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::token_bytes::MOST_TOKENS;
use crate::model::{LayerGeometry, kv_heads};

mod layer;
mod sizes;
mod tensors;

use layer::{ExpertTable, V4Ends, V4Layer, V4Mlp};
use sizes::Kind;
pub(crate) use sizes::{experts, ropes};
pub(crate) use tensors::{BITS, common_names, names};

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 129_280,
    hidden: 4096,
    intermediate: 2048,
    layers: 43,
    heads: 64,
    kv_heads: Some(1),
    head_dim: Some(512),
    max_positions: 1_048_576,
    rope: None,
    ..Defaults::LLAMA
};

pub(crate) const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 2048,
    n_experts: 256,
    top_k: 6,
    norm_topk_prob: Some(true),
};

/// Keys that have no effect: the family has no biases, and its head for multi-token prediction is not read.
pub(crate) const IGNORED: &[&str] = &[
    "attention_bias",
    "expert_dtype",
    "initializer_range",
    "intermediate_size",
    "mlp_bias",
    "num_key_value_heads",
    "num_nextn_predict_layers",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "topk_method",
];

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<V4Layer, (), V4Ends>> {
    let c = source.config;
    c.ignore(IGNORED);
    let config = keys::decoder(c, &DEFAULTS)?;
    let n = config.layers.len();
    let (kinds, hashed) = (sizes::kinds(c, n)?, sizes::hashed(c, n)?);
    let [near, of_blocks] = ropes(c, config.attention.head_dim)?;
    let streams = keys::streams(c, &config)?;
    let experts = experts(c, &config, &EXPERTS)?;
    let last = hashed.iter().rposition(|&hashed| hashed);
    if last.is_some() && config.vocab > MOST_TOKENS {
        return Err(c.unsupported(format!("experts by the numbers of {} tokens", config.vocab)));
    }
    let (mut layers, mut geometry) = (Vec::new(), Vec::new());
    for (at, (&kind, &hashed)) in kinds.iter().zip(&hashed).enumerate() {
        let attention = sizes::attention(c, &config, kind)?;
        let rope = if kind == Kind::Near {
            &near
        } else {
            &of_blocks
        };
        let kv = kv_heads(1, attention.head_dim);
        let mut own = LayerGeometry::attention(attention.heads, kv, LayerKind::Latent);
        own.states = attention.states();
        let index = attention.blocks.and_then(|blocks| blocks.index);
        own.index_dim = index.map(|index| index.dim);
        geometry.push(own);
        let of_layer = match hashed {
            true => ExpertsConfig {
                routing: mlx_nn::Routing {
                    correction: Correction::None,
                    ..experts.routing
                },
                ..experts
            },
            false => experts,
        };
        let table =
            hashed.then(|| ExpertTable::new(config.vocab, experts.top_k, experts.n_experts));
        layers.push(V4Layer {
            attn_hc: StreamMixer::empty(streams)?,
            input_layernorm: config.norm()?,
            self_attn: CompressedAttention::empty(attention, rope)?,
            ffn_hc: StreamMixer::empty(streams)?,
            post_attention_layernorm: config.norm()?,
            mlp: V4Mlp {
                experts: ExpertsMlp::empty(of_layer)?,
                table: table.transpose()?,
            },
            width: streams.streams * streams.hidden,
            passes_bytes: last.is_some_and(|last| at < last),
        });
    }
    let around = config.surroundings_of(geometry)?;
    let ends = V4Ends {
        hc_head: StreamsHead::empty(streams)?,
        config: streams,
        bytes: last.is_some(),
    };
    Ok(CausalLm::around(layers, around)?.with_ends(ends))
}

/// The groups of heads that share a projection of their outputs.
pub(crate) fn groups(c: &Config, heads: i32) -> Result<i32> {
    let groups = c.size("o_groups", Some(8))?;
    match heads % groups {
        0 => Ok(groups),
        _ => Err(c.error(format!(
            "num_attention_heads {heads} is not a multiple of o_groups {groups}"
        ))),
    }
}
