//! GLM 5: latent attention over the positions that an indexer chooses. Only some layers have an indexer; the layers
//! after them use its choice.

use mlx_core::Result;
use mlx_nn::{GroupScore, IndexConfig, Rules};

use crate::config::keys::{self, DeepSeekExperts, Defaults, LatentDefaults};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::draft_heads::nextn;
use crate::families::deepseek_v32;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 154_880,
    hidden: 6144,
    intermediate: 12_288,
    layers: 78,
    heads: 64,
    max_positions: 202_752,
    norm_eps: 1e-5,
    interleaved: true,
    ..Defaults::LLAMA
};

const SIZES: LatentDefaults = LatentDefaults {
    query_rank: 2048,
    rank: 512,
    plain_dim: 192,
    rope_dim: 64,
    value_dim: 256,
};

const INDEX: IndexConfig = IndexConfig {
    heads: 32,
    dim: 128,
    top: 2048,
    interleaved: true,
    rotates_end: false,
    norm_eps: 1e-6,
    pool: None,
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    groups: Some((1, 1, GroupScore::TwoBest)),
    ..deepseek_v32::EXPERTS
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let mut config = deepseek_v32::config(source, &DEFAULTS, &SIZES, INDEX, &EXPERTS)?;
    let c = source.config;
    let shared = shared(c, config.layers.len())?;
    if shared.first() == Some(&true) {
        return Err(c.error("the first layer has no earlier one whose choice it could take"));
    }
    config.attention.shares_index = shared;
    Decoder::new(&config)
}

/// For each layer, whether it uses the choice of an earlier indexer. The config has a list, a
/// pattern of letters, or a number n of layers for each indexer.
pub(super) fn shared(c: &Config, n: usize) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 2] = [("full", false), ("shared", true)];
    c.ignore(&[
        "index_topk_pattern",
        "index_topk_freq",
        "index_skip_topk_offset",
    ]);
    let given = c.value("indexer_types").is_some();
    let shared = match c.opt::<String>("index_topk_pattern") {
        Ok(Some(pattern)) if !given => {
            let letter = |letter| match letter {
                'F' => Ok(false),
                'S' => Ok(true),
                other => Err(c.unsupported(format!(
                    "index_topk_pattern has the letter {other:?}; known: F, S"
                ))),
            };
            pattern.chars().map(letter).collect::<Result<Vec<_>>>()?
        }
        Err(_) if !given => keys::types_of(c, "index_topk_pattern", n, KNOWN, |_| false)?,
        _ => {
            let every = c.or("index_topk_freq", 1i64)?.max(1);
            let offset: i64 = c.or("index_skip_topk_offset", 2)?;
            let takes = |layer: usize| (layer as i64 - offset + 1).max(0) % every != 0;
            keys::types_of(c, "indexer_types", n, KNOWN, takes)?
        }
    };
    if shared.len() != n {
        let found = shared.len();
        return Err(c.error(format!(
            "index_topk_pattern has {found} letters for {n} layers"
        )));
    }
    Ok(shared)
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    Ok(nextn::dropped(source.config, DEFAULTS.layers)?.and(&keys::deepseek_expert_names()))
}
