//! Losses.

use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

mod chunked;

pub use chunked::{chunked_accuracy, chunked_cross_entropy};

/// The negative log-probability of each target: `logits [.., V]`, `targets [..]` -> F32 `[..]`.
///
/// # Errors
/// The shapes do not fit.
pub fn cross_entropy(logits: &Array, targets: &Array) -> Result<Array> {
    fast::cross_entropy(logits, targets)
}

/// The mean of `losses` where `mask` is true: a scalar. It is 0 if the mask is false everywhere.
///
/// # Errors
/// The shapes differ.
pub fn masked_mean(losses: &Array, mask: &Array) -> Result<Array> {
    if losses.shape() != mask.shape() {
        let message = format!(
            "losses {:?} and mask {:?} must have one shape",
            losses.shape(),
            mask.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let mask = mask.astype(DType::F32)?;
    losses
        .multiply(&mask)?
        .sum(.., false)?
        .divide(mask.sum(.., false)?.maximum(1.0)?)
}

/// `mean((prediction - target)^2)`: a scalar.
///
/// # Errors
/// The shapes do not broadcast.
pub fn mse(prediction: &Array, target: &Array) -> Result<Array> {
    prediction.subtract(target)?.square()?.mean(.., false)
}
