//! EXAONE 4 (arXiv:2507.11407): norms after attention and after MLP, and on q and k. In models with sliding windows,
//! layers with full attention have no rope.

use mlx_core::Result;
use mlx_nn::QkNorm;

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::post_norm::PostNorm;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 102_400,
    intermediate: 16_384,
    kv_heads: Some(32),
    norm_eps: 1e-5,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<PostNorm> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    attention(c, &mut config)?;
    PostNorm::new(&config)
}

/// Reads the norms on q and k, the windows, and the layers without a rope.
pub(crate) fn attention(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    let window = keys::window(c, Some(4096))?;
    let n = config.layers.len();
    // In a config without a window the pattern is null or 0.
    c.ignore(&[
        "post_layer_norm",
        "reorder_and_qk_norm",
        "sliding_window_pattern",
        "use_sliding_window",
    ]);
    let every = match window {
        Some(_) => pattern(c)?,
        None => 1,
    };
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % every != 0)?;
    if window.is_some() {
        keys::rope_on_windows(config);
    }
    Ok(())
}

/// The n for which every n-th layer has full attention. The config has n as a number, or as the
/// letters of one period, such as `LLLG`.
fn pattern(c: &Config) -> Result<usize> {
    match c.value("sliding_window_pattern") {
        Some(serde_json::Value::String(letters)) => {
            let locals = letters
                .strip_suffix('G')
                .filter(|rest| rest.chars().all(|c| c == 'L'));
            let locals = locals.ok_or_else(|| {
                c.unsupported(format!(
                    "sliding_window_pattern {letters:?} is not supported; known: a number, or L… and one G"
                ))
            })?;
            Ok(locals.len() + 1)
        }
        _ => Ok(c.size("sliding_window_pattern", Some(4))? as usize),
    }
}
