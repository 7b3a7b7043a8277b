//! [`ModelInfo`].

use mlx_core::{DType, Scheme};
use mlx_nn::LayerKind;

use crate::model::Geometry;

/// Information about a loaded model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type`, from the config or derived from the tensors.
    pub model_type: String,
    /// What the model computes.
    pub task: ModelTask,
    /// Rows of the embedding.
    pub vocab: i32,
    /// The context length in tokens, if the config has one.
    pub max_positions: Option<usize>,
    /// The states of all layers.
    pub layers: Vec<LayerKind>,
    /// Features of a token.
    pub hidden: i32,
    /// The sizes of each layer.
    pub geometry: Geometry,
    /// The number of elements of all weights, as if they were dense.
    pub n_parameters: usize,
    /// Bytes of all weights.
    pub weight_bytes: usize,
    /// The scheme of quantised weights without an entry of their own.
    pub quantization: Option<Scheme>,
    /// A description of the format of another program, if the files have one, and of its form in
    /// memory.
    pub stored: Option<String>,
    /// The head for multi-token prediction, if the model has one.
    pub head: Option<HeadInfo>,
    /// The dtype of the activations.
    pub dtype: DType,
    /// Keys of config.json that this version does not read and that are not known to have no
    /// effect.
    pub unread_keys: Vec<String>,
}

/// What a model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelTask {
    /// The next token. Features of texts too, so that any such model can embed texts.
    #[default]
    Generate,
    /// Features of texts.
    Embed,
    /// Features of texts, by a decoder whose checkpoint has no output head.
    Headless,
    /// Features of texts, and the logits of this many classes. With one class it is the relevance
    /// of a pair of texts.
    Classify(usize),
}

impl ModelTask {
    /// The task of a model.
    pub fn of(model: &dyn crate::model::Model) -> Self {
        match model.encoder().map(crate::model::Encoder::classes) {
            None if model.head().is_absent() => Self::Headless,
            None => Self::Generate,
            Some(0) => Self::Embed,
            Some(classes) => Self::Classify(classes),
        }
    }
}

/// Information about a head for multi-token prediction. The counts of [`ModelInfo`] include the
/// head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadInfo {
    /// The number of elements of its weights, as if they were dense.
    pub n_parameters: usize,
    /// Bytes of its weights.
    pub bytes: usize,
    /// The scheme of its first quantised weight.
    pub quantization: Option<Scheme>,
}
