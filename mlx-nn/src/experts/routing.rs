//! Choosing experts by the scores of a router, and their weights.

use mlx_core::fast::{self, Route, RouteGroups};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

mod mixer;

/// How experts are chosen by the scores of a router, and how they are weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// How scores become probabilities.
    pub scoring: Scoring,
    /// Soft cap of the scores, `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// A learned number for each expert that is added to its probability for the choice, but not for its weight
    /// (DeepSeek-V3, arXiv:2412.19437, §2.1.2).
    pub correction: Correction,
    /// Experts are chosen only from the best groups.
    pub groups: Option<Groups>,
    /// Whether the weights of the chosen experts are scaled to sum to 1.
    pub norm_topk_prob: bool,
    /// A number that is added to the sum that weights are divided by.
    pub added_to_sum: f32,
    /// The lower bound of the sum with that number.
    pub least_sum: f32,
    /// Weights are multiplied by this.
    pub scale: Option<f32>,
}

/// How scores become probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// A softmax over all experts.
    Softmax,
    /// The sigmoid of each score.
    Sigmoid,
    /// The root of the softplus of each score (DeepSeek V4).
    SqrtSoftplus,
    /// Experts are chosen by the scores themselves, and a chosen one is weighted by the sigmoid of
    /// its score. The correction is added to the score.
    SigmoidOfChosen,
    /// The two best experts. Each is weighted by a softmax over the experts that are nearly as good as it is
    /// (SparseMixer, arXiv:2310.00811): those with `(best - score) / max(|score|, best) <= 2 * noise`.
    Mixer {
        /// The noise that was added to scores in training.
        noise: f32,
    },
}

/// The shape, in files, of the numbers that correct the choice of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// There are no such numbers.
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
            softcap: None,
            correction: Correction::None,
            groups: None,
            norm_topk_prob,
            least_sum: 0.0,
            added_to_sum: 0.0,
            scale: None,
        }
    }

    /// Scores `[N, E]` -> the experts `[N, top_k]` and their weights, F32 `[N, top_k]`.
    ///
    /// # Errors
    /// There are fewer than `top_k` experts, or the shapes do not fit.
    pub fn choose(
        &self,
        scores: &Array,
        correction: Option<&Array>,
        top_k: i32,
    ) -> Result<(Array, Array)> {
        let sigmoid = match self.scoring {
            Scoring::Mixer { noise } => return mixer::choose(&scores.astype(DType::F32)?, noise),
            Scoring::SigmoidOfChosen | Scoring::SqrtSoftplus => {
                return self.by_score(scores, correction, top_k);
            }
            Scoring::Softmax => false,
            Scoring::Sigmoid => true,
        };
        let capped = match self.softcap {
            Some(cap) => {
                let scores = scores.astype(DType::F32)?;
                Some(scores.divide(cap)?.tanh()?.multiply(cap)?)
            }
            None => None,
        };
        let scores = capped.as_ref().unwrap_or(scores);
        let groups = self.groups.map(|of| RouteGroups {
            n: of.n,
            top: of.top,
            two_best: of.score == GroupScore::TwoBest,
        });
        let how = Route {
            top_k,
            sigmoid,
            norm: self.norm_topk_prob,
            added_to_sum: self.added_to_sum,
            least_sum: self.least_sum,
            scale: self.scale.unwrap_or(1.0),
            groups,
        };
        fast::route(scores, correction, &how)
    }

    /// [`Routing::choose`] of [`Scoring::SigmoidOfChosen`] and [`Scoring::SqrtSoftplus`], without groups. A softmax has
    /// the order of the scores.
    fn by_score(
        &self,
        scores: &Array,
        correction: Option<&Array>,
        top_k: i32,
    ) -> Result<(Array, Array)> {
        if self.groups.is_some() {
            let message = "experts that are chosen by their scores cannot be in groups";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let scores = scores.astype(DType::F32)?;
        let choosing = match self.scoring {
            Scoring::SigmoidOfChosen => scores.clone(),
            _ => self.probabilities(&scores)?,
        };
        let corrected = match correction {
            Some(correction) => choosing.add(correction.astype(DType::F32)?)?,
            None => choosing,
        };
        let how = Route {
            top_k,
            sigmoid: false,
            norm: false,
            added_to_sum: 0.0,
            least_sum: 0.0,
            scale: 1.0,
            groups: None,
        };
        let (experts, _) = fast::route(&corrected, None, &how)?;
        let weights = self.weights(&scores, &experts)?;
        Ok((experts, weights))
    }

    /// The weights F32 `[N, top_k]` of experts `[N, top_k]` that something else has chosen, by their scores `[N, E]`.
    ///
    /// # Errors
    /// The shapes do not fit, or weights depend on more than an expert's own score.
    pub fn weights(&self, scores: &Array, experts: &Array) -> Result<Array> {
        let scores = scores.astype(DType::F32)?;
        self.scaled(&self.probabilities(&scores.take_along_axis(experts, -1)?)?)
    }

    /// The weights of the probabilities `[N, top_k]` of chosen experts.
    fn scaled(&self, probabilities: &Array) -> Result<Array> {
        let weights = match self.norm_topk_prob {
            true => {
                let mut sum = probabilities.sum(-1, true)?;
                if self.added_to_sum != 0.0 {
                    sum = sum.add(self.added_to_sum)?;
                }
                probabilities.divide(sum.maximum(self.least_sum)?)?
            }
            false => probabilities.clone(),
        };
        match self.scale {
            Some(scale) => weights.multiply(scale),
            None => Ok(weights),
        }
    }

    /// Probabilities of F32 scores, of which each depends on its own score.
    fn probabilities(&self, scores: &Array) -> Result<Array> {
        match self.scoring {
            Scoring::Sigmoid | Scoring::SigmoidOfChosen => scores.sigmoid(),
            Scoring::SqrtSoftplus => scores.logaddexp(0.0)?.sqrt(),
            Scoring::Softmax | Scoring::Mixer { .. } => {
                let message = "experts that something else chose need probabilities of their own";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where probabilities are as small as the number that is added to their sum.
    #[test]
    fn a_number_is_added_to_the_sum() {
        let routing = Routing {
            scoring: Scoring::Sigmoid,
            added_to_sum: 1e-6,
            scale: Some(2.0),
            ..Routing::softmax(true)
        };
        let scores = Array::from_slice(&[-20.0f32, -14.0, -13.0, -30.0], &[1, 4]).unwrap();
        let (experts, weights) = routing.choose(&scores, None, 2).unwrap();
        let mut found: Vec<(u32, f32)> = {
            let experts: Vec<u32> = experts.astype(DType::U32).unwrap().to_vec().unwrap();
            experts.into_iter().zip(weights.to_vec().unwrap()).collect()
        };
        found.sort_by_key(|&(expert, _)| expert);
        let probability = |score: f64| 1.0 / (1.0 + (-score).exp());
        let sum = probability(-14.0) + probability(-13.0) + 1e-6;
        for (at, (expert, score)) in [(1, -14.0), (2, -13.0)].into_iter().enumerate() {
            assert_eq!(found[at].0, expert);
            let expected = 2.0 * probability(score) / sum;
            assert!(
                (f64::from(found[at].1) - expected).abs() < 1e-6,
                "{found:?}"
            );
        }
        let weights = routing.weights(&scores, &experts).unwrap();
        let again: Vec<f32> = weights.to_vec().unwrap();
        let all: f32 = again.iter().sum();
        let expected = 2.0 * (sum - 1e-6) / sum;
        assert!((f64::from(all) - expected).abs() < 1e-6, "{again:?}");
    }
}
