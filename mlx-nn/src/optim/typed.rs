//! Optimisers with a constructor, `AdamW::new(1e-3)`, and a method for each setting.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::{
    AdaDelta, Adafactor, Adagrad, Adam, Adamax, Form, Lion, Method, Muon, Optimizer, RmsProp, Sgd,
};
use crate::schedule::Schedule;

/// An [`Optimizer`] whose method is `M`, with a Rust method for each setting of `M`. `AdamW::new`
/// and the other constructors return it. It derefs to [`Optimizer`], which does everything else.
///
/// The defaults are those of MLX's Python, which differ from those of [`Method`]: `Adam::new` and
/// `AdamW::new` do not correct the bias of the moments, and AdamW's weight decay is 0.01. The first
/// step fails if a setting is out of range.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::optim::AdamW;
/// use mlx_nn::{Gradients, Module, Param, trainable::set_trainable};
///
/// # fn main() -> Result<()> {
/// let mut weight = Param::new(Array::from_slice(&[1.0f32, 2.0], &[2])?);
/// set_trainable(&mut weight, |_| true)?;
/// let mut optimizer = AdamW::new(0.1).weight_decay(0.0).bias_correction(true);
/// let grads = Gradients::from([(String::new(), Array::from_slice(&[3.0f32, -3.0], &[2])?)]);
/// optimizer.update(&mut weight, &grads)?;
/// assert_eq!(weight.value().to_vec::<f32>()?, [0.9, 2.1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OptimizerOf<M> {
    optimizer: Optimizer,
    kind: PhantomData<M>,
}

impl<M> Deref for OptimizerOf<M> {
    type Target = Optimizer;

    fn deref(&self) -> &Optimizer {
        &self.optimizer
    }
}

impl<M> DerefMut for OptimizerOf<M> {
    fn deref_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }
}

impl<M> From<OptimizerOf<M>> for Optimizer {
    fn from(typed: OptimizerOf<M>) -> Self {
        typed.optimizer
    }
}

impl<M> OptimizerOf<M> {
    fn of(method: Method, rate: impl Into<Schedule>) -> Self {
        Self {
            optimizer: Optimizer::unchecked(method, rate.into()),
            kind: PhantomData,
        }
    }
}

/// AdamW (Loshchilov and Hutter, arXiv:1711.05101): see [`AdamW::new`] and [`Method::AdamW`].
#[derive(Clone, Copy, Debug)]
pub struct AdamW;

