//! OLMo Hybrid: three layers with a gated delta rule, of OLMo's own form and with norms before, for each layer of OLMo 3's
//! attention, with norms after and usually without a rope.

mod thirds;

use mlx_core::Result;
use mlx_nn::{
    Activation, DeltaConfig, LayerKind, Module, RecurrenceConfig, Residual, Rule, Rules, Step,
};

use crate::config::keys::{self, Defaults};
use crate::config::plan::DecoderConfig;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::{CausalLm, DecoderLayer};
use crate::decoders::post_norm::PostNormLayer;
use crate::decoders::pre_norm::PreNormLayer;
use crate::families::olmo2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 100_352,
    hidden: 3840,
    layers: 32,
    heads: 30,
    max_positions: 65_536,
    ..Defaults::LLAMA
};

/// The epsilon of the norm after the delta rule. transformers reads no key for it.
const OUTPUT_EPS: f32 = 1e-5;

/// Keys without an effect on what is computed: how weights are initialised, and the epsilon above.
const IGNORED: &[&str] = &[
    "layer_norm_epsilon",
    "linear_a_log_max",
    "linear_a_log_min",
    "linear_dt_init_floor",
    "linear_dt_max",
    "linear_dt_min",
];

/// A layer of OLMo Hybrid.
#[derive(Clone, Module)]
pub(crate) enum OlmoHybridLayer {
    /// A delta rule and an MLP, with a norm before each.
    Recurrent(Box<PreNormLayer>),
    /// Attention and an MLP, with a norm after each.
    Attention(Box<PostNormLayer>),
}

impl DecoderLayer for OlmoHybridLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        match self {
            Self::Recurrent(layer) => layer.forward(x, state, step),
            Self::Attention(layer) => layer.forward(x, state, step),
        }
    }
}

pub(crate) fn load(source: &Source<'_>) -> Result<CausalLm<OlmoHybridLayer>> {
    let c = source.config;
    c.ignore(IGNORED);
    let config = config(c)?;
    CausalLm::of(&config, |config, layer| {
        Ok(match config.layers[layer] {
            LayerKind::Recurrent(_) => {
                OlmoHybridLayer::Recurrent(Box::new(PreNormLayer::new(config, layer)?))
            }
            _ => OlmoHybridLayer::Attention(Box::new(PostNormLayer::new(config, layer)?)),
        })
    })
}

fn config(c: &Config) -> Result<DecoderConfig> {
    let has_rope = has_rope(c)?;
    let mut config = olmo2::config(
        c,
        &Defaults {
            rope: DEFAULTS.rope.filter(|_| has_rope),
            ..DEFAULTS
        },
    )?;
    let delta = delta(c, &config)?;
    let n = config.layers.len();
    // transformers makes the last layer of a short model full.
    let kinds = |layer: usize| match layer % 4 == 3 || (n < 4 && layer + 1 == n) {
        true => LayerKind::Full,
        false => delta.kind(),
    };
    let known = [
        ("full_attention", LayerKind::Full),
        ("linear_attention", delta.kind()),
    ];
    config.layers = keys::layer_types(c, n, known, kinds)?;
    config.recurrence = Some(RecurrenceConfig::Delta(delta));
    Ok(config)
}

/// Whether the attention has a rope: not if its base is null, as in published files, or if the entries are for kinds of
/// layers.
fn has_rope(c: &Config) -> Result<bool> {
    const KEYS: [&str; 2] = ["rope_scaling", "rope_parameters"];
    let mut found = None;
    for key in KEYS {
        let entry = c.object(key)?.filter(|entry| !entry.is_empty());
        found = found.or(entry);
    }
    let base = "rope_theta";
    let is_null = match found {
        Some(entry) if entry.value(base).is_some() => false,
        Some(entry) if entry.is_null(base) || entry.object("full_attention")?.is_some() => true,
        _ => c.is_null(base),
    };
    if is_null {
        c.ignore(&[base]);
        c.ignore(&KEYS);
    }
    Ok(!is_null)
}

/// The recurrence of the layers without attention.
fn delta(c: &Config, config: &DecoderConfig) -> Result<DeltaConfig> {
    let size = |key: &str, default: i32| match c.is_null(key) {
        true => Ok(default),
        false => c.size(key, Some(default)),
    };
    let heads = config.attention.heads;
    let key_heads = size("linear_num_key_heads", heads)?;
    let value_heads = size("linear_num_value_heads", heads)?;
    let key_dim = size(
        "linear_key_head_dim",
        (0.75 * f64::from(config.hidden) / f64::from(key_heads)) as i32,
    )?;
    let value_dim = size("linear_value_head_dim", 2 * key_dim)?;
    keys::check_heads(c, key_heads, 1, key_dim)?;
    keys::check_heads(c, value_heads, 1, value_dim)?;
    if value_heads % key_heads != 0 || key_dim < 1 {
        return Err(c.error(format!(
            "linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}, or keys have no features"
        )));
    }
    Ok(DeltaConfig {
        hidden: config.hidden,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        taps: keys::taps(c, "linear_conv_kernel_dim", 4)?,
        activation: Activation::parse(&c.or("hidden_act", "silu".to_owned())?)?,
        norm_eps: OUTPUT_EPS,
        output_gate: Activation::Silu,
        most: match c.or("linear_allow_neg_eigval", true)? {
            true => 2.0,
            false => 1.0,
        },
        apart: true,
    })
}

/// Published files have convolutions with the axes of torch, one each for queries, keys and values, and own names of the
/// norms before. transformers writes one convolution and the usual names. Files of MLX have three convolutions with the
/// axes of MLX and the usual names.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let delta = delta(source.config, &config(source.config)?)?;
    let part = |name: &str| format!("*.linear_attn.{name}.*");
    let conv = |name: &str| format!("*.linear_attn.{name}.weight");
    let keys = delta.key_heads * delta.key_dim;
    let values = delta.value_heads * delta.value_dim;
    let [q, k, v, joined] = ["q_conv1d", "k_conv1d", "v_conv1d", "conv1d"].map(conv);
    let mut rules = vec![
        Rule::rename("*.attention_layer_norm.*", "*.input_layernorm.*"),
        Rule::rename("*.feedforward_layer_norm.*", "*.post_attention_layernorm.*"),
    ];
    for (from, to) in [
        ("a_proj", "in_proj_a"),
        ("b_proj", "in_proj_b"),
        ("g_proj", "in_proj_z"),
        ("o_norm", "norm"),
        ("o_proj", "out_proj"),
    ] {
        rules.push(Rule::rename(&part(from), &part(to)).written());
    }
    let own = [keys, keys, values];
    if let Some(found) = thirds::found(source, own)? {
        rules.extend(thirds::divided_again([&q, &k, &v], found, own));
    }
    rules.extend(keys::convolutions(source.tensors, "_conv1d.weight")?);
    if keys::has_published_convolutions(source.tensors, ".conv1d.weight")? {
        // The axis of the channels is before the last while they are divided.
        rules.push(Rule::transpose(&joined, &[1, 0, 2]));
        rules.push(Rule::split(
            &joined,
            1,
            [(&*q, keys), (&*k, keys), (&*v, values)],
        ));
        rules.extend([q, k, v].map(|part| Rule::transpose(&part, &[1, 2, 0])));
    }
    Ok(Rules::from(rules))
}
