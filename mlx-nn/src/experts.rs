//! Mixture of experts: a router and stacked expert matrices (Shazeer et al., arXiv:1701.06538).

use std::ops::Range;

use mlx_core::fast::{self, Gate};
use mlx_core::{Array, Result};

use crate::activation::Activation;
use crate::linear::Linear;
use crate::lora::{Adaptable, AdaptableLayer, AdapterSlot, Layout, Lora};
use crate::mlp::{FeedForward, GatedMlp, PlainMlp};
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::normed::Input;
use crate::observe;
use crate::shard::Ranks;
use crate::weight::Weight;

mod clamped;
mod routing;
mod shard;

pub use clamped::ClampedGate;
pub use routing::{Correction, GroupScore, Groups, Routing, Scoring};

/// One matrix of every expert, stacked along a first axis: `[n_experts, out, in]`, with or without
/// LoRA.
#[derive(Clone, Debug)]
pub struct ExpertsLinear {
    weight: Weight,
    /// `[n_experts, out]`
    bias: Option<Param>,
    /// Whether the bias is added here. Of the ranks that hold parts of a sum, one adds it.
    is_biased: bool,
    // Boxed, because most layers have none.
    lora: Option<Box<Lora>>,
    /// Adapters by row.
    by_row: AdapterSlot,
}

impl ExpertsLinear {
    /// A stack without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(n_experts: i32, inputs: i32, outputs: i32) -> Result<Self> {
        Ok(Self {
            weight: Weight::empty(&[n_experts, outputs, inputs])?,
            bias: None,
            is_biased: true,
            lora: None,
            by_row: AdapterSlot::default(),
        })
    }

    /// A stack of matrices that have biases, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn with_bias(n_experts: i32, inputs: i32, outputs: i32) -> Result<Self> {
        Ok(Self {
            bias: Some(Param::empty(&[n_experts, outputs])?),
            ..Self::empty(n_experts, inputs, outputs)?
        })
    }

    /// `x [.., 1, in]`, `experts [..]` -> `[.., 1, out]`, as in [`Weight::project_experts`].
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, experts: &Array) -> Result<Array> {
        observe::see(&self.weight, x)?;
        let mut y = self.weight.project_experts(x, experts)?;
        if let Some(lora) = &self.lora {
            y = lora.apply_to_experts(x, &y, experts, &self.weight)?;
        }
        if let Some(adapters) = self.by_row.active() {
            y = adapters.add_to_experts(x, &y, experts)?;
        }
        match &self.bias {
            Some(bias) if self.is_biased => y.add(bias.get()?.take(experts, 0)?.expand_dims(-2)?),
            _ => Ok(y),
        }
    }

    /// `gate(self(x)) * up(x)`, in one operation ([`fast::gated_experts`]) if neither stack has
    /// biases or an adapter.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn gated(&self, up: &Self, gate: Gate, x: &Array, experts: &Array) -> Result<Array> {
        let is_product = |stack: &Self| {
            let is_bare = stack.lora.is_none() && stack.bias.is_none();
            let is_bare = is_bare && stack.by_row.active().is_none();
            is_bare && !stack.weight.has_steps(x.dtype())
        };
        if is_product(self) && is_product(up) && !observe::is_active() {
            let (a, b) = (self.weight.matrix()?, up.weight.matrix()?);
            return fast::gated_experts(gate, x, &a, &b, experts);
        }
        fast::gated(gate, &self.forward(x, experts)?, &up.forward(x, experts)?)
    }
}

