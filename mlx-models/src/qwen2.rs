//! Qwen 2 and 2.5 (arXiv:2412.15115): biases on q, k and v; a window on the upper layers if asked.

use mlx_core::Result;

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
pub(crate) fn windows(c: &Config, n: usize) -> Result<Vec<mlx_nn::LayerKind>> {
    let used = c.or("use_sliding_window", false)?;
    let window = family::window(c, Some(4096))?.filter(|_| used);
    let first: usize = c.or("max_window_layers", 28)?;
    if !used {
        c.ignore(&["layer_types"]);
        return Ok(vec![mlx_nn::LayerKind::Full; n]);
    }
    family::layer_kinds(c, n, window, |layer| window.is_some() && layer >= first)
}
