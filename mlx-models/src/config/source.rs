//! [`Source`]: what a family builds its model from.

use mlx_core::Result;
use mlx_nn::Checkpoint;

use super::Config;

/// The file beside config.json, without its ending, that has the kind of each token for features of n-grams: a list of
/// numbers. Also the key under which a config has it once it is read.
pub(crate) const TOKEN_MAP: &str = "engram_token_map";

/// Why tensors of other towers of a multimodal checkpoint are dropped.
pub(crate) const OF_OTHER_TOWER: &str = "not of the text model";

/// What a model is built from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The config of the text model. Its `tie_word_embeddings` is corrected by the tensors.
    pub config: &'a Config,
    /// The whole config: that of a multimodal checkpoint, or `config`.
    pub outer: &'a Config,
    /// Whether the config is inside that of a multimodal checkpoint.
    pub nested: bool,
    /// Whether a head for multi-token prediction comes from files of its own.
    pub head_beside: bool,
    /// The tensors: for [`crate::Family::names`] as they are published, without the prefixes of multimodal checkpoints;
    /// for [`crate::Family::build`] under the names of parameters. A model that is initialised has none.
    pub tensors: &'a Checkpoint,
    /// Whether the files have convolutions with the axes of MLX's files, `[channels, taps, 1]`.
    pub mlx_convolutions: bool,
}

impl Source<'_> {
    /// The tokens that stand for images, sounds and videos in a multimodal checkpoint, by their keys in its config with
    /// the class's defaults. A text model alone has none.
    ///
    /// # Errors
    /// A value is no token.
    pub(crate) fn placeholders(&self, keys: &[(&str, i32)]) -> Result<Vec<i32>> {
        if !self.nested {
            return Ok(Vec::new());
        }
        let given = keys
            .iter()
            .map(|&(key, usual)| match self.outer.is_null(key) {
                true => Ok(None),
                false => self.outer.or(key, usual).map(Some),
            });
        Ok(given
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect())
    }

    /// Whether the name of any tensor begins with `prefix`. A family builds an optional part, such
    /// as `mtp.`, if the files have any tensor of it; loading then asks for all of them.
    pub fn has(&self, prefix: &str) -> bool {
        self.tensors.names().any(|name| name.starts_with(prefix))
    }
}
