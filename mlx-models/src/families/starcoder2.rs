//! StarCoder 2 (arXiv:2402.19173): layer norms, biases everywhere, an MLP without a gate, a window.

use mlx_core::Result;
use mlx_nn::{NormKind, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 49_152,
    hidden: 3072,
    intermediate: 12_288,
    layers: 30,
    heads: 24,
    kv_heads: Some(2),
    max_positions: 4096,
    norm_eps_key: "norm_epsilon",
    norm_eps: 1e-5,
    activation: "gelu_pytorch_tanh",
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let bias = c.or("use_bias", true)?;
    (config.attention.qkv_bias, config.attention.out_bias) = (bias, bias);
    config.norm.kind = NormKind::layer(true);
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, bias);
    // Keys of dropout, and keys of published files that transformers does not read.
    c.ignore(&[
        "activation_function",
        "attention_softmax_in_fp32",
        "embedding_dropout",
        "layer_norm_epsilon",
        "mlp_type",
        "norm_type",
        "residual_dropout",
        "scale_attention_softmax_in_fp32",
        "scale_attn_weights",
    ]);
    let window = keys::window(c, None)?;
    config.layers.fill(keys::kind(window));
    Decoder::new(&config)
}

/// In published files the MLP's matrices have the names of convolutions.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.mlp.c_fc.*", "*.mlp.up_proj.*").written(),
        Rule::rename("*.mlp.c_proj.*", "*.mlp.down_proj.*").written(),
    ]))
}
