//! Losses: functions of predictions and targets. Each has the defaults of MLX's Python, and a
//! second form, `.._with`, that takes settings. The names of Python's MLX, such as `mse_loss`, are here too.

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

// The names of MLX's Python.
#[doc(no_inline)]
pub use self::{
    cosine_similarity as cosine_similarity_loss, gaussian_nll as gaussian_nll_loss,
    hinge as hinge_loss, huber as huber_loss, kl_div as kl_div_loss, l1 as l1_loss,
    log_cosh as log_cosh_loss, margin_ranking as margin_ranking_loss, mse as mse_loss,
    nll as nll_loss, smooth_l1 as smooth_l1_loss, triplet as triplet_loss,
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
