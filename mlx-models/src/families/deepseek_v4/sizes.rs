//! The sizes of DeepSeek V4's attention and experts, and its ropes.

use mlx_core::Result;
use mlx_nn::{
    Activation, BlocksConfig, BlocksIndex, ClampedGate, CompressedConfig, Correction,
    ExpertsConfig, RopeConfig, Routing, Scoring, SharedExpert,
};

use super::{DEFAULTS, groups};
use crate::config::Config;
use crate::config::keys::{self, ExpertsDefaults};
use crate::config::plan::DecoderConfig;
use crate::config::rope::{Dialect, RopeDefaults, rope_of_entry};

/// The attention of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Over the last positions only.
    Near,
    /// Also over blocks that an indexer chooses.
    Chosen,
    /// Also over all blocks.
    All,
}

/// The kinds of the layers: `layer_types`, or `compress_ratios`, or two with all blocks and then both in turn.
pub(super) fn kinds(c: &Config, n: usize) -> Result<Vec<Kind>> {
    const KNOWN: [(&str, Kind); 3] = [
        ("sliding_attention", Kind::Near),
        ("compressed_sparse_attention", Kind::Chosen),
        ("heavily_compressed_attention", Kind::All),
    ];
    let ratios = c.opt::<Vec<i64>>("compress_ratios")?;
    if let (Some(ratios), None) = (ratios, c.value("layer_types")) {
        if ratios.len() < n {
            let found = ratios.len();
            return Err(c.error(format!(
                "compress_ratios has {found} entries for {n} layers"
            )));
        }
        let kind = |&ratio: &i64| match ratio {
            0 => Ok(Kind::Near),
            4 => Ok(Kind::Chosen),
            128 => Ok(Kind::All),
            other => Err(c.unsupported(format!(
                "compress_ratios {other} is not supported; known: 0, 4, 128"
            ))),
        };
        return ratios.iter().take(n).map(kind).collect();
    }
    keys::layer_types(c, n, KNOWN, |layer| match layer % 2 == 1 && layer > 1 {
        true => Kind::Chosen,
        false => Kind::All,
    })
}

/// The features of a head that ropes turn.
fn rotated(c: &Config, head_dim: i32) -> Result<f64> {
    let given = c.opt::<f64>("partial_rotary_factor")?;
    let size = c.opt::<f64>("qk_rope_head_dim")?;
    let size = size.map(|size| size / f64::from(head_dim));
    Ok(given.or(size).unwrap_or(64.0 / 512.0))
}

/// The rope of layers without blocks, and that of the others.
pub(crate) fn ropes(c: &Config, head_dim: i32) -> Result<[RopeConfig; 2]> {
    let partial = rotated(c, head_dim)?;
    let base = c.or("rope_theta", 10_000.0)?;
    let compressed = c.or("compress_rope_theta", 160_000.0)?;
    let scaling = c.object("rope_scaling")?;
    let given = c.object("rope_parameters")?;
    let read = |entry: Config, base: f64| {
        let defaults = RopeDefaults {
            base,
            head_dim,
            max_positions: c.size("max_position_embeddings", Some(DEFAULTS.max_positions))?,
            dialect: Dialect::Entry(1.0),
            interleaved: true,
        };
        rope_of_entry(c, entry, None, defaults)
    };
    if let Some(given) = &given
        && let (Some(main), Some(of_blocks)) = (given.object("main")?, given.object("compress")?)
    {
        return Ok([read(main, base)?, read(of_blocks, compressed)?]);
    }
    let mut main = c.part("rope_parameters", [("rope_type", "default".into())]);
    main.set("partial_rotary_factor", partial.into());
    main.set("rope_theta", base.into());
    let mut of_blocks = match scaling.or(given) {
        Some(entry) => entry,
        None => c.part("rope_scaling", [("rope_type", "default".into())]),
    };
    of_blocks.set("partial_rotary_factor", partial.into());
    of_blocks.set("rope_theta", compressed.into());
    let kind = of_blocks.value("rope_type").or(of_blocks.value("type"));
    if kind.is_some_and(|kind| kind == "yarn") && of_blocks.value("attention_factor").is_none() {
        of_blocks.set("attention_factor", 1.0.into());
    }
    Ok([read(main, base)?, read(of_blocks, compressed)?])
}

