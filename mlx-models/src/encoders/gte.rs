//! GTE (arXiv:2407.19669): BERT with ropes and an MLP with a gate.

use mlx_core::Result;
use mlx_nn::{RopeConfig, RopeScaling, Rule, Rules};

use super::plan::{EncoderPlan, LayerPlan, Sizes};
use super::{EncoderModel, bert, nomic_bert};
use crate::config::rope::{RopeDefaults, rope};
use crate::config::{Config, Source, keys};

/// Keys of training, and of an order of operations that does not change results.
const IGNORED: &[&str] = &[
    "layer_norm_type",
    "logn_attention_clip1",
    "logn_attention_scale",
    "pack_qkv",
    "position_embedding_type",
    "unpad_inputs",
    "use_memory_efficient_attention",
];

pub(crate) fn load(source: &Source<'_>) -> Result<EncoderModel> {
    let c = source.config;
    let published = c.or("model_type", String::new())? == "new";
    if published {
        let kind: String = c.or("position_embedding_type", "rope".to_owned())?;
        let norm: String = c.or("layer_norm_type", "layer_norm".to_owned())?;
        let scaled: bool = c.or("logn_attention_scale", false)?;
        if kind != "rope" || norm != "layer_norm" || scaled {
            return Err(c.unsupported(format!(
                "position_embedding_type {kind:?}, layer_norm_type {norm:?} and logn_attention_scale {scaled} are not \
                 supported; known: rope, layer_norm, false"
            )));
        }
    }
    c.ignore(bert::IGNORED);
    c.ignore(IGNORED);
    bert::check(c)?;
    let sizes = Sizes::read(c, [250_048, 768, 12, 12, 3072, 8192])?;
    // The two config classes have different defaults.
    let (theta, types) = if published {
        (10_000.0, 1)
    } else {
        (160_000.0, 1)
    };
    let plan = bert::post_norm(source, &sizes, types)?;
    let rope = rope_of(c, nomic_bert::defaults(&sizes, theta))?;
    EncoderModel::new(&EncoderPlan {
        activation: keys::activation(c, "hidden_act", "gelu")?,
        gated: true,
        qkv_bias: true,
        out_bias: true,
        mlp_out_bias: true,
        layers: vec![
            LayerPlan {
                rope: Some(rope),
                ..LayerPlan::default()
            };
            sizes.layers
        ],
        ..plan
    })
}

/// The rope. In the type `ntk` of the published configs the base is multiplied by the factor f, and
/// frequencies are divided by `f^(2/d)`, at every length.
fn rope_of(c: &Config, defaults: RopeDefaults) -> Result<RopeConfig> {
    let scaling = c.object("rope_scaling")?;
    let is_ntk = |scaling: &Config| {
        let kind = scaling.value("type").or(scaling.value("rope_type"));
        kind.is_some_and(|kind| kind == "ntk")
    };
    let Some(scaling) = scaling.filter(is_ntk) else {
        return rope(c, defaults);
    };
    if scaling.value("mixed_b").is_some() {
        return Err(scaling.unsupported("mixed_b is not supported"));
    }
    let factor = scaling.positive("factor", Some(1.0))?;
    let base = c.positive("rope_theta", Some(defaults.base))?;
    let dims = f64::from(defaults.head_dim);
    Ok(RopeConfig {
        base: base * factor,
        dims: defaults.head_dim,
        interleaved: false,
        reversed: false,
        scaling: RopeScaling::Linear {
            factor: factor.powf(2.0 / dims),
        },
    })
}

/// The names of published tensors: those of the code beside the checkpoints, and those of
/// transformers.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let mut rules = bert::common_names(source.config, &["new", "gte"])?;
    let layer = "layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    let [gate, up] = ["gate", "up"].map(|name| format!("{layer}.mlp.{name}_proj.*"));
    rules.extend([
        Rule::rename("embeddings.LayerNorm.*", "embeddings.norm.*").written(),
        Rule::rename("encoder.layer.*", "layers.*"),
        Rule::split(
            "layers.#.attention.qkv_proj.*",
            1,
            [(&*q, 1), (&*k, 1), (&*v, 1)],
        ),
        Rule::rename(
            "layers.#.attention.o_proj.*",
            &format!("{layer}.self_attn.o_proj.*"),
        ),
        Rule::split("layers.#.mlp.up_gate_proj.*", 1, [(&*up, 1), (&*gate, 1)]),
        Rule::rename("layers.#.attn_ln.*", &format!("{layer}.attn_out_norm.*")),
        Rule::rename("layers.#.mlp_ln.*", &format!("{layer}.mlp_out_norm.*")),
    ]);
    rules.extend(nomic_bert::layer_norms());
    Ok(Rules::from(rules))
}
