//! Step 3.5, and the text tower of Step 3.7: other numbers of heads and another rope in layers with windows, a gate a head on
//! the output of attention, and bounded gates of experts and MLPs.

use mlx_core::Result;
use mlx_nn::{
    ClampedGate, Correction, GateFunction, HeadGate, LayerKind, QkNorm, RopeConfig, Routing, Rule,
    Rules, Scoring, SharedExpert,
};

use crate::config::keys::{self, Defaults, ExpertsDefaults};
use crate::config::plan::{AttentionPlan, DecoderConfig, MlpConfig};
use crate::config::rope::{Dialect, RopeDefaults, context, rope_of_entry};
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;
use crate::draft_heads::nextn;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_815,
    intermediate: 11_264,
    layers: 45,
    heads: 64,
    kv_heads: Some(8),
    head_dim: Some(128),
    max_positions: 128_000,
    norm_eps: 1e-5,
    activation_key: "",
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 1280,
    n_experts: 288,
    top_k: 8,
    norm_topk_prob: Some(true),
};

/// Without a list, layers from this one on have experts.
const FIRST_SPARSE: usize = 3;

/// Keys that have no effect, because the family has only one form, and those of the heads for
/// multi-token prediction, which are not loaded.
const IGNORED: &[&str] = &[
    "att_impl_type",
    "hidden_act",
    "mtp_layer_types",
    "mtp_mlp_layer_types",
    "need_fp32_gate",
    "norm_expert_weight",
    "norm_topk_prob",
    "num_mtp_layers",
    "output_router_logits",
    "per_layer_config",
    "use_bidirectional_attention",
    "use_head_wise_attn_gate",
    "use_moe",
    "use_moe_router_bias",
    "use_qk_norm",
    "yarn_only_types",
    "zero_centered",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    c.ignore(IGNORED);
    let groups = c.opt::<i32>("num_attention_groups")?;
    let mut config = keys::decoder(
        c,
        &Defaults {
            kv_heads: groups.or(DEFAULTS.kv_heads),
            ..DEFAULTS
        },
    )?;
    keys::attention_bias(c, &mut config)?;
    keys::mlp_bias(c, &mut config)?;
    let plan = &mut config.attention;
    plan.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    plan.gate = Some(HeadGate {
        by_feature: false,
        function: GateFunction::Sigmoid,
    });
    if c.value("query_pre_attn_scalar").is_some() {
        plan.scale = (c.positive("query_pre_attn_scalar", None)? as f32).powf(-0.5);
    }
    let n = config.layers.len();
    let window = keys::window(c, None)?;
    config.layers = sliding(c, n)?
        .into_iter()
        .map(|sliding| match (sliding, window) {
            (false, _) => Ok(LayerKind::Full),
            (true, Some(_)) => Ok(keys::kind(window)),
            (true, None) => Err(c.error("layers have sliding_attention, but no sliding_window")),
        })
        .collect::<Result<_>>()?;
    config.attentions = attentions(c, &config)?;
    ropes(c, &mut config)?;
    feed_forward(c, &mut config)?;
    Decoder::new(&config)
}

/// The first `n` entries of a list that published files have for the layers and for the heads for
/// multi-token prediction behind them.
fn list<T: serde::de::DeserializeOwned>(c: &Config, key: &str, n: usize) -> Result<Option<Vec<T>>> {
    let Some(mut all) = c.opt::<Vec<T>>(key)? else {
        return Ok(None);
    };
    let heads: usize = c.or("num_nextn_predict_layers", 0)?;
    if all.len() != n && all.len() != n + heads {
        let found = all.len();
        return Err(c.error(format!(
            "{key} has {found} entries for {n} layers and {heads} heads behind them"
        )));
    }
    all.truncate(n);
    Ok(Some(all))
}

/// Whether each layer has a window.
fn sliding(c: &Config, n: usize) -> Result<Vec<bool>> {
    let types = list::<String>(c, "layer_types", n)?.unwrap_or_default();
    let of = |layer| match types.get(layer).map(String::as_str) {
        None | Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        Some(other) => Err(c.unsupported(format!(
            "layer type {other:?} is unknown; known: full_attention, sliding_attention"
        ))),
    };
    (0..n).map(of).collect()
}

