//! BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692) and XLM-RoBERTa (arXiv:1911.02116): learned
//! positions, norms after sums, an MLP without a gate.

use mlx_core::Result;
use mlx_nn::{Activation, NormConfig, NormKind, Rule, Rules};

use super::plan::{self, EncoderPlan, HeadShape, LayerPlan, NormPlaces, Sizes};
use super::{EncoderModel, is_roberta};
use crate::config::{Config, Source, keys};

/// Keys of training, and of parts that an encoder does not have.
pub(super) const IGNORED: &[&str] = &[
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "directionality",
    "gradient_checkpointing",
    "hidden_dropout_prob",
    "num_labels",
    "output_past",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
];

pub(crate) fn load(source: &Source<'_>) -> Result<EncoderModel> {
    let c = source.config;
    c.ignore(IGNORED);
    check(c)?;
    let kind: String = c.or("position_embedding_type", "absolute".to_owned())?;
    if kind != "absolute" {
        return Err(c.unsupported(format!(
            "position_embedding_type {kind:?} is not supported; known: absolute"
        )));
    }
    let roberta = is_roberta(c)?;
    let sizes = Sizes::read(c, [30_522, 768, 12, 12, 3072, 512])?;
    let padding = c.or("pad_token_id", 1u32)?;
    let padding = roberta.then_some(padding);
    let before = padding.map_or(0, |padding| padding as usize + 1);
    let max_positions = (sizes.positions as usize).saturating_sub(before);
    if max_positions == 0 {
        return Err(c.error(format!(
            "max_position_embeddings {} leaves no position after pad_token_id",
            sizes.positions
        )));
    }
    EncoderModel::new(&EncoderPlan {
        max_positions,
        positions: Some(sizes.positions),
        padding,
        qkv_bias: true,
        out_bias: true,
        mlp_bias: true,
        mlp_out_bias: true,
        ..post_norm(source, &sizes, 2)?
    })
}

/// Refuses a decoder.
///
/// # Errors
/// `is_decoder` or `add_cross_attention` is true.
pub(super) fn check(c: &Config) -> Result<()> {
    for key in ["is_decoder", "add_cross_attention"] {
        if c.or(key, false)? {
            return Err(c.unsupported(format!("{key} is not supported: only encoders")));
        }
    }
    Ok(())
}

/// A plan of layers with norms after sums, without learned positions and without biases. `types` is
/// the default of `type_vocab_size`.
pub(super) fn post_norm(source: &Source<'_>, sizes: &Sizes, types: i32) -> Result<EncoderPlan> {
    let c = source.config;
    let norm = NormConfig {
        kind: NormKind::layer(true),
        eps: c.positive("layer_norm_eps", Some(1e-12))? as f32,
    };
    let types = c.or("type_vocab_size", types)?;
    if !(0..=1 << 16).contains(&types) {
        return Err(c.error(format!(
            "type_vocab_size must be in 0..=65536, found {types}"
        )));
    }
    let head = match plan::is_classifier(c)? {
        true => Some(HeadShape {
            classes: plan::classes(source)?,
            bias: true,
            activation: Activation::Tanh,
            norm: None,
            reads_mean: false,
        }),
        false => None,
    };
    Ok(EncoderPlan {
        vocab: sizes.vocab,
        hidden: sizes.hidden,
        max_positions: sizes.positions as usize,
        positions: None,
        padding: None,
        types,
        embedding_scale: None,
        embedding_norm: Some(norm),
        norm,
        norms: NormPlaces::AfterSums,
        final_norm: false,
        heads: sizes.heads,
        kv_heads: sizes.heads,
        head_dim: sizes.head_dim,
        scale: (sizes.head_dim as f32).powf(-0.5),
        qkv_bias: false,
        out_bias: false,
        qk_norm: None,
        intermediate: sizes.intermediate,
        activation: keys::activation(c, "hidden_act", "gelu")?,
        gated: false,
        mlp_bias: false,
        mlp_out_bias: false,
        layers: vec![LayerPlan::default(); sizes.layers],
        head,
    })
}

/// The names of published tensors. Prefixes of classes with a head are removed, and heads of other
/// tasks are dropped.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let mut rules = common_names(source.config, &["bert", "roberta"])?;
    let (from, to) = ("encoder.layer.#", "layers.#");
    rules.push(Rule::rename("embeddings.LayerNorm.*", "embeddings.norm.*").written());
    for (name, parameter) in [
        ("attention.self.query", "self_attn.q_proj"),
        ("attention.self.key", "self_attn.k_proj"),
        ("attention.self.value", "self_attn.v_proj"),
        ("attention.output.dense", "self_attn.o_proj"),
        ("attention.output.LayerNorm", "attn_out_norm"),
        ("intermediate.dense", "mlp.up_proj"),
        ("output.dense", "mlp.down_proj"),
        ("output.LayerNorm", "mlp_out_norm"),
    ] {
        let (name, parameter) = (format!("{from}.{name}.*"), format!("{to}.{parameter}.*"));
        rules.push(Rule::rename(&name, &parameter).written());
    }
    Ok(Rules::from(rules))
}

/// The rules that encoders have in common: for the prefixes of classes with a head, for the heads
/// of other tasks, and for the head that classifies texts.
pub(super) fn common_names(c: &Config, prefixes: &[&str]) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for prefix in prefixes {
        rules.push(Rule::rename(&format!("{prefix}.*"), "*"));
    }
    rules.extend([
        Rule::rename("*.LayerNorm.gamma", "*.LayerNorm.weight"),
        Rule::rename("*.LayerNorm.beta", "*.LayerNorm.bias"),
        Rule::drop("embeddings.position_ids", "counted"),
        Rule::drop("embeddings.token_type_ids", "zeros"),
    ]);
    for head in ["cls", "lm_head", "qa_outputs"] {
        rules.push(Rule::drop(&format!("{head}.*"), "a head of another task"));
    }
    if plan::is_classifier(c)? {
        rules.extend([
            Rule::rename("classifier.dense.*", "head.dense.*"),
            Rule::rename("classifier.out_proj.*", "head.out_proj.*"),
            Rule::rename("pooler.dense.*", "head.dense.*"),
            Rule::rename("classifier.*", "head.out_proj.*"),
        ]);
    } else {
        rules.extend([
            Rule::drop("pooler.*", "a head of another task"),
            Rule::drop("classifier.*", "a head of another task"),
        ]);
    }
    Ok(rules)
}
