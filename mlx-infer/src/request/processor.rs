//! Processors: code of the caller that changes the logits of a row.

use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_core::{Array, DType};

use crate::error::{Error, ErrorKind};
use crate::model::LoadedModel;
use crate::sampling::{Choice, Row, sample};

/// The error of a [`Processor`].
pub type ProcessorError = Box<dyn StdError + Send + Sync>;

/// Changes a row's logits on the host before its token is chosen. It gets all tokens of the row so far, the prompt's
/// first, and a logit for each token of the vocabulary. Bias and penalties are applied after it.
///
/// An error or a panic ends only its own request. Only the logits of its row are copied to the host. The other rows of
/// a batch take their next step meanwhile, so a row with a processor takes part in every other step.
pub type Processor = Box<dyn FnMut(&[u32], &mut [f32]) -> Result<(), ProcessorError> + Send>;

/// Chooses the token of a row from its `logits` `[1, V]` after its processor has changed them.
///
/// # Errors
/// The processor fails or panics, or its logits are not finite.
pub(crate) fn choose(
    model: &LoadedModel,
    processor: &mut Processor,
    logits: &Array,
    row: Row<'_>,
) -> crate::Result<Choice> {
    let mut values = logits.astype(DType::F32)?.to_vec::<f32>()?;
    let ids = row.history.ids();
    if values.iter().any(|value| value.is_nan()) && !model.options().allow_nan {
        return Err(model.not_finite(ids));
    }
    catch_unwind(AssertUnwindSafe(|| processor(ids, &mut values)))
        .unwrap_or_else(|_| Err("it panicked".into()))
        .map_err(|error| {
            let message = format!("the request's logits processor failed: {error}");
            Error::new(ErrorKind::Argument, message).with_source(error)
        })?;
    let changed = Array::from_slice(&values, logits.shape())?;
    let choices = sample(&changed, &[row], None)?.read()?;
    choices.into_iter().next().expect("one row was sampled")
}