/// The attention of each layer. `attention_other_setting` has the numbers of heads of layers with a
/// window; transformers writes that of their queries as `num_sliding_attention_heads`.
fn attentions(c: &Config, config: &DecoderConfig) -> Result<Vec<AttentionPlan>> {
    let full = &config.attention;
    let mut sliding = full.clone();
    if let Some(other) = c.object("attention_other_setting")? {
        sliding.heads = other.size("num_attention_heads", Some(full.heads))?;
        // transformers reads neither of these. Published files have the values of full layers.
        let same = [
            ("num_attention_groups", full.kv_heads),
            ("head_dim", full.head_dim),
        ];
        for (key, size) in same {
            let found = other.size(key, Some(size))?;
            if found != size {
                return Err(other.unsupported(format!(
                    "{key} {found} is not supported: it must be {size}, as in full layers"
                )));
            }
        }
        other.ignore(&["attention_type", "true_head_dim"]);
    }
    sliding.heads = c.size("num_sliding_attention_heads", Some(sliding.heads))?;
    keys::check_heads(c, sliding.heads, sliding.kv_heads, sliding.head_dim)?;
    let of = |kind: &LayerKind| match kind {
        LayerKind::Full => full.clone(),
        _ => sliding.clone(),
    };
    Ok(config.layers.iter().map(of).collect())
}

/// Reads the ropes: an entry of `rope_parameters` for each kind of layer, or published lists of
/// bases and of rotated fractions. Of those, transformers reads the first of each kind, and
/// `rope_scaling` is that of full layers.
fn ropes(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let n = config.layers.len();
    let bases = match c.value("rope_theta") {
        Some(serde_json::Value::Array(_)) => list::<f64>(c, "rope_theta", n)?.unwrap_or_default(),
        _ => vec![c.or("rope_theta", DEFAULTS.theta)?; n],
    };
    let partials = list::<f64>(c, "partial_rotary_factors", n)?;
    let given = c.object("rope_parameters")?;
    let scaling = c.object("rope_scaling")?;
    let max_positions = c.size("max_position_embeddings", Some(DEFAULTS.max_positions))?;
    let rope = |is_full: bool| -> Result<Option<RopeConfig>> {
        let is_kind = |kind: &LayerKind| (*kind == LayerKind::Full) == is_full;
        let Some(layer) = config.layers.iter().position(is_kind) else {
            return Ok(None);
        };
        let name = match is_full {
            true => "full_attention",
            false => "sliding_attention",
        };
        let own = match &given {
            Some(given) => given.object(name)?,
            None => None,
        };
        let entry = match own {
            Some(own) => own,
            None => {
                let partial = partials.as_ref().map_or(1.0, |partials| partials[layer]);
                let mut entry = c.part(
                    name,
                    [
                        ("rope_type", "default".into()),
                        ("rope_theta", bases[layer].into()),
                        ("partial_rotary_factor", partial.into()),
                    ],
                );
                if let Some(scaling) = scaling.clone().filter(|_| is_full) {
                    entry.update(scaling);
                }
                entry
            }
        };
        let defaults = RopeDefaults {
            base: DEFAULTS.theta,
            head_dim: config.attention.head_dim,
            max_positions,
            dialect: Dialect::Entry(1.0),
            interleaved: false,
        };
        rope_of_entry(c, entry, None, defaults).map(Some)
    };
    let (full, windows) = (rope(true)?, rope(false)?);
    if let Some(full) = &full {
        config.max_positions = context(full, c.opt("max_position_embeddings")?);
    }
    let of = |kind: &LayerKind| match kind {
        LayerKind::Full => full.clone(),
        _ => windows.clone(),
    };
    config.ropes = config.layers.iter().map(of).collect();
    Ok(())
}

/// The bound of a layer's gates, if it has one.
fn bound(limits: Option<&Vec<Option<f64>>>, layer: usize) -> Option<ClampedGate> {
    let limit = limits?[layer].filter(|limit| *limit != 0.0)?;
    Some(ClampedGate {
        rounds: false,
        alpha: 1.0,
        limit: limit as f32,
        shift: 0.0,
        bounds_result: true,
        activation: None,
    })
}

