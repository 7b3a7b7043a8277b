//! [`Names`]: how the tensors of a model's files are called.

use mlx_nn::{Rule, Rules};

/// Prefixes of tensors that belong to other towers of a multimodal checkpoint.
const OTHER_TOWERS: [&str; 9] = [
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "mm_projector.",
    "audio_tower.",
    "embed_audio.",
    "embed_vision.",
    "vision_embedder.",
    "visual.",
];

/// From the names in a model's files to those of its parameters, and back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    prefixes: Rules,
    family: Rules,
}

impl Names {
    /// Every parameter is called in files as it is in the model.
    pub const fn none() -> Self {
        Self {
            prefixes: Rules::none(),
            family: Rules::none(),
        }
    }

    /// The names of a family's files, of which the text model may be `nested` in a multimodal one.
    pub(crate) fn new(nested: bool, family: Rules) -> Self {
        Self {
            prefixes: prefixes(nested),
            family,
        }
    }

    /// For checkpoints and adapters as they are published.
    pub fn published(&self) -> Rules {
        self.prefixes.and(&self.family)
    }

    /// For what this project and mlx-lm write, such as their adapters.
    pub fn written(&self) -> Rules {
        self.prefixes.and(&self.family.of_written())
    }

    /// From parameters to tensors of a file that is written, without the prefix of a multimodal checkpoint.
    pub fn inverse(&self) -> Rules {
        self.family.inverse()
    }
}

/// What every family does with a published name before its own rules: buffers that are no weights are dropped, in a
/// checkpoint with a `text_config` also the other towers, and prefixes of the text model go.
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
