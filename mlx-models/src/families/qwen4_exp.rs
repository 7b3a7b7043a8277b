//! Qwen 4: several residual streams; gated delta rules; attention over blocks of positions that an indexer chooses;
//! features of hashed n-grams; experts and a shared expert.

use mlx_core::Result;
use mlx_nn::{
    Activation, Attention, AttentionConfig, BlockIndexConfig, DeltaConfig, GatedStreams, LayerKind,
    NormConfig, NormKind, QkNorm, Recurrence, RecurrenceConfig, Rope, Rule, Rules, StreamsConfig,
};
use serde_json::Value;

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::rope::Dialect;
use crate::config::{Bits, Config, Source};
use crate::decoders::causal_lm::{CausalLm, Surroundings};
use crate::decoders::ngrams::{NgramFeatures, NgramSizes};
use crate::families::{qwen3_5, qwen3_5_moe};
use crate::model::LayerGeometry;

mod layer;

use layer::{Qwen4Ends, Qwen4Layer};

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
    let has_bytes = |before: usize| last.is_some_and(|last| before <= last);
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
        own.states.extend(ngrams[at].map(|sizes| sizes.kind()));
        geometry.push(own);
        layers.push(Qwen4Layer {
            ple: ngrams[at].map(NgramFeatures::new).transpose()?,
            attn_hyper_connection: GatedStreams::empty(streams, rank, true)?,
            self_attn,
            linear_attn,
            mlp_hyper_connection: GatedStreams::empty(streams, rank, true)?,
            mlp: config.mlp(&config.feed_forward[at])?,
            width: streams.streams * streams.hidden,
            bytes: [has_bytes(at), has_bytes(at + 1)],
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
    let interval = c.size("full_attention_interval", Some(4))? as usize;
    let known = [
        ("full_attention", FULL),
        ("indexed_attention", FULL),
        ("linear_attention", delta.kind()),
    ];
    config.layers = keys::layer_types(c, config.layers.len(), known, |layer| {
        match (layer + 1) % interval {
            0 => FULL,
            _ => delta.kind(),
        }
    })?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.attention.output_gate = true;
    config.recurrence = Some(RecurrenceConfig::Delta(delta));
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

fn index(c: &Config, config: &DecoderConfig) -> Result<BlockIndexConfig> {
    let size = |key: &str| c.size(key, None);
    let index = BlockIndexConfig {
        heads: size("indexer_n_heads")?,
        dim: size("indexer_head_dim")?,
        block: size("indexer_compress_ratio")?,
        top: size("indexer_budget")?,
        norm_eps: config.norm.eps,
    };
    keys::check_heads(c, index.heads, 1, index.dim)?;
    let kv_heads = size("indexer_kv_heads")?;
    if kv_heads != 1 {
        return Err(c.unsupported(format!(
            "indexer_kv_heads {kv_heads} is not supported; known: 1"
        )));
    }
    if index.top % index.block != 0 {
        return Err(c.error(format!(
            "indexer_budget {} is not a multiple of indexer_compress_ratio {}",
            index.top, index.block
        )));
    }
    let rotated = config.ropes.iter().flatten().map(|rope| rope.dims).max();
    match rotated.filter(|&dims| dims > index.dim) {
        Some(dims) => Err(c.error(format!(
            "the rope turns {dims} features, and indexer_head_dim is {}",
            index.dim
        ))),
        None => Ok(index),
    }
}

/// The features of n-grams of each layer. `ple_layer_ids` counts layers from 1.
fn ngrams(c: &Config, config: &DecoderConfig, streams: i32) -> Result<Vec<Option<NgramSizes>>> {
    let n = config.layers.len();
    let mut ids: Vec<usize> = c.opt("ple_layer_ids")?.unwrap_or_default();
    ids.sort_unstable();
    ids.dedup();
    let sizes = NgramSizes {
        vocab: config.vocab,
        hidden: config.hidden,
        streams,
        width: c.size("ple_embed_dim", Some(config.hidden))?,
        longest: c.size("ngram_size", Some(3))?,
        heads: c.size("heads_per_ngram", Some(8))?,
        least_rows: c.size("ngram_vocab_size_base", Some(20_000_000))?,
        multiple: c.size("make_ngram_vocab_size_divisible_by", Some(128))?,
        seed: c.or::<i64>("seed", 1234)? as u64,
        index: 0,
        end: 0,
        taps: keys::taps(c, "ple_conv_kernel_size", 4)?,
        norm_eps: config.norm.eps,
    };
    let end = match c.value("eos_token_id") {
        Some(Value::Array(all)) => all.first().and_then(Value::as_i64),
        Some(one) => one.as_i64(),
        None => None,
    };
    let mut found = vec![None; n];
    if ids.is_empty() {
        return Ok(found);
    }
    let Some(end) = end.and_then(|end| i32::try_from(end).ok()) else {
        return Err(c.error("eos_token_id must be a token, because n-grams begin after it"));
    };
    let tables = i64::from(sizes.longest - 1) * i64::from(sizes.heads);
    let rows = tables.saturating_mul(i64::from(sizes.least_rows));
    if !(1..=1 << 10).contains(&tables) || i64::from(sizes.width) % tables != 0 || rows > 1 << 31 {
        return Err(c.error(format!(
            "{tables} tables of n-grams with {} rows or more do not fit ple_embed_dim {}",
            sizes.least_rows, sizes.width
        )));
    }
    if config.vocab > 1 << 24 {
        return Err(c.unsupported(format!("n-grams of {} tokens", config.vocab)));
    }
    for (index, &id) in ids.iter().enumerate() {
        let layer = id.checked_sub(1).filter(|&layer| layer < n);
        let Some(layer) = layer.filter(|&at| matches!(config.layers[at], LayerKind::Recurrent(_)))
        else {
            return Err(c.unsupported(format!(
                "ple_layer_ids names layer {id}, which is not a linear_attention layer of 1 to {n}"
            )));
        };
        found[layer] = Some(NgramSizes {
            index: index as u64,
            end,
            ..sizes
        });
    }
    Ok(found)
}

/// The norms of published files, which are stored as `weight - 1`.
const NORMS: [&str; 6] = [
    "*hyper_connection*.hc_norm.weight",
    "*.self_attn.q_norm.weight",
    "*.self_attn.k_norm.weight",
    "*.indexer.q_layernorm.weight",
    "*.indexer.k_layernorm.weight",
    "*.ple.norm_*.weight",
];

/// The axes of convolutions tell published files from MLX's, as for Qwen 3.5. Published tables of n-grams are in many
/// tensors.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let tensors = source.tensors;
    let mut rules = vec![
        Rule::drop("model.visual.*", "not of the text model"),
        Rule::drop("mtp.*", "a head for multi-token prediction"),
    ];
    rules.extend(qwen3_5::expert_names());
    if keys::has_published_convolutions(tensors, ".conv1d.weight")? {
        rules.push(Rule::transpose("*.conv1d.weight", &[0, 2, 1]));
        rules.extend(NORMS.map(|norm| Rule::add(norm, 1.0)));
    }
    let mut tables = std::collections::BTreeMap::<&str, Vec<(usize, &str, i32)>>::new();
    for name in tensors.names() {
        if let Some((table, rest)) = name.split_once(".shard_")
            && let Some(number) = rest.strip_suffix(".weight")
            && let Ok(number) = number.parse()
            && let Some(&[rows, _]) = tensors.shape(name)?.as_deref()
        {
            tables.entry(table).or_default().push((number, name, rows));
        }
    }
    for (table, mut parts) in tables {
        parts.sort_unstable();
        if parts.iter().enumerate().any(|(at, part)| at != part.0) {
            return Err(source
                .config
                .error(format!("{table}.shard_N is missing for some N")));
        }
        let parts: Vec<(&str, i32)> = parts.iter().map(|part| (part.1, part.2)).collect();
        rules.push(Rule::concat(&parts, &format!("{table}.weight")));
    }
    Ok(Rules::from(rules))
}

/// [`qwen3_5::BITS`], and the few rows of weights by which outputs are added to streams.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.block_inject_weight", Bits::Dense),
    ("*.mlp.gate", Bits::EightUnlessMixed),
    ("*.mlp.shared_expert_gate", Bits::EightUnlessMixed),
];