/// Reads the MLPs and the experts.
fn feed_forward(c: &Config, config: &mut DecoderConfig) -> Result<()> {
    let n = config.layers.len();
    let top_k = match c.value("moe_top_k") {
        Some(_) => c.size("moe_top_k", None)?,
        None => c.size("num_experts_per_tok", Some(EXPERTS.top_k))?,
    };
    c.ignore(&["num_experts_per_tok"]);
    let mut experts = keys::experts_of(c, config.hidden, &EXPERTS, top_k)?;
    experts.activation = mlx_nn::Activation::Silu;
    experts.routing = Routing {
        scoring: Scoring::Sigmoid,
        correction: Correction::Vector,
        scale: Some(c.positive("moe_router_scaling_factor", Some(1.0))? as f32),
        ..experts.routing
    };
    let key = match c.value("share_expert_dim") {
        None if c.value("share_expert_dims").is_some() => "share_expert_dims",
        _ => "share_expert_dim",
    };
    let shared = SharedExpert {
        intermediate: c.size(key, Some(1280))?,
        bias: c.or("mlp_bias", false)?,
        gate: false,
        clamp: None,
    };
    let limits = list::<Option<f64>>(c, "swiglu_limits", n)?;
    let shared_limits = list::<Option<f64>>(c, "swiglu_limits_shared", n)?;
    let sparse = sparse(c, n)?;
    for (layer, mlp) in config.feed_forward.iter_mut().enumerate() {
        let bound_of_shared = bound(shared_limits.as_ref(), layer);
        match mlp {
            _ if sparse[layer] => {
                *mlp = MlpConfig::Experts(mlx_nn::ExpertsConfig {
                    clamp: bound(limits.as_ref(), layer),
                    shared: Some(SharedExpert {
                        clamp: bound_of_shared,
                        ..shared
                    }),
                    ..experts
                });
            }
            MlpConfig::Dense { clamp, .. } => *clamp = bound_of_shared,
            _ => {}
        }
    }
    Ok(())
}

/// Whether each layer has experts: `mlp_layer_types`, or the published list of their numbers.
fn sparse(c: &Config, n: usize) -> Result<Vec<bool>> {
    if let Some(types) = list::<String>(c, "mlp_layer_types", n)? {
        let of = |kind: &String| match kind.as_str() {
            "dense" => Ok(false),
            "sparse" => Ok(true),
            other => Err(c.unsupported(format!(
                "layer type {other:?} is unknown; known: dense, sparse"
            ))),
        };
        return types.iter().map(of).collect();
    }
    let listed: Option<Vec<usize>> = match c.value("moe_layers_enum") {
        Some(serde_json::Value::String(_)) => {
            let text: String = c.required("moe_layers_enum")?;
            let numbers = text.split(',').map(str::trim).filter(|one| !one.is_empty());
            let numbers: Result<Vec<usize>, _> = numbers.map(str::parse).collect();
            let wrong = |_| c.error(format!("moe_layers_enum must be numbers, found {text:?}"));
            Some(numbers.map_err(wrong)?)
        }
        _ => c.opt("moe_layers_enum")?,
    };
    Ok((0..n)
        .map(|layer| match &listed {
            Some(listed) => listed.contains(&layer),
            None => layer >= FIRST_SPARSE,
        })
        .collect())
}

/// Norms whose published weight is the weight less 1.
const NORMS: [&str; 5] = [
    "model.norm.weight",
    "model.layers.#.input_layernorm.weight",
    "model.layers.#.post_attention_layernorm.weight",
    "model.layers.#.self_attn.q_norm.weight",
    "model.layers.#.self_attn.k_norm.weight",
];

/// The names of published files, and of MLX's, whose norms have whole weights. The layers after the
/// last are heads for multi-token prediction.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let gate_up = [
        ("*.mlp.switch_mlp.gate_proj.weight", 1),
        ("*.mlp.switch_mlp.up_proj.weight", 1),
    ];
    let is_published = |name: &&str| name.contains(".moe.") || name.contains(".mlp.experts.");
    let published = source
        .tensors
        .names()
        .into_iter()
        .any(|name| is_published(&name));
    let norms = NORMS.into_iter().filter(|_| published);
    let norms = norms.map(|norm| Rule::add(norm, 1.0));
    let rules = [
        Rule::rename("*.moe.gate.weight", "*.mlp.gate.gate.weight"),
        Rule::rename("*.moe.router_bias", "*.mlp.gate.router_bias"),
        Rule::rename("*.moe.*_proj.weight", "*.mlp.switch_mlp.*_proj.weight"),
        Rule::rename(
            "model.layers.#.share_expert.*",
            "model.layers.#.mlp.share_expert.*",
        ),
        Rule::rename("*.mlp.gate.router_bias", "*.mlp.e_score_correction_bias").written(),
        Rule::rename("*.mlp.gate.gate.*", "*.mlp.gate.*").written(),
        Rule::rename("*.mlp.share_expert.*", "*.mlp.shared_expert.*").written(),
        Rule::rename(
            "*.mlp.gate.e_score_correction_bias",
            "*.mlp.e_score_correction_bias",
        ),
        Rule::rename("*.mlp.shared_experts.*", "*.mlp.shared_expert.*"),
        Rule::split("*.mlp.experts.gate_up_proj", 1, gate_up),
        Rule::rename(
            "*.mlp.experts.down_proj",
            "*.mlp.switch_mlp.down_proj.weight",
        ),
    ];
    let heads = nextn::dropped(source.config, DEFAULTS.layers)?;
    Ok(heads.and(&Rules::from(norms.chain(rules))))
}
