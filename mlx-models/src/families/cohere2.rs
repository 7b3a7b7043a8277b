//! Command R 7B and Command A (arXiv:2504.00698): Cohere's decoder with sliding windows; layers with full attention
//! have no rope.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults};
use crate::decoders::parallel_residual::ParallelResidual;
use crate::families::cohere;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    theta: 10_000.0,
    ..cohere::DEFAULTS
};

/// Keys of published files that transformers does not read.
pub(crate) const IGNORED: &[&str] = &[
    "_sliding_window_pattern",
    "layer_switch",
    "order_of_interleaved_layers",
    "position_embedding_type",
    "rotary_pct",
    "use_embedding_sharing",
    "use_gated_activation",
    "use_parallel_block",
    "use_parallel_embedding",
    "use_qk_norm",
];

pub(crate) fn load(source: &Source<'_>) -> Result<ParallelResidual> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = cohere::config(c, &DEFAULTS)?;
    let window = keys::window(c, Some(4096))?;
    let every = c.size("sliding_window_pattern", Some(4))? as usize;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % every != 0)?;
    keys::rope_on_windows(&mut config);
    ParallelResidual::new(&config)
}
