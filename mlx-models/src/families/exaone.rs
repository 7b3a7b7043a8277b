//! EXAONE 3 and 3.5 (arXiv:2408.03541): Llama with other names of tensors and keys.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 102_400,
    intermediate: 14_336,
    kv_heads: Some(8),
    max_positions: 4096,
    theta: 500_000.0,
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    activation_key: "activation_function",
    ..Defaults::LLAMA
};

/// Names that published files and transformers use for the same keys.
const ALIASES: [(&str, &str); 3] = [
    ("num_hidden_layers", "num_layers"),
    ("layer_norm_epsilon", "rms_norm_eps"),
    ("activation_function", "hidden_act"),
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = &source.config.with_aliases(&ALIASES);
    c.ignore(&["embed_dropout"]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    Decoder::new(&config)
}

/// Published names.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let of_layer = [
        ("ln_1", "input_layernorm"),
        ("ln_2", "post_attention_layernorm"),
        ("attn.attention.q_proj", "self_attn.q_proj"),
        ("attn.attention.k_proj", "self_attn.k_proj"),
        ("attn.attention.v_proj", "self_attn.v_proj"),
        ("attn.attention.out_proj", "self_attn.o_proj"),
        ("mlp.c_fc_0", "mlp.gate_proj"),
        ("mlp.c_fc_1", "mlp.up_proj"),
        ("mlp.c_proj", "mlp.down_proj"),
    ];
    let of_layer = of_layer.into_iter().map(|(from, to)| {
        Rule::rename(
            &format!("transformer.h.#.{from}.*"),
            &format!("model.layers.#.{to}.*"),
        )
        .written()
    });
    let around = [
        Rule::drop(
            "*.attn.attention.rotary.inv_freq",
            "computed from config.json",
        ),
        Rule::rename("transformer.wte.*", "model.embed_tokens.*").written(),
        Rule::rename("transformer.ln_f.*", "model.norm.*").written(),
    ];
    Ok(Rules::from(around.into_iter().chain(of_layer)))
}
