//! [`Reduction`] and the settings of losses.

use mlx_core::{Array, Error, ErrorKind, Result};

/// How the losses of all elements are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// The losses stay separate.
    #[default]
    None,
    /// Their mean, a scalar.
    Mean,
    /// Their sum, a scalar.
    Sum,
}

impl Reduction {
    pub(super) fn of(self, losses: Array) -> Result<Array> {
        match self {
            Self::None => Ok(losses),
            Self::Mean => losses.mean(.., false),
            Self::Sum => losses.sum(.., false),
        }
    }
}

/// Declares the settings of a loss with their defaults.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty = $value:expr),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty),* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $value),* }
            }
        }
    )*};
}

options! {
    /// Settings of [`cross_entropy_with`](super::cross_entropy_with).
    CrossEntropy {
        /// A factor of each loss, in the shape of the losses. Default: none.
        weights: Option<Array> = None,
        /// A factor of the losses of each class, `[V]`, for targets that are classes. Default: none.
        class_weights: Option<Array> = None,
        /// The axis of the classes. Default: the last.
        axis: i32 = -1,
        /// The part of the target's probability that is divided equally among all classes; in [0,
        /// 1). Default: 0.
        label_smoothing: f32 = 0.0,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
    /// Settings of [`binary_cross_entropy_with`](super::binary_cross_entropy_with).
    BinaryCrossEntropy {
        /// A factor of each loss, in the shape of the losses. Default: none.
        weights: Option<Array> = None,
        /// Whether the inputs are logits, and not probabilities. Default: true.
        with_logits: bool = true,
        /// Default: mean.
        reduction: Reduction = Reduction::Mean,
    }
    /// Settings of [`nll_with`](super::nll_with).
    Nll {
        /// The axis of the classes. Default: the last.
        axis: i32 = -1,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
    /// Settings of [`kl_div_with`](super::kl_div_with).
    KlDiv {
        /// The axis of the classes. Default: the last.
        axis: i32 = -1,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
    /// Settings of [`gaussian_nll_with`](super::gaussian_nll_with).
    GaussianNll {
        /// Whether the constant `ln(2 pi) / 2` is added. Default: false.
        full: bool = false,
        /// The least variance. Default: 1e-6.
        eps: f32 = 1e-6,
        /// Default: mean.
        reduction: Reduction = Reduction::Mean,
    }
    /// Settings of [`smooth_l1_with`](super::smooth_l1_with).
    SmoothL1 {
        /// The distance from which the loss is linear; above 0. Default: 1.
        beta: f32 = 1.0,
        /// Default: mean.
        reduction: Reduction = Reduction::Mean,
    }
    /// Settings of [`huber_with`](super::huber_with).
    Huber {
        /// The distance from which the loss is linear. Default: 1.
        delta: f32 = 1.0,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
    /// Settings of [`triplet_with`](super::triplet_with).
    Triplet {
        /// The axis of the features. Default: the last.
        axis: i32 = -1,
        /// The degree of the norm; above 0. Default: 2.
        p: f32 = 2.0,
        /// The distance of a negative should exceed that of the positive by this much. Default: 1.
        margin: f32 = 1.0,
        /// Added under the root. Default: 1e-6.
        eps: f32 = 1e-6,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
    /// Settings of [`cosine_similarity_with`](super::cosine_similarity_with).
    CosineSimilarity {
        /// The axis of the features. Default: 1.
        axis: i32 = 1,
        /// The least product of norms. Default: 1e-8.
        eps: f32 = 1e-8,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
    /// Settings of [`margin_ranking_with`](super::margin_ranking_with).
    MarginRanking {
        /// The difference that the inputs should have at least. Default: 0.
        margin: f32 = 0.0,
        /// Default: none.
        reduction: Reduction = Reduction::None,
    }
}

/// Refuses arrays of different shapes.
pub(super) fn check_same(loss: &str, arrays: &[(&str, &Array)]) -> Result<()> {
    if arrays
        .windows(2)
        .all(|two| two[0].1.shape() == two[1].1.shape())
    {
        return Ok(());
    }
    let shapes = arrays
        .iter()
        .map(|(name, array)| format!("{name} {:?}", array.shape()));
    let shapes: Vec<String> = shapes.collect();
    Err(Error::new(
        ErrorKind::Shape,
        format!("{loss}: {} must have one shape", shapes.join(" and ")),
    ))
}

/// `losses * weights`
pub(super) fn weighted(loss: &str, losses: Array, weights: Option<&Array>) -> Result<Array> {
    match weights {
        None => Ok(losses),
        Some(weights) => {
            check_same(loss, &[("losses", &losses), ("weights", weights)])?;
            losses.multiply(weights)
        }
    }
}
