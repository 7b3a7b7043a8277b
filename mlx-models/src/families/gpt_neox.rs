//! GPT-NeoX and Pythia: attention and MLP in parallel, each after a layer norm of its own; biases; rope on a part of
//! each head.

use mlx_core::Result;
use mlx_nn::{NormKind, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::rope::Dialect;
use crate::config::{Config, Source};
use crate::decoders::parallel_residual::ParallelResidual;
use crate::decoders::pre_norm::Decoder;
use crate::model::Model;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_432,
    hidden: 6144,
    intermediate: 24_576,
    layers: 44,
    heads: 64,
    norm_eps_key: "layer_norm_eps",
    norm_eps: 1e-5,
    activation: "gelu",
    rope: Some(Dialect::Partial(0.25)),
    ..Defaults::LLAMA
};

/// Keys of the rope outside of its entry.
const ALIASES: [(&str, &str); 2] = [
    ("rope_theta", "rotary_emb_base"),
    ("partial_rotary_factor", "rotary_pct"),
];

/// Keys that transformers does not read. Every head has keys and values of its own, its size is that of the hidden
/// features divided by the number of heads, and outside of its entry the rope has the names of [`ALIASES`].
const UNREAD: [&str; 4] = [
    "head_dim",
    "num_key_value_heads",
    "partial_rotary_factor",
    "rope_theta",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let config = config(source.config)?;
    Ok(match source.config.or("use_parallel_residual", true)? {
        true => Box::new(ParallelResidual::with_two_norms(&config)?),
        false => Box::new(Decoder::new(&config)?),
    })
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let c = &c.without(&UNREAD).with_aliases(&ALIASES);
    c.ignore(&["classifier_dropout", "hidden_dropout"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, true);
    let bias = c.or("attention_bias", true)?;
    config.attention.qkv_bias = bias;
    config.attention.out_bias = bias;
    config.norm.kind = NormKind::layer(true);
    Ok(config)
}

/// Published names. MLX's files have them without `gpt_neox`, and with `h` for the layers. The rows
/// of queries, keys and values are stored head by head.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let config = config(source.config)?;
    let (heads, dim) = (config.attention.heads, config.attention.head_dim);
    let layer = "model.layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    Ok(Rules::from([
        Rule::drop("*.attention.bias", "the causal mask"),
        Rule::drop("*.attention.masked_bias", "the causal mask"),
        Rule::drop(
            "*.attention.rotary_emb.inv_freq",
            "computed from config.json",
        ),
        Rule::rename("gpt_neox.layers.*", "model.h.*"),
        Rule::rename("gpt_neox.*", "model.*"),
        Rule::rename("embed_out.*", "model.embed_out.*"),
        Rule::rename("model.embed_out.*", "lm_head.*").written(),
        Rule::rename("model.embed_in.*", "model.embed_tokens.*").written(),
        Rule::rename("model.final_layer_norm.*", "model.norm.*").written(),
        Rule::split(
            "model.h.#.attention.query_key_value.*",
            heads,
            [(&*q, dim), (&*k, dim), (&*v, dim)],
        )
        .written(),
        Rule::rename(
            "model.h.#.attention.dense.*",
            &format!("{layer}.self_attn.o_proj.*"),
        )
        .written(),
        Rule::rename(
            "model.h.#.mlp.dense_h_to_4h.*",
            &format!("{layer}.mlp.up_proj.*"),
        )
        .written(),
        Rule::rename(
            "model.h.#.mlp.dense_4h_to_h.*",
            &format!("{layer}.mlp.down_proj.*"),
        )
        .written(),
        // The inverse of a rule for all names of a layer would hide those above it.
        Rule::rename(
            "model.h.#.input_layernorm.*",
            &format!("{layer}.input_layernorm.*"),
        )
        .written(),
        Rule::rename(
            "model.h.#.post_attention_layernorm.*",
            &format!("{layer}.post_attention_layernorm.*"),
        )
        .written(),
        Rule::rename("model.h.#.*", "model.layers.#.*"),
    ]))
}
