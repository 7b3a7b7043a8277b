//! [`Names`]: the names of the tensors in a model's files.

use mlx_nn::{Rule, Rules};

pub(crate) use crate::config::OF_OTHER_TOWER;
pub(crate) use crate::config::keys::joined_expert_names;

/// Prefixes of tensors that belong to other towers of a multimodal checkpoint.
const OTHER_TOWERS: [&str; 16] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "mm_projector.",
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "vision_embedder.",
    "visual.",
    "vision_adapter.",
    "vision_projection.",
    "vit_large_projector.",
    "vision_projector.",
    "vision_final_layernorm.",
    "mlp1.",
    "sound_",
];

/// The parts of a decoder without its output head.
const BARE: [&str; 3] = ["embed_tokens.", "layers.", "norm."];

/// Maps the names in a model's files to those of its parameters, and back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    prefixes: Rules,
    family: Rules,
    /// Whether checkpoints are written without the prefix `model.`.
    is_bare: bool,
}

impl Names {
    /// Every parameter has the same name in files and in the model.
    pub const fn none() -> Self {
        Self {
            prefixes: Rules::none(),
            family: Rules::none(),
            is_bare: false,
        }
    }

    /// The names in files, to which the rules `prefixes` apply before those of the family.
    pub(crate) const fn new(prefixes: Rules, family: Rules) -> Self {
        Self {
            prefixes,
            family,
            is_bare: false,
        }
    }

    /// The names of a decoder without its output head, whose checkpoints are also written without the prefix `model.`.
    /// The missing prefix tells a reader that the head is not wanted.
    pub(crate) fn without_prefix(self) -> Self {
        Self {
            is_bare: true,
            ..self
        }
    }

    /// The rules for published checkpoints and adapters.
    pub fn published(&self) -> Rules {
        self.prefixes.and(&self.family)
    }

    /// The rules for files of this project and of mlx-lm, such as their adapters.
    pub fn written(&self) -> Rules {
        self.prefixes.and(&self.family.of_written())
    }

    /// The rules from parameters to tensors of a written file, without the prefix of a multimodal checkpoint.
    pub fn inverse(&self) -> Rules {
        self.family.inverse()
    }

    /// The rules from parameters to tensors of a written checkpoint.
    pub(crate) fn checkpoint(&self) -> Rules {
        let bare = BARE.iter().filter(|_| self.is_bare);
        let bare = bare.map(|part| Rule::rename(&format!("model.{part}*"), &format!("{part}*")));
        self.inverse().and(&Rules::from(bare))
    }
}

/// The rules that every family applies before its own: buffers that are not weights are dropped; in a checkpoint with a
/// `text_config`, the other towers are dropped too and the prefixes of the text model are removed. `bare` files get the
/// prefix `model.`.
pub(crate) fn prefixes(nested: bool, bare: bool) -> Rules {
    let mut rules = vec![Rule::drop(
        "*rotary_emb.inv_freq",
        "computed from config.json",
    )];
    for tower in OTHER_TOWERS.iter().filter(|_| nested) {
        rules.push(Rule::drop(&format!("{tower}*"), OF_OTHER_TOWER));
        rules.push(Rule::drop(&format!("model.{tower}*"), OF_OTHER_TOWER));
    }
    rules.push(Rule::rename("model.language_model.*", "model.*"));
    rules.push(Rule::rename("language_model.*", "*"));
    for part in BARE.iter().filter(|_| bare) {
        rules.push(Rule::rename(&format!("{part}*"), &format!("model.{part}*")));
    }
    Rules::from(rules)
}

/// Whether the files are those of a decoder without its output head, as models for embeddings are published: their names
/// lack the prefix `model.`.
pub(crate) fn are_bare<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    let mut has_embedding = false;
    let has_prefix = names.any(|name| {
        has_embedding |= name.starts_with(BARE[0]);
        name.starts_with("model.")
    });
    has_embedding && !has_prefix
}