/// The attention of layers of a kind.
pub(super) fn attention(
    c: &Config,
    config: &DecoderConfig,
    kind: Kind,
) -> Result<CompressedConfig> {
    let rates = c.object("compress_rates")?;
    let rate = |older: &str, key: &str, default: i32| match (c.value(older), &rates) {
        (Some(_), _) => c.size(older, None),
        (None, Some(rates)) => rates.size(key, None),
        (None, None) => Ok(default),
    };
    let chosen = rate("compress_rate_csa", "compressed_sparse_attention", 4)?;
    let all = rate("compress_rate_hca", "heavily_compressed_attention", 128)?;
    let index = BlocksIndex {
        heads: c.size("index_n_heads", Some(64))?,
        dim: c.size("index_head_dim", Some(128))?,
        top: c.size("index_topk", Some(512))?,
    };
    keys::check_heads(c, index.heads, 1, index.dim)?;
    let heads = config.attention.heads;
    Ok(CompressedConfig {
        hidden: config.hidden,
        heads,
        head_dim: config.attention.head_dim,
        query_rank: c.size("q_lora_rank", Some(1024))?,
        groups: groups(c, heads)?,
        group_rank: c.size("o_lora_rank", Some(1024))?,
        window: c.size("sliding_window", Some(128))?,
        eps: config.norm.eps,
        sourced: None,
        rounds: false,
        blocks: match kind {
            Kind::Near => None,
            Kind::Chosen => Some(BlocksConfig {
                size: chosen,
                index: Some(index),
            }),
            Kind::All => Some(BlocksConfig {
                size: all,
                index: None,
            }),
        },
    })
}

/// For each layer, whether tokens choose its experts by their numbers: `mlp_layer_types`, or the first
/// `num_hash_layers`.
pub(super) fn hashed(c: &Config, n: usize) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 2] = [("hash_moe", true), ("moe", false)];
    let first = c.or("num_hash_layers", 3usize)?;
    keys::types_of(c, "mlp_layer_types", n, KNOWN, |layer| layer < first)
}

/// The experts of layers whose router chooses them.
pub(crate) fn experts(
    c: &Config,
    config: &DecoderConfig,
    defaults: &ExpertsDefaults,
) -> Result<ExpertsConfig> {
    // transformers reads neither: weights always sum to 1, and there is one shared expert.
    c.ignore(&["norm_topk_prob", "n_shared_experts"]);
    let scoring = match c.or("scoring_func", "sqrtsoftplus".to_owned())?.as_str() {
        "sqrtsoftplus" => Scoring::SqrtSoftplus,
        "sigmoid" => Scoring::Sigmoid,
        other => {
            return Err(c.unsupported(format!(
                "scoring_func {other:?} is not supported; known: sqrtsoftplus, sigmoid"
            )));
        }
    };
    let experts = keys::experts(c, config.hidden, defaults)?;
    let activation = experts.activation;
    let clamp = ClampedGate {
        activation: Some(activation).filter(|&activation| activation != Activation::Silu),
        ..keys::bounded_gate(c, 10.0)?
    };
    Ok(ExpertsConfig {
        routing: Routing {
            scoring,
            correction: Correction::Vector,
            scale: Some(c.positive("routed_scaling_factor", Some(1.5))? as f32),
            ..Routing::softmax(true)
        },
        clamp: Some(clamp),
        shared: Some(SharedExpert {
            intermediate: experts.intermediate,
            bias: false,
            gate: false,
            clamp: Some(clamp),
        }),
        ..experts
    })
}
