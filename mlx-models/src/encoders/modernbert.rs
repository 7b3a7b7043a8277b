//! ModernBERT (arXiv:2412.13663): norms before halves, ropes, windows, an MLP with a gate.

use mlx_core::Result;
use mlx_nn::{LayerKind, NormConfig, NormKind, Rule, Rules};

use super::EncoderModel;
use super::plan::{self, EncoderPlan, HeadShape, LayerPlan, NormPlaces, Sizes};
use crate::config::rope::{Dialect, RopeDefaults, rope_of_layer_type};
use crate::config::{Source, keys};

/// Keys of training, of heads for other tasks, and of an order of operations that does not change
/// results.
const IGNORED: &[&str] = &[
    "classifier_dropout",
    "cls_token_id",
    "decoder_bias",
    "deterministic_flash_attn",
    "embedding_dropout",
    "gradient_checkpointing",
    "initializer_cutoff_factor",
    "layer_norm_eps",
    "mlp_dropout",
    "num_labels",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sentence_transformers",
    "sparse_pred_ignore_index",
    "sparse_prediction",
];

pub(crate) fn load(source: &Source<'_>) -> Result<EncoderModel> {
    let c = source.config;
    c.ignore(IGNORED);
    let sizes = Sizes::read(c, [50_368, 768, 22, 12, 1152, 8192])?;
    let norm = NormConfig {
        kind: NormKind::layer(c.or("norm_bias", false)?),
        eps: c.positive("norm_eps", Some(1e-5))? as f32,
    };
    let (qkv_bias, mlp_bias) = (c.or("attention_bias", false)?, c.or("mlp_bias", false)?);
    let window = c.size("local_attention", Some(128))?;
    let every = c.size("global_attn_every_n_layers", Some(3))? as usize;
    let is_local = |layer: usize| !layer.is_multiple_of(every);
    let kinds = keys::layer_kinds(c, sizes.layers, Some(window), is_local)?;
    let rope = |layer_type, key, base| {
        let defaults = RopeDefaults {
            base,
            head_dim: sizes.head_dim,
            max_positions: sizes.positions,
            dialect: Dialect::Plain,
            interleaved: false,
        };
        rope_of_layer_type(c, layer_type, key, true, defaults)
    };
    let whole = rope("full_attention", "global_rope_theta", 160_000.0)?;
    let local = rope("sliding_attention", "local_rope_theta", 10_000.0)?;
    let layer = |(index, kind): (usize, &LayerKind)| LayerPlan {
        rope: Some(match kind {
            LayerKind::Full => whole.clone(),
            _ => local.clone(),
        }),
        reach: (*kind != LayerKind::Full).then_some(window / 2),
        no_first_norm: index == 0,
    };
    let head = match plan::is_classifier(c)? {
        true => Some(HeadShape {
            classes: plan::classes(source)?,
            bias: c.or("classifier_bias", false)?,
            activation: keys::activation(c, "classifier_activation", "gelu")?,
            norm: Some(norm),
            reads_mean: match c.or("classifier_pooling", "cls".to_owned())?.as_str() {
                "cls" => false,
                "mean" => true,
                other => {
                    return Err(c.unsupported(format!(
                        "classifier_pooling {other:?} is not supported; known: cls, mean"
                    )));
                }
            },
        }),
        false => {
            c.ignore(&[
                "classifier_bias",
                "classifier_activation",
                "classifier_pooling",
            ]);
            None
        }
    };
    EncoderModel::new(&EncoderPlan {
        vocab: sizes.vocab,
        hidden: sizes.hidden,
        max_positions: sizes.positions as usize,
        positions: None,
        padding: None,
        types: 0,
        embedding_scale: None,
        embedding_norm: Some(norm),
        norm,
        norms: NormPlaces::Before,
        final_norm: true,
        heads: sizes.heads,
        kv_heads: sizes.heads,
        head_dim: sizes.head_dim,
        scale: (sizes.head_dim as f32).powf(-0.5),
        qkv_bias,
        out_bias: qkv_bias,
        qk_norm: None,
        intermediate: sizes.intermediate,
        activation: keys::activation(c, "hidden_activation", "gelu")?,
        gated: true,
        mlp_bias,
        mlp_out_bias: mlp_bias,
        layers: kinds.iter().enumerate().map(layer).collect(),
        head,
    })
}

/// The names of published tensors. Queries, keys and values are one matrix, and so are the gate and
/// the other half of the MLP.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let mut rules = vec![
        Rule::rename("model.*", "*"),
        Rule::drop("decoder.*", "a head of another task"),
    ];
    if plan::is_classifier(source.config)? {
        rules.push(Rule::rename("classifier.*", "head.out_proj.*"));
    } else {
        for head in ["head", "classifier"] {
            rules.push(Rule::drop(&format!("{head}.*"), "a head of another task"));
        }
    }
    let layer = "layers.#";
    let [q, k, v] = ["q", "k", "v"].map(|name| format!("{layer}.self_attn.{name}_proj.*"));
    let [gate, up] = ["gate", "up"].map(|name| format!("{layer}.mlp.{name}_proj.*"));
    rules.extend([
        Rule::rename(
            "embeddings.tok_embeddings.*",
            "embeddings.word_embeddings.*",
        )
        .written(),
        Rule::split("layers.#.attn.Wqkv.*", 1, [(&*q, 1), (&*k, 1), (&*v, 1)]).written(),
        Rule::rename("layers.#.attn.Wo.*", &format!("{layer}.self_attn.o_proj.*")).written(),
        Rule::split("layers.#.mlp.Wi.*", 1, [(&*gate, 1), (&*up, 1)]).written(),
        Rule::rename("layers.#.mlp.Wo.*", &format!("{layer}.mlp.down_proj.*")).written(),
    ]);
    Ok(Rules::from(rules))
}
