//! Rope settings in both dialects: `rope_theta` with `rope_scaling`, as published checkpoints have
//! them, and `rope_parameters`, as transformers 5 writes them (which may have one entry for each
//! layer type).

use mlx_core::Result;
use mlx_nn::{RopeConfig, RopeScaling};

use super::Config;

/// The layer types for which transformers 5 writes separate entries.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// The default of `original_max_position_embeddings` in Phi 3 configs.
const PHI3_ORIGINAL: f64 = 4096.0;

const KNOWN: &str = "default, linear, dynamic, llama3, yarn, longrope, proportional";

/// How transformers reads the rope keys of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dialect {
    /// The whole head rotates. The original context length is `original_max_position_embeddings`.
    Plain,
    /// Like `Plain`, but only a part of the head rotates: the fraction `partial_rotary_factor`, by
    /// default this number.
    Partial(f64),
    /// Like `Partial`, but the fraction is a key of the rope's entry only.
    Entry(f64),
    /// Like `Partial`, in heads of latent attention, some of whose features never rotate. The
    /// number is the size of the whole head.
    Within(i32),
    /// Like `Plain`. The type `longrope` uses the short factors at every length. Its amplitude is
    /// `short_mscale`, and beyond the original context length `long_mscale`.
    PhiMoe,
    /// Like `Plain`, but in an entry with `alpha` the type `dynamic` means a larger base at every
    /// length.
    Alpha,
    /// Phi 3: a part of the head may rotate. `su` and `yarn` are older names of `longrope`.
    /// `original_max_position_embeddings` is a key of the config, not of the rope entry.
    Phi3,
}

/// A family's defaults for the keys of a rope.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// `rope_theta`
    pub base: f64,
    /// Dimensions of a head.
    pub head_dim: i32,
    /// `max_position_embeddings`
    pub max_positions: i32,
    /// How the family reads the keys.
    pub dialect: Dialect,
    /// See [`RopeConfig::interleaved`].
    pub interleaved: bool,
}

/// The keys of one rope, and whether they are those of one kind of layer.
struct RopeKeys<'a> {
    config: &'a Config,
    entry: Option<Config>,
    theta: Option<f64>,
    /// Whether all layers have this rope. Only then may `original_max_position_embeddings` be a key of the config, where
    /// it takes precedence over that of the entry, and only then does `truncate` have an effect.
    shared: bool,
}

/// The rope of a model whose layers share one.
///
/// # Errors
/// `rope_type` is unknown, or a number is invalid.
pub fn rope(config: &Config, defaults: RopeDefaults) -> Result<RopeConfig> {
    let given = |key| -> Result<Option<Config>> {
        Ok(config.object(key)?.filter(|entry| !entry.is_empty()))
    };
    let entry = match (given("rope_scaling")?, given("rope_parameters")?) {
        (Some(scaling), _) => Some(scaling),
        (None, parameters) => parameters,
    };
    let source = RopeKeys {
        config,
        entry,
        theta: config.opt("rope_theta")?,
        shared: true,
    };
    source.read(defaults)
}

/// The rope of a model whose layers share one, and whose `rope_scaling` has no effect.
///
/// # Errors
/// The same as those of [`rope`].
pub fn rope_of_parameters(config: &Config, defaults: RopeDefaults) -> Result<RopeConfig> {
    config.ignore(&["rope_scaling"]);
    let entry = config.object("rope_parameters")?;
    let source = RopeKeys {
        config,
        entry: entry.filter(|entry| !entry.is_empty()),
        theta: config.opt("rope_theta")?,
        shared: true,
    };
    source.read(defaults)
}

/// The rope of a model that has the keys of this entry.
///
/// # Errors
/// The same as those of [`rope`].
pub fn rope_of_entry(
    config: &Config,
    entry: Config,
    theta: Option<f64>,
    defaults: RopeDefaults,
) -> Result<RopeConfig> {
    let source = RopeKeys {
        config,
        entry: Some(entry),
        theta,
        shared: false,
    };
    source.read(defaults)
}

/// Refuses rope entries for single layer types, in a family whose layers share one rope.
///
/// # Errors
/// The config has such an entry.
pub fn shared_by_layers(config: &Config) -> Result<()> {
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(entry) = config.object(key)?
            && let Some(layer_type) = LAYER_TYPES.iter().find(|key| entry.value(key).is_some())
        {
            return Err(entry.unsupported(format!(
                "an entry for {layer_type} is not supported: layers of this model share one rope"
            )));
        }
    }
    Ok(())
}

