//! The choice of a token for a row whose request has a logits processor.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_core::{Array, DType};

use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::request::processor::Processor;
use crate::request::sampling::Choice;
use crate::sampling::{Row, sample};

/// Chooses the token of a row from its `logits` `[1, V]` after its processor has changed them.
///
/// # Errors
/// The processor fails or panics, or its logits are not finite.
pub(crate) fn choose(
    model: &LoadedModel,
    processor: &mut Processor,
    logits: &Array,
    row: Row<'_>,
) -> Result<Choice> {
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
