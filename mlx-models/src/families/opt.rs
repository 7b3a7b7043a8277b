//! OPT (arXiv:2205.01068): learned positions that begin at 2, layer norms with biases, an MLP without a gate, tied.

use mlx_core::Result;
use mlx_nn::{Embedding, LayerKind, NormKind, Rule, Rules};

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::pre_norm::{Decoder, PreNormLayer};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_272,
    hidden: 768,
    intermediate: 3072,
    layers: 12,
    heads: 12,
    // No config has the key; the epsilon is fixed in transformers' class.
    norm_eps_key: "",
    norm_eps: 1e-5,
    activation_key: "activation_function",
    activation: "relu",
    rope: None,
    ..Defaults::LLAMA
};

const ALIASES: [(&str, &str); 1] = [("intermediate_size", "ffn_dim")];

/// Keys that transformers does not read: the features of the MLP are `ffn_dim`, and every head has keys and values of its
/// own, and the size of the hidden features divided by the number of heads.
const UNREAD: [&str; 3] = ["head_dim", "intermediate_size", "num_key_value_heads"];

/// The number of rows in the position table before that of the first position.
const FIRST: i32 = 2;

/// Keys of training.
const IGNORED: &[&str] = &["dropout", "init_std", "layerdrop"];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = &source.config.without(&UNREAD).with_aliases(&ALIASES);
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    // OPT-350m has other values of these two keys; its form is not supported.
    let before = c.or("do_layer_norm_before", true)?;
    let last = !c.or("_remove_final_layer_norm", false)?;
    if !before || !last {
        return Err(c.unsupported(
            "norms after attention and MLP (do_layer_norm_before false, _remove_final_layer_norm true) are not \
             supported: known are norms before them and one at the end",
        ));
    }
    let width = c.size("word_embed_proj_dim", Some(config.hidden))?;
    if width != config.hidden {
        return Err(c.unsupported(format!(
            "word_embed_proj_dim {width} is not supported: only hidden_size, {}",
            config.hidden
        )));
    }
    if !c.or("layer_norm_elementwise_affine", true)? {
        return Err(c.unsupported("layer_norm_elementwise_affine false is not supported"));
    }
    let bias = c.or("enable_bias", true)?;
    config.attention.qkv_bias = bias;
    config.attention.out_bias = bias;
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, bias);
    config.norm.kind = NormKind::layer(true);
    let positions = c.size("max_position_embeddings", Some(DEFAULTS.max_positions))?;
    config.max_positions = Some(positions as usize);
    CausalLm::of(&config, |config, index| {
        let table = match index {
            0 => Some(Embedding::new(positions + FIRST, config.hidden)?),
            _ => None,
        };
        let layer = PreNormLayer::with(config, LayerKind::Full, &config.feed_forward[index], None)?;
        Ok(layer.with_positions(table, FIRST))
    })
}

/// Published names, with and without the prefix of the decoder.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    let layer = "model.layers.#";
    let renamed = [
        ("model.decoder.final_layer_norm.*", "model.norm.*"),
        (
            "model.decoder.embed_positions.*",
            "model.layers.0.positions.*",
        ),
        ("model.decoder.embed_tokens.*", "model.embed_tokens.*"),
    ];
    let of_layer = [
        ("self_attn_layer_norm", "input_layernorm"),
        ("final_layer_norm", "post_attention_layernorm"),
        ("self_attn.q_proj", "self_attn.q_proj"),
        ("self_attn.k_proj", "self_attn.k_proj"),
        ("self_attn.v_proj", "self_attn.v_proj"),
        ("self_attn.out_proj", "self_attn.o_proj"),
        ("fc1", "mlp.up_proj"),
        ("fc2", "mlp.down_proj"),
    ];
    let of_layer = of_layer.into_iter().map(|(from, to)| {
        Rule::rename(
            &format!("model.decoder.layers.#.{from}.*"),
            &format!("{layer}.{to}.*"),
        )
        .written()
    });
    let renamed = renamed.map(|(from, to)| Rule::rename(from, to).written());
    let prefix = Rule::rename("decoder.*", "model.decoder.*");
    Ok(Rules::from(
        [prefix].into_iter().chain(renamed).chain(of_layer),
    ))
}
