//! InternLM 2 and 2.5 (arXiv:2403.17297): Llama whose queries, keys and values are one matrix,
//! group by group of heads. The tensors have other names.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// The defaults of the published configuration class for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 103_168,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    Decoder::new(&config(source.config)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let bias = c.or("bias", true)?;
    config.attention.qkv_bias = bias;
    config.attention.out_bias = bias;
    Ok(config)
}

/// Published names.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let attention = config(source.config)?.attention;
    let (groups, dim) = (attention.kv_heads, attention.head_dim);
    let layer = "model.layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    let of_layer = [
        ("attention.wo", "self_attn.o_proj"),
        ("attention_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("feed_forward.w1", "mlp.gate_proj"),
        ("feed_forward.w3", "mlp.up_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
    ];
    let of_layer = of_layer.into_iter().map(|(from, to)| {
        Rule::rename(&format!("{layer}.{from}.*"), &format!("{layer}.{to}.*")).written()
    });
    let around = [
        Rule::rename("model.tok_embeddings.*", "model.embed_tokens.*").written(),
        Rule::rename("output.*", "lm_head.*").written(),
        Rule::split(
            &format!("{layer}.attention.wqkv.*"),
            groups,
            [
                (&*q, attention.heads / groups * dim),
                (&*k, dim),
                (&*v, dim),
            ],
        )
        .written(),
    ];
    Ok(Rules::from(around.into_iter().chain(of_layer)))
}
