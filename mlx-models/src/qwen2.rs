//! Qwen 2 and 2.5 (arXiv:2412.15115): biases on q, k and v; a window on the upper layers if asked.

use mlx_core::Result;
use mlx_nn::LayerKind;

use crate::config::Config;
use crate::decoder::Decoder;
use crate::family;

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    let mut config = family::decoder(c, None)?;
    config.qkv_bias = true;
    config.layers = windows(c, config.layers.len())?;
    Decoder::new(&config)
}

/// Layers from `max_window_layers` on have the window, where `use_sliding_window` says so.
pub(crate) fn windows(c: &Config, n: usize) -> Result<Vec<LayerKind>> {
    let used = c.or("use_sliding_window", false)?;
    let window = family::window(c, Some(4096))?.filter(|_| used);
    let first: usize = c.or("max_window_layers", 28)?;
    let kinds = family::layer_kinds(c, n, window.or(Some(1)), |layer| layer >= first)?;
    Ok(if window.is_some() {
        kinds
    } else {
        vec![LayerKind::Full; n]
    })
}