/// The rope of one layer type, in a model with several ropes. The new dialect has
/// `rope_parameters.<layer_type>`; the published one has `theta_key`, and `rope_scaling` if
/// `scaled`.
///
/// # Errors
/// The same as those of [`rope`].
pub fn rope_of_layer_type(
    config: &Config,
    layer_type: &str,
    theta_key: &str,
    scaled: bool,
    defaults: RopeDefaults,
) -> Result<RopeConfig> {
    let parameters = config.object("rope_parameters")?;
    let scaling = config.object("rope_scaling")?.filter(|_| scaled);
    let own = match &parameters {
        Some(parameters) => parameters.object(layer_type)?,
        None => None,
    };
    // Without an entry the type is `default`, also where `rope_scaling` has only the older key `type`.
    let mut entry = match own {
        Some(own) => own,
        None => config.part(layer_type, [("rope_type", "default".into())]),
    };
    if let Some(scaling) = scaling {
        entry.update(scaling);
    }
    rope_of_entry(config, entry, config.opt(theta_key)?, defaults)
}

/// The context length of a model with this rope. YaRN and dynamic NTK multiply the original length by their factor,
/// even if `max_position_embeddings` still holds the original length.
pub fn context(rope: &RopeConfig, max_positions: Option<usize>) -> Option<usize> {
    match rope.scaling {
        RopeScaling::Yarn {
            factor, original, ..
        } => max_positions.max(Some((factor * original) as usize)),
        RopeScaling::Dynamic { factor, original } => {
            max_positions.max(Some((factor * original as f64) as usize))
        }
        _ => max_positions,
    }
}

