//! Processors: code of the caller that changes the logits of a row.

use std::error::Error as StdError;

/// The error of a [`Processor`].
pub type ProcessorError = Box<dyn StdError + Send + Sync>;

/// Changes a row's logits on the host before its token is chosen. It gets all tokens of the row so
/// far, those of the prompt first, and one logit for each token of the vocabulary. Bias and
/// penalties are applied after it.
///
/// An error or a panic ends only its own request. Only the logits of its row are copied to the host. The other rows of
/// a batch take their next step meanwhile, so a row with a processor takes part in every other step.
pub type Processor = Box<dyn FnMut(&[u32], &mut [f32]) -> Result<(), ProcessorError> + Send>;
