//! GLM 5.3 Flash: several residual streams; Kimi's delta rule; in every fourth layer latent attention without a rope, over
//! pools of positions that an indexer chooses; bounded gates.

use mlx_core::Result;
use mlx_nn::{
    Activation, ChannelDeltaConfig, ClampedGate, GroupScore, IndexConfig, RecurrenceConfig, Rule,
    Rules,
};

use crate::config::keys::{self, DeepSeekExperts, Defaults, LatentDefaults};
use crate::config::plan::{DecoderConfig, MlpConfig};
use crate::config::{Bits, Config, Source};
use crate::decoders::streams::{self, StreamsDecoder};
use crate::draft_heads::nextn;
use crate::families::{deepseek_v3, glm_moe_dsa};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 154_880,
    hidden: 4096,
    intermediate: 12_288,
    layers: 45,
    heads: 64,
    max_positions: 1_048_576,
    norm_eps: 1e-5,
    rope: None,
    ..Defaults::LLAMA
};

const SIZES: LatentDefaults = LatentDefaults {
    query_rank: 1536,
    rank: 512,
    plain_dim: 256,
    rope_dim: 0,
    value_dim: 256,
};

const EXPERTS: DeepSeekExperts = DeepSeekExperts {
    experts: keys::ExpertsDefaults {
        n_experts: 288,
        ..deepseek_v3::EXPERTS.experts
    },
    groups: Some((1, 1, GroupScore::TwoBest)),
    ..deepseek_v3::EXPERTS
};

/// Keys that have no effect: the family has no rope, and one form of the router.
const IGNORED: &[&str] = &[
    "first_k_dense_replace",
    "indexer_rope_interleave",
    "mlp_bias",
    "moe_layer_freq",
    "moe_router_dtype",
    "num_nextn_predict_layers",
    "output_router_logits",
    "partial_rotary_factor",
    "rope_interleave",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "router_aux_loss_coef",
    "scoring_func",
    "topk_method",
];

pub(crate) fn load(source: &Source<'_>) -> Result<StreamsDecoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let mut config = keys::latent(source, &DEFAULTS, &SIZES)?;
    let recurrent = recurrent_layers(c)?;
    let index = index(c)?;
    if let Some(latent) = &mut config.attention.latent {
        if latent.query_rank.is_none() {
            return Err(c.unsupported("q_lora_rank null is not supported; known: a size"));
        }
        latent.eps = config.norm.eps;
        latent.index = Some(index);
    }
    config.attention.shares_index = shared(c, &recurrent)?;
    keys::deepseek_experts_by_types(c, &mut config, &EXPERTS, EXPERTS.dense)?;
    let bound = keys::bounded_gate(c, 10.0)?;
    let activation = keys::activation(c, "hidden_act", "silu")?;
    // Routed experts always have SiLU.
    let own = ClampedGate {
        activation: Some(activation).filter(|&activation| activation != Activation::Silu),
        ..bound
    };
    for mlp in &mut config.feed_forward {
        match mlp {
            MlpConfig::Dense { clamp, .. } => *clamp = Some(own),
            MlpConfig::Experts(experts) => {
                experts.clamp = Some(bound);
                if let Some(shared) = &mut experts.shared {
                    shared.clamp = Some(own);
                }
            }
            MlpConfig::Plain { .. } | MlpConfig::Paired { .. } | MlpConfig::Learned { .. } => {}
        }
    }
    let rule = rule(c, &config)?;
    for (kind, recurrent) in config.layers.iter_mut().zip(recurrent) {
        if recurrent {
            *kind = rule.kind();
        }
    }
    config.recurrence = Some(RecurrenceConfig::Channels(rule));
    streams::decoder(&config, keys::streams(c, &config)?, false)
}

fn index(c: &Config) -> Result<IndexConfig> {
    let index = IndexConfig {
        heads: c.size("index_n_heads", Some(32))?,
        dim: c.size("index_head_dim", Some(128))?,
        top: c.size("index_topk", Some(2048))?,
        interleaved: false,
        rotates_end: false,
        norm_eps: 1e-6,
        pool: Some(c.size("index_kpool", Some(16))?),
    };
    keys::check_index(c, &index, 0)?;
    let pool = index.pool.unwrap_or(1);
    if index.top % pool != 0 {
        return Err(c.error(format!(
            "index_topk {} is not a multiple of index_kpool {pool}",
            index.top
        )));
    }
    if !c.or("index_kpool_always_select_tail", true)? {
        return Err(
            c.unsupported("index_kpool_always_select_tail false is not supported; known: true")
        );
    }
    Ok(index)
}

/// Whether each layer is recurrent: `layer_types`, or all but every fourth.
fn recurrent_layers(c: &Config) -> Result<Vec<bool>> {
    const KNOWN: [(&str, bool); 3] = [
        ("full_attention", false),
        ("indexed_attention", false),
        ("linear_attention", true),
    ];
    let n = keys::n_layers(c, Some(DEFAULTS.layers))?;
    keys::layer_types(c, n, KNOWN, |layer| layer % 4 != 3)
}

