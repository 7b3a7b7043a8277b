//! [`Registry`]: the families of models, and from `model_type` to one of them.

use mlx_core::Result;
use mlx_nn::{Checkpoint, Rules};
use serde_json::{Map, Value};

use crate::assemble::TIED;
use crate::config::Config;
use crate::convert::Bits;
use crate::{
    Model, apertus, arcee, cohere, cohere2, dots1, ernie4_5, exaone4, gemma, gemma2, gemma3, glm4,
    glm4_moe, gpt_oss, granite, granitemoe, helium, hunyuan_v1_dense, llama, minimax_m2,
    ministral3, mistral, mixtral, mtp, nemotron, olmo2, olmo3, olmoe, phi, phi3, qwen2, qwen2_moe,
    qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, seed_oss, smollm3, stablelm, starcoder2,
};

/// What a model is built from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The config of the text model. Its `tie_word_embeddings` is corrected by the tensors.
    pub config: &'a Config,
    /// Whether the config is inside that of a multimodal checkpoint.
    pub nested: bool,
    /// Whether a head for multi-token prediction comes from files of its own.
    pub head_beside: bool,
    /// The tensors: for [`Family::names`] as they are published, without the prefixes of multimodal checkpoints;
    /// for [`Family::build`] under the names of parameters. A model that is initialised has none.
    pub tensors: &'a Checkpoint,
}

impl Source<'_> {
    /// Whether any tensor's name begins so. A family builds an optional part, such as `mtp.`, if the files have any
    /// tensor of it; loading then asks for all of them.
    pub fn has(&self, prefix: &str) -> bool {
        self.tensors.names().any(|name| name.starts_with(prefix))
    }
}

/// A family of models: how its configs and tensors are read.
#[derive(Clone, Copy)]
pub struct Family {
    /// The `model_type`s it answers to.
    pub types: &'static [&'static str],
    /// Builds the model, without values.
    pub build: fn(&Source<'_>) -> Result<Box<dyn Model>>,
    /// How published tensors become parameters.
    pub names: fn(&Source<'_>) -> Result<Rules>,
    /// What `tie_word_embeddings` is without a value.
    pub tied: bool,
    /// Weights, by patterns of their paths, that quantising leaves dense or gives more bits. The first that matches
    /// counts.
    pub bits: &'static [(&'static str, Bits)],
    /// Those of `types` that are multimodal wrappers: the text model's config is their `text_config`.
    pub wrappers: &'static [&'static str],
    /// Where it has a head for multi-token prediction (tensors named `mtp.`), the file that is written for it. Other programs
    /// do not read the head, and some refuse its tensors.
    pub head_file: Option<&'static str>,
}

impl Family {
    /// A family whose tensors are called as the parameters, whose head is not tied, and whose weights are all
    /// quantised alike.
    pub const fn new(
        types: &'static [&'static str],
        build: fn(&Source<'_>) -> Result<Box<dyn Model>>,
    ) -> Self {
        Self {
            types,
            build,
            names: |_| Ok(Rules::none()),
            tied: false,
            bits: &[],
            wrappers: &[],
            head_file: None,
        }
    }
}

macro_rules! build {
    ($family:ident) => {
        |source| Ok(Box::new($family::load(source.config)?))
    };
}

