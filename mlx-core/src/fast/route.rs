//! Routers of experts.

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::Result;
use crate::ffi::{Arg, op};

/// How experts are chosen by the scores of a router, and how they are weighted.
///
/// ```
/// use mlx_core::{Array, fast::{self, Route}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let how = Route { top_k: 2, sigmoid: false, norm: true, added_to_sum: 0.0, least_sum: 0.0, scale: 1.0, groups: None };
/// let scores = Array::from_slice(&[0.0f32, 9.0, 9.0, 0.0], &[1, 4])?;
/// let (experts, weights) = fast::route(&scores, None, &how)?;
/// assert_eq!(experts.shape(), [1, 2]);
/// assert_eq!(weights.to_vec::<f32>()?, [0.5, 0.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// The number of experts of a token.
    pub top_k: i32,
    /// Probabilities are sigmoids of the scores, not a softmax over all experts.
    pub sigmoid: bool,
    /// Whether weights are divided by their sum.
    pub norm: bool,
    /// A number, 0 or more, that is added to that sum.
    pub added_to_sum: f32,
    /// The lower bound of the sum with that number.
    pub least_sum: f32,
    /// A factor of all weights.
    pub scale: f32,
    /// Experts are chosen only from the best groups.
    pub groups: Option<RouteGroups>,
}

/// Experts in groups of equal size.
///
/// ```
/// use mlx_core::fast::RouteGroups;
///
/// # fn main() -> mlx_core::Result<()> {
/// // DeepSeek V3: experts of the best four of eight groups.
/// let groups = RouteGroups { n: 8, top: 4, two_best: true };
/// assert!(groups.top <= groups.n);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteGroups {
    /// The number of groups.
    pub n: i32,
    /// The number of best groups, from which experts are chosen.
    pub top: i32,
    /// A group's score is the sum of its two best experts' scores, not the best score.
    pub two_best: bool,
}

impl Arg for Route {
    type C = sys::mlxrs_route_options;
    fn c(&self) -> Self::C {
        let groups = self.groups.unwrap_or(RouteGroups {
            n: 0,
            top: 0,
            two_best: false,
        });
        sys::mlxrs_route_options {
            top_k: self.top_k,
            sigmoid: self.sigmoid,
            norm: self.norm,
            added: self.added_to_sum,
            least_sum: self.least_sum,
            scale: self.scale,
            groups: groups.n,
            top_groups: groups.top,
            two_best: groups.two_best,
        }
    }
}

/// Scores `[N, E]` -> the chosen experts, U32 `[N, top_k]`, and their weights, F32 `[N, top_k]`.
///
/// `correction`, F32 of `E` numbers, is added to probabilities for the choice, but not for the weights. On NVIDIA GPUs it is one kernel,
/// and experts come best first; otherwise in any order. The choice has no gradient; the weights have one.
///
/// ```
/// use mlx_core::{Array, fast::{self, Route}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let how = Route { top_k: 2, sigmoid: false, norm: true, added_to_sum: 0.0, least_sum: 0.0, scale: 1.0, groups: None };
/// let scores = Array::from_slice(&[0.0f32, 9.0, 9.0, 0.0], &[1, 4])?;
/// let (experts, weights) = fast::route(&scores, None, &how)?;
/// let mut experts = experts.to_vec::<u32>()?;
/// experts.sort();
/// assert_eq!(experts, [1, 2]);
/// assert_eq!(weights.shape(), [1, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There are fewer experts, groups do not divide them, or the shapes do not fit.
pub fn route(scores: &Array, correction: Option<&Array>, how: &Route) -> Result<(Array, Array)> {
    op!(pair mlxrs_fast_route(scores, correction, *how))
}

/// The sum of the outputs of each token's experts: `y [N, K, E]`, weights F32 `[N, K]` -> `[N, E]`, in the dtype of `y`.
///
/// ```
/// use mlx_core::{Array, DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let outputs = ones(&[1, 2, 3], DType::F32)?;
/// let weights = Array::from_slice(&[0.25f32, 0.75], &[1, 2])?;
/// assert_eq!(fast::weighted_sum(&outputs, &weights)?.to_vec::<f32>()?, [1.0; 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit.
pub fn weighted_sum(y: &Array, weights: &Array) -> Result<Array> {
    op!(mlxrs_fast_weighted_sum(y, weights))
}
