//! Losses: functions of predictions and targets. Each has the defaults of MLX's Python, and a
//! second form, `.._with`, that takes settings.

use mlx_core::{Array, DType, Error, ErrorKind, Result};

mod chunked;
mod classes;
mod distances;
mod options;

pub use chunked::{chunked_accuracy, chunked_cross_entropy};
pub use classes::*;
pub use distances::*;
pub use options::{
    BinaryCrossEntropy, CosineSimilarity, CrossEntropy, GaussianNll, Huber, KlDiv, MarginRanking,
    Nll, Reduction, SmoothL1, Triplet,
};

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
