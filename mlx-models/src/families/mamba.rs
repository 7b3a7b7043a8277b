//! Mamba (arXiv:2312.00752) and Falcon Mamba (arXiv:2410.05355): a scan with time steps and decays
//! for each feature in every layer, and neither attention nor MLPs. In Falcon Mamba what the scan
//! reads has norms.

use mlx_core::Result;
use mlx_nn::{RecurrenceConfig, SelectiveConfig, SelectiveNorms};

use crate::config::keys::{self, Defaults};
use crate::config::{Config, Source};
use crate::decoders::single_mixer::{MixerConfig, SingleMixer};
use crate::families::mamba2;

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 50_280,
    hidden: 768,
    head_dim: Some(1),
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    rope: None,
    ..Defaults::LLAMA
};

/// Keys that only set initial values for training or choose between equal forms, and older names of
/// others, which published files have beside these.
const IGNORED: &[&str] = &[
    "d_inner",
    "d_model",
    "fused_add_norm",
    "n_layer",
    "rms_norm",
    "ssm_cfg",
    "time_step_init_scheme",
    "time_step_min",
    "time_step_scale",
    "use_associative_scan",
    "use_falcon_mambapy",
    "use_mambapy",
];

pub(crate) fn load(source: &Source<'_>) -> Result<SingleMixer> {
    let c = source.config;
    c.ignore(mamba2::IGNORED);
    c.ignore(IGNORED);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    // Falcon Mamba's `expand` is not the quotient of the two sizes.
    c.ignore(&["expand"]);
    let inner = match c.value("intermediate_size") {
        Some(_) => c.size("intermediate_size", None)?,
        None => inner(c, config.hidden, c.size("expand", Some(2))?)?,
    };
    let normed = c.opt::<String>("model_type")?.as_deref() == Some("falcon_mamba");
    let norms = match normed {
        true => Some(SelectiveNorms {
            eps: c.positive("mixer_rms_eps", Some(1e-6))? as f32,
            weights: false,
        }),
        false => None,
    };
    let scan = SelectiveConfig {
        hidden: config.hidden,
        inner,
        state: c.size("state_size", Some(16))?,
        rank: rank(c, "time_step_rank", config.hidden)?,
        taps: keys::taps(c, "conv_kernel", 4)?,
        bias: c.or("use_bias", false)?,
        conv_bias: c.or("use_conv_bias", true)?,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norms,
    };
    config.recurrence = Some(RecurrenceConfig::Selective(scan));
    SingleMixer::new(&config, &vec![MixerConfig::Recurrence; config.layers.len()])
}

/// The features of a scan in a model of width `hidden`.
///
/// # Errors
/// There are more than in any model.
pub(crate) fn inner(c: &Config, hidden: i32, expand: i32) -> Result<i32> {
    const MOST: i64 = 1 << 22;
    let inner = i64::from(hidden) * i64::from(expand);
    if inner > MOST {
        return Err(c.error(format!(
            "a scan of {inner} features is larger than in any model"
        )));
    }
    Ok(inner as i32)
}

/// The features from which time steps are projected: a number, or `auto` for a sixteenth of the
/// width.
///
/// # Errors
/// The value is neither.
pub(crate) fn rank(c: &Config, key: &str, hidden: i32) -> Result<i32> {
    match c.value(key) {
        None => Ok((hidden + 15) / 16),
        Some(auto) if auto == "auto" => Ok((hidden + 15) / 16),
        Some(_) => c.size(key, None),
    }
}
