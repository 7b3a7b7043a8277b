//! [`Names`]: the names of the tensors in a model's files.

use mlx_nn::{Rule, Rules};

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

/// Maps the names in a model's files to those of its parameters, and back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    prefixes: Rules,
    family: Rules,
}

impl Names {
    /// Every parameter has the same name in files and in the model.
    pub const fn none() -> Self {
        Self {
            prefixes: Rules::none(),
            family: Rules::none(),
        }
    }

    /// The names in the files of a family. `nested` means that the files are those of a multimodal
    /// checkpoint.
    pub(crate) fn new(nested: bool, family: Rules) -> Self {
        Self {
            prefixes: prefixes(nested),
            family,
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
}

/// The rules that every family applies before its own: buffers that are not weights are dropped; in a checkpoint with a
/// `text_config`, the other towers are dropped too and the prefixes of the text model are removed.
pub(crate) fn prefixes(nested: bool) -> Rules {
    let mut rules = vec![Rule::drop(
        "*rotary_emb.inv_freq",
        "computed from config.json",
    )];
    for tower in OTHER_TOWERS.iter().filter(|_| nested) {
        const REASON: &str = "not of the text model";
        rules.push(Rule::drop(&format!("{tower}*"), REASON));
        rules.push(Rule::drop(&format!("model.{tower}*"), REASON));
    }
    rules.push(Rule::rename("model.language_model.*", "model.*"));
    rules.push(Rule::rename("language_model.*", "*"));
    Rules::from(rules)
}
