//! LFM3: LFM2's short convolutions with seven taps, windows, a gate a head on the output of attention, norms also behind the
//! parts of a layer, and a rope for each kind of layer.

use mlx_core::Result;
use mlx_nn::{
    GateFunction, HeadGate, LayerKind, QkNorm, RecurrenceConfig, Rule, Rules, ShortConvConfig,
};

use crate::config::Source;
use crate::config::keys::{self, Defaults, RopeEntry};
use crate::decoders::pre_and_post_norm::PreAndPostNorm;
use crate::decoders::pre_norm::Decoder;
use crate::families::lfm2;
use crate::model::Model;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 128_000,
    hidden: 2048,
    intermediate: 7680,
    layers: 24,
    heads: 16,
    kv_heads: Some(4),
    head_dim: Some(128),
    rope: None,
    ..lfm2::DEFAULTS
};

/// The ropes of full layers and of layers with a window.
const ROPES: [RopeEntry; 2] = [
    RopeEntry {
        base: 1_000_000.0,
        partial: 0.5,
        kind: "proportional",
    },
    RopeEntry {
        base: 10_000.0,
        partial: 1.0,
        kind: "default",
    },
];

pub(crate) fn load(source: &Source<'_>) -> Result<Box<dyn Model>> {
    let c = source.config;
    // The activation is fixed, and ropes have entries of their own.
    c.ignore(&["hidden_act", "rope_theta"]);
    // transformers has two names for it.
    let norm_eps_key = match c.value("rms_norm_eps") {
        Some(_) => "rms_norm_eps",
        None => DEFAULTS.norm_eps_key,
    };
    c.ignore(&[DEFAULTS.norm_eps_key]);
    let mut config = keys::decoder(
        c,
        &Defaults {
            norm_eps_key,
            ..DEFAULTS
        },
    )?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    if c.or("use_attention_gate", true)? {
        config.attention.gate = Some(HeadGate {
            by_feature: false,
            function: GateFunction::Sigmoid,
        });
    }
    let recurrence = RecurrenceConfig::ShortConv(ShortConvConfig {
        hidden: config.hidden,
        taps: keys::taps(c, "conv_L_cache", 7)?,
        bias: c.or("conv_bias", false)?,
    });
    config.recurrence = Some(recurrence);
    let conv = recurrence.kind();
    let window = keys::window(c, Some(256))?;
    let known = [
        ("full_attention", LayerKind::Full),
        ("sliding_attention", keys::kind(window)),
        ("conv", conv),
    ];
    config.layers = keys::layer_types(c, config.layers.len(), known, |layer| match layer % 4 {
        2 => LayerKind::Full,
        0 if layer > 0 => keys::kind(window),
        _ => conv,
    })?;
    keys::ropes_by_entry(c, &mut config, DEFAULTS.max_positions, 1.0, ROPES)?;
    for (rope, kind) in config.ropes.iter_mut().zip(&config.layers) {
        *rope = rope.take().filter(|_| *kind != conv);
    }
    Ok(match c.or("use_sandwich_norm", true)? {
        true => Box::new(PreAndPostNorm::new(&config)?),
        false => Box::new(Decoder::new(&config)?),
    })
}

pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let before_mlp = match source.config.or("use_sandwich_norm", true)? {
        true => "pre_feedforward_layernorm",
        false => "post_attention_layernorm",
    };
    let rules = Rules::from([
        Rule::rename("*.self_attn.gate_proj.*", "*.self_attn.g_proj.*").written(),
        Rule::rename("*.post_operator_norm.*", "*.post_attention_layernorm.*").written(),
        Rule::rename("*.post_ffn_norm.*", "*.post_feedforward_layernorm.*").written(),
    ]);
    let parts = lfm2::part_names(source, before_mlp)?;
    Ok(parts.and(&rules).and(&lfm2::mlp_names()))
}