impl RopeKeys<'_> {
    fn read(&self, defaults: RopeDefaults) -> Result<RopeConfig> {
        let (config, head_dim) = (self.config, defaults.head_dim);
        config.ignore(&["partial_rotary_factor", "original_max_position_embeddings"]);
        let own_theta = self.entry.as_ref().map(|entry| entry.opt("rope_theta"));
        let base = match own_theta.transpose()?.flatten() {
            Some(theta) => theta,
            None => self.theta.unwrap_or(defaults.base),
        };
        if !(base.is_finite() && base > 1.0) {
            return Err(config.error(format!("rope_theta must be a number above 1, found {base}")));
        }
        let phi3 = defaults.dialect == Dialect::Phi3;
        let kind = self.kind(phi3)?;
        // Of plain families, transformers ignores this key in the default rope, uses it in `proportional`, and fails with
        // most other types.
        let plain = matches!(
            defaults.dialect,
            Dialect::Plain | Dialect::Alpha | Dialect::PhiMoe
        );
        let (kind, base) = match defaults.dialect {
            Dialect::Alpha => self.with_alpha(kind, base, f64::from(head_dim))?,
            _ => (kind, base),
        };
        let partial = match (kind.as_str(), defaults.dialect) {
            ("default" | "mrope", Dialect::Plain | Dialect::Alpha | Dialect::PhiMoe) => 1.0,
            (_, Dialect::Partial(usual)) => self.partial(usual)?,
            (_, Dialect::Entry(usual)) => self.own_partial()?.unwrap_or(usual),
            (_, Dialect::Within(whole)) => {
                let own = self
                    .entry
                    .as_ref()
                    .map(|entry| entry.opt("partial_rotary_factor"));
                let usual = f64::from(head_dim) / f64::from(whole);
                own.transpose()?.flatten().unwrap_or(usual)
            }
            _ => self.partial(1.0)?,
        };
        if plain && partial != 1.0 && kind != "proportional" {
            return Err(config.unsupported(format!(
                "partial_rotary_factor {partial} with rope_type {kind:?} is not supported"
            )));
        }
        let whole = match defaults.dialect {
            Dialect::Within(whole) => whole,
            _ => head_dim,
        };
        let dims = (f64::from(whole) * partial) as i32;
        let (dims, scaling) = match &self.entry {
            Some(_) if kind == "proportional" => {
                (head_dim, self.scaling(&kind, partial, defaults)?)
            }
            Some(_) => (dims, self.scaling(&kind, partial, defaults)?),
            None => (dims, RopeScaling::Default),
        };
        Ok(RopeConfig {
            base,
            dims,
            interleaved: defaults.interleaved,
            reversed: false,
            scaling,
        })
    }

    fn kind(&self, phi3: bool) -> Result<String> {
        let Some(entry) = &self.entry else {
            return Ok("default".to_owned());
        };
        let kind = match entry.opt::<String>("rope_type")? {
            Some(kind) => kind,
            None => entry.or("type", "default".to_owned())?,
        };
        match kind.as_str() {
            "default" => Ok(kind),
            "su" | "yarn" | "longrope" if phi3 => Ok("longrope".to_owned()),
            _ if phi3 => Err(entry.unsupported(format!(
                "rope_type {kind:?} is not supported; known: default, longrope (su, yarn)"
            ))),
            _ => Ok(kind),
        }
    }

    /// Hunyuan's rope: with `alpha`, its type `dynamic` is the default type with a larger base.
    fn with_alpha(&self, kind: String, base: f64, dim: f64) -> Result<(String, f64)> {
        let alpha = match &self.entry {
            Some(entry) if kind == "dynamic" => entry.opt::<f64>("alpha")?,
            _ => None,
        };
        Ok(match alpha.filter(|&alpha| alpha != 0.0) {
            Some(alpha) => ("default".to_owned(), base * alpha.powf(dim / (dim - 2.0))),
            None => (kind, base),
        })
    }

    fn partial(&self, usual: f64) -> Result<f64> {
        match self.own_partial()? {
            Some(partial) => Ok(partial),
            None => self.fraction(self.config.or("partial_rotary_factor", usual)?),
        }
    }

    /// The rotated fraction of the head in the rope's entry.
    fn own_partial(&self) -> Result<Option<f64>> {
        let own = self
            .entry
            .as_ref()
            .map(|entry| entry.opt("partial_rotary_factor"));
        let own = own.transpose()?.flatten();
        own.map(|partial| self.fraction(partial)).transpose()
    }

    fn fraction(&self, partial: f64) -> Result<f64> {
        if !(partial > 0.0 && partial <= 1.0) {
            return Err(self.config.error(format!(
                "partial_rotary_factor must be in (0, 1], found {partial}"
            )));
        }
        Ok(partial)
    }

    /// The context length of the pre-training, `original_max_position_embeddings`.
    fn original(&self, defaults: RopeDefaults) -> Result<f64> {
        const KEY: &str = "original_max_position_embeddings";
        let outer = match self.shared {
            true => self.config.opt::<f64>(KEY)?,
            false => None,
        };
        let own = self.entry.as_ref().map(|entry| entry.opt::<f64>(KEY));
        let original = match (outer, own.transpose()?.flatten(), defaults.dialect) {
            (Some(outer), _, _) => outer,
            (None, _, Dialect::Phi3) => PHI3_ORIGINAL,
            (None, Some(own), _) => own,
            (None, None, _) => f64::from(defaults.max_positions),
        };
        if original >= 1.0 && original.is_finite() {
            return Ok(original);
        }
        Err(self
            .config
            .error(format!("{KEY} must be positive, found {original}")))
    }

    fn scaling(&self, kind: &str, partial: f64, defaults: RopeDefaults) -> Result<RopeScaling> {
        let Some(entry) = &self.entry else {
            return Ok(RopeScaling::Default);
        };
        Ok(match kind {
            "default" | "mrope" => RopeScaling::Default,
            "longrope" if defaults.dialect == Dialect::PhiMoe => {
                let short: Vec<f64> = entry.required("short_factor")?;
                entry.ignore(&["long_factor", "factor", "attention_factor"]);
                RopeScaling::Long {
                    long: short.clone(),
                    short,
                    original: self.original(defaults)? as usize,
                    amplitude: entry.positive("short_mscale", None)?,
                    long_amplitude: Some(entry.positive("long_mscale", None)?),
                }
            }
            other if defaults.dialect == Dialect::PhiMoe => {
                let message =
                    format!("rope_type {other:?} is not supported; known: default, longrope");
                return Err(entry.unsupported(message));
            }
            "linear" => RopeScaling::Linear {
                factor: entry.positive("factor", None)?,
            },
            "dynamic" => RopeScaling::Dynamic {
                factor: entry.positive("factor", None)?,
                original: defaults.max_positions as usize,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: entry.positive("factor", None)?,
                low_freq_factor: entry.positive("low_freq_factor", None)?,
                high_freq_factor: entry.positive("high_freq_factor", None)?,
                original: self.original(defaults)?,
            },
            "yarn" => {
                let original = self.original(defaults)?;
                let factor =
                    entry.positive("factor", Some(f64::from(defaults.max_positions) / original))?;
                RopeScaling::Yarn {
                    factor,
                    original,
                    beta_fast: entry.positive("beta_fast", Some(32.0))?,
                    beta_slow: entry.positive("beta_slow", Some(1.0))?,
                    amplitude: yarn_amplitude(entry, factor)?,
                    // transformers looks for the key beside the entries of kinds of layers, not inside.
                    truncate: entry.or("truncate", true)? || !self.shared,
                }
            }
            "longrope" | "su" => {
                let original = self.original(defaults)?;
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
                    long_amplitude: None,
                }
            }
            "proportional" => {
                let factor = entry.positive("factor", Some(1.0))?;
                RopeScaling::Proportional { partial, factor }
            }
            other => {
                return Err(
                    entry.unsupported(format!("rope_type {other:?} is unknown; known: {KNOWN}"))
                );
            }
        })
    }
}

/// YaRN's factor on cosine and sine, as transformers computes it.
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
