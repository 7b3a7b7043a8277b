//! Gemma 3 (arXiv:2503.19786): norms on q and k instead of soft caps, two ropes, five sliding-window layers for each
//! layer with full attention. Also the text tower of the multimodal checkpoints.

use mlx_core::Result;
use mlx_nn::QkNorm;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::families::gemma2::config;

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

pub(crate) fn load(source: &Source<'_>) -> Result<PreAndPostNorm> {
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
    PreAndPostNorm::new(&config)
}
