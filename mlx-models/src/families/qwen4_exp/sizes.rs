//! The sizes of Qwen 4's indexers and n-grams.

use mlx_core::Result;
use mlx_nn::{BlockIndexConfig, LayerKind};
use serde_json::Value;

use crate::config::Config;
use crate::config::keys;
use crate::config::plan::DecoderConfig;
use crate::decoders::ngrams::NgramSizes;
use crate::decoders::token_bytes::MOST_TOKENS;

/// The indexer of the layers with attention.
pub(super) fn index(c: &Config, config: &DecoderConfig) -> Result<BlockIndexConfig> {
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
pub(super) fn ngrams(
    c: &Config,
    config: &DecoderConfig,
    streams: i32,
) -> Result<Vec<Option<NgramSizes>>> {
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
    if config.vocab > MOST_TOKENS {
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
