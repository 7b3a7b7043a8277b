//! Mistral Small 4: latent attention with queries scaled by their position, YaRN, and experts that a softmax chooses.

use mlx_core::Result;
use mlx_nn::{Correction, Rules, Scoring};

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::rope::Dialect;
use crate::decoders::pre_norm::Decoder;
use crate::families::deepseek_v3;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 131_072,
    hidden: 4096,
    intermediate: 12_288,
    layers: 36,
    max_positions: 1_048_576,
    ..Defaults::LLAMA
};

const SIZES: LatentDefaults = LatentDefaults {
    query_rank: 1024,
    rank: 256,
    plain_dim: 64,
    rope_dim: 64,
    value_dim: 128,
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scoring: Scoring::Softmax,
    correction: Correction::None,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 2048,
            n_experts: 128,
            top_k: 4,
            norm_topk_prob: None,
        },
        true,
        0,
    )
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let size = |key, default| c.size(key, Some(default));
    let plain = size("qk_nope_head_dim", SIZES.plain_dim)?;
    let rope = size("qk_rope_head_dim", SIZES.rope_dim)?;
    let defaults = Defaults {
        rope: Some(Dialect::Within(plain.saturating_add(rope))),
        ..deepseek_v3::interleaved(c, &DEFAULTS)?
    };
    if c.object("rope_parameters")?
        .or(c.object("rope_scaling")?)
        .is_none()
    {
        return Err(c.error("rope_parameters is missing"));
    }
    let mut config = keys::latent(source, &defaults, &SIZES)?;
    if let Some(latent) = &mut config.attention.latent {
        latent.growth = keys::query_growth(c, None)?;
    }
    keys::deepseek_experts(c, &mut config, &EXPERTS)?;
    Decoder::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(keys::deepseek_expert_names())
}
