//! DeepSeek V3 and R1 (arXiv:2412.19437): latent attention, and grouped experts after a few dense layers. Also the text
//! tower of Kimi K2.5.

use mlx_core::Result;
use mlx_nn::{GroupScore, Rules};

use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Bits, Config, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::pre_norm::{Decoder, PreNormLayer};
use crate::draft_heads::nextn::{self, NextN};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 129_280,
    hidden: 7168,
    intermediate: 18_432,
    layers: 61,
    heads: 128,
    max_positions: 4096,
    ..Defaults::LLAMA
};

/// DeepSeek's experts.
pub(crate) const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    groups: Some((8, 4, GroupScore::TwoBest)),
    scale: 2.5,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 2048,
            n_experts: 256,
            top_k: 8,
            norm_topk_prob: None,
        },
        true,
        3,
    )
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "aux_loss_alpha",
    "ep_size",
    "moe_layer_freq",
    "scoring_func",
    "seq_aux",
    "topk_method",
];

pub(crate) fn load(source: &Source<'_>) -> Result<WithHeads> {
    let c = source.config;
    match c.or("model_type", "deepseek_v3".to_owned())?.as_str() {
        "deepseek_v3" | "kimi_k2" | "kimi_k25" => {}
        other => {
            return Err(c.unsupported(format!(
                "a text model of model_type {other:?} is not supported; known: deepseek_v3, kimi_k2"
            )));
        }
    }
    let mut config = keys::latent(
        source,
        &interleaved(c, &DEFAULTS)?,
        &LatentDefaults::DEEPSEEK,
    )?;
    c.ignore(IGNORED);
    keys::deepseek_experts(c, &mut config, &EXPERTS)?;
    with_heads(source, &config)
}

/// A decoder, with heads for multi-token prediction if the checkpoint has some.
pub(crate) type WithHeads = CausalLm<PreNormLayer, NextN>;

pub(crate) fn with_heads(source: &Source<'_>, config: &DecoderConfig) -> Result<WithHeads> {
    let heads = NextN::of(source, config)?;
    Ok(Decoder::new(config)?.with_mtp(heads))
}

/// The defaults, changed by `rope_interleave`: whether the rope pairs neighbouring features.
pub(crate) fn interleaved(c: &Config, defaults: &Defaults) -> Result<Defaults> {
    Ok(Defaults {
        interleaved: c.or("rope_interleave", true)?,
        ..*defaults
    })
}

/// The rules for the names of DeepSeek's form of experts, and of the heads for multi-token
/// prediction after the last layer.
pub(crate) fn names_with_heads(c: &Config, layers: i32) -> Result<Rules> {
    Ok(nextn::names(c, layers)?.and(&keys::deepseek_expert_names()))
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    names_with_heads(source.config, DEFAULTS.layers)
}

/// Other programs read neither a quantised router nor, in all schemes, a quantised projection from
/// compressed vectors. The absorbed form of latent attention multiplies with the dense matrices of
/// that projection. Heads keep more bits: with fewer bits, more of their drafts are rejected.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.mlp.gate", Bits::Dense),
    ("*.self_attn.kv_b_proj", Bits::Dense),
    ("mtp.*.eh_proj", Bits::Dense),
    ("mtp.*", Bits::Eight),
];
