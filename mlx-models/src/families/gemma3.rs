//! Gemma 3 (arXiv:2503.19786): norms on q and k instead of soft caps, two ropes, five sliding-window layers for each
//! layer with full attention. Also the text tower of the multimodal checkpoints.

use mlx_core::Result;
use mlx_nn::{LayerKind, QkNorm, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::encoders::{EncoderModel, EncoderPlan, LayerPlan, NormPlaces};
use crate::families::gemma2::config;
use crate::model::Model;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 262_208,
    hidden: 2304,
    intermediate: 9216,
    layers: 26,
    heads: 8,
    kv_heads: Some(4),
    head_dim: Some(256),
    max_positions: 131_072,
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    theta: 1_000_000.0,
    rope: None,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let c = source.config;
    // transformers' config class has these keys, but its model does not use them.
    c.ignore(&["attn_logit_softcapping", "_sliding_window_pattern"]);
    let mut config = config(c, &DEFAULTS)?;
    let window = keys::window(c, Some(4096))?;
    let pattern = c.size("sliding_window_pattern", Some(6))? as usize;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % pattern != 0)?;
    keys::ropes_by_kind(
        c,
        &mut config,
        DEFAULTS.max_positions,
        ("rope_theta", DEFAULTS.theta),
        ("rope_local_base_freq", 10_000.0),
    )?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 1.0));
    // In transformers only the class of the text model alone has the cap.
    config.scales.logit_softcap =
        keys::softcap(c, "final_logit_softcapping", None)?.filter(|_| !source.nested);
    if is_encoder(c)? {
        return Ok(Box::new(EncoderModel::new(&encoder(c, &config)?)?));
    }
    Ok(Box::new(PreAndPostNorm::new(&config)?))
}

/// Whether tokens see those after them (EmbeddingGemma, arXiv:2509.20354).
fn is_encoder(c: &Config) -> Result<bool> {
    c.or("use_bidirectional_attention", false)
}

/// The encoder with the layers of this decoder.
fn encoder(c: &Config, config: &DecoderConfig) -> Result<EncoderPlan> {
    let MlpConfig::Dense {
        intermediate,
        bias,
        activation,
        ..
    } = config.feed_forward[0]
    else {
        unreachable!("Gemma has gated MLPs")
    };
    let layers = config.layers.iter().zip(&config.ropes);
    let layers = layers.map(|(kind, rope)| LayerPlan {
        rope: rope.clone(),
        // The window has both sides.
        reach: match kind {
            LayerKind::Window(window) => Some((window / 2) as i32),
            _ => None,
        },
        no_first_norm: false,
    });
    let attention = &config.attention;
    Ok(EncoderPlan {
        vocab: config.vocab,
        hidden: config.hidden,
        max_positions: c.size("max_position_embeddings", Some(DEFAULTS.max_positions))? as usize,
        positions: None,
        padding: None,
        types: 0,
        embedding_scale: config.scales.embedding,
        embedding_norm: None,
        norm: config.norm.config(),
        norms: NormPlaces::Around,
        final_norm: true,
        heads: attention.heads,
        kv_heads: attention.kv_heads,
        head_dim: attention.head_dim,
        scale: attention.scale,
        qkv_bias: attention.qkv_bias,
        out_bias: attention.out_bias,
        qk_norm: attention.qk_norm.map(|_| (config.norm.eps, 1.0)),
        intermediate,
        activation,
        gated: true,
        mlp_bias: bias,
        mlp_out_bias: bias,
        layers: layers.collect(),
        head: None,
    })
}

/// The names of an encoder's tensors. A decoder's are those of its parameters.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    if !is_encoder(source.config)? {
        return Ok(Rules::none());
    }
    let mut rules = vec![
        Rule::rename("model.*", "*"),
        Rule::rename("embed_tokens.*", "embeddings.word_embeddings.*").written(),
        Rule::rename("norm.*", "final_norm.*").written(),
    ];
    for (name, parameter) in [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "attn_out_norm"),
        ("pre_feedforward_layernorm", "mlp_norm"),
        ("post_feedforward_layernorm", "mlp_out_norm"),
    ] {
        let (name, parameter) = (
            format!("layers.#.{name}.*"),
            format!("layers.#.{parameter}.*"),
        );
        rules.push(Rule::rename(&name, &parameter).written());
    }
    Ok(Rules::from(rules))
}
