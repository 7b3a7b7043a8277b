//! LFM2: gated short convolutions of three tokens, and attention with norms on q and k in a few layers.

use mlx_core::Result;
use mlx_nn::{LayerKind, QkNorm, RecurrenceConfig, Rule, Rules, ShortConvConfig};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
pub(crate) const DEFAULTS: Defaults = Defaults {
    vocab: 65_536,
    hidden: 2560,
    intermediate: 12_288,
    kv_heads: Some(8),
    max_positions: 128_000,
    norm_eps_key: "norm_eps",
    norm_eps: 1e-5,
    activation_key: "",
    theta: 1_000_000.0,
    ..Defaults::LLAMA
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "block_dim",
    "block_mlp_init_scale",
    "block_norm_eps",
    "block_out_init_scale",
    "block_use_swiglu",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "hidden_act",
    "num_heads",
    "theta",
    "use_pos_enc",
];

/// The keys for whether the head is the embedding. The first name is the older one and takes
/// precedence.
pub(crate) const TIED_KEYS: &[&str] = &["tie_embedding", "tie_word_embeddings"];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = config(c, &DEFAULTS)?;
    let attends: Option<Vec<usize>> = c.opt("full_attn_idxs")?;
    let attends = |layer: usize| attends.as_ref().is_none_or(|all| all.contains(&layer));
    set_layers(c, &mut config, attends)?;
    let intermediate = intermediate(c)?;
    keys::set_intermediate(&mut config, intermediate);
    Decoder::new(&config)
}

/// The decoder that a config describes, whose layers all attend and whose MLPs have the size of `intermediate_size`.
pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, defaults)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.recurrence = Some(RecurrenceConfig::ShortConv(ShortConvConfig {
        hidden: config.hidden,
        taps: keys::taps(c, "conv_L_cache", 3)?,
        bias: c.or("conv_bias", false)?,
    }));
    Ok(config)
}

/// Sets which layers attend, by `layer_types`. Without the key, by the given function.
pub(crate) fn set_layers(
    c: &Config,
    config: &mut DecoderConfig,
    attends: impl Fn(usize) -> bool,
) -> Result<()> {
    let kind = config.recurrence.expect("it was set").kind();
    let known = [("full_attention", LayerKind::Full), ("conv", kind)];
    let fallback = |layer| {
        if attends(layer) {
            LayerKind::Full
        } else {
            kind
        }
    };
    config.layers = keys::layer_types(c, config.layers.len(), known, fallback)?;
    Ok(())
}

/// The features inside an MLP: the config's number or, with `block_auto_adjust_ff_dim`, two thirds
/// of it. Two thirds are then multiplied by `block_ffn_dim_multiplier`, and rounded up to a
/// multiple of `block_multiple_of`. If the multiplier is null, neither is done.
fn intermediate(c: &Config) -> Result<i32> {
    let size = match c.value("block_ff_dim") {
        Some(_) => c.size("block_ff_dim", None)?,
        None => c.size("intermediate_size", Some(DEFAULTS.intermediate))?,
    };
    let multiple = c.size("block_multiple_of", Some(256))?;
    let factor = match c.is_null("block_ffn_dim_multiplier") {
        true => None,
        false => Some(c.positive("block_ffn_dim_multiplier", Some(1.0))?),
    };
    if !c.or("block_auto_adjust_ff_dim", true)? {
        return Ok(size);
    }
    let size = (f64::from(2 * size) / 3.0) as i32;
    Ok(match factor {
        Some(factor) => {
            let size = (factor * f64::from(size)) as i32;
            size.saturating_add(multiple - 1) / multiple * multiple
        }
        None => size,
    })
}

/// Names of the layers' parts, as published and in MLX's files.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    Ok(mlp_names().and(&layer_names(source)?))
}

/// Names of the MLPs' matrices.
pub(crate) fn mlp_names() -> Rules {
    Rules::from([
        Rule::rename("*.feed_forward.w1.*", "*.mlp.gate_proj.*").written(),
        Rule::rename("*.feed_forward.w2.*", "*.mlp.down_proj.*").written(),
        Rule::rename("*.feed_forward.w3.*", "*.mlp.up_proj.*").written(),
    ])
}

/// Names of the parameters outside of the MLPs.
pub(crate) fn layer_names(source: &Source<'_>) -> Result<Rules> {
    let attention = [
        Rule::rename("*.self_attn.out_proj.*", "*.self_attn.o_proj.*").written(),
        Rule::rename("*.self_attn.q_layernorm.*", "*.self_attn.q_norm.*").written(),
        Rule::rename("*.self_attn.k_layernorm.*", "*.self_attn.k_norm.*").written(),
    ];
    let parts = part_names(source, "post_attention_layernorm")?;
    Ok(parts.and(&Rules::from(attention)))
}

/// Names of the norms and the convolutions. The norm before the MLP is called `before_mlp` here.
pub(crate) fn part_names(source: &Source<'_>, before_mlp: &str) -> Result<Rules> {
    let conv = keys::convolutions(source.tensors, ".conv.conv.weight")?;
    let rules = [
        Rule::rename("model.embedding_norm.*", "model.norm.*").written(),
        Rule::rename("*.operator_norm.*", "*.input_layernorm.*").written(),
        Rule::rename("*.ffn_norm.*", &format!("*.{before_mlp}.*")).written(),
        Rule::rename("model.layers.#.conv.*", "model.layers.#.linear_attn.*").written(),
    ];
    Ok(Rules::from(conv.into_iter().chain(rules)))
}
