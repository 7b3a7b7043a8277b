//! DeepSeek V2, Lite and Coder (arXiv:2405.04434): latent attention, and experts that a softmax
//! chooses, among all or within the best groups.

use mlx_core::Result;
use mlx_nn::{Correction, GroupScore, Rules, Scoring};

use crate::config::Source;
use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 102_400,
    interleaved: true,
    ..Defaults::LLAMA
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scoring: Scoring::Softmax,
    correction: Correction::None,
    normed: None,
    shared: 2,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 1407,
            n_experts: 64,
            top_k: 1,
            norm_topk_prob: Some(false),
        },
        false,
        0,
    )
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "aux_loss_alpha",
    "ep_size",
    "moe_layer_freq",
    "scoring_func",
    "seq_aux",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::latent(source, &DEFAULTS, &LatentDefaults::DEEPSEEK)?;
    if c.or("mlp_bias", false)? {
        return Err(c.unsupported("mlp_bias true is not supported: only MLPs without biases"));
    }
    c.ignore(IGNORED);
    c.required::<i32>("num_experts_per_tok")?;
    let groups = match c.or("topk_method", "greedy".to_owned())?.as_str() {
        "greedy" => {
            c.ignore(&["n_group", "topk_group"]);
            None
        }
        "group_limited_greedy" => Some((
            c.size("n_group", None)?,
            c.size("topk_group", None)?,
            GroupScore::Best,
        )),
        other => {
            return Err(c.unsupported(format!(
                "topk_method {other:?} is not supported; known: greedy, group_limited_greedy"
            )));
        }
    };
    keys::deepseek_experts(c, &mut config, &DeepSeekExperts { groups, ..EXPERTS })?;
    Decoder::new(&config)
}

pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(keys::deepseek_expert_names())
}
