//! PLaMo 3: four norms a layer, whose stored weights are less than the weights by different numbers; norms on q and k; a
//! window and another rope in seven of eight layers.

use mlx_core::Result;
use mlx_nn::{NormKind, QkNorm, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;

/// mlx-lm's defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    intermediate: 13_312,
    kv_heads: Some(4),
    head_dim: Some(128),
    theta: 1_000_000.0,
    rope: None,
    ..Defaults::LLAMA
};

/// The numbers that are added to the stored weights of the norms after attention and after MLP.
pub(super) fn offsets() -> [f32; 2] {
    [0.2, 5f32.powf(-1.5)]
}

/// Keys of images.
const IGNORED: &[&str] = &["image_feature_size", "image_proj_type", "image_token_id"];

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
    let c = source.config;
    c.ignore(IGNORED);
    PreAndPostNorm::new(&config(c)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, &DEFAULTS)?;
    match c.or("linear_type", "normal".to_owned())?.as_str() {
        "normal" => {}
        other => {
            let message = format!("linear_type {other:?} is not supported; known: normal");
            return Err(c.unsupported(message));
        }
    }
    // The window counts the keys before the query, without the query's own.
    let key = match c.value("sliding_window") {
        Some(_) => "sliding_window",
        None => "window_size",
    };
    let before = c.size(key, Some(2048))?;
    c.ignore(&["sliding_window", "window_size"]);
    let pattern = c.size("sliding_window_pattern", Some(8))? as usize;
    let n = config.layers.len();
    let has_window = |layer: usize| !(layer + 1).is_multiple_of(pattern);
    config.layers = keys::layer_kinds(c, n, Some(before.saturating_add(1)), has_window)?;
    let (positions, base) = (DEFAULTS.max_positions, DEFAULTS.theta);
    let windows = ("rope_local_theta", 10_000.0);
    keys::ropes_by_kind(c, &mut config, positions, ("rope_theta", base), windows)?;
    config.norm.kind = NormKind::Rms(1.0);
    config.norm.after_offsets = Some(offsets());
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 1.0));
    Ok(config)
}

/// The names of published files, which are those of MLX's.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    names_of(&config(source.config)?)
}

/// The names of a decoder's tensors without those of recurrent layers. PLaMo 2 has the same.
pub(super) fn names_of(config: &DecoderConfig) -> Result<Rules> {
    let plan = &config.attention;
    let [q, kv] = [plan.heads, plan.kv_heads].map(|heads| heads * plan.head_dim);
    let heads = [
        ("*.self_attn.q_proj.*", q),
        ("*.self_attn.k_proj.*", kv),
        ("*.self_attn.v_proj.*", kv),
    ];
    let MlpConfig::Dense { intermediate, .. } = config.feed_forward[0] else {
        unreachable!("PLaMo has gated MLPs")
    };
    let halves = [
        ("*.mlp.gate_proj.*", intermediate),
        ("*.mlp.up_proj.*", intermediate),
    ];
    let mut rules = vec![Rule::rename("model.layers.layers.*", "model.layers.*").written()];
    for (from, to) in [
        ("mixer", "self_attn"),
        ("pre_mixer_norm", "input_layernorm"),
        ("post_mixer_norm", "post_attention_layernorm"),
        ("pre_mlp_norm", "pre_feedforward_layernorm"),
        ("post_mlp_norm", "post_feedforward_layernorm"),
    ] {
        let [from, to] = [from, to].map(|name| format!("model.layers.#.{name}.*"));
        rules.push(Rule::rename(&from, &to).written());
    }
    rules.push(Rule::split("*.self_attn.qkv_proj.*", 1, heads).written());
    rules.push(Rule::split("*.mlp.gate_up_proj.*", 1, halves).written());
    Ok(Rules::from(rules))
}
