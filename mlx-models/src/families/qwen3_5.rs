//! Qwen 3.5 and 3.6: several layers with a gated delta rule (arXiv:2412.06464) for each layer with gated attention,
//! whose rope covers a quarter of each head. Also the text tower of the multimodal checkpoints.

use mlx_core::Result;
use mlx_nn::{Activation, DeltaConfig, LayerKind, QkNorm, RecurrenceConfig, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::rope::Dialect;
use crate::config::{Bits, Config, OF_OTHER_TOWER, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::pre_norm::{Decoder, PreNormLayer};
use crate::draft_heads::mtp::{Mtp, norm_offset};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 248_320,
    hidden: 4096,
    intermediate: 12_288,
    layers: 32,
    heads: 16,
    kv_heads: Some(4),
    head_dim: Some(256),
    max_positions: 32_768,
    rope: Some(Dialect::Partial(0.25)),
    ..Defaults::LLAMA
};

/// A decoder with recurrent layers, and with a head for multi-token prediction if the checkpoint
/// has one.
pub(crate) type Hybrid = CausalLm<PreNormLayer, Mtp>;

pub(crate) fn load(source: &Source<'_>) -> Result<Hybrid> {
    hybrid(source, &config(source.config, &DEFAULTS)?)
}

pub(crate) fn hybrid(source: &Source<'_>, config: &DecoderConfig) -> Result<Hybrid> {
    let mtp = Mtp::of(source, config)?;
    Ok(Decoder::new(config)?.with_mtp(mtp))
}

/// Sets the mixers of all layers: gated attention, and the delta rule. `known` has the kinds of `layer_types`. Without
/// `layer_types` every fourth layer, or every `full_attention_interval`-th, has attention.
///
/// # Errors
/// Those of [`keys::layer_types`]; a value that is no size.
pub(crate) fn mixers<const N: usize>(
    c: &Config,
    config: &mut DecoderConfig,
    delta: DeltaConfig,
    known: [(&str, LayerKind); N],
) -> Result<()> {
    let interval = c.size("full_attention_interval", Some(4))? as usize;
    config.layers = keys::layer_types(c, config.layers.len(), known, |layer| {
        match (layer + 1) % interval {
            0 => LayerKind::Full,
            _ => delta.kind(),
        }
    })?;
    keys::attention_bias(c, config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.attention.output_gate = true;
    config.recurrence = Some(RecurrenceConfig::Delta(delta));
    Ok(())
}

/// The decoder that a config describes, with dense MLPs.
pub(crate) fn config(c: &Config, defaults: &Defaults) -> Result<DecoderConfig> {
    let mut config = keys::decoder(c, defaults)?;
    let delta = delta(c, config.hidden, config.norm.eps)?;
    let known = [
        ("full_attention", LayerKind::Full),
        ("linear_attention", delta.kind()),
    ];
    mixers(c, &mut config, delta, known)?;
    // transformers does not read this key of published files: the family has only one form.
    if !c.or("attn_output_gate", true)? {
        return Err(
            c.unsupported("attn_output_gate false is not supported: the attention has a gate")
        );
    }
    match c.opt::<String>("output_gate_type")?.as_deref() {
        None | Some("swish" | "silu") => {}
        Some(other) => {
            let message =
                format!("output_gate_type {other:?} is not supported; known: swish, silu");
            return Err(c.unsupported(message));
        }
    }
    c.ignore(&["mamba_ssm_dtype", "mlp_only_layers", "use_sliding_window"]);
    Ok(config)
}

/// The recurrence of the layers without attention.
pub(crate) fn delta(c: &Config, hidden: i32, norm_eps: f32) -> Result<DeltaConfig> {
    let config = DeltaConfig {
        hidden,
        key_heads: c.size("linear_num_key_heads", Some(16))?,
        value_heads: c.size("linear_num_value_heads", Some(32))?,
        key_dim: c.size("linear_key_head_dim", Some(128))?,
        value_dim: c.size("linear_value_head_dim", Some(128))?,
        taps: keys::taps(c, "linear_conv_kernel_dim", 4)?,
        activation: Activation::parse(&c.or("hidden_act", "silu".to_owned())?)?,
        norm_eps,
        output_gate: Activation::Silu,
        most: 1.0,
        apart: false,
    };
    let DeltaConfig {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        ..
    } = config;
    keys::check_heads(c, key_heads, 1, key_dim)?;
    keys::check_heads(c, value_heads, 1, value_dim)?;
    if value_heads % key_heads != 0 {
        return Err(c.error(format!(
            "linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}"
        )));
    }
    Ok(config)
}

/// One tensor for each matrix of an expert, or two tensors for all experts.
pub(crate) fn expert_names() -> [Rule; 3] {
    let parts = [
        ("*.mlp.switch_mlp.gate_proj.weight", 1),
        ("*.mlp.switch_mlp.up_proj.weight", 1),
    ];
    [
        Rule::split("*.mlp.experts.gate_up_proj", 1, parts),
        Rule::rename(
            "*.mlp.experts.down_proj",
            "*.mlp.switch_mlp.down_proj.weight",
        ),
        Rule::stack("*.mlp.experts.#.*", "*.mlp.switch_mlp.*"),
    ]
}

/// Published files have convolutions with other axes, norms stored as `weight - 1`, and either one
/// tensor for each matrix of an expert or two tensors for all experts. Files of MLX have
/// convolutions whose last axis is 1, and the norms' weights themselves. As in mlx-lm, the axes of
/// the convolutions decide which of the two a file is.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let (c, tensors) = (source.config, source.tensors);
    let mut rules = vec![Rule::drop("model.visual.*", OF_OTHER_TOWER)];
    rules.extend(expert_names());
    let published = keys::has_published_convolutions(tensors, ".conv1d.weight")?;
    if published {
        rules.push(Rule::transpose("*.conv1d.weight", &[0, 2, 1]));
        for norm in [
            "model.norm.weight",
            "model.layers.#.input_layernorm.weight",
            "model.layers.#.post_attention_layernorm.weight",
            "model.layers.#.self_attn.q_norm.weight",
            "model.layers.#.self_attn.k_norm.weight",
        ] {
            rules.push(Rule::add(norm, 1.0));
        }
    }
    let offset = match published && !source.head_beside {
        true => 1.0,
        false => norm_offset(c, tensors)?,
    };
    if offset != 0.0 {
        rules.push(Rule::add("mtp.*norm*.weight", offset));
    }
    Ok(Rules::from(rules))
}

/// The router and the shared expert's gate keep more bits, as in mlx-lm. So does the head for
/// multi-token prediction, whose projection stays dense: with fewer bits, more of its drafts are
/// rejected.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("mtp.fc", Bits::Dense),
    ("mtp.*", Bits::Eight),
    ("*.mlp.gate", Bits::EightUnlessMixed),
    ("*.mlp.shared_expert_gate", Bits::EightUnlessMixed),
];
