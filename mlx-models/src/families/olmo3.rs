//! OLMo 3: OLMo 2 with a window on three of four layers, whose rope is not scaled.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::post_norm::PostNorm;
use crate::families::olmo2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_304,
    norm_eps: 1e-5,
    theta: 500_000.0,
    rope: None,
    ..Defaults::LLAMA
};

pub(crate) fn load(source: &Source<'_>) -> Result<PostNorm> {
    let c = source.config;
    let mut config = olmo2::config(c, &DEFAULTS)?;
    let window = keys::window(c, Some(4096))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % 4 != 0)?;
    // In the older dialect `rope_theta` is the base of the layers without a window only.
    let (positions, base) = (DEFAULTS.max_positions, DEFAULTS.theta);
    keys::ropes_by_kind(c, &mut config, positions, ("rope_theta", base), ("", base))?;
    PostNorm::new(&config)
}
