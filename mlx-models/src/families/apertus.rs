//! Apertus (arXiv:2509.14233): an MLP without a gate whose activation has learned slopes, norms on q and k.

use mlx_core::Result;
use mlx_nn::{QkNorm, RopeScaling, Rule, Rules};

use crate::config::keys::{self, Defaults};
use crate::config::plan::MlpConfig;
use crate::config::{Config, Source};
use crate::decoders::pre_norm::Decoder;

/// transformers' defaults for keys that a config leaves out. The activation is read separately.
const DEFAULTS: Defaults = Defaults {
    vocab: 131_072,
    intermediate: 14_336,
    max_positions: 65_536,
    norm_eps: 1e-5,
    activation_key: "",
    theta: 12_000_000.0,
    ..Defaults::LLAMA
};

/// The rope of a config that has none.
const LLAMA3: RopeScaling = RopeScaling::Llama3 {
    factor: 8.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original: 8192.0,
};

pub(crate) fn load(source: &Source<'_>) -> Result<Decoder> {
    let c = source.config;
    let mut config = keys::decoder(c, &DEFAULTS)?;
    keys::attention_bias(c, &mut config)?;
    config.attention.qk_norm = Some(QkNorm::heads(config.norm.eps, 0.0));
    activation(c)?;
    if !["rope_scaling", "rope_parameters"]
        .iter()
        .any(|key| c.value(key).is_some())
    {
        for rope in config.ropes.iter_mut().flatten() {
            rope.scaling = LLAMA3;
        }
    }
    // Keys of published files that transformers does not read.
    c.ignore(&["hidden_dropout", "mlp_bias", "post_norm", "qk_norm"]);
    // Files of MLX have slopes of shape `[]`, published files of shape `[1]`.
    let slopes = source.tensors.shape("model.layers.0.mlp.act_fn.alpha_p")?;
    let mlp = MlpConfig::Learned {
        intermediate: c.size("intermediate_size", Some(DEFAULTS.intermediate))?,
        axes: slopes.map_or(1, |shape| shape.len().min(1)),
    };
    config.feed_forward.fill(mlp);
    Decoder::new(&config)
}

fn activation(c: &Config) -> Result<()> {
    match c.or("hidden_act", "xielu".to_owned())?.as_str() {
        "xielu" => Ok(()),
        other => Err(c.unsupported(format!(
            "hidden_act {other:?} is not supported; known: xielu"
        ))),
    }
}

/// Published files have other names for the norms of a layer.
pub(crate) fn names(_source: &Source<'_>) -> Result<Rules> {
    Ok(Rules::from([
        Rule::rename("*.attention_layernorm.*", "*.input_layernorm.*").written(),
        Rule::rename("*.feedforward_layernorm.*", "*.post_attention_layernorm.*").written(),
    ]))
}
