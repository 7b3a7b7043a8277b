//! Ministral (8B of 2024): Mistral with a window on the layers that `layer_types` names.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys;
use crate::decoders::pre_norm::Decoder;
use crate::families::mistral;

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &mistral::DEFAULTS)?;
    let window = keys::window(c, Some(4096))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |_| window.is_some())?;
    Decoder::new(&config)
}