const FAMILIES: &[Family] = &[
    Family::new(&["llama"], build!(llama)),
    Family::new(&["mistral"], build!(mistral)),
    Family::new(&["qwen2"], build!(qwen2)),
    Family::new(&["qwen3"], build!(qwen3)),
    Family {
        names: qwen3_moe::names,
        bits: qwen3_moe::BITS,
        ..Family::new(&["qwen3_moe"], build!(qwen3_moe))
    },
    Family {
        names: qwen3_5::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["qwen3_5"],
        ..Family::new(&["qwen3_5", "qwen3_5_text"], |source| {
            Ok(Box::new(qwen3_5::load(source)?))
        })
    },
    Family {
        names: qwen3_5::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        wrappers: &["qwen3_5_moe"],
        ..Family::new(&["qwen3_5_moe", "qwen3_5_moe_text"], |source| {
            Ok(Box::new(qwen3_5_moe::load(source)?))
        })
    },
    Family {
        names: qwen3_next::names,
        bits: qwen3_5::BITS,
        head_file: Some(mtp::FILE),
        ..Family::new(&["qwen3_next"], |source| {
            Ok(Box::new(qwen3_next::load(source)?))
        })
    },
    Family {
        tied: true,
        ..Family::new(&["gemma2"], build!(gemma2))
    },
    Family {
        tied: true,
        wrappers: &["gemma3"],
        ..Family::new(&["gemma3_text", "gemma3"], |source| {
            Ok(Box::new(gemma3::load(source)?))
        })
    },
    Family::new(&["phi3"], build!(phi3)),
    Family {
        names: mixtral::names,
        ..Family::new(&["mixtral"], build!(mixtral))
    },
    Family {
        tied: true,
        ..Family::new(&["gemma"], build!(gemma))
    },
    Family {
        tied: true,
        ..Family::new(&["smollm3"], build!(smollm3))
    },
    Family::new(&["olmo2"], build!(olmo2)),
    Family {
        names: glm4::names,
        ..Family::new(&["glm4"], build!(glm4))
    },
    Family {
        bits: granite::BITS,
        ..Family::new(&["granite"], build!(granite))
    },
    Family {
        names: starcoder2::names,
        tied: true,
        ..Family::new(&["starcoder2"], build!(starcoder2))
    },
    Family::new(&["seed_oss"], build!(seed_oss)),
    Family::new(&["arcee"], build!(arcee)),
    Family::new(&["helium"], build!(helium)),
    Family {
        tied: true,
        ..Family::new(&["ernie4_5"], build!(ernie4_5))
    },
    Family {
        tied: true,
        ..Family::new(&["cohere"], build!(cohere))
    },
    Family {
        tied: true,
        ..Family::new(&["cohere2"], build!(cohere2))
    },
    Family {
        names: qwen3_moe::names,
        ..Family::new(&["qwen2_moe"], build!(qwen2_moe))
    },
    Family {
        names: qwen3_moe::names,
        ..Family::new(&["olmoe"], build!(olmoe))
    },
    Family::new(&["olmo3"], build!(olmo3)),
    Family::new(&["exaone4"], build!(exaone4)),
    Family::new(&["nemotron"], build!(nemotron)),
    Family {
        names: phi::names,
        ..Family::new(&["phi"], build!(phi))
    },
    Family::new(&["stablelm"], stablelm::load),
    Family {
        // The tensors tell: text models of 3 B are tied, and their wrappers do not say it.
        tied: true,
        wrappers: &["mistral3"],
        ..Family::new(&["ministral3", "mistral3"], |source| {
            Ok(Box::new(ministral3::load(source)?))
        })
    },
    Family {
        names: apertus::names,
        ..Family::new(&["apertus"], |source| Ok(Box::new(apertus::load(source)?)))
    },
    Family {
        names: glm4_moe::names,
        ..Family::new(&["glm4_moe"], build!(glm4_moe))
    },
    Family {
        names: minimax_m2::names,
        bits: gpt_oss::BITS,
        ..Family::new(&["minimax_m2"], build!(minimax_m2))
    },
    Family {
        names: dots1::names,
        ..Family::new(&["dots1"], build!(dots1))
    },
    Family {
        names: granitemoe::names,
        bits: granite::BITS,
        ..Family::new(&["granitemoe"], build!(granitemoe))
    },
    Family {
        names: gpt_oss::names,
        bits: gpt_oss::BITS,
        ..Family::new(&["gpt_oss"], build!(gpt_oss))
    },
    Family {
        names: hunyuan_v1_dense::names,
        ..Family::new(&["hunyuan_v1_dense"], build!(hunyuan_v1_dense))
    },
];

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
    /// One family more. It goes before others of the same `model_type`.
    #[must_use]
    pub fn with(mut self, family: Family) -> Self {
        self.families.insert(0, family);
        self
    }

    /// Every `model_type` that can be loaded.
    pub fn known_types(&self) -> Vec<&'static str> {
        let types = self.families.iter().flat_map(|family| family.types);
        types.copied().collect()
    }

    /// The family of a `model_type`.
    pub fn family(&self, model_type: &str) -> Option<&Family> {
        let mut families = self.families.iter();
        families.find(|family| family.types.contains(&model_type))
    }

    /// Every `model_type` with the text model's config inside.
    pub(crate) fn wrappers(&self) -> Vec<&'static str> {
        let types = self.families.iter().flat_map(|family| family.wrappers);
        types.copied().collect()
    }

    /// Whether a config ties the head to the embedding.
    pub(crate) fn ties(&self, config: &Map<String, Value>) -> bool {
        let model_type = config.get("model_type").and_then(Value::as_str);
        let family = model_type.and_then(|name| self.family(name));
        let given = config.get(TIED).filter(|value| !value.is_null());
        let inside = config.get("text_config").and_then(|text| text.get(TIED));
        let outside = match given {
            Some(tied) => tied == true,
            None => family.is_some_and(|family| family.tied),
        };
        outside || inside.is_some_and(|tied| tied == true)
    }

    /// The family of a config and its name; without `model_type` the tensors' names tell qwen2 from qwen3.
    ///
    /// # Errors
    /// An unknown type, or none and tensors that do not tell.
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
                "model_type {name:?} is not supported; known: {}",
                self.known_types().join(", ")
            ))
        })
    }
}

/// Every `model_type` that can be loaded.
pub fn known_types() -> Vec<&'static str> {
    Registry::default().known_types()
}