impl Module for ExpertsLinear {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        let layer = AdaptableLayer {
            layout: Layout::Experts,
            weight: &self.weight,
            lora: self.lora.as_deref(),
            by_row: Some(&self.by_row),
        };
        v.adaptable(path, layer)?;
        self.weight.visit(path, v)?;
        path.scoped("bias", |path| self.bias.visit(path, v))?;
        self.lora.visit(path, v)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        let layer = Adaptable {
            layout: Layout::Experts,
            weight: &mut self.weight,
            lora: &mut self.lora,
            rounds: None,
        };
        v.adaptable(path, layer)?;
        self.weight.visit_mut(path, v)?;
        path.scoped("bias", |path| self.bias.visit_mut(path, v))?;
        self.lora.visit_mut(path, v)
    }

    crate::known_type!();
}

/// Experts as MLPs, with or without a gate.
#[derive(Clone, Debug)]
pub struct StackedExperts {
    gate_proj: Option<ExpertsLinear>,
    up_proj: ExpertsLinear,
    down_proj: ExpertsLinear,
    activation: Activation,
    clamp: Option<ClampedGate>,
    /// The experts that this rank holds, if they are not all.
    held: Option<Range<i32>>,
    /// The ranks over which the outputs are summed.
    ranks: Option<Ranks>,
}

crate::module!(StackedExperts { gate_proj, up_proj, down_proj } plain { activation, clamp, held, ranks });

impl StackedExperts {
    /// Experts of these sizes, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: &ExpertsConfig) -> Result<Self> {
        let &ExpertsConfig {
            hidden,
            intermediate,
            n_experts,
            ..
        } = config;
        let matrices = |inputs, outputs| match config.bias {
            true => ExpertsLinear::with_bias(n_experts, inputs, outputs),
            false => ExpertsLinear::empty(n_experts, inputs, outputs),
        };
        let features = config.ungated.and_then(|of| of.latent).unwrap_or(hidden);
        Ok(Self {
            gate_proj: match config.ungated {
                None => Some(matrices(features, intermediate)?),
                Some(_) => None,
            },
            up_proj: matrices(features, intermediate)?,
            down_proj: matrices(intermediate, features)?,
            activation: config.activation,
            clamp: config.clamp,
            held: None,
            ranks: None,
        })
    }

    /// The sum of the experts' outputs, each times its weight: `x [N, 1, 1, E]`, `experts [N, top_k]`,
    /// `weights [N, top_k]` -> `[N, E]`. Without `weights` each counts once.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, experts: &Array, weights: Option<&Array>) -> Result<Array> {
        let (inside, weights) = match self.clamp {
            Some(clamp) if clamp.rounds => (weights, None),
            _ => (None, weights),
        };
        let y = match &self.held {
            Some(held) => self.of_held(x, experts, held, inside)?,
            None => self.outputs(x, experts, inside)?,
        };
        let y = match weights {
            Some(weights) => fast::weighted_sum(&y, weights)?,
            None => y.sum(-2, false)?,
        };
        match self.ranks {
            Some(ranks) => ranks.sum(&y),
            None => Ok(y),
        }
    }

    /// `experts` counts those that are held. `weights [N, top_k]` multiply the features inside.
    fn outputs(&self, x: &Array, experts: &Array, weights: Option<&Array>) -> Result<Array> {
        let rounded = match self.clamp {
            Some(clamp) if clamp.rounds => Some(clamp.input(x)?),
            _ => None,
        };
        let x = rounded.as_ref().unwrap_or(x);
        let (gate, up) = (self.gate_proj.as_ref(), &self.up_proj);
        let inner = match (gate, self.activation.gate(), &self.clamp) {
            (Some(gate), Some(kind), None) => gate.gated(up, kind, x, experts)?,
            (Some(gate), _, clamp) => {
                let (gate, up) = (gate.forward(x, experts)?, up.forward(x, experts)?);
                match clamp {
                    Some(clamp) => {
                        let weights =
                            weights.map(|weights| weights.expand_dims(-1)?.expand_dims(-1));
                        clamp.inside(&gate, &up, weights.transpose()?.as_ref())?
                    }
                    None => self.activation.gated(&gate, &up)?,
                }
            }
            (None, ..) => self.activation.forward(&up.forward(x, experts)?)?,
        };
        self.down_proj.forward(&inner, experts)?.squeeze(-2)
    }
}

