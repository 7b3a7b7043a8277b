//! The sizes of DeepSeek V4.1's attention and experts, and which layers keep and choose blocks.

use mlx_core::Result;
use mlx_nn::{
    Candidates, ClampedGate, CompressedConfig, ExpertsConfig, Routing, SharedExpert, SourcedBlocks,
    SourcedIndex,
};

use super::EXPERTS;
use crate::config::Config;
use crate::config::keys;
use crate::config::plan::DecoderConfig;
use crate::families::deepseek_v4;

/// Features that are rounded together.
const ROUNDED: i32 = 32;

/// For each layer, how it shares blocks; `None` for layers that see the last positions only.
pub(super) fn blocks(c: &Config, n: usize) -> Result<Vec<Option<SourcedBlocks>>> {
    let ratios = match c.opt::<Vec<i32>>("compress_ratios")? {
        Some(given) if !given.is_empty() => given,
        _ => [vec![0; 2], vec![2; 18], vec![1; 20]].concat(),
    };
    if ratios.len() < n {
        let found = ratios.len();
        return Err(c.error(format!(
            "compress_ratios has {found} entries for {n} layers"
        )));
    }
    let keeping = c.or("kv_source_layer_ids", vec![2, 8, 14, 20])?;
    let choosing = c.or("index_source_layer_ids", vec![2, 8, 14, 20, 24, 28, 32, 36])?;
    let makes = usize::try_from(c.or("candidate_source_layer_id", 20i64)?).ok();
    let makes = makes.filter(|layer| *layer < n && choosing.contains(layer));
    let index = index(c)?;
    let made = candidates(c, &index, makes.is_some())?;
    let mut kept: Option<(usize, i32)> = None;
    let mut found = Vec::new();
    for (layer, &size) in ratios.iter().take(n).enumerate() {
        let (keeps, chooses) = (keeping.contains(&layer), choosing.contains(&layer));
        let fault = |reason: String| Err(c.unsupported(format!("layer {layer} {reason}")));
        if size < 0 {
            return fault(format!("has compress_ratios {size}; known: 0 and above"));
        }
        if size == 0 {
            if keeps || chooses {
                return fault("is a source of blocks, but has compress_ratios 0".to_owned());
            }
            found.push(None);
            continue;
        }
        if keeps && !chooses {
            return fault("is in kv_source_layer_ids but not in index_source_layer_ids".to_owned());
        }
        if keeps && makes.is_some_and(|makes| layer > makes) {
            return fault("keeps blocks after the layer that makes candidates".to_owned());
        }
        if keeps {
            kept = Some((layer, size));
        }
        match kept {
            None => return fault("sees blocks, but no layer before it keeps any".to_owned()),
            Some((source, of)) if of != size => {
                return fault(format!(
                    "has compress_ratios {size}, but sees the blocks of layer {source}, which has {of}"
                ));
            }
            Some(_) => {}
        }
        let candidates = match makes {
            Some(makes) if layer == makes => made,
            Some(makes) if layer > makes => Candidates::Reads,
            _ => Candidates::All,
        };
        let index = SourcedIndex {
            candidates,
            ..index
        };
        found.push(Some(SourcedBlocks {
            size,
            keeps,
            index: chooses.then_some(index),
        }));
    }
    Ok(found)
}

fn index(c: &Config) -> Result<SourcedIndex> {
    let index = SourcedIndex {
        heads: c.size("index_n_heads", Some(32))?,
        dim: c.size("index_head_dim", Some(128))?,
        top: c.size("index_topk", Some(512))?,
        candidates: Candidates::All,
    };
    keys::check_heads(c, index.heads, 1, index.dim)?;
    Ok(index)
}

/// The candidates that a layer makes.
fn candidates(c: &Config, index: &SourcedIndex, are_made: bool) -> Result<Candidates> {
    let groups = c.size("candidate_topk_blocks", Some(2048))?;
    let size = c.size("candidate_block_size", Some(8))?;
    // The last group may have one block that is seen.
    let least = (i64::from(groups) - 1) * i64::from(size) + 1;
    if are_made && least < i64::from(index.top) {
        return Err(c.unsupported(format!(
            "candidate_topk_blocks {groups} of candidate_block_size {size} can be fewer than index_topk {}",
            index.top
        )));
    }
    Ok(Candidates::Makes { groups, size })
}

/// The attention of a layer.
pub(super) fn attention(
    c: &Config,
    config: &DecoderConfig,
    blocks: Option<SourcedBlocks>,
) -> Result<CompressedConfig> {
    let (heads, head_dim) = (config.attention.heads, config.attention.head_dim);
    let attention = CompressedConfig {
        hidden: config.hidden,
        heads,
        head_dim,
        query_rank: c.size("q_lora_rank", Some(1280))?,
        groups: deepseek_v4::groups(c, heads)?,
        group_rank: c.size("o_lora_rank", Some(1024))?,
        window: c.size("sliding_window", Some(128))?,
        eps: config.norm.eps,
        blocks: None,
        sourced: blocks,
        rounds: true,
    };
    let index = blocks.and_then(|blocks| blocks.index);
    let outputs = i64::from(attention.groups) * i64::from(attention.group_rank);
    for (key, size) in [
        ("hidden_size", i64::from(config.hidden)),
        ("head_dim", i64::from(head_dim)),
        ("q_lora_rank", i64::from(attention.query_rank)),
        ("o_groups times o_lora_rank", outputs),
        (
            "index_head_dim",
            index.map_or(0, |index| i64::from(index.dim)),
        ),
    ] {
        check_rounded(c, key, size)?;
    }
    Ok(attention)
}

/// Refuses features that do not divide into those that are rounded together.
fn check_rounded(c: &Config, key: &str, size: i64) -> Result<()> {
    match size % i64::from(ROUNDED) {
        0 => Ok(()),
        _ => Err(c.unsupported(format!(
            "{key} {size} is not a multiple of the {ROUNDED} features that are rounded together"
        ))),
    }
}

/// The experts of all layers.
pub(super) fn experts(c: &Config, config: &DecoderConfig) -> Result<ExpertsConfig> {
    if c.or("n_shared_experts", 1)? != 1 {
        return Err(c.unsupported("n_shared_experts other than 1 is not supported"));
    }
    let normalises = c.or("norm_topk_prob", true)?;
    let experts = deepseek_v4::experts(c, config, &EXPERTS)?;
    check_rounded(c, "moe_intermediate_size", i64::from(experts.intermediate))?;
    let rounds = |clamp: ClampedGate| ClampedGate {
        rounds: true,
        ..clamp
    };
    Ok(ExpertsConfig {
        routing: Routing {
            norm_topk_prob: normalises,
            ..experts.routing
        },
        clamp: experts.clamp.map(rounds),
        shared: experts.shared.map(|shared| SharedExpert {
            clamp: shared.clamp.map(rounds),
            ..shared
        }),
        ..experts
    })
}
