//! The `quantization` entry that mlx-lm writes: one scheme, and others for some modules.

use std::collections::BTreeMap;

use mlx_core::{Error, ErrorKind, QuantMode, Result, Scheme};
use mlx_nn::Rules;
use serde_json::Value;

use super::Config;

/// The `quant_method` of ternary matrices.
pub(crate) const TERNARY: &str = "bitnet";

/// The scheme of each packed weight.
#[derive(Clone, Debug, Default)]
pub struct Quantization {
    default: Option<Scheme>,
    overrides: BTreeMap<String, Option<Scheme>>,
    /// The prefix and the schemes of a head for multi-token prediction from another folder.
    head: Option<(&'static str, Box<Quantization>)>,
    /// Whether some matrices are ternary.
    ternary: bool,
}

impl Quantization {
    /// Reads `quantization` or, of the same form, `quantization_config`; `rules` map the paths of
    /// its modules as they map the names of tensors.
    ///
    /// # Errors
    /// The mode or method is unknown, or MLX does not support the sizes.
    pub fn read(config: &Config, rules: &Rules) -> Result<Self> {
        let entry = match config.object("quantization")? {
            Some(entry) => entry,
            None => match config.object("quantization_config")? {
                Some(entry) => entry,
                None => return Ok(Self::default()),
            },
        };
        if let Some(method) = entry.opt::<String>("quant_method")? {
            // gpt-oss as it is published: only experts are packed. The other known methods are read with the tensors.
            if method == "mxfp4" {
                return Ok(Self::uniform(Scheme::default_of(QuantMode::Mxfp4)));
            }
            // The schemes of ternary matrices follow from their tensors.
            if method == TERNARY {
                return Ok(Self::default());
            }
            return Err(entry.unsupported(format!(
                "quant_method {method:?} is not supported here; known: mxfp4, bitnet, and checkpoints \
                 quantised by MLX (affine, mxfp4, mxfp8, nvfp4)"
            )));
        }
        let mut overrides = BTreeMap::new();
        for (key, value) in &entry.map {
            let scheme = match value {
                Value::Object(_) => {
                    let place = format!("{}: {key}", entry.place);
                    Some(scheme(&Config::new(&place, value.clone())?)?)
                }
                Value::Bool(false) => None,
                _ => continue,
            };
            for piece in rules.modules(key).unwrap_or_default() {
                overrides.insert(piece.name().to_owned(), scheme);
            }
        }
        Ok(Self {
            default: Some(scheme(&entry)?),
            overrides,
            head: None,
            ternary: false,
        })
    }

    /// Adds the schemes of a head for multi-token prediction from another folder, whose paths begin
    /// with `prefix`.
    #[must_use]
    pub(crate) fn with_head(self, prefix: &'static str, head: Self) -> Self {
        Self {
            head: Some((prefix, Box::new(head))),
            ..self
        }
    }

    /// Adds the schemes of ternary matrices, by their paths.
    pub(crate) fn with_ternary(mut self, schemes: BTreeMap<String, Scheme>) -> Self {
        self.ternary = !schemes.is_empty();
        self.default = self.default.or(schemes.values().next().copied());
        let schemes = schemes.into_iter();
        self.overrides
            .extend(schemes.map(|(path, scheme)| (path, Some(scheme))));
        self
    }

    /// The number of columns that every packed matrix can be divided into: the largest group. 1 without packed
    /// matrices.
    pub(crate) fn largest_group(&self) -> i32 {
        let own = self.overrides.values().chain([&self.default]).flatten();
        let own = own.map(|scheme| scheme.group_size).max().unwrap_or(1);
        let head = self
            .head
            .as_ref()
            .map_or(1, |(_, head)| head.largest_group());
        own.max(head)
    }

    /// Whether some matrices are ternary.
    pub(crate) fn is_ternary(&self) -> bool {
        self.ternary
    }

    /// One scheme for all packed weights.
    pub(crate) fn uniform(scheme: impl Into<Option<Scheme>>) -> Self {
        Self {
            default: scheme.into(),
            ..Self::default()
        }
    }

    /// The schemes of modules, by their published paths, which `rules` map; `usual` is that of the
    /// others.
    ///
    /// # Errors
    /// Weights that are parts of one parameter have different schemes.
    pub(crate) fn of_modules(
        usual: Option<Scheme>,
        schemes: &BTreeMap<String, Scheme>,
        rules: &Rules,
    ) -> Result<Self> {
        let mut all = Self::uniform(usual);
        for (published, &scheme) in schemes {
            for piece in rules.modules(published).unwrap_or_default() {
                let other = all.overrides.insert(piece.name().to_owned(), Some(scheme));
                if let Some(Some(other)) = other.filter(|other| *other != Some(scheme)) {
                    return Err(Error::new(
                        ErrorKind::Unsupported,
                        format!(
                            "{published}: {scheme} beside {other} in {} is not supported",
                            piece.name()
                        ),
                    ));
                }
            }
        }
        all.overrides.retain(|_, scheme| *scheme != usual);
        Ok(all)
    }

    /// The scheme of the weight at `path`; `None` if the weight is dense.
    pub fn scheme(&self, path: &str) -> Option<Scheme> {
        if let Some((prefix, head)) = &self.head
            && path.starts_with(prefix)
        {
            return head.scheme(path);
        }
        self.overrides.get(path).copied().unwrap_or(self.default)
    }

    /// The scheme of weights without an entry of their own.
    pub fn default_scheme(&self) -> Option<Scheme> {
        self.default
    }
}

fn scheme(config: &Config) -> Result<Scheme> {
    let mode = QuantMode::parse(&config.or("mode", "affine".to_owned())?)
        .map_err(|error| error.context(&config.place))?;
    let usual = Scheme::default_of(mode);
    let group_size = config.size("group_size", Some(usual.group_size))?;
    let bits = config.size("bits", Some(usual.bits))?;
    Scheme::new(group_size, bits, mode).map_err(|error| error.context(&config.place))
}