/// Sizes of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Features inside an expert.
    pub intermediate: i32,
    /// The number of experts.
    pub n_experts: i32,
    /// The number of experts after these whose output is their input (LongCat Flash, arXiv:2509.01322, §2.1). The
    /// router scores them with the others.
    pub n_identities: i32,
    /// The number of experts for each token.
    pub top_k: i32,
    /// How experts are chosen and weighted.
    pub routing: Routing,
    /// The experts' activation.
    pub activation: Activation,
    /// A gate that replaces the activation's.
    pub clamp: Option<ClampedGate>,
    /// Biases on the router and on the experts' matrices.
    pub bias: bool,
    /// Weights multiply the inputs of experts, not their outputs.
    pub scales_inputs: bool,
    /// A shared expert, which every token uses.
    pub shared: Option<SharedExpert>,
    /// Options of experts without a gate, including the shared one.
    pub ungated: Option<UngatedExperts>,
    /// The sum of the routed and the shared experts' outputs is multiplied by this.
    pub output_scale: Option<f32>,
}

/// Experts without a gate (Nemotron H).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UngatedExperts {
    /// The size of the experts' inputs and outputs, if it is not that of a token.
    pub latent: Option<i32>,
    /// Bias on the projections to and from the latent features.
    pub bias: bool,
}

/// An expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// Features inside it.
    pub intermediate: i32,
    /// Biases on its three projections.
    pub bias: bool,
    /// Whether it is weighted by a sigmoid gate of its own.
    pub gate: bool,
    /// A gate that replaces the activation's.
    pub clamp: Option<ClampedGate>,
}

/// A router that sends each token to `top_k` experts, and the weighted sum of their outputs.
///
/// Field names are those of MLX checkpoints (`gate`, `switch_mlp`); published per-expert tensors
/// are stacked when they are read.
#[derive(Clone, Debug)]
pub struct ExpertsMlp {
    gate: Linear,
    switch_mlp: StackedExperts,
    shared_expert: Option<FeedForward>,
    shared_expert_gate: Option<Linear>,
    e_score_correction_bias: Option<Param>,
    fc1_latent_proj: Option<Linear>,
    fc2_latent_proj: Option<Linear>,
    config: ExpertsConfig,
}

crate::module!(ExpertsMlp { gate, switch_mlp, shared_expert, shared_expert_gate, e_score_correction_bias,
                            fc1_latent_proj, fc2_latent_proj }
               plain { config });

