//! Mixture of experts: a router and stacked expert matrices (Shazeer et al., arXiv:1701.06538).

use mlx_core::{Array, DType, Result};

use crate::activation::Activation;
use crate::linear::Linear;
use crate::weight::Weight;

/// Experts as gated MLPs, each matrix stacked along a first axis of `[n_experts, out, in]`.
#[derive(Clone, Debug)]
pub struct StackedExperts {
    gate_proj: Weight,
    up_proj: Weight,
    down_proj: Weight,
    activation: Activation,
}

crate::module!(StackedExperts { gate_proj, up_proj, down_proj } plain { activation });

impl StackedExperts {
    /// `x [N, 1, 1, E]`, `experts [N, top_k]` -> `[N, top_k, E]`
    fn forward(&self, x: &Array, experts: &Array) -> Result<Array> {
        let gate = self
            .activation
            .forward(&self.gate_proj.project_experts(x, experts, false)?)?;
        let up = self.up_proj.project_experts(x, experts, false)?;
        self.down_proj
            .project_experts(&gate.multiply(up)?, experts, false)?
            .squeeze(-2)
    }
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Features inside an expert.
    pub intermediate: i32,
    /// How many experts there are.
    pub n_experts: i32,
    /// How many of them see a token.
    pub top_k: i32,
    /// Whether the weights of the chosen experts are made to sum to 1.
    pub norm_topk_prob: bool,
    /// The experts' activation.
    pub activation: Activation,
}

/// A router that sends each token to `top_k` experts and sums what they say, weighted.
///
/// Field names are those of MLX checkpoints (`gate`, `switch_mlp`); published per-expert tensors
/// are stacked when they are read.
#[derive(Clone, Debug)]
pub struct ExpertsMlp {
    gate: Linear,
    switch_mlp: StackedExperts,
    config: ExpertsConfig,
}

crate::module!(ExpertsMlp { gate, switch_mlp } plain { config });

impl ExpertsMlp {
    /// Router and experts without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(config: ExpertsConfig) -> Result<Self> {
        let ExpertsConfig {
            hidden,
            intermediate,
            n_experts,
            activation,
            ..
        } = config;
        Ok(Self {
            gate: Linear::new(hidden, n_experts, false)?,
            switch_mlp: StackedExperts {
                gate_proj: Weight::empty(&[n_experts, intermediate, hidden])?,
                up_proj: Weight::empty(&[n_experts, intermediate, hidden])?,
                down_proj: Weight::empty(&[n_experts, hidden, intermediate])?,
                activation,
            },
            config,
        })
    }

    /// `[.., E] -> [.., E]`; the router's softmax is taken over all experts in f32.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let (hidden, top_k) = (self.config.hidden, self.config.top_k);
        let tokens = x.reshape(&[-1, hidden])?;
        let probs = self
            .gate
            .forward(&tokens)?
            .astype(DType::F32)?
            .softmax(-1, true)?;
        let experts = probs
            .negative()?
            .argpartition(top_k - 1, -1)?
            .slice_axis(-1, 0, top_k)?;
        let mut weights = probs.take_along_axis(&experts, -1)?;
        if self.config.norm_topk_prob {
            weights = weights.divide(weights.sum(-1, true)?)?;
        }
        let y = self
            .switch_mlp
            .forward(&tokens.reshape(&[-1, 1, 1, hidden])?, &experts)?;
        let weights = weights.astype(x.dtype())?.expand_dims(-1)?;
        y.multiply(weights)?.sum(-2, false)?.reshape(x.shape())
    }
}
