//! Qwen 4: several residual streams; gated delta rules; attention over blocks of positions that an indexer chooses;
//! features of hashed n-grams; experts and a shared expert.

use mlx_core::Result;
use mlx_nn::{
    Activation, Attention, AttentionConfig, DeltaConfig, GatedStreams, LayerKind, NormConfig,
    NormKind, Recurrence, Rope, StreamsConfig,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::{CausalLm, Surroundings};
use crate::decoders::ngrams::NgramFeatures;
use crate::families::{qwen3_5, qwen3_5_moe};
use crate::model::LayerGeometry;

mod layer;
mod sizes;
mod tensors;

use layer::{Qwen4Ends, Qwen4Layer};
use sizes::{index, ngrams};
pub(crate) use tensors::{BITS, names};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 248_320,
    hidden: 2048,
    intermediate: 512,
    layers: 40,
    heads: 16,
    kv_heads: Some(2),
    head_dim: Some(256),
    max_positions: 32_768,
    rope: Some(Dialect::Partial(1.0)),
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 512,
    n_experts: 512,
    top_k: 10,
    norm_topk_prob: None,
};

type Qwen4 = CausalLm<Qwen4Layer, (), Qwen4Ends>;

pub(crate) fn load(source: &Source<'_>) -> Result<Qwen4> {
    let c = source.config;
    let config = decoder(c)?;
    let streams = StreamsConfig {
        hidden: config.hidden,
        streams: c.size("hc_count", Some(4))?,
        norm_eps: config.norm.eps,
        eps: 0.0,
        magnitude: 2.0,
        shifted: false,
        rounds: None,
    };
    if !(2..=64).contains(&streams.streams) {
        return Err(c.error(format!(
            "hc_count must be from 2 to 64, found {}",
            streams.streams
        )));
    }
    let rank = c.size("hc_lowrank", Some(320))?;
    let ngrams = ngrams(c, &config, streams.streams)?;
    let last = ngrams.iter().rposition(Option::is_some);
    let index = index(c, &config)?;
    let (mut layers, mut geometry) = (Vec::new(), Vec::new());
    for (at, &kind) in config.layers.iter().enumerate() {
        let (self_attn, linear_attn, mut own) = match (kind, config.recurrence) {
            (LayerKind::Recurrent(shape), Some(rule)) => {
                let rule = Recurrence::empty(rule)?;
                (None, Some(rule), LayerGeometry::recurrent(shape))
            }
            _ => {
                let rope = config.ropes[at].as_ref();
                let rope = rope.map(|rope| Rope::new(rope, config.attention.head_dim));
                let of = AttentionConfig {
                    index: Some(index),
                    ..config.attention_config()
                };
                let attention = Attention::empty(&of, rope.transpose()?)?;
                let own = LayerGeometry::attention(config.attention.heads, config.kv(), kind);
                (Some(attention), None, own.with_index(index.dim))
            }
        };
        own.states
            .extend(ngrams[at].iter().flat_map(|sizes| sizes.states()));
        geometry.push(own);
        layers.push(Qwen4Layer {
            ple: ngrams[at].map(NgramFeatures::new).transpose()?,
            attn_hyper_connection: GatedStreams::empty(streams, rank, true)?,
            self_attn,
            linear_attn,
            mlp_hyper_connection: GatedStreams::empty(streams, rank, true)?,
            mlp: config.mlp(&config.feed_forward[at])?,
            width: streams.streams * streams.hidden,
            passes_bytes: last.is_some_and(|last| at < last),
        });
    }
    let around = Surroundings {
        norm: NormConfig {
            kind: NormKind::Absent,
            eps: config.norm.eps,
        },
        ..config.surroundings_of(geometry)?
    };
    let ends = Qwen4Ends {
        hyper_connection_mixer: GatedStreams::empty(streams, rank, false)?,
        config: streams,
        bytes: last.is_some(),
    };
    Ok(CausalLm::around(layers, around)?.with_ends(ends))
}

/// The decoder's layers, without streams, n-grams and indexers.
fn decoder(c: &Config) -> Result<DecoderConfig> {
    const FULL: LayerKind = LayerKind::Full;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let gate = match c.opt::<String>("output_gate_type")? {
        Some(name) => name,
        None => c.or("hidden_act", "silu".to_owned())?,
    };
    let delta = DeltaConfig {
        output_gate: match gate.as_str() {
            "silu" => Activation::Silu,
            "sigmoid" => Activation::Sigmoid,
            other => {
                return Err(c.unsupported(format!(
                    "output_gate_type {other:?} is not supported; known: silu, sigmoid"
                )));
            }
        },
        ..qwen3_5::delta(c, config.hidden, config.norm.eps)?
    };
    let known = [
        ("full_attention", FULL),
        ("indexed_attention", FULL),
        ("linear_attention", delta.kind()),
    ];
    qwen3_5::mixers(c, &mut config, delta, known)?;
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.routing.norm_topk_prob = c.or("norm_topk_prob", true)?;
    let experts = qwen3_5_moe::with_shared(c, experts)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    c.ignore(&[
        "attn_output_gate",
        "initializer_range",
        "number_of_conv_states",
        "mamba_ssm_dtype",
        "mlp_only_layers",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "output_router_logits",
        "router_aux_loss_coef",
        "split_ngram_parts",
        "use_sliding_window",
    ]);
    Ok(config)
}
