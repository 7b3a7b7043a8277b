//! Mistral (arXiv:2310.06825): Llama with a sliding window on every layer.

use mlx_core::Result;

use crate::config::Config;
use crate::decoder::Decoder;
use crate::family;

pub(crate) fn load(c: &Config) -> Result<Decoder> {
    let mut config = family::decoder(c, None)?;
    let window = family::window(c, Some(4096))?;
    config.layers = family::layer_kinds(c, config.layers.len(), window, |_| window.is_some())?;
    Decoder::new(&config)
}
