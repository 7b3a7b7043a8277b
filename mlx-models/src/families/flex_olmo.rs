//! FlexOlmo (arXiv:2507.07024): OLMo 2 with experts in every layer.

use mlx_core::Result;

use crate::config::Source;
use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::MlpConfig;
use crate::decoders::post_norm::PostNorm;
use crate::families::olmo2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 100_352,
    max_positions: 4096,
    theta: 500_000.0,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "intermediate_size",
    intermediate: 11_008,
    n_experts: 7,
    top_k: 5,
    norm_topk_prob: None,
};

pub(crate) fn load(source: &Source<'_>) -> Result<PostNorm> {
    let c = source.config;
    let mut config = olmo2::config(c, &DEFAULTS)?;
    let experts = keys::experts(c, config.hidden, &EXPERTS)?;
    config.feed_forward.fill(MlpConfig::Experts(experts));
    PostNorm::new(&config)
}
