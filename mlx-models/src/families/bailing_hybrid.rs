//! Ling 3 (Bailing): gated delta rules with a bounded decay for each channel, and latent attention with a gate a head in the
//! last layer of each group; experts of DeepSeek V3's form.

use mlx_core::Result;
use mlx_nn::{
    ChannelDeltaConfig, GateFunction, GroupScore, HeadGate, RecurrenceConfig, Rule, Rules,
};

use crate::config::keys::{self, DeepSeekExperts, Defaults, ExpertsDefaults, LatentDefaults};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::draft_heads::nextn;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 157_184,
    hidden: 2560,
    intermediate: 6144,
    layers: 42,
    heads: 32,
    max_positions: 262_144,
    theta: 6_000_000.0,
    interleaved: true,
    ..Defaults::LLAMA
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    groups: Some((8, 4, GroupScore::TwoBest)),
    scale: 2.5,
    ..DeepSeekExperts::corrected(
        ExpertsDefaults {
            intermediate_key: "moe_intermediate_size",
            intermediate: 768,
            n_experts: 512,
            top_k: 8,
            norm_topk_prob: None,
        },
        true,
        2,
    )
};

/// Keys that have no effect, because the family has only one form, and those of the heads for
/// multi-token prediction, which are not loaded.
const IGNORED: &[&str] = &[
    "linear_conv_kernel_dim",
    "linear_num_heads",
    "moe_router_enable_expert_bias",
    "moe_shared_expert_intermediate_size",
    "mtp_loss_scaling_factor",
    "no_kda_lora",
    "norm_head",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "output_router_logits",
    "pretraining_tp",
    "rope_interleave",
    "router_dtype",
    "score_function",
    "scoring_func",
    "topk_method",
    "use_qk_norm",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = &super::kimi_linear::renamed(source.config);
    if c.value("group_norm_size").is_some() {
        return Err(c.unsupported(
            "Ling 2.5 (group_norm_size) is not supported; known of bailing_hybrid: Ling 3",
        ));
    }
    c.ignore(IGNORED);
    let source = &Source {
        config: c,
        ..*source
    };
    let mut config = keys::latent(source, &DEFAULTS, &LatentDefaults::DEEPSEEK)?;
    if let Some(latent) = &mut config.attention.latent {
        latent.gate = Some(HeadGate {
            by_feature: false,
            function: GateFunction::Sigmoid,
        });
    }
    let first = c.or("first_k_dense_replace", EXPERTS.dense)?;
    keys::deepseek_experts_by_types(c, &mut config, &EXPERTS, first)?;
    let heads = config.attention.heads;
    // transformers writes the size of the rotated part as `head_dim`, and this one beside it.
    let key = match c.value("linear_head_dim") {
        Some(_) => "linear_head_dim",
        None => "head_dim",
    };
    let head_dim = c.size(key, Some(128))?;
    keys::check_heads(c, heads, heads, head_dim)?;
    let bound: f64 = c.or("kda_lower_bound", -5.0)?;
    if !(bound < 0.0 && bound.is_finite()) {
        return Err(c.error(format!("kda_lower_bound must be below 0, found {bound}")));
    }
    let rule = ChannelDeltaConfig {
        hidden: config.hidden,
        heads,
        head_dim,
        taps: keys::taps(c, "short_conv_kernel_size", 4)?,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norm_eps: config.norm.eps,
        full: true,
        flat_rates: true,
        bound: c.or("kda_safe_gate", true)?.then_some(bound as f32),
    };
    for (kind, recurrent) in config.layers.iter_mut().zip(recurrent_layers(c)?) {
        if recurrent {
            *kind = rule.kind();
        }
    }
    config.recurrence = Some(RecurrenceConfig::Channels(rule));
    Decoder::new(&config)
}

/// Whether each layer is recurrent: `layer_types`, or all but the last layer of each group.
fn recurrent_layers(c: &Config) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 2] = [("full_attention", false), ("linear_attention", true)];
    let n = keys::n_layers(c, Some(DEFAULTS.layers))?;
    let group = c.size("layer_group_size", Some(6))? as usize;
    keys::layer_types(c, n, KNOWN, |layer| (layer + 1) % group != 0)
}

/// The names of published files, and of those that transformers 5 keeps in memory. The layers after
/// the last are heads for multi-token prediction.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let c = source.config;
    let recurrent = recurrent_layers(c)?.into_iter().enumerate();
    let attention = recurrent.map(|(layer, recurrent)| {
        let to = if recurrent {
            "linear_attn"
        } else {
            "self_attn"
        };
        let [from, to] = ["attention", to].map(|name| format!("model.layers.{layer}.{name}.*"));
        Rule::rename(&from, &to).written()
    });
    let convolutions = ["q", "k", "v"].into_iter().flat_map(|part| {
        let [from, to] =
            ["conv1d", "conv.conv"].map(|name| format!("*.linear_attn.{part}_{name}.weight"));
        [Rule::transpose(&from, &[0, 2, 1]), Rule::rename(&from, &to)]
    });
    let others = [
        Rule::rename("model.word_embeddings.*", "model.embed_tokens.*").written(),
        Rule::rename("*.self_attn.dense.*", "*.self_attn.o_proj.*").written(),
        // Published files have `o_proj` in recurrent layers; transformers writes this.
        Rule::rename("*.linear_attn.dense.*", "*.linear_attn.o_proj.*"),
        Rule::rename("*.mlp.gate.expert_bias", "*.mlp.e_score_correction_bias"),
    ];
    let heads = nextn::dropped(c, DEFAULTS.layers)?;
    let rules = Rules::from(attention.chain(convolutions).chain(others));
    Ok(heads.and(&rules).and(&keys::deepseek_expert_names()))
}
