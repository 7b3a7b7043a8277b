//! The scheme of each weight: the rules of `mlx_lm.convert`.

use mlx_core::{Error, ErrorKind, QuantMode, Result, Scheme};

use crate::config::Bits;

const EIGHT: Scheme = Scheme {
    mode: QuantMode::Affine,
    bits: 8,
    group_size: 64,
};

/// How a model is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    scheme: Scheme,
    mixed: Option<Mixed>,
}

impl Recipe {
    /// Every weight gets one scheme, except those for which the family has other [`Bits`].
    pub fn uniform(scheme: Scheme) -> Self {
        Self {
            scheme,
            mixed: None,
        }
    }

    /// Affine schemes, with more bits for the weights that [`Mixed`] names.
    ///
    /// # Errors
    /// MLX does not support the group size.
    pub fn mixed(mixed: Mixed, group_size: i32) -> Result<Self> {
        Ok(Self {
            scheme: Scheme::new(group_size, mixed.low, QuantMode::Affine)?,
            mixed: Some(mixed),
        })
    }

    /// The scheme of weights without an entry of their own.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The scheme of the weight at `path`, whose rows have `inputs` elements, in a model with this
    /// number of layers. `None` if the weight stays dense, because `inputs` is not a multiple of
    /// the group size or because of the family's [`Bits`].
    pub(super) fn scheme_of(
        &self,
        path: &str,
        inputs: i32,
        layers: usize,
        bits: Option<Bits>,
    ) -> Option<Scheme> {
        let scheme = match (bits, self.mixed) {
            (Some(Bits::Dense), _) => return None,
            (Some(Bits::Eight), _) | (Some(Bits::EightUnlessMixed), None) => EIGHT,
            (_, Some(mixed)) => Scheme {
                bits: mixed.bits(path, layers),
                ..self.scheme
            },
            (None, None) => self.scheme,
        };
        let fits = |scheme: Scheme| inputs % scheme.group_size == 0;
        (fits(self.scheme) && fits(scheme)).then_some(scheme)
    }

    /// Whether config.json has an entry for a weight with this scheme.
    pub(super) fn names(&self, scheme: Scheme) -> bool {
        self.mixed.is_some() || scheme != self.scheme
    }
}

/// Few bits for most weights, and more for the output head and for `v_proj` and `down_proj` of some layers: the first
/// and the last eighth of the layers, and every third one between them. These are mlx-lm's recipes, after llama.cpp's
/// `Q4_K_M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed {
    name: &'static str,
    low: i32,
    high: i32,
}

impl Mixed {
    /// Every recipe.
    pub const ALL: [Mixed; 4] = [
        Self::new("mixed_2_6", 2, 6),
        Self::new("mixed_3_4", 3, 4),
        Self::new("mixed_3_6", 3, 6),
        Self::new("mixed_4_6", 4, 6),
    ];

    const fn new(name: &'static str, low: i32, high: i32) -> Self {
        Self { name, low, high }
    }

    /// The recipe of this name.
    ///
    /// # Errors
    /// No recipe has the name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mixed| mixed.name == name);
        found.ok_or_else(|| {
            let known = Self::ALL.map(|mixed| mixed.name).join(", ");
            let message = format!("quantization recipe {name:?} is unknown; known: {known}");
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// The recipe's name in mlx-lm.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn bits(&self, path: &str, layers: usize) -> i32 {
        let mut parts = path.split('.').skip_while(|part| *part != "layers");
        let layer = parts.nth(1).and_then(|index| index.parse().ok());
        let layer: usize = layer.unwrap_or(0);
        let eighth = layers / 8;
        let favoured = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
        let sensitive = path.contains("v_proj") || path.contains("down_proj");
        if path.contains("lm_head") || (sensitive && favoured) {
            self.high
        } else {
            self.low
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of `mixed_quant_predicate_builder` of mlx-lm 0.32.2 for 16 layers.
    #[test]
    fn layers_with_more_bits() {
        let mixed = Mixed::parse("mixed_3_6").unwrap();
        let high: Vec<usize> = (0..16)
            .filter(|layer| mixed.bits(&format!("model.layers.{layer}.mlp.down_proj"), 16) == 6)
            .collect();
        assert_eq!(high, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(mixed.bits("model.layers.0.self_attn.q_proj", 16), 3);
        assert_eq!(mixed.bits("model.layers.15.self_attn.v_proj", 16), 6);
        assert_eq!(mixed.bits("lm_head", 16), 6);
        assert_eq!(mixed.bits("model.embed_tokens", 16), 3);
        assert!(Mixed::parse("mixed_5_6").is_err());
    }
}
