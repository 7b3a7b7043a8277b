//! Choosing experts by the scores of a router, and their weights.

use mlx_core::{Array, DType, Result};

mod mixer;

/// How experts are chosen by the scores of a router, and how they are weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// From scores to probabilities.
    pub scoring: Scoring,
    /// A learned number for each expert that is added to its probability for the choice, but not for its weight
    /// (DeepSeek-V3, arXiv:2412.19437, §2.1.2).
    pub correction: Correction,
    /// Experts are chosen only from the best groups.
    pub groups: Option<Groups>,
    /// Whether the weights of the chosen experts are scaled to sum to 1.
    pub norm_topk_prob: bool,
    /// The lower bound of the sum that weights are divided by.
    pub least_sum: f32,
    /// Weights are multiplied by this.
    pub scale: Option<f32>,
}

/// From scores to probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// A softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// The two best experts. Each is weighted by a softmax over the experts that are nearly as good as it is
    /// (SparseMixer, arXiv:2310.00811): those with `(best - score) / max(|score|, best) <= 2 * noise`.
    Mixer {
        /// The noise that was added to scores in training.
        noise: f32,
    },
}

/// The shape of the numbers that correct the choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// There are none.
    None,
    /// `[n_experts]` in files.
    Vector,
    /// `[1, n_experts]` in files.
    Row,
}

impl Correction {
    /// The shape in files, if there are such numbers.
    pub(super) fn shape(self, n_experts: i32) -> Option<Vec<i32>> {
        match self {
            Self::None => None,
            Self::Vector => Some(vec![n_experts]),
            Self::Row => Some(vec![1, n_experts]),
        }
    }
}

/// Experts in groups of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The number of groups.
    pub n: i32,
    /// The number of groups from which experts are chosen.
    pub top: i32,
    /// The score of a group.
    pub score: GroupScore,
}

/// The score of a group of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// The score of its best expert.
    Best,
    /// The sum of the scores of its two best experts.
    TwoBest,
}

impl Routing {
    /// A softmax over all experts. The weights of the chosen ones are scaled to sum to 1 if `norm_topk_prob`.
    pub const fn softmax(norm_topk_prob: bool) -> Self {
        Self {
            scoring: Scoring::Softmax,
            correction: Correction::None,
            groups: None,
            norm_topk_prob,
            least_sum: 0.0,
            scale: None,
        }
    }

    /// Scores `[N, E]` -> the experts `[N, top_k]` and their weights, F32 `[N, top_k]`.
    ///
    /// # Errors
    /// There are fewer experts, or the shapes do not fit.
    pub fn choose(
        &self,
        scores: &Array,
        correction: Option<&Array>,
        top_k: i32,
    ) -> Result<(Array, Array)> {
        let scores = scores.astype(DType::F32)?;
        let probs = match self.scoring {
            Scoring::Softmax => scores.softmax(-1, true)?,
            Scoring::Sigmoid => scores.sigmoid()?,
            Scoring::Mixer { noise } => return mixer::choose(&scores, noise),
        };
        let mut choice = match correction {
            Some(correction) => probs.add(correction)?,
            None => probs.clone(),
        };
        if let Some(groups) = self.groups {
            choice = groups.only_best(&choice)?;
        }
        // The choice of experts has no gradient; their weights have one.
        let experts = choice
            .negative()?
            .argpartition(top_k - 1, -1)?
            .slice_axis(-1, 0, top_k)?
            .stop_gradient()?;
        let mut weights = probs.take_along_axis(&experts, -1)?;
        if self.norm_topk_prob {
            let mut sum = weights.sum(-1, true)?;
            if self.scoring == Scoring::Sigmoid {
                // All weights may be 0.
                sum = sum.add(1e-20)?;
            }
            if self.least_sum > 0.0 {
                sum = sum.maximum(self.least_sum)?;
            }
            weights = weights.divide(sum)?;
        }
        if let Some(scale) = self.scale {
            weights = weights.multiply(scale)?;
        }
        Ok((experts, weights))
    }
}

impl Groups {
    /// `[N, E] -> [N, E]`: minus infinity outside the best groups.
    fn only_best(self, choice: &Array) -> Result<Array> {
        let [n, experts] = choice.dims()?;
        let size = experts / self.n;
        let grouped = choice.reshape(&[n, self.n, size])?;
        let best = match self.score {
            GroupScore::Best => grouped.max(-1, false)?,
            GroupScore::TwoBest => {
                let best = grouped.sort(-1)?.slice_axis(-1, size - 2, size)?;
                best.sum(-1, false)?
            }
        };
        let others = self.n - self.top;
        if others == 0 {
            return Ok(choice.clone());
        }
        let worst = best.argpartition(others - 1, -1)?;
        let worst = worst.slice_axis(-1, 0, others)?.expand_dims(-1)?;
        let lowest = Array::scalar(f32::NEG_INFINITY)?.broadcast_to(&[n, others, size])?;
        let worst = worst.broadcast_to(&[n, others, size])?;
        grouped
            .put_along_axis(&worst, &lowest, 1)?
            .reshape(&[n, experts])
    }
}
