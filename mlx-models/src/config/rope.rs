//! Rope settings in both dialects: `rope_theta` with `rope_scaling`, as published checkpoints have
//! them, and `rope_parameters`, as transformers 5 writes them (also one entry a layer type).

use mlx_core::Result;
use mlx_nn::{RopeConfig, RopeScaling};

use super::Config;

const KNOWN: &str = "default, linear, llama3, yarn, longrope, proportional";

/// What an architecture assumes about rope where its config says nothing.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// `rope_theta`
    pub base: f64,
    /// Dimensions of a head.
    pub head_dim: i32,
    /// `max_position_embeddings`
    pub max_positions: i32,
}

/// Rope of a model with one kind of it.
///
/// # Errors
/// An unknown `rope_type`, or numbers it cannot be.
pub fn rope(config: &Config, defaults: RopeDefaults) -> Result<RopeConfig> {
    let theta = config.opt::<f64>("rope_theta")?;
    let parameters = config.object("rope_parameters")?;
    let scaling = config.object("rope_scaling")?;
    let entry = parameters.or(scaling);
    config.ignore(&["rope_scaling"]);
    read(config, entry.as_ref(), theta, defaults)
}

/// Rope of one layer type, where a model has several: `rope_parameters.<layer_type>` in the new
/// dialect; in the published one `theta_key`, and `rope_scaling` if `scaled`.
///
/// # Errors
/// As [`rope`].
pub fn rope_of_layer_type(
    config: &Config,
    layer_type: &str,
    theta_key: &str,
    scaled: bool,
    defaults: RopeDefaults,
) -> Result<RopeConfig> {
    let theta = config.opt::<f64>(theta_key)?;
    if let Some(parameters) = config.object("rope_parameters")? {
        // Some writers keep one entry for all layers.
        let entry = parameters.object(layer_type)?.unwrap_or(parameters);
        return read(config, Some(&entry), theta, defaults);
    }
    let scaling = config.object("rope_scaling")?;
    read(config, scaling.as_ref().filter(|_| scaled), theta, defaults)
}

fn read(
    config: &Config,
    entry: Option<&Config>,
    theta: Option<f64>,
    defaults: RopeDefaults,
) -> Result<RopeConfig> {
    let base = match entry.and_then(|entry| entry.opt("rope_theta").transpose()) {
        Some(theta) => theta?,
        None => theta.unwrap_or(defaults.base),
    };
    if !(base.is_finite() && base > 1.0) {
        return Err(config.error(format!("rope_theta must be a number above 1, found {base}")));
    }
    let head_dim = defaults.head_dim;
    let partial = match entry.and_then(|entry| entry.opt("partial_rotary_factor").transpose()) {
        Some(partial) => partial?,
        None => config.or("partial_rotary_factor", 1.0)?,
    };
    if !(partial > 0.0 && partial <= 1.0) {
        return Err(config.error(format!(
            "partial_rotary_factor must be in (0, 1], found {partial}"
        )));
    }
    let dims = (f64::from(head_dim) * partial) as i32;
    let Some(entry) = entry else {
        return Ok(RopeConfig {
            base,
            dims,
            scaling: RopeScaling::Default,
        });
    };
    let kind = match entry.opt::<String>("rope_type")? {
        Some(kind) => kind,
        None => entry.or("type", "default".to_owned())?,
    };
    let original = || -> Result<f64> {
        match entry.opt::<f64>("original_max_position_embeddings")? {
            Some(original) => Ok(original),
            None => config.or(
                "original_max_position_embeddings",
                f64::from(defaults.max_positions),
            ),
        }
    };
    let positive_original = || -> Result<f64> {
        let original = original()?;
        if original >= 1.0 && original.is_finite() {
            return Ok(original);
        }
        Err(entry.error(format!(
            "original_max_position_embeddings must be positive, found {original}"
        )))
    };
    let scaling = match kind.as_str() {
        "default" | "mrope" => RopeScaling::Default,
        "linear" => RopeScaling::Linear {
            factor: entry.positive("factor", None)?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: entry.positive("factor", None)?,
            low_freq_factor: entry.positive("low_freq_factor", None)?,
            high_freq_factor: entry.positive("high_freq_factor", None)?,
            original: positive_original()?,
        },
        "yarn" => {
            let original = positive_original()?;
            let factor =
                entry.positive("factor", Some(f64::from(defaults.max_positions) / original))?;
            RopeScaling::Yarn {
                factor,
                original,
                beta_fast: entry.positive("beta_fast", Some(32.0))?,
                beta_slow: entry.positive("beta_slow", Some(1.0))?,
                amplitude: yarn_amplitude(entry, factor)?,
                truncate: entry.or("truncate", true)?,
            }
        }
        "longrope" | "su" => {
            let original = positive_original()?;
            let factor =
                entry.positive("factor", Some(f64::from(defaults.max_positions) / original))?;
            let amplitude = if factor <= 1.0 {
                1.0
            } else {
                (1.0 + factor.ln() / original.ln()).sqrt()
            };
            RopeScaling::Long {
                long: entry.required("long_factor")?,
                short: entry.required("short_factor")?,
                original: original as usize,
                amplitude: entry.positive("attention_factor", Some(amplitude))?,
            }
        }
        "proportional" => {
            let factor = entry.positive("factor", Some(1.0))?;
            let scaling = RopeScaling::Proportional { partial, factor };
            return Ok(RopeConfig {
                base,
                dims: head_dim,
                scaling,
            });
        }
        other => {
            return Err(
                entry.unsupported(format!("rope_type {other:?} is unknown; known: {KNOWN}"))
            );
        }
    };
    Ok(RopeConfig {
        base,
        dims,
        scaling,
    })
}

/// YaRN's factor on cosine and sine, as transformers works it out.
fn yarn_amplitude(entry: &Config, factor: f64) -> Result<f64> {
    let mscale = |mscale: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * mscale * factor.ln() + 1.0
        }
    };
    if entry.value("attention_factor").is_some() {
        return entry.positive("attention_factor", None);
    }
    let all = entry
        .opt::<f64>("mscale_all_dim")?
        .filter(|&scale| scale != 0.0);
    match (
        entry.opt::<f64>("mscale")?.filter(|&scale| scale != 0.0),
        all,
    ) {
        (Some(one), Some(all)) => Ok(mscale(one) / mscale(all)),
        _ => Ok(mscale(1.0)),
    }
}
