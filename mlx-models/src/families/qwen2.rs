//! Qwen 2 and 2.5 (arXiv:2412.15115): biases on q, k and v; an optional sliding window on the upper layers.

use mlx_core::Result;
use mlx_nn::LayerKind;

use crate::config::keys::{self, Defaults};
use crate::config::rope::shared_by_layers;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 151_936,
    intermediate: 22_016,
    kv_heads: Some(32),
    max_positions: 32_768,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.attention.qkv_bias = true;
    // Published files have this key, which has no effect on texts.
    c.ignore(&["use_mrope"]);
    config.layers = windows(c, config.layers.len())?;
    Decoder::new(&config)
}

/// The kind of each layer: layers from `max_window_layers` on have the window, if
/// `use_sliding_window` is true.
pub(crate) fn windows(c: &Config, n: usize) -> Result<Vec<LayerKind>> {
    shared_by_layers(c)?;
    windows_from(c, n, 28)
}

/// [`windows`] for a family in which rope entries for single kinds of layers have no effect.
/// `first` is the default of `max_window_layers`.
pub(crate) fn windows_from(c: &Config, n: usize, first: usize) -> Result<Vec<LayerKind>> {
    let used = c.or("use_sliding_window", false)?;
    let window = keys::window(c, Some(4096))?.filter(|_| used);
    let first: usize = c.or("max_window_layers", first)?;
    let has_window = window.is_some();
    keys::layer_kinds(c, n, window, |layer| has_window && layer >= first)
}
