//! Mamba 2 (arXiv:2405.21060): a scan in every layer, and neither attention nor MLPs.

use mlx_core::Result;
use mlx_nn::{MambaConfig, MambaNorm, RecurrenceConfig, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::{Config, Source};
use crate::decoders::single_mixer::{MixerConfig, SingleMixer};

/// transformers' defaults for keys that a config leaves out.
const DEFAULTS: Defaults = Defaults {
    vocab: 32_768,
    layers: 64,
    head_dim: Some(64),
    norm_eps_key: "layer_norm_epsilon",
    norm_eps: 1e-5,
    rope: None,
    ..Defaults::LLAMA
};

/// Keys that only set initial values for training, or describe a form without alternatives.
pub(crate) const IGNORED: &[&str] = &[
    "chunk_size",
    "norm_before_gate",
    "rescale_prenorm_residual",
    "residual_in_fp32",
    "rms_norm",
    "time_step_floor",
    "time_step_max",
    "time_step_rank",
];

pub(crate) fn load(source: &Source<'_>) -> Result<SingleMixer> {
    let c = source.config;
    c.ignore(IGNORED);
    c.ignore(&[
        "intermediate_size",
        "time_step_init_scheme",
        "time_step_min",
        "time_step_scale",
    ]);
    let mut config = keys::decoder(c, &DEFAULTS)?;
    let bias = c.or("use_bias", false)?;
    let mamba = MambaConfig {
        hidden: config.hidden,
        heads: c.size("num_heads", Some(128))?,
        head_dim: c.size("head_dim", Some(64))?,
        groups: c.size("n_groups", Some(8))?,
        state: c.size("state_size", Some(128))?,
        taps: keys::taps(c, "conv_kernel", 4)?,
        in_bias: bias,
        out_bias: bias,
        conv_bias: c.or("use_conv_bias", true)?,
        activation: keys::activation(c, "hidden_act", "silu")?,
        norm: Some(MambaNorm {
            eps: config.norm.eps,
            before_gate: false,
        }),
        limits: keys::time_steps(c, "time_step_limit")?,
        multipliers: None,
    };
    let expand = c.size("expand", Some(2))?;
    check(c, &mamba, i64::from(expand) * i64::from(config.hidden))?;
    config.recurrence = Some(RecurrenceConfig::Mamba(mamba));
    SingleMixer::new(&config, &vec![MixerConfig::Recurrence; config.layers.len()])
}

/// Checks the sizes of a scan over `inner` features.
///
/// # Errors
/// The sizes do not fit each other.
pub(crate) fn check(c: &Config, mamba: &MambaConfig, inner: i64) -> Result<()> {
    let MambaConfig {
        heads,
        head_dim,
        groups,
        ..
    } = *mamba;
    keys::check_heads(c, heads, 1, head_dim)?;
    keys::check_heads(c, heads, 1, mamba.state)?;
    if i64::from(heads) * i64::from(head_dim) != inner {
        return Err(c.error(format!(
            "{heads} heads of {head_dim} do not make the {inner} features of a scan"
        )));
    }
    if heads % groups != 0 {
        return Err(c.error(format!(
            "{heads} heads are not a multiple of {groups} groups"
        )));
    }
    Ok(())
}

/// Published names, which MLX's files have too.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let conv = keys::convolutions(source.tensors, ".conv1d.weight")?;
    let rules = [
        Rule::rename("backbone.embeddings.*", "model.embed_tokens.*").written(),
        Rule::rename("backbone.norm_f.*", "model.norm.*").written(),
        Rule::rename("backbone.layers.*", "model.layers.*").written(),
    ];
    Ok(Rules::from(conv.into_iter().chain(rules)))
}
