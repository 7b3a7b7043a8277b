//! Which layers of DeepSeek V4.1 look up n-grams, and the kinds of tokens that they hash.

use mlx_core::Result;
use mlx_nn::StreamsConfig;

use crate::config::{Config, TOKEN_MAP};
use crate::decoders::engram::EngramSizes;
use crate::decoders::token_bytes::MOST_TOKENS;

/// The sizes of a layer's features of n-grams, and the kind of each token.
pub(super) type SizesAndKinds = (EngramSizes, Vec<i64>);

/// For each of `n` layers, the sizes of its features of n-grams and the kind of each token. `vocab` are the tokens, and
/// `norm_eps` is the epsilon of norms.
pub(super) fn engrams(
    c: &Config,
    streams: StreamsConfig,
    (vocab, norm_eps): (i32, f32),
    n: usize,
) -> Result<Vec<Option<SizesAndKinds>>> {
    let layers = c.or("engram_layer_ids", vec![1usize, 14])?;
    let rows = c.or("engram_num_embeddings", vec![384_006_168, 384_016_682])?;
    let sizes = EngramSizes {
        streams,
        longest: c.size("engram_max_ngram_size", Some(4))?,
        heads: c.size("engram_n_heads", Some(8))?,
        head_dim: c.size("engram_head_dim", Some(256))?,
        least_rows: c.size("engram_vocab_size", Some(16_000_000))?,
        rows: 0,
        layer: 0,
        index: 0,
        pad: c.or("engram_pad_token_id", 2)?,
        norm_eps,
    };
    let most = c.or("engram_compressed_vocab_size", 99_092i64)?;
    let given = c.opt::<Vec<i64>>(TOKEN_MAP)?;
    if layers.is_empty() {
        return Ok(vec![None; n]);
    }
    let EngramSizes {
        longest,
        heads,
        head_dim,
        pad,
        ..
    } = sizes;
    if !(2..=16).contains(&longest) || heads > 1024 || head_dim > 1 << 16 {
        return Err(c.unsupported(format!(
            "n-grams of engram_max_ngram_size {longest}, with {heads} heads of {head_dim} features; known: 2 to 16"
        )));
    }
    if (longest - 1) * heads * head_dim % mlx_nn::ROUNDED_BLOCK != 0 {
        return Err(c.unsupported(format!(
            "engram_head_dim {head_dim}: the features of all rows are not a multiple of {}, which are rounded together",
            mlx_nn::ROUNDED_BLOCK
        )));
    }
    if rows.len() < layers.len() {
        let (rows, layers) = (rows.len(), layers.len());
        return Err(c.error(format!(
            "engram_num_embeddings has {rows} entries for {layers} engram_layer_ids"
        )));
    }
    let Some(mut kinds) = given else {
        return Err(c.unsupported(format!(
            "layers that look up n-grams need {TOKEN_MAP}.json beside config.json: the kind of each token"
        )));
    };
    let found = kinds.iter().max().map_or(0, |most| most + 1);
    if found != most || kinds.iter().any(|&kind| kind < 0) {
        return Err(c.error(format!(
            "{TOKEN_MAP} has {found} kinds of tokens, and engram_compressed_vocab_size is {most}"
        )));
    }
    if pad < 0 || pad as usize >= kinds.len() || pad >= vocab || vocab > MOST_TOKENS {
        return Err(c.error(format!(
            "engram_pad_token_id {pad} is not one of the tokens of {TOKEN_MAP}, or there are more than {MOST_TOKENS}"
        )));
    }
    // The vocabulary of a model may be larger than that of its tokenizer.
    kinds.resize(kinds.len().max(vocab as usize), 0);
    let each = (0..n).map(|layer| {
        let index = layers.iter().position(|&own| own == layer)?;
        let sizes = EngramSizes {
            rows: rows[index],
            layer: layer as u64,
            index,
            ..sizes
        };
        Some((sizes, kinds.clone()))
    });
    Ok(each.collect())
}
