//! Kimi Linear (arXiv:2510.26692): gated delta rules with a decay for each channel; latent
//! attention without a rope in every fourth layer; experts of DeepSeek V3's form.

use mlx_core::Result;
use mlx_nn::{ChannelDeltaConfig, RecurrenceConfig, Rule, Rules};
use serde_json::Value;

use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 163_840,
    hidden: 2304,
    intermediate: 9216,
    layers: 27,
    heads: 32,
    max_positions: 1_048_576,
    norm_eps: 1e-5,
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    scale: 2.446,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 1024,
            n_experts: 256,
            top_k: 8,
            norm_topk_prob: None,
        },
        true,
        1,
    )
};

/// The family's names of keys, which take precedence over the usual names.
const ALIASES: [(&str, &str); 6] = [
    ("max_position_embeddings", "model_max_length"),
    ("norm_topk_prob", "moe_renormalize"),
    ("n_group", "num_expert_group"),
    ("num_local_experts", "num_experts"),
    ("num_experts_per_tok", "num_experts_per_token"),
    ("n_shared_experts", "num_shared_experts"),
];

/// Keys of published files that transformers does not read, and keys that have no effect beside `linear_attn_config`.
const IGNORED: &[&str] = &[
    "linear_conv_kernel_dim",
    "linear_head_dim",
    "linear_num_heads",
    "mla_use_nope",
    "moe_layer_freq",
    "moe_router_activation_func",
    "num_nextn_predict_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "use_grouped_topk",
];

/// The config with the usual names of keys, for families with these names of latent attention and
/// experts.
pub(super) fn renamed(config: &Config) -> Config {
    let mut c = config.clone();
    for (key, own) in ALIASES {
        if let Some(value) = config.value(own) {
            c.set(key, value.clone());
        }
    }
    if c.value("q_lora_rank").is_none() {
        // If the key is absent, queries are not compressed.
        c.set("q_lora_rank", Value::Null);
    }
    c
}

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = &renamed(source.config);
    c.ignore(IGNORED);
    let source = &Source {
        config: c,
        ..*source
    };
    let mut config = keys::latent(source, &DEFAULTS, &LatentDefaults::DEEPSEEK)?;
    let first = c.or("first_k_dense_replace", EXPERTS.dense)?;
    keys::deepseek_experts_by_types(c, &mut config, &EXPERTS, first)?;
    let rule = rule(c, &config)?;
    for (kind, recurrent) in config.layers.iter_mut().zip(recurrent_layers(c)?) {
        if recurrent {
            *kind = rule.kind();
        }
    }
    config.recurrence = Some(RecurrenceConfig::Channels(rule));
    Decoder::new(&config)
}

/// The keys of `linear_attn_config`, which take precedence over those that transformers writes.
fn linear_config(c: &Config) -> Result<Config> {
    let given = c.object("linear_attn_config")?;
    Ok(given.unwrap_or_else(|| c.part("linear_attn_config", [])))
}

fn rule(c: &Config, config: &DecoderConfig) -> Result<ChannelDeltaConfig> {
    let linear = linear_config(c)?;
    let size = |key: &str, written: &str, default: i32| match linear.value(key) {
        Some(_) => linear.size(key, None),
        None => c.size(written, Some(default)),
    };
    let heads = size("num_heads", "linear_num_heads", 32)?;
    let head_dim = size("head_dim", "linear_head_dim", 128)?;
    keys::check_heads(c, heads, heads, head_dim)?;
    let taps = match linear.value("short_conv_kernel_size") {
        Some(_) => keys::taps(&linear, "short_conv_kernel_size", 4)?,
        None => keys::taps(c, "linear_conv_kernel_dim", 4)?,
    };
    Ok(ChannelDeltaConfig {
        hidden: config.hidden,
        heads,
        head_dim,
        taps,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norm_eps: config.norm.eps,
        full: false,
        flat_rates: false,
        bound: None,
    })
}

/// Whether each layer is recurrent: `layer_types`, or the lists of `linear_attn_config`, whose numbers begin at 1.
fn recurrent_layers(c: &Config) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 2] = [("full_attention", false), ("linear_attention", true)];
    let n = keys::n_layers(c, Some(DEFAULTS.layers))?;
    let linear = linear_config(c)?;
    let lists = [("full_attn_layers", false), ("kda_layers", true)];
    let mut listed = vec![None; n];
    for (key, recurrent) in lists {
        for layer in linear.or::<Vec<usize>>(key, Vec::new())? {
            let place = layer.checked_sub(1).and_then(|place| listed.get_mut(place));
            let place = place.ok_or_else(|| {
                linear.error(format!("{key} must hold layers in 1..={n}, found {layer}"))
            })?;
            *place = Some(recurrent);
        }
    }
    let both = lists.iter().all(|(key, _)| linear.value(key).is_some());
    if let (true, None, Some(layer)) = (
        both,
        c.value("layer_types"),
        listed.iter().position(Option::is_none),
    ) {
        let layer = layer + 1;
        let message = format!("layer {layer} is neither in full_attn_layers nor in kda_layers");
        return Err(linear.error(message));
    }
    keys::layer_types(c, n, KNOWN, |layer| match both {
        true => listed[layer] == Some(true),
        false => layer == 0 || layer % 4 != 0,
    })
}

/// Published files have numbers for the matrices of an expert, another path for experts than for
/// MLPs, and convolutions with the axes of torch. Files of MLX have none of these.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let own = |layer: usize| {
        let [from, to] =
            ["self_attn", "linear_attn"].map(|name| format!("model.layers.{layer}.{name}.*"));
        Rule::rename(&from, &to).written()
    };
    let recurrent = recurrent_layers(source.config)?;
    let recurrent = recurrent.iter().enumerate();
    let recurrent = recurrent
        .filter(|&(_, recurrent)| *recurrent)
        .map(|(layer, _)| own(layer));
    let convolutions = ["q", "k", "v"].into_iter().flat_map(|part| {
        let [from, to] =
            ["conv1d", "conv.conv"].map(|name| format!("*.linear_attn.{part}_{name}.weight"));
        [Rule::transpose(&from, &[0, 2, 1]), Rule::rename(&from, &to)]
    });
    let experts = [
        Rule::rename("*.block_sparse_moe.*", "*.mlp.*"),
        Rule::rename("*.experts.#.w1.*", "*.experts.#.gate_proj.*"),
        Rule::rename("*.experts.#.w2.*", "*.experts.#.down_proj.*"),
        Rule::rename("*.experts.#.w3.*", "*.experts.#.up_proj.*"),
        Rule::rename(
            "*.mlp.gate.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        ),
    ];
    let rules = recurrent.chain(convolutions).chain(experts);
    Ok(Rules::from(rules).and(&keys::deepseek_expert_names()))
}
