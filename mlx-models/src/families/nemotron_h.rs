//! Nemotron H (arXiv:2504.03624): layers with one mixer each, most of them scans of Mamba 2, some of them attention without a
//! rope, MLPs without a gate, or experts, which may work on fewer features than a token has. Also the text model of Nemotron 3 Nano
//! Omni.

use mlx_core::Result;
use mlx_nn::{
    ExpertsConfig, MambaConfig, MambaNorm, RecurrenceConfig, Rule, Rules, SharedExpert,
    UngatedExperts,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Config, Source};
use crate::decoders::single_mixer::{MixerConfig, SingleMixer};
use crate::families::mamba2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 131_072,
    intermediate: 21_504,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 4096,
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    activation_key: "mlp_hidden_act",
    activation: "relu2",
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 7688,
    n_experts: 8,
    top_k: 2,
    norm_topk_prob: Some(true),
};

/// Keys of published files that transformers ignores, because the family has only one form.
const IGNORED: &[&str] = &[
    "attention_bias",
    "attention_head_dim",
    "expand",
    "hidden_dropout",
    "mamba_chunk_size",
    "mamba_dt_init_floor",
    "mamba_dt_limit",
    "mamba_dt_max",
    "mamba_expand",
    "mamba_proj_bias",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "n_shared_experts",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "norm_eps",
    "num_hidden_layers",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "num_query_groups",
    "partial_rotary_factor",
    "rms_norm_eps",
    "rope_theta",
    "sliding_window",
    // transformers uses `time_step_min` instead of this key.
    "time_step_limit",
    "use_mamba_kernels",
];

/// Keys of experts, which transformers also writes for models without experts.
const EXPERT_KEYS: &[&str] = &[
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "n_group",
    "n_routed_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "routed_scaling_factor",
    "topk_group",
];

pub(crate) fn load(source: &Source<'_>) -> Result<SingleMixer> {
    let c = source.config;
    c.ignore(mamba2::IGNORED);
    c.ignore(IGNORED);
    c.ignore(EXPERT_KEYS);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    config.recurrence = Some(RecurrenceConfig::Mamba(mamba(c, &config)?));
    let bias = c.or("mlp_bias", false)?;
    keys::ungated(&mut config);
    keys::set_mlp_bias(&mut config, bias);
    let dense = config.feed_forward[0].clone();
    let mixers = letters(c)?.into_iter().map(|letter| {
        Ok(match letter {
            'M' => MixerConfig::Recurrence,
            '*' => MixerConfig::Attention,
            '-' => MixerConfig::Mlp(dense.clone()),
            _ => MixerConfig::Mlp(MlpConfig::Experts(experts(c, &config, bias)?)),
        })
    });
    SingleMixer::new(&config, &mixers.collect::<Result<Vec<_>>>()?)
}

/// The kind of each layer, by the letters of `hybrid_override_pattern`.
fn letters(c: &Config) -> Result<Vec<char>> {
    const KNOWN: [(&str, char); 6] = [
        ("linear_attention", 'M'),
        ("full_attention", '*'),
        ("mlp", '-'),
        ("moe", 'E'),
        ("mamba", 'M'),
        ("attention", '*'),
    ];
    let types = ["layers_block_type", "layer_types"];
    let given = types.iter().find(|key| c.value(key).is_some());
    let pattern: Option<String> = c.opt("hybrid_override_pattern")?;
    let letters = match (given, pattern) {
        (Some(key), _) => {
            let types: Vec<String> = c.required(key)?;
            keys::types_of(c, key, types.len(), KNOWN, |_| 'M')?
        }
        (None, Some(pattern)) => pattern.chars().collect(),
        (None, None) => "ME*-".chars().collect(),
    };
    match letters.iter().find(|letter| !"M*-E".contains(**letter)) {
        Some(letter) => Err(c.unsupported(format!(
            "hybrid_override_pattern has {letter:?}; known: M, E, *, -"
        ))),
        None if letters.is_empty() => Err(c.error("hybrid_override_pattern is empty")),
        None => Ok(letters),
    }
}

/// The scan of recurrent layers. Some keys have two names; the first takes precedence.
fn mamba(c: &Config, config: &DecoderConfig) -> Result<MambaConfig> {
    let either = |keys: [&'static str; 2]| match c.value(keys[0]) {
        Some(_) => keys[0],
        None => keys[1],
    };
    let bias = c.or("use_bias", false)?;
    let least = either(["mamba_dt_min", "time_step_min"]);
    let mamba = MambaConfig {
        hidden: config.hidden,
        heads: c.size("mamba_num_heads", Some(128))?,
        head_dim: c.size("mamba_head_dim", Some(64))?,
        groups: c.size(either(["mamba_n_groups", "n_groups"]), Some(8))?,
        state: c.size("ssm_state_size", Some(128))?,
        taps: keys::taps(c, either(["mamba_d_conv", "conv_kernel"]), 4)?,
        in_bias: bias,
        out_bias: bias,
        conv_bias: c.or(either(["mamba_conv_bias", "use_conv_bias"]), true)?,
        activation: keys::activation(c, "mamba_hidden_act", "silu")?,
        norm: Some(MambaNorm {
            eps: config.norm.eps,
            before_gate: false,
        }),
        limits: (c.or(least, 0.001)?, f32::INFINITY),
        multipliers: None,
    };
    let inner = i64::from(mamba.heads) * i64::from(mamba.head_dim);
    mamba2::check(c, &mamba, inner)?;
    Ok(mamba)
}

/// Experts without a gate, with the routing of DeepSeek-V3.
fn experts(c: &Config, config: &DecoderConfig, bias: bool) -> Result<ExpertsConfig> {
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    let latent = c.value("moe_latent_size").is_some();
    experts.activation = keys::activation(c, "mlp_hidden_act", "relu2")?;
    experts.routing = keys::corrected_routing(c, &experts, true)?;
    experts.shared = Some(SharedExpert {
        intermediate: c.size("moe_shared_expert_intermediate_size", Some(7688))?,
        bias,
        gate: false,
        clamp: None,
    });
    experts.ungated = Some(UngatedExperts {
        latent: match latent {
            true => Some(c.size("moe_latent_size", None)?),
            false => None,
        },
        bias,
    });
    Ok(experts)
}

/// Published names. MLX's files have them too, except for stacked experts.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let own = Rules::from([
        Rule::drop("mtp.*", "of a head for multi-token prediction"),
        // The names of transformers 5.
        Rule::rename("model.embeddings.*", "backbone.embeddings.*"),
        Rule::rename("model.norm_f.*", "backbone.norm_f.*"),
        Rule::rename("*.switch_mlp.fc1.*", "*.switch_mlp.up_proj.*").written(),
        Rule::rename("*.switch_mlp.fc2.*", "*.switch_mlp.down_proj.*").written(),
        Rule::stack("*.mixer.experts.#.*", "*.mixer.switch_mlp.*"),
        Rule::rename("*.mixer.shared_experts.*", "*.mixer.shared_expert.*").written(),
        Rule::rename(
            "*.mixer.gate.e_score_correction_bias",
            "*.mixer.e_score_correction_bias",
        )
        .written(),
    ]);
    Ok(own.and(&mamba2::names(source)?))
}
