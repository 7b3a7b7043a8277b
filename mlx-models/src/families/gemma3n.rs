//! Gemma 3n: several residual streams, one of which a layer computes; MLPs that set most of their
//! features to zero; an input for each layer; the last layers read the keys and values of earlier
//! ones. This is the text model of the multimodal checkpoints.

use mlx_core::{Array, Result};
use mlx_nn::{Attention, AttentionConfig, GatedMlp, QkNorm, Rope, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::causal_lm::CausalLm;
use crate::decoders::per_layer_inputs::{LayerInput, LayerInputSizes, LayerInputs};
use crate::model::{LayerGeometry, kv_heads};

mod altup;
mod layer;

use altup::{AltUp, StreamEnds, Streams};
use layer::{Gemma3nLayer, Laurel};

/// A decoder of these layers.
pub(crate) type Gemma3n = CausalLm<Gemma3nLayer, (), StreamEnds>;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 262_400,
    hidden: 2048,
    intermediate: 16_384,
    intermediates: true,
    layers: 35,
    heads: 8,
    kv_heads: Some(2),
    head_dim: Some(256),
    max_positions: 32_768,
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    rope: None,
    ..Defaults::LLAMA
};

/// The default of `num_kv_shared_layers`: how many of the last layers read the keys and values of
/// earlier ones.
const SHARED: usize = 15;

pub(crate) fn load(source: &Source<'_>) -> Result<Gemma3n> {
    let c = source.config;
    // `altup_coef_clip` has an effect in training only.
    c.ignore(&[
        "altup_coef_clip",
        "altup_lr_multiplier",
        "hidden_act",
        "query_pre_attn_scalar",
    ]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.scale = 1.0;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    config.scales.embedding = Some(f64::from(config.hidden).sqrt() as f32);
    config.scales.logit_softcap = keys::softcap(c, "final_logit_softcapping", Some(30.0))?;
    let window = keys::window(c, Some(512))?;
    let n = config.layers.len();
    config.layers = keys::layer_kinds(c, n, window, |layer| (layer + 1) % 5 != 0)?;
    keys::ropes_by_kind(
        c,
        &mut config,
        DEFAULTS.max_positions,
        ("rope_theta", 1_000_000.0),
        ("rope_local_base_freq", 10_000.0),
    )?;
    let shares = keys::shared_layers(c, &config.layers, SHARED)?;
    let (hidden, eps) = (config.hidden, config.norm.eps);
    let streams = Streams {
        n: c.size("altup_num_inputs", Some(4))?,
        active: c.or("altup_active_idx", 0)?,
        hidden,
        eps,
    };
    if !(0..streams.n).contains(&streams.active) {
        return Err(c.error(format!(
            "altup_active_idx {} is none of {} streams",
            streams.active, streams.n
        )));
    }
    let width = c.size("hidden_size_per_layer_input", Some(256))?;
    let rank = c.size("laurel_rank", Some(64))?;
    let scales = c.or("altup_correct_scale", true)?;
    let activation = keys::activation(c, DEFAULTS.activation_key, DEFAULTS.activation)?;
    let cutoffs = cutoffs(c, n)?;
    let kv = kv_heads(config.attention.kv_heads, config.attention.head_dim);
    let (mut layers, mut geometry) = (Vec::new(), Vec::new());
    for index in 0..n {
        let of_all = AttentionConfig {
            value_norm: Some(eps),
            ..config.attention_config()
        };
        let attention = keys::with_sharing(of_all, index, &shares);
        let MlpConfig::Dense { intermediate, .. } = config.feed_forward[index] else {
            unreachable!("no layer has experts");
        };
        let rope = config.ropes[index].as_ref();
        let rope = rope.map(|rope| Rope::new(rope, config.attention.head_dim));
        layers.push(Gemma3nLayer {
            self_attn: Attention::empty(&attention, rope.transpose()?)?,
            mlp: GatedMlp::empty(hidden, intermediate, false, activation)?
                .with_cutoff(cutoffs[index]),
            altup: AltUp::new(streams)?,
            laurel: Laurel::new(hidden, rank, eps)?,
            input_layernorm: config.norm()?,
            post_attention_layernorm: config.norm()?,
            pre_feedforward_layernorm: config.norm()?,
            post_feedforward_layernorm: config.norm()?,
            input: LayerInput::new(hidden, width, eps, activation)?,
            streams: streams.n,
            hidden,
            width,
            scales,
        });
        let kind = config.layers[index];
        geometry.push(match shares[index] {
            Some(source) => LayerGeometry::sharing(config.attention.heads, kv, source),
            None => LayerGeometry::attention(config.attention.heads, kv, kind),
        });
    }
    let inputs = LayerInputs::new(LayerInputSizes {
        vocab: c.size("vocab_size_per_layer_input", Some(262_144))?,
        hidden,
        layers: n as i32,
        width,
        eps,
        cut: true,
    })?;
    let model = CausalLm::around(layers, config.surroundings_of(geometry)?)?;
    Ok(model.with_ends(StreamEnds::new(streams, inputs)?))
}

/// For each layer, how many standard deviations above the mean a gate must lie: the quantile of the normal distribution at its
/// `activation_sparsity_pattern`.
fn cutoffs(c: &Config, n: usize) -> Result<Vec<Option<f32>>> {
    let usual = |layer| if n > 10 && layer < 10 { 0.95 } else { 0.0 };
    let pattern: Vec<f32> = match c.opt("activation_sparsity_pattern")? {
        Some(pattern) => pattern,
        None => (0..n).map(usual).collect(),
    };
    if pattern.len() != n {
        let found = pattern.len();
        return Err(c.error(format!(
            "activation_sparsity_pattern has {found} entries for {n} layers"
        )));
    }
    let quantile = |&part: &f32| -> Result<Option<f32>> {
        if !(0.0..1.0).contains(&part) {
            return Err(c.error(format!(
                "activation_sparsity_pattern must be in [0, 1), found {part}"
            )));
        }
        let at = Array::scalar(2.0 * part - 1.0)?.erfinv()?.item::<f32>()?;
        Ok((part > 0.0).then_some(at * std::f32::consts::SQRT_2))
    };
    pattern.iter().map(quantile).collect()
}

/// Published files have projections of keys and values for layers that do not use them.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let unused = keys::unused_projections(source.config, DEFAULTS.layers, SHARED)?;
    Ok(Rules::from(unused))
}
