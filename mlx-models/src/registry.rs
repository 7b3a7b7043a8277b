//! [`Registry`]: the families of models, found by `model_type`.

use mlx_core::Result;
use mlx_nn::Checkpoint;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::config::keys::TIED;
use crate::families::{ENCODERS, FAMILIES};

pub(crate) mod assemble;
mod drafter;
mod load;

pub use crate::config::Source;
pub use crate::families::Family;
pub use drafter::DraftKind;
pub use load::{LoadOptions, Loaded, Outline, initialised, load, load_from};

/// The families that can be loaded: those of this crate, and those that a program adds.
///
/// ```
/// use mlx_models::{Family, Registry};
///
/// // Checkpoints of another name for a model that is there.
/// let llama = *Registry::default().family("llama").unwrap();
/// let registry = Registry::default().with(Family { types: &["smol"], ..llama });
/// assert!(registry.known_types().contains(&"smol"));
/// ```
#[derive(Clone)]
pub struct Registry {
    families: Vec<Family>,
}

impl Default for Registry {
    /// The families of this crate.
    fn default() -> Self {
        Self {
            families: FAMILIES.to_vec(),
        }
    }
}

impl Registry {
    /// Adds a family. It takes precedence over earlier families of the same `model_type`.
    #[must_use]
    pub fn with(mut self, family: Family) -> Self {
        self.families.insert(0, family);
        self
    }

    /// Every `model_type` that generates text. [`encoder_types`] are others that can be loaded.
    pub fn known_types(&self) -> Vec<&'static str> {
        let types = self.families.iter().flat_map(|family| family.types);
        types.copied().collect()
    }

    /// The family of a `model_type`.
    pub fn family(&self, model_type: &str) -> Option<&Family> {
        let mut families = self.families.iter().chain(ENCODERS);
        families.find(|family| family.types.contains(&model_type))
    }

    /// Every `model_type` of a multimodal wrapper, whose `text_config` is the text model's config.
    pub(crate) fn wrappers(&self) -> Vec<&'static str> {
        let types = self.families.iter().flat_map(|family| family.wrappers);
        types.copied().collect()
    }

    /// Whether a config ties the head to the embedding.
    pub(crate) fn ties(&self, config: &Map<String, Value>) -> bool {
        let model_type = config.get("model_type").and_then(Value::as_str);
        let family = model_type.and_then(|name| self.family(name));
        let keys = family.map_or(&[TIED][..], |family| family.tied_keys);
        let mut given = keys.iter().filter_map(|key| config.get(*key));
        let given = given.find(|value| !value.is_null());
        let inside = config.get("text_config").and_then(|text| text.get(TIED));
        let outside = match given {
            Some(tied) => tied == true,
            None => family.is_some_and(|family| family.tied),
        };
        outside || inside.is_some_and(|tied| tied == true)
    }

    /// The family of a config, and the name of its `model_type`. Without the key, the names of the
    /// tensors decide between qwen2 and qwen3.
    ///
    /// # Errors
    /// The `model_type` is unknown, or it is missing and the tensors are those of neither family.
    pub(crate) fn find(
        &self,
        config: &Config,
        tensors: &Checkpoint,
    ) -> Result<(&'static str, &Family)> {
        let name = match config.opt::<String>("model_type")? {
            Some(name) => name,
            None => {
                let mut names = tensors.names();
                let told = names.find_map(|name| match name.rsplit_once("self_attn.")?.1 {
                    "q_norm.weight" => Some("qwen3"),
                    "q_proj.bias" => Some("qwen2"),
                    _ => None,
                });
                told.map(str::to_owned).ok_or_else(|| {
                    config.error(
                        "model_type is missing, and the tensors are neither those of qwen2 (biases on \
                         q_proj) nor of qwen3 (q_norm)",
                    )
                })?
            }
        };
        let found = self.family(&name).and_then(|family| {
            let known = family.types.iter().find(|&&known| known == name)?;
            Some((*known, family))
        });
        found.ok_or_else(|| {
            config.unsupported(format!(
                "model_type {name:?} is not supported; known: {}; encoders: {}",
                self.known_types().join(", "),
                encoder_types().join(", ")
            ))
        })
    }
}

/// Every `model_type` of an [encoder](crate::encoders), which computes features of texts and
/// generates none.
///
/// ```
/// assert!(mlx_models::encoder_types().contains(&"xlm-roberta"));
/// ```
pub fn encoder_types() -> Vec<&'static str> {
    let types = ENCODERS.iter().flat_map(|family| family.types);
    types.copied().collect()
}

/// Every `model_type` that generates text.
pub fn known_types() -> Vec<&'static str> {
    Registry::default().known_types()
}
