//! MiMo V2: heads of v that are smaller than those of q and k, scaled values, and windows, whose layers have sinks, other
//! numbers of heads and another rope. Also the text tower of MiMo V2.6 (`mimo_v2`).

use mlx_core::Result;
use mlx_nn::{LayerKind, Rule, Rules};

use crate::config::keys::{self, Defaults, ExpertsDefaults, RopeEntry};
use crate::config::plan::{AttentionPlan, DecoderConfig};
use crate::config::{Config, OF_OTHER_TOWER, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 152_576,
    intermediate: 16_384,
    layers: 48,
    heads: 64,
    kv_heads: Some(4),
    head_dim: Some(192),
    max_positions: 131_072,
    norm_eps: 1e-5,
    rope: None,
    ..Defaults::LLAMA
};

const EXPERTS: ExpertsDefaults = ExpertsDefaults {
    intermediate_key: "moe_intermediate_size",
    intermediate: 2048,
    n_experts: 256,
    top_k: 8,
    norm_topk_prob: None,
};

/// The rotated fraction of a head.
const PARTIAL: f64 = 0.334;

/// Keys of published files that have no effect, because the family has only one form.
const IGNORED: &[&str] = &[
    "attention_chunk_size",
    "attention_projection_layout",
    "hybrid_block_size",
    "moe_router_dtype",
    "n_shared_experts",
    "num_nextn_predict_layers",
    "output_router_logits",
    "scoring_func",
    "topk_method",
];

/// Keys of images, videos and sounds.
const OF_WRAPPER: &[&str] = &[
    "audio_config",
    "audio_end_token_id",
    "audio_start_token_id",
    "audio_token_id",
    "image_token_id",
    "processor_config",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
];

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    source.config.ignore(IGNORED);
    source.config.ignore(OF_WRAPPER);
    Decoder::new(&config(source.config)?)
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let key = match c.value("rms_norm_eps") {
        None if c.value("layernorm_epsilon").is_some() => "layernorm_epsilon",
        _ => DEFAULTS.norm_eps_key,
    };
    c.ignore(&["layernorm_epsilon"]);
    let mut config = keys::decoder(
        c,
        &Defaults {
            norm_eps_key: key,
            ..DEFAULTS
        },
    )?;
    config.layers = kinds(c, config.layers.len())?;
    let plan = &mut config.attention;
    plan.qkv_bias = c.or("attention_bias", false)?;
    plan.value_dim = Some(c.size("v_head_dim", Some(128))?);
    let scale = match c.is_null("attention_value_scale") {
        true => None,
        false => Some(c.positive("attention_value_scale", Some(0.707))? as f32),
    };
    plan.value_scale = scale;
    config.attentions = attentions(c, &config)?;
    let partial = c.or("partial_rotary_factor", PARTIAL)?;
    let ropes = [("rope_theta", 5_000_000.0), ("swa_rope_theta", 10_000.0)];
    let [full, windows] = ropes.map(|(key, base)| {
        let base = c.or(key, base)?;
        Ok::<_, mlx_core::Error>(RopeEntry {
            base,
            partial,
            kind: "default",
        })
    });
    let ropes = [full?, windows?];
    keys::ropes_by_entry(c, &mut config, DEFAULTS.max_positions, PARTIAL, ropes)?;
    let mut experts = keys::experts(c, config.hidden, &EXPERTS)?;
    experts.routing = keys::corrected_routing(c, &experts, true)?;
    let listed = c.opt::<Vec<i32>>("moe_layer_freq")?.unwrap_or_default();
    keys::experts_by_types(c, &mut config, experts, |layer| {
        listed.get(layer).map_or(layer > 0, |&sparse| sparse != 0)
    })?;
    Ok(config)
}

/// The kind of each layer: `layer_types`, or the published `hybrid_layer_pattern`, in which 1 means
/// a window. A window counts the keys before the query, without the query's own.
fn kinds(c: &Config, n: usize) -> Result<Vec<LayerKind>> {
    let before = c.opt::<i32>("sliding_window_size")?;
    let window = match before {
        Some(_) => {
            c.ignore(&["sliding_window"]);
            Some(c.size("sliding_window_size", None)? + 1)
        }
        None => keys::window(c, Some(129))?,
    };
    let listed = c
        .opt::<Vec<i32>>("hybrid_layer_pattern")?
        .unwrap_or_default();
    keys::layer_kinds(c, n, window, |layer| match listed.get(layer) {
        Some(&sliding) => sliding != 0,
        None => layer != 0 && (layer + 1) % 6 != 0,
    })
}

/// The attention of each layer.
fn attentions(c: &Config, config: &DecoderConfig) -> Result<Vec<AttentionPlan>> {
    let mut full = config.attention.clone();
    full.sinks = c.or("add_full_attention_sink_bias", false)?;
    let mut sliding = config.attention.clone();
    sliding.heads = c.size("swa_num_attention_heads", Some(full.heads))?;
    sliding.kv_heads = c.size("swa_num_key_value_heads", Some(2 * full.kv_heads))?;
    sliding.sinks = c.or("add_swa_attention_sink_bias", true)?;
    let same = [
        ("swa_head_dim", full.head_dim),
        ("swa_v_head_dim", full.value_dim.unwrap_or(0)),
    ];
    for (key, size) in same {
        let found = c.size(key, Some(size))?;
        if found != size {
            return Err(c.unsupported(format!(
                "{key} {found} is not supported: layers with a window have heads of {size}, as full layers"
            )));
        }
    }
    keys::check_heads(c, sliding.heads, sliding.kv_heads, sliding.head_dim)?;
    let of = |kind: &LayerKind| match kind {
        LayerKind::Full => full.clone(),
        _ => sliding.clone(),
    };
    Ok(config.layers.iter().map(of).collect())
}

/// Files of MiMo V2.6 may have one matrix for queries, keys and values, and hold the towers for images and sounds.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let mut rules = vec![
        Rule::drop("model.mtp.*", "of a head for multi-token prediction"),
        Rule::drop("visual.*", OF_OTHER_TOWER),
        Rule::drop("audio_encoder.*", OF_OTHER_TOWER),
        Rule::drop("speech_embeddings.*", OF_OTHER_TOWER),
        Rule::rename("*.self_attn.attention_sink_bias", "*.self_attn.sinks").written(),
    ];
    let config = config(source.config)?;
    for (layer, plan) in config.attentions.iter().enumerate() {
        let part = |name: &str| format!("model.layers.{layer}.self_attn.{name}.*");
        let [q, k, v, joined] = ["q_proj", "k_proj", "v_proj", "qkv_proj"].map(part);
        let value_dim = plan.value_dim.unwrap_or(plan.head_dim);
        let parts = [
            (&*q, plan.heads * plan.head_dim),
            (&*k, plan.kv_heads * plan.head_dim),
            (&*v, plan.kv_heads * value_dim),
        ];
        rules.push(Rule::split(&joined, 1, parts));
    }
    Ok(Rules::from(rules).and(&keys::deepseek_expert_names()))
}