impl ExpertsMlp {
    /// Router and experts without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: ExpertsConfig) -> Result<Self> {
        let ExpertsConfig {
            hidden,
            n_experts,
            activation,
            ..
        } = config;
        let shared_expert = config.shared.map(|shared| -> Result<FeedForward> {
            let inner = shared.intermediate;
            Ok(match config.ungated {
                None => {
                    let mlp = GatedMlp::empty(hidden, inner, shared.bias, activation)?;
                    FeedForward::Dense(Box::new(mlp.with_clamp(shared.clamp)))
                }
                Some(_) => {
                    let mlp = PlainMlp::empty(hidden, inner, shared.bias, activation)?;
                    FeedForward::Plain(Box::new(mlp))
                }
            })
        });
        let latent = config
            .ungated
            .and_then(|of| of.latent.map(|size| (size, of.bias)));
        let shared_expert_gate = config
            .shared
            .filter(|shared| shared.gate)
            .map(|_| Linear::empty(hidden, 1, false));
        let scored = n_experts + config.n_identities;
        let correction = config.routing.correction.shape(scored);
        // Rounding the correction would change which experts are chosen.
        let correction = correction.map(|shape| Param::empty(&shape).map(Param::never_narrowed));
        Ok(Self {
            gate: Linear::empty(hidden, scored, config.bias)?,
            switch_mlp: StackedExperts::empty(&config)?,
            shared_expert: shared_expert.transpose()?,
            fc1_latent_proj: match latent {
                Some((size, bias)) => Some(Linear::empty(hidden, size, bias)?),
                None => None,
            },
            fc2_latent_proj: match latent {
                Some((size, bias)) => Some(Linear::empty(size, hidden, bias)?),
                None => None,
            },
            shared_expert_gate: shared_expert_gate.transpose()?,
            e_score_correction_bias: correction.transpose()?,
            config,
        })
    }

    /// `[.., E] -> [.., E]`; the router's probabilities are F32.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>) -> Result<Array> {
        self.mixed(x.into(), None)
    }

    /// [`forward`](Self::forward) with experts `[N, top_k]` that something else has chosen. The router gives their
    /// weights.
    ///
    /// # Errors
    /// The shapes do not fit, or the router's weights depend on more than an expert's own score.
    pub fn forward_to<'a>(&self, x: impl Into<Input<'a>>, experts: &Array) -> Result<Array> {
        self.mixed(x.into(), Some(experts))
    }

    fn mixed(&self, input: Input<'_>, given: Option<&Array>) -> Result<Array> {
        let (hidden, top_k) = (self.config.hidden, self.config.top_k);
        let scores = self.gate.forward(input)?;
        let scored = self.config.n_experts + self.config.n_identities;
        let scores = scores.reshape(&[-1, scored])?;
        let x = input.array()?;
        let tokens = x.reshape(&[-1, hidden])?;
        let correction = self.e_score_correction_bias.as_ref().map(Param::value);
        let routing = &self.config.routing;
        let (experts, weights) = match given {
            Some(experts) => (experts.clone(), routing.weights(&scores, experts)?),
            None => routing.choose(&scores, correction, top_k)?,
        };
        let (experts, weights, through) = self.without_identities(experts, weights)?;
        let through = through.map(|weight| tokens.multiply(weight.astype(x.dtype())?));
        let tokens = match &self.fc1_latent_proj {
            Some(latent) => latent.forward(&tokens)?,
            None => tokens,
        };
        let [n, features] = tokens.dims()?;
        let mut inputs = tokens.reshape(&[n, 1, 1, features])?;
        if self.config.scales_inputs {
            let weights = weights.astype(x.dtype())?.reshape(&[n, top_k, 1, 1])?;
            inputs = inputs.multiply(weights)?;
        }
        let weights = (!self.config.scales_inputs).then_some(&weights);
        let mut y = self.switch_mlp.forward(&inputs, &experts, weights)?;
        if let Some(latent) = &self.fc2_latent_proj {
            y = latent.forward(&y)?;
        }
        if let Some(through) = through {
            y = y.add(through?)?;
        }
        let y = y.reshape(x.shape())?;
        let Some(shared) = &self.shared_expert else {
            return Ok(y);
        };
        let mut shared = shared.forward(x)?;
        if let Some(gate) = &self.shared_expert_gate {
            shared = shared.multiply(gate.forward(x)?.sigmoid()?)?;
        }
        let y = y.add(&shared)?;
        match self.config.output_scale {
            Some(scale) => y.multiply(scale),
            None => Ok(y),
        }
    }

    /// The chosen experts `[N, top_k]` and their weights, where identities are any expert of weight
    /// 0, and the sum of the identities' weights, `[N, 1]`.
    fn without_identities(
        &self,
        experts: Array,
        weights: Array,
    ) -> Result<(Array, Array, Option<Array>)> {
        if self.config.n_identities == 0 {
            return Ok((experts, weights, None));
        }
        let is_own = experts.less(self.config.n_experts)?;
        let own = is_own.select(&weights, 0.0)?;
        let through = weights.subtract(&own)?.sum(-1, true)?;
        Ok((is_own.select(&experts, 0)?, own, Some(through)))
    }
}
