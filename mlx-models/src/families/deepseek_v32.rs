//! DeepSeek V3.2: DeepSeek V3 whose queries see only the positions that an indexer scores best.

use mlx_core::Result;
use mlx_nn::{IndexConfig, Rules};

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, LatentDefaults};
use crate::config::plan::DecoderConfig;
use crate::decoders::pre_norm::Decoder;
use crate::draft_heads::nextn;
use crate::families::deepseek_v3;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 129_280,
    hidden: 7168,
    intermediate: 18_432,
    layers: 61,
    heads: 128,
    max_positions: 163_840,
    interleaved: true,
    ..Defaults::LLAMA
};

const INDEX: IndexConfig = IndexConfig {
    heads: 64,
    dim: 128,
    top: 2048,
    interleaved: false,
    rotates_end: false,
    norm_eps: 1e-6,
    pool: None,
};

/// DeepSeek V3's defaults. [`config`] reads the number of dense layers at the start.
pub(crate) const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    dense: 0,
    ..deepseek_v3::EXPERTS
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "aux_loss_alpha",
    "ep_size",
    "indexer_rope_interleave",
    "mlp_bias",
    "moe_layer_freq",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "rope_interleave",
    "scoring_func",
    "seq_aux",
    "topk_method",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    Decoder::new(&config(
        source,
        &DEFAULTS,
        &LatentDefaults::DEEPSEEK,
        INDEX,
        &EXPERTS,
    )?)
}

/// The decoder of a config, with an indexer in each layer.
pub(crate) fn config(
    source: &Source<'_>,
    defaults: &Defaults,
    sizes: &LatentDefaults,
    index: IndexConfig,
    experts: &DeepSeekExperts,
) -> Result<DecoderConfig> {
    let c = source.config;
    let mut config = keys::latent(source, defaults, sizes)?;
    c.ignore(IGNORED);
    if let Some(latent) = &mut config.attention.latent {
        let index = IndexConfig {
            heads: c.size("index_n_heads", Some(index.heads))?,
            dim: c.size("index_head_dim", Some(index.dim))?,
            top: c.size("index_topk", Some(index.top))?,
            ..index
        };
        keys::check_index(c, &index, latent.rope_dim)?;
        latent.index = Some(index);
    }
    c.ignore(&["layer_types"]);
    let dense: usize = c.or("first_k_dense_replace", 3)?;
    keys::deepseek_experts_by_types(c, &mut config, experts, dense)?;
    Ok(config)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    Ok(nextn::dropped(source.config, DEFAULTS.layers)?.and(&keys::deepseek_expert_names()))
}
