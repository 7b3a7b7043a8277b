//! GPT-BigCode (arXiv:2301.03988), StarCoder 1: GPT-2 with one KV head, and matrices stored as
//! `[out, in]`.

use mlx_core::Result;
use mlx_nn::Rules;

use crate::config::keys::Defaults;
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::families::gpt2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    activation: "gelu_pytorch_tanh",
    ..gpt2::DEFAULTS
};

/// Types of the softmax, which is always computed in F32, and a part that no text model has.
const IGNORED: &[&str] = &[
    "attention_softmax_in_fp32",
    "inference_runner",
    "max_batch_size",
    "max_sequence_length",
    "pad_key_length",
    "pre_allocate_kv_cache",
    "scale_attention_softmax_in_fp32",
    "validate_runner_input",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    gpt2::decoder(&config(source.config)?, false)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let mut c = gpt2::renamed(c);
    c.ignore(IGNORED);
    if c.or("add_cross_attention", false)? {
        return Err(c.unsupported("add_cross_attention is not supported: only causal text models"));
    }
    if c.or("multi_query", true)? {
        c.set("num_key_value_heads", 1.into());
    }
    gpt2::config(&c, &DEFAULTS)
}

/// Published names. Queries, keys and values are one matrix. If every query head has its own KV
/// head, the rows are stored head by head.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let attention = config(source.config)?.attention;
    let (heads, dim) = (attention.heads, attention.head_dim);
    let (groups, queries) = match attention.kv_heads {
        1 => (1, heads),
        _ => (heads, 1),
    };
    Ok(gpt2::common_names(groups, [queries * dim, dim, dim]))
}