/// Declares the constructor and the settings of each optimiser.
macro_rules! settings {
    ($($name:ident: $variant:ident($start:expr) $(by $rate:ident)? $(at $fixed:literal)?, $made:literal
        { $($(#[$doc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {$(
        impl $name {
            #[doc = $made]
            pub fn new($($rate: impl Into<Schedule>)?) -> OptimizerOf<Self> {
                OptimizerOf::of(Method::$variant($start), $($rate)? $($fixed)?)
            }
        }

        impl OptimizerOf<$name> {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $field(mut self, $field: $ty) -> Self {
                    if let Method::$variant(settings) = &mut self.optimizer.method {
                        settings.$field = $field.into();
                    }
                    self
                }
            )*
        }
    )*};
}

settings! {
    Sgd: Sgd(Sgd { zero_start: true, ..Sgd::default() }) by rate,
    "Stochastic gradient descent with this rate or [`Schedule`], without momentum and decay."
    {
        /// The factor of the last momentum in the next one; in [0, 1). Default: 0.
        momentum: f64,
        /// The part of the gradient that is left out of the momentum; in [0, 1). Default: 0.
        dampening: f64,
        /// Whether the step uses Nesterov momentum. Default: false.
        nesterov: bool,
        /// The factor of the parameter that is added to the gradient. Default: 0.
        weight_decay: f64,
    }
    Adam: Adam(Adam { bias_correction: false, ..Self::default() }) by rate,
    "Adam with this rate or [`Schedule`]."
    {
        /// The decays of the first and the second moment; in [0, 1). Default: 0.9, 0.999.
        betas: impl Into<[f64; 2]>,
        /// Added to the divisor. Default: 1e-8.
        eps: f64,
        /// The factor of the parameter that is added to the gradient. Default: 0.
        weight_decay: f64,
        /// Whether the moments are divided by `1 - beta^t`, which corrects their start at zero.
        /// Default: false.
        bias_correction: bool,
    }
    AdamW: AdamW(Adam { bias_correction: false, weight_decay: 0.01, ..Adam::default() }) by rate,
    "AdamW with this rate or [`Schedule`]."
    {
        /// The decays of the first and the second moment; in [0, 1). Default: 0.9, 0.999.
        betas: impl Into<[f64; 2]>,
        /// Added to the divisor. Default: 1e-8.
        eps: f64,
        /// Every step subtracts this times the rate times the parameter. Default: 0.01.
        weight_decay: f64,
        /// Whether the moments are divided by `1 - beta^t`, which corrects their start at zero.
        /// Default: false.
        bias_correction: bool,
    }
    Adamax: Adamax(Self::default()) by rate,
    "Adamax with this rate or [`Schedule`]."
    {
        /// The decays of the mean and of the largest magnitude; in [0, 1). Default: 0.9, 0.999.
        betas: impl Into<[f64; 2]>,
        /// Added to the divisor. Default: 1e-8.
        eps: f64,
    }
    RmsProp: RmsProp(Self::default()) by rate,
    "RMSprop with this rate or [`Schedule`]."
    {
        /// The decay of the mean of the squares; in [0, 1). Default: 0.99.
        alpha: f64,
        /// Added to the divisor; above 0. Default: 1e-8.
        eps: f64,
    }
    Adagrad: Adagrad(Self::default()) by rate,
    "Adagrad with this rate or [`Schedule`]."
    {
        /// Added to the divisor; above 0. Default: 1e-8.
        eps: f64,
    }
    AdaDelta: AdaDelta(Self::default()) by rate,
    "AdaDelta with this rate or [`Schedule`]."
    {
        /// The decay of the means of the squares; in [0, 1). Default: 0.9.
        rho: f64,
        /// Added under both roots; above 0. Default: 1e-6.
        eps: f64,
    }
    Lion: Lion(Self::default()) by rate,
    "Lion with this rate or [`Schedule`]."
    {
        /// The weight of the momentum in a step, and the decay of the momentum; in [0, 1). Default:
        /// 0.9, 0.99.
        betas: impl Into<[f64; 2]>,
        /// Every step subtracts this times the rate times the parameter. Default: 0.
        weight_decay: f64,
    }
    Muon: Muon(Muon { form: Form::Mlx, weight_decay: 0.01, ..Self::default() }) by rate,
    "Muon with this rate or [`Schedule`], in the [form](Form) of MLX: it updates every parameter that it is given, so \
     that a [`MultiOptimizer`](super::MultiOptimizer) should give embeddings, heads, norms and biases to another method."
    {
        /// The decay of the momentum; in [0, 1). Default: 0.95.
        momentum: f64,
        /// Whether the step uses Nesterov momentum. Default: true.
        nesterov: bool,
        /// The factor of the parameter that is added to the gradient. Default: 0.01.
        weight_decay: f64,
        /// The number of rounds of the iteration. Default: 5.
        rounds: u32,
    }
    Adafactor: Adafactor(Adafactor { form: Form::Mlx, eps: [1e-30, 1e-3], ..Self::default() }) at 1e-2,
    "Adafactor in the [form](Form) of MLX. The rate of step t is `min(0.01, 1 / sqrt(t))` times the root mean square \
     of the parameter; [`Optimizer::set_schedule`] replaces 0.01."
    {
        /// The number that is added to the squared gradients, and the lower bound of the root mean
        /// square that multiplies the rate. Default: 1e-30, 1e-3.
        eps: [f64; 2],
        /// The largest root mean square of an update; above 0. Default: 1.
        clip: f64,
        /// The exponent of the moments' decay; below 0. Default: -0.8.
        decay: f64,
        /// The decay of a mean of the updates, which replaces the update; in [0, 1). Default: no
        /// mean.
        beta1: f64,
        /// Every step subtracts this times the scaled rate times the parameter. Default: 0.
        weight_decay: f64,
        /// Whether the rate is multiplied by the root mean square of the parameter. Default: true.
        scale_parameter: bool,
        /// Whether the rate of step t is at most `1 / sqrt(t)`. Default: true.
        relative_step: bool,
    }
}
