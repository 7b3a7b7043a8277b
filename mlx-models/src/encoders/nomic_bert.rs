//! Nomic BERT (arXiv:2402.01613): BERT with ropes, an MLP with a gate, and no biases.

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use super::plan::{EncoderPlan, LayerPlan, Sizes};
use super::{EncoderModel, bert};
use crate::config::rope::{Dialect, RopeDefaults, rope};
use crate::config::{Config, Source, keys};

/// Older names of keys.
const ALIASES: [(&str, &str); 9] = [
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
    ("hidden_act", "activation_function"),
    ("layer_norm_eps", "layer_norm_epsilon"),
    ("rope_theta", "rotary_emb_base"),
    ("max_position_embeddings", "max_trained_positions"),
];

/// Keys of training, and of an order of operations that does not change results.
const IGNORED: &[&str] = &[
    "attn_pdrop",
    "dense_seq_output",
    "embd_pdrop",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "head_dim",
    "last_layer_subset",
    "mlp_fc2_bias",
    "pad_vocab_size_multiple",
    "reorder_and_upcast_attn",
    "rotary_emb_scale_base",
    "scale_attn_by_inverse_layer_idx",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "use_flash_attn",
    "use_rms_norm",
    "use_xentropy",
];

pub(crate) fn load(source: &Source<'_>) -> Result<EncoderModel> {
    let mut c = source.config.with_aliases(&ALIASES);
    c.ignore(bert::IGNORED);
    c.ignore(IGNORED);
    bert::check(&c)?;
    older(&mut c)?;
    let source = &Source {
        config: &c,
        ..*source
    };
    let sizes = Sizes::read(&c, [30_528, 768, 12, 12, 3072, 2048])?;
    let plan = bert::post_norm(source, &sizes, 2)?;
    let rope = rope(&c, defaults(&sizes, 1000.0))?;
    EncoderModel::new(&EncoderPlan {
        activation: keys::activation(&c, "hidden_act", "silu")?,
        gated: true,
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

/// The defaults of a rope that all layers share.
pub(super) fn defaults(sizes: &Sizes, base: f64) -> RopeDefaults {
    RopeDefaults {
        base,
        head_dim: sizes.head_dim,
        max_positions: sizes.positions,
        dialect: Dialect::Plain,
        interleaved: false,
    }
}

/// Refuses options of the older configs that no published model has, and renames the activation.
fn older(c: &mut Config) -> Result<()> {
    for (key, only) in [
        ("prenorm", false.into()),
        ("parallel_block", false.into()),
        ("qkv_proj_bias", false.into()),
        ("mlp_fc1_bias", false.into()),
        ("causal", false.into()),
        ("rotary_emb_interleaved", false.into()),
        ("rotary_emb_fraction", serde_json::Value::from(1.0)),
    ] {
        let is_number = only.is_number();
        let is_same = |value: &serde_json::Value| match is_number {
            // 1 and 1.0 are the same number.
            true => value.as_f64() == only.as_f64(),
            false => *value == only,
        };
        if let Some(value) = c.value(key)
            && !is_same(value)
        {
            return Err(c.unsupported(format!("{key} {value} is not supported; known: {only}")));
        }
    }
    // The factor of a base that grows with the length, beyond the trained positions.
    c.ignore(&["rotary_scaling_factor"]);
    if c.value("hidden_act").is_some_and(|name| name == "swiglu") {
        c.set("hidden_act", "silu".into());
    }
    Ok(())
}

/// The names of published tensors.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let mut rules = bert::common_names(source.config, &["nomic_bert", "bert"])?;
    let layer = "layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    rules.extend([
        Rule::rename("emb_ln.*", "embeddings.norm.*"),
        Rule::rename("embeddings.LayerNorm.*", "embeddings.norm.*").written(),
        Rule::rename("encoder.layers.*", "layers.*"),
        Rule::split("layers.#.attn.Wqkv.*", 1, [(&*q, 1), (&*k, 1), (&*v, 1)]),
        Rule::rename(
            "layers.#.attn.out_proj.*",
            &format!("{layer}.self_attn.o_proj.*"),
        ),
        Rule::rename("layers.#.mlp.fc11.*", &format!("{layer}.mlp.up_proj.*")),
        Rule::rename("layers.#.mlp.fc12.*", &format!("{layer}.mlp.gate_proj.*")),
        Rule::rename("layers.#.mlp.fc2.*", &format!("{layer}.mlp.down_proj.*")),
        Rule::rename("layers.#.norm1.*", &format!("{layer}.attn_out_norm.*")),
        Rule::rename("layers.#.norm2.*", &format!("{layer}.mlp_out_norm.*")),
    ]);
    rules.extend(layer_norms());
    Ok(Rules::from(rules))
}

/// The names of the norms after sums in transformers.
pub(super) fn layer_norms() -> [Rule; 2] {
    [
        Rule::rename(
            "layers.#.post_attention_layernorm.*",
            "layers.#.attn_out_norm.*",
        )
        .written(),
        Rule::rename("layers.#.post_mlp_layernorm.*", "layers.#.mlp_out_norm.*").written(),
    ]
}
