//! Mixture of experts: a router and stacked expert matrices (Shazeer et al., arXiv:1701.06538).

use mlx_core::{Array, DType, Result};

use crate::activation::Activation;
use crate::linear::Linear;
use crate::lora::{Adaptable, Layout, Lora};
use crate::mlp::GatedMlp;
use crate::module::{Module, Path, Visit, VisitMut};
use crate::weight::Weight;

/// One matrix of every expert, stacked along a first axis: `[n_experts, out, in]`, with or without
/// LoRA.
#[derive(Clone, Debug)]
pub struct ExpertsLinear {
    weight: Weight,
    // Most layers have none.
    lora: Option<Box<Lora>>,
}

impl ExpertsLinear {
    /// A stack without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn new(n_experts: i32, inputs: i32, outputs: i32) -> Result<Self> {
        Ok(Self {
            weight: Weight::empty(&[n_experts, outputs, inputs])?,
            lora: None,
        })
    }

    /// `x [.., 1, in]`, `experts [..]` -> `[.., 1, out]`: as [`Weight::project_experts`].
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, experts: &Array) -> Result<Array> {
        let y = self.weight.project_experts(x, experts)?;
        match &self.lora {
            Some(lora) => lora.apply_to_experts(x, &y, experts, &self.weight),
            None => Ok(y),
        }
    }
}

impl Module for ExpertsLinear {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        v.adaptable(path, Layout::Experts)?;
        self.weight.visit(path, v)?;
        self.lora.visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        let layer = Adaptable {
            layout: Layout::Experts,
            weight: &mut self.weight,
            lora: &mut self.lora,
        };
        v.adaptable(path, layer)?;
        self.weight.visit_mut(path, v)?;
        self.lora.visit_mut(path, v)
    }
}

/// Experts as gated MLPs.
#[derive(Clone, Debug)]
pub struct StackedExperts {
    gate_proj: ExpertsLinear,
    up_proj: ExpertsLinear,
    down_proj: ExpertsLinear,
    activation: Activation,
}

crate::module!(StackedExperts { gate_proj, up_proj, down_proj } plain { activation });

impl StackedExperts {
    /// `x [N, 1, 1, E]`, `experts [N, top_k]` -> `[N, top_k, E]`
    fn forward(&self, x: &Array, experts: &Array) -> Result<Array> {
        let gate = self.gate_proj.forward(x, experts)?;
        let up = self.up_proj.forward(x, experts)?;
        self.down_proj
            .forward(&self.activation.gated(&gate, &up)?, experts)?
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
    /// Features inside a further expert, which sees every token and is weighted by a sigmoid of its own.
    pub shared: Option<i32>,
}

/// A router that sends each token to `top_k` experts, and the weighted sum of their outputs.
///
/// Field names are those of MLX checkpoints (`gate`, `switch_mlp`); published per-expert tensors
/// are stacked when they are read.
#[derive(Clone, Debug)]
pub struct ExpertsMlp {
    gate: Linear,
    switch_mlp: StackedExperts,
    shared_expert: Option<GatedMlp>,
    shared_expert_gate: Option<Linear>,
    config: ExpertsConfig,
}

crate::module!(ExpertsMlp { gate, switch_mlp, shared_expert, shared_expert_gate } plain { config });

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
        let (shared_expert, shared_expert_gate) = match config.shared {
            Some(inner) => (
                Some(GatedMlp::new(hidden, inner, false, activation)?),
                Some(Linear::new(hidden, 1, false)?),
            ),
            None => (None, None),
        };
        Ok(Self {
            gate: Linear::new(hidden, n_experts, false)?,
            switch_mlp: StackedExperts {
                gate_proj: ExpertsLinear::new(n_experts, hidden, intermediate)?,
                up_proj: ExpertsLinear::new(n_experts, hidden, intermediate)?,
                down_proj: ExpertsLinear::new(n_experts, intermediate, hidden)?,
                activation,
            },
            shared_expert,
            shared_expert_gate,
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
        // Which experts are chosen has no gradient; how much they count has.
        let experts = probs
            .negative()?
            .argpartition(top_k - 1, -1)?
            .slice_axis(-1, 0, top_k)?
            .stop_gradient()?;
        let mut weights = probs.take_along_axis(&experts, -1)?;
        if self.config.norm_topk_prob {
            weights = weights.divide(weights.sum(-1, true)?)?;
        }
        let y = self
            .switch_mlp
            .forward(&tokens.reshape(&[-1, 1, 1, hidden])?, &experts)?;
        let weights = weights.astype(x.dtype())?.expand_dims(-1)?;
        let y = y.multiply(weights)?.sum(-2, false)?.reshape(x.shape())?;
        match (&self.shared_expert, &self.shared_expert_gate) {
            (Some(shared), Some(gate)) => {
                let shared = shared.forward(x)?.multiply(gate.forward(x)?.sigmoid()?)?;
                y.add(&shared)
            }
            _ => Ok(y),
        }
    }
}
