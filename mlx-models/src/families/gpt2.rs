//! GPT-2: learned positions, layer norms with biases, an MLP without a gate, tied.

use mlx_core::Result;
use mlx_nn::{Embedding, LayerKind, NormKind, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::pre_norm::{Decoder, PreNormLayer};

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 50_257,
    hidden: 768,
    layers: 12,
    heads: 12,
    max_positions: 1024,
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    activation_key: "activation_function",
    activation: "gelu_new",
    rope: None,
    ..Defaults::LLAMA
};

/// Older names of keys.
const ALIASES: [(&str, &str); 5] = [
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
];

/// Keys that transformers does not read: the features of the MLP are `n_inner`, every head has keys and values of its own
/// unless a class says otherwise, and its size is that of the hidden features divided by the number of heads.
const UNREAD: [&str; 3] = ["head_dim", "intermediate_size", "num_key_value_heads"];

/// The config with the names of keys that other families have.
pub(crate) fn renamed(c: &Config) -> Config {
    c.without(&UNREAD).with_aliases(&ALIASES)
}

/// Keys of training, of heads for other tasks, and of an order of operations that does not change
/// results.
pub(crate) const IGNORED: &[&str] = &[
    "attn_pdrop",
    "embd_pdrop",
    "n_ctx",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = &renamed(source.config);
    let by_depth = c.or("scale_attn_by_inverse_layer_idx", false)?;
    decoder(&config(c, &DEFAULTS)?, by_depth)
}

/// A decoder of pre-norm layers whose positions have learned features. With `by_depth`, the scores
/// of layer n, counted from 1, are divided by n.
pub(crate) fn decoder(config: &DecoderConfig, by_depth: bool) -> Result<Decoder> {
    let positions = config.max_positions.expect("it was set") as i32;
    CausalLm::of(config, |config, index| {
        let mut config = config.clone();
        if by_depth {
            config.attention.scale /= (index + 1) as f32;
        }
        let table = match index {
            0 => Some(Embedding::empty(positions, config.hidden)?),
            _ => None,
        };
        let layer =
            PreNormLayer::with(&config, LayerKind::Full, &config.feed_forward[index], None)?;
        Ok(layer.with_positions(table, 0))
    })
}

/// The decoder of a [`renamed`] config.
pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, defaults)?;
    let inner = inner(c, config.hidden)?;
    keys::set_intermediate(&mut config, inner);
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, true);
    config.attention.qkv_bias = true;
    config.attention.out_bias = true;
    config.norm.kind = NormKind::layer(true);
    let positions = c.size("max_position_embeddings", Some(defaults.max_positions))?;
    config.max_positions = Some(positions as usize);
    if !c.or("scale_attn_weights", true)? {
        config.attention.scale = 1.0;
    }
    Ok(config)
}

/// The features inside the MLP, by default four times those of a token.
pub(crate) fn inner(c: &Config, hidden: i32) -> Result<i32> {
    match c.value("intermediate_size") {
        Some(_) => c.size("intermediate_size", None),
        None => Ok(4 * hidden),
    }
}

/// Published files have transposed matrices, `[in, out]`, and often no prefix. Files of MLX have
/// `[out, in]`, and the prefix `model.`.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    const FUSED: &str = "h.0.attn.c_attn.weight";
    let tensors = source.tensors;
    let fused = tensors.names().find(|name| name.ends_with(FUSED));
    let by_columns = match fused {
        Some(name) => tensors
            .shape(name)?
            .is_some_and(|shape| shape[0] < shape[1]),
        None => false,
    };
    let mut rules = Vec::new();
    if by_columns {
        for part in ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"] {
            rules.push(Rule::transpose(&format!("*.{part}.weight"), &[1, 0]));
        }
    }
    Ok(Rules::from(rules).and(&common_names(1, [1, 1, 1])))
}

/// The names of GPT-2, with and without a prefix. Queries, keys and values are one matrix, of `groups` groups of these
/// sizes.
pub(crate) fn common_names(groups: i32, [queries, keys, values]: [i32; 3]) -> Rules {
    let mut rules = vec![
        Rule::drop("*.attn.bias", "the causal mask"),
        Rule::drop("*.attn.masked_bias", "the causal mask"),
    ];
    for part in ["wte", "wpe", "h", "ln_f"] {
        rules.push(Rule::rename(
            &format!("transformer.{part}.*"),
            &format!("model.{part}.*"),
        ));
        rules.push(Rule::rename(
            &format!("{part}.*"),
            &format!("model.{part}.*"),
        ));
    }
    let layer = "model.layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    rules.extend([
        Rule::rename("model.wte.*", "model.embed_tokens.*").written(),
        Rule::rename("model.wpe.*", "model.layers.0.positions.*").written(),
        Rule::rename("model.ln_f.*", "model.norm.*").written(),
        Rule::rename("model.h.#.ln_1.*", &format!("{layer}.input_layernorm.*")).written(),
        Rule::rename(
            "model.h.#.ln_2.*",
            &format!("{layer}.post_attention_layernorm.*"),
        )
        .written(),
        Rule::split(
            "model.h.#.attn.c_attn.*",
            groups,
            [(&*q, queries), (&*k, keys), (&*v, values)],
        )
        .written(),
        Rule::rename(
            "model.h.#.attn.c_proj.*",
            &format!("{layer}.self_attn.o_proj.*"),
        )
        .written(),
        Rule::rename("model.h.#.mlp.c_fc.*", &format!("{layer}.mlp.up_proj.*")).written(),
        Rule::rename(
            "model.h.#.mlp.c_proj.*",
            &format!("{layer}.mlp.down_proj.*"),
        )
        .written(),
    ]);
    Rules::from(rules)
}