/// For each layer, whether it uses the choice of the layer right before it.
fn shared(c: &Config, recurrent: &[bool]) -> Result<Vec<bool>> {
    let shared = glm_moe_dsa::shared(c, recurrent.len())?;
    for layer in (0..recurrent.len()).filter(|&layer| shared[layer] && !recurrent[layer]) {
        if layer == 0 || recurrent[layer - 1] || shared[layer - 1] {
            return Err(c.unsupported(format!(
                "layer {layer} is shared, but the layer before it has no indexer"
            )));
        }
    }
    let own = shared.iter().zip(recurrent);
    Ok(own
        .map(|(&shared, &recurrent)| shared && !recurrent)
        .collect())
}

/// The delta rule. The keys of `linear_attn_config` take precedence over those that transformers writes.
fn rule(c: &Config, config: &DecoderConfig) -> Result<ChannelDeltaConfig> {
    let given = c.object("linear_attn_config")?;
    let linear = given.unwrap_or_else(|| c.part("linear_attn_config", []));
    linear.ignore(&["full_attn_layers", "kda_layers"]);
    // transformers writes both.
    c.ignore(&[
        "linear_conv_kernel_dim",
        "linear_head_dim",
        "linear_lower_bound",
        "linear_num_heads",
    ]);
    let size = |key: &str, written: &str, default: i32| match linear.value(key) {
        Some(_) => linear.size(key, None),
        None => c.size(written, Some(default)),
    };
    let heads = size("num_heads", "linear_num_heads", 64)?;
    let head_dim = size("head_dim", "linear_head_dim", 128)?;
    keys::check_heads(c, heads, heads, head_dim)?;
    let taps = match linear.value("short_conv_kernel_size") {
        Some(_) => keys::taps(&linear, "short_conv_kernel_size", 4)?,
        None => keys::taps(c, "linear_conv_kernel_dim", 4)?,
    };
    let of = match linear.raw("gate_lower_bound") {
        Some(_) => linear.opt::<f64>("gate_lower_bound")?,
        None if c.is_null("linear_lower_bound") => None,
        None => Some(c.or("linear_lower_bound", -5.0)?),
    };
    let is_safe = c.value("linear_attn_config").is_some() && linear.or("safe_gate", true)?;
    let bound = of.or(is_safe.then_some(-5.0));
    if let Some(bound) = bound.filter(|bound| !(*bound < 0.0 && bound.is_finite())) {
        return Err(c.error(format!(
            "the lower bound of decays must be below 0, found {bound}"
        )));
    }
    Ok(ChannelDeltaConfig {
        hidden: config.hidden,
        heads,
        head_dim,
        taps,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norm_eps: config.norm.eps,
        full: false,
        flat_rates: true,
        bound: bound.map(|bound| bound as f32),
    })
}

/// The names of published files, and of those that transformers 5 writes and keeps in memory. The layers after
/// the last are heads for multi-token prediction.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let c = source.config;
    let recurrent = recurrent_layers(c)?.into_iter().enumerate();
    let recurrent = recurrent
        .filter(|(_, recurrent)| *recurrent)
        .map(|(layer, _)| {
            let [from, to] =
                ["self_attn", "linear_attn"].map(|name| format!("model.layers.{layer}.{name}.*"));
            Rule::rename(&from, &to).written()
        });
    let joint = "*.linear_attn.conv1d.weight";
    let apart = ["q", "k", "v"].map(|part| format!("*.linear_attn.{part}_taps"));
    let joint = [
        Rule::transpose(joint, &[1, 0, 2]),
        Rule::split(joint, 1, [(&apart[0], 1), (&apart[1], 1), (&apart[2], 1)]),
    ];
    let convolutions = ["q", "k", "v"].into_iter().flat_map(|part| {
        let [single, from, to] = ["taps", "conv1d.weight", "conv.conv.weight"]
            .map(|name| format!("*.linear_attn.{part}_{name}"));
        [
            Rule::transpose(&single, &[1, 2, 0]),
            Rule::rename(&single, &to),
            Rule::transpose(&from, &[0, 2, 1]),
            Rule::rename(&from, &to),
        ]
    });
    let others = [
        Rule::rename("*.linear_attn.forget_gate.*", "*.linear_attn.*"),
        Rule::rename("*.hc_attn_fn", "*.attn_hc.fn"),
        Rule::rename("*.hc_attn_base", "*.attn_hc.base"),
        Rule::rename("*.hc_attn_scale", "*.attn_hc.scale"),
        Rule::rename("*.hc_ffn_fn", "*.ffn_hc.fn"),
        Rule::rename("*.hc_ffn_base", "*.ffn_hc.base"),
        Rule::rename("*.hc_ffn_scale", "*.ffn_hc.scale"),
        Rule::rename("*_hc.fn", "*_hc.mix").written(),
        Rule::rename(
            "*.indexer.index_kpool_compress_gate",
            "*.indexer.pool.gate.weight",
        )
        .written(),
        Rule::rename(
            "*.indexer.index_kpool_compress_ape",
            "*.indexer.pool.places",
        )
        .written(),
    ];
    let heads = nextn::dropped(c, DEFAULTS.layers)?;
    let rules = Rules::from(recurrent.chain(joint).chain(convolutions).chain(others));
    Ok(heads.and(&rules).and(&keys::deepseek_expert_names()))
}

/// [`deepseek_v3::BITS`], and the gates of pools, whose published name is not that of a module.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.mlp.gate", Bits::Dense),
    ("*.self_attn.kv_b_proj", Bits::Dense),
    ("*.indexer.pool.gate", Bits::Dense),
];
