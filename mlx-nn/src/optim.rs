//! Optimisers: a method, a schedule, and the method's state for each parameter.
//!
//! Every method computes in F32 and keeps its state in F32, for parameters of any dtype:
//! bf16 parameters with f32 moments need no setting. The schedule gives the rate of every step.
//!
//! ```
//! use mlx_core::{Array, Result, random};
//! use mlx_nn::{Activation, AdamW, Linear, Module, loss, value_and_grad};
//!
//! #[derive(Module)]
//! struct Mlp { l1: Linear, l2: Linear }
//!
//! impl Mlp {
//!     fn forward(&self, x: &Array) -> Result<Array> {
//!         self.l2.forward(&Activation::Tanh.forward(&self.l1.forward(x)?)?)
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! random::seed(0);
//! let x = Array::from_slice(&[0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], &[4, 2])?;
//! let different = Array::from_slice(&[0i32, 1, 1, 0], &[4])?;
//! let mut model = Mlp { l1: Linear::new(2, 16, true)?, l2: Linear::new(16, 2, true)? };
//! let mut optimizer = AdamW::new(0.03).weight_decay(0.0);
//! let mut last = f32::INFINITY;
//! for _ in 0..150 {
//!     let (loss, grads) = value_and_grad(&mut model, |model| {
//!         loss::cross_entropy(&model.forward(&x)?, &different)?.mean(.., false)
//!     })?;
//!     optimizer.update(&mut model, &grads)?;
//!     last = loss.item()?;
//! }
//! assert!(last < 0.05, "{last}");
//! # Ok(())
//! # }
//! ```

use std::borrow::Borrow;
use std::collections::BTreeMap;

use mlx_core::ops::create::zeros;
use mlx_core::{Array, DType, Error, ErrorKind, Result, eval};
use serde::{Deserialize, Serialize};

use crate::grad::Gradients;
use crate::module::{Module, Path};
use crate::schedule::Schedule;
use crate::trainable::changing;

mod adafactor;
mod adam;
mod adamax;
mod apply;
mod joined;
mod lion;
mod multi;
mod muon;
mod rms;
mod sgd;
mod typed;

pub use adafactor::Adafactor;
pub use adam::Adam;
pub use adamax::Adamax;
use apply::{Apply, Set};
pub use joined::JoinedLayout;
pub use lion::Lion;
pub use multi::MultiOptimizer;
pub use muon::{AdjustLr, Muon};
pub use rms::{AdaDelta, Adagrad, RmsProp};
pub use sgd::Sgd;
pub use typed::{AdamW, OptimizerOf};

/// The method by which a gradient changes a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase")]
pub enum Method {
    /// Stochastic gradient descent, with momentum.
    Sgd(Sgd),
    /// Adam; weight decay is added to the gradient.
    Adam(Adam),
    /// Adam; weight decay shrinks the parameter (Loshchilov and Hutter, arXiv:1711.05101).
    AdamW(Adam),
    /// The sign of a momentum.
    Lion(Lion),
    /// Second moments kept as rows and columns.
    Adafactor(Adafactor),
    /// Orthogonalised momentum for hidden matrices, AdamW for the other parameters.
    Muon(Muon),
    /// A mean of squared gradients.
    RmsProp(RmsProp),
    /// A sum of squared gradients.
    Adagrad(Adagrad),
    /// Means of squared gradients and of squared changes.
    AdaDelta(AdaDelta),
    /// Adam with the largest magnitude of the gradients.
    Adamax(Adamax),
}

/// The project whose formula a method follows, where the formulas differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The formula of PyTorch; for Muon that of its author.
    #[default]
    Pytorch,
    /// The formula of MLX.
    Mlx,
}

/// The state of one parameter: its moments by name.
pub type OptimizerState = BTreeMap<&'static str, Array>;

/// The input of a method for one step of one parameter; all arrays are F32 and of one shape.
pub(crate) struct Update<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// The number of this step, from 1.
    pub step: u64,
    /// The learning rate.
    pub rate: f64,
    pub param: Array,
    pub grad: Array,
    /// Empty at the first step.
    pub state: &'a mut OptimizerState,
}

impl Update<'_> {
    /// The state under `name`: zeros of `shape` before the first step.
    fn remembered(&self, name: &'static str, shape: &[i32]) -> Result<Array> {
        match self.state.get(name) {
            Some(array) => Ok(array.clone()),
            None => zeros(shape, DType::F32),
        }
    }

    /// Updates the moving average under `name`: `beta * old + (1 - beta) * target`.
    fn average(&mut self, name: &'static str, beta: f64, target: &Array) -> Result<Array> {
        let old = self.remembered(name, target.shape())?;
        let new = old.multiply(beta)?.add(target.multiply(1.0 - beta)?)?;
        self.state.insert(name, new.clone());
        Ok(new)
    }
}

impl Method {
    fn update(&self, update: Update<'_>) -> Result<Array> {
        match self {
            Self::Sgd(sgd) => sgd.update(update),
            Self::Adam(adam) => adam.update(update, false),
            Self::AdamW(adam) => adam.update(update, true),
            Self::Lion(lion) => lion.update(update),
            Self::Adafactor(adafactor) => adafactor.update(update),
            Self::Muon(muon) => muon.update(update),
            Self::RmsProp(rms) => rms.update(update),
            Self::Adagrad(adagrad) => adagrad.update(update),
            Self::AdaDelta(delta) => delta.update(update),
            Self::Adamax(adamax) => adamax.update(update),
        }
    }

    /// Checks that every setting is in its range.
    ///
    /// # Errors
    /// A setting is out of range; the message names it.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Sgd(sgd) => sgd.check(),
            Self::Adam(adam) | Self::AdamW(adam) => adam.check(),
            Self::Lion(lion) => lion.check(),
            Self::Adafactor(adafactor) => adafactor.check(),
            Self::Muon(muon) => muon.check(),
            Self::RmsProp(rms) => rms.check(),
            Self::Adagrad(adagrad) => adagrad.check(),
            Self::AdaDelta(delta) => delta.check(),
            Self::Adamax(adamax) => adamax.check(),
        }
    }

    /// Whether a step changes each element independently, and a state of zeros has the effect of no
    /// state.
    fn is_elementwise(&self) -> bool {
        match self {
            Self::Adam(_) | Self::AdamW(_) | Self::Lion(_) => true,
            Self::RmsProp(_) | Self::Adagrad(_) | Self::AdaDelta(_) | Self::Adamax(_) => true,
            Self::Sgd(sgd) => sgd.momentum == 0.0 || sgd.dampening == 0.0 || sgd.zero_start,
            Self::Adafactor(_) | Self::Muon(_) => false,
        }
    }

    /// The names and shapes of a parameter's state after its first step.
    fn slots(&self, name: &str, shape: &[i32]) -> Vec<(&'static str, Vec<i32>)> {
        let same =
            |names: &[&'static str]| names.iter().map(|&name| (name, shape.to_vec())).collect();
        match self {
            Self::Sgd(sgd) if sgd.momentum == 0.0 => Vec::new(),
            Self::Sgd(_) => same(&["momentum"]),
            Self::Lion(_) => same(&["m"]),
            Self::Adam(_) | Self::AdamW(_) | Self::Adamax(_) => same(&["m", "v"]),
            Self::RmsProp(_) | Self::Adagrad(_) => same(&["v"]),
            Self::AdaDelta(_) => same(&["u", "v"]),
            Self::Muon(muon) if muon.is_hidden(name, shape) => same(&["momentum"]),
            Self::Muon(_) => same(&["m", "v"]),
            Self::Adafactor(adafactor) => {
                let mut slots = match *shape {
                    [ref outer @ .., rows, columns] => vec![
                        ("row", [outer, &[rows, 1]].concat()),
                        ("column", [outer, &[1, columns]].concat()),
                    ],
                    _ => same(&["v"]),
                };
                if adafactor.beta1.is_some() {
                    slots.extend(same(&["m"]));
                }
                slots
            }
        }
    }

    /// The name of the method in settings and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd(_) => "sgd",
            Self::Adam(_) => "adam",
            Self::AdamW(_) => "adamw",
            Self::Lion(_) => "lion",
            Self::Adafactor(_) => "adafactor",
            Self::Muon(_) => "muon",
            Self::RmsProp(_) => "rmsprop",
            Self::Adagrad(_) => "adagrad",
            Self::AdaDelta(_) => "adadelta",
            Self::Adamax(_) => "adamax",
        }
    }
}

/// Refuses a setting that is not in `[from, to)`.
fn check_range(name: &str, value: f64, from: f64, to: f64) -> Result<()> {
    if (from..to).contains(&value) {
        return Ok(());
    }
    let message = if to.is_infinite() {
        format!("{name} must be at least {from}, given {value}")
    } else {
        format!("{name} must be in [{from}, {to}), given {value}")
    };
    Err(Error::new(ErrorKind::Invalid, message))
}

/// A method with its schedule and state.
///
/// ```
/// use mlx_core::{Result, array};
/// use mlx_nn::{Adam, Linear, Method, Optimizer, Schedule, value_and_grad};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(2, 1, true)?;
/// let warm = Schedule::cosine(0.1, 0.0, 100).with_warmup(10, 0.0);
/// let mut optimizer = Optimizer::new(Method::AdamW(Adam::default()), warm)?;
/// let x = array![[1.0, 2.0]];
/// for _ in 0..3 {
///     let (_loss, grads) = value_and_grad(&mut layer, |layer| layer.forward(&x)?.square()?.sum_all())?;
///     optimizer.update(&mut layer, &grads)?;
/// }
/// assert_eq!(optimizer.step(), 3);
/// assert!((optimizer.rate() - 0.03).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Optimizer {
    method: Method,
    schedule: Schedule,
    step: u64,
    /// The states of the parameters that are updated one by one.
    states: BTreeMap<String, OptimizerState>,
    /// The parameters that are updated as one array, and their state.
    joined: (JoinedLayout, OptimizerState),
}

impl Optimizer {
    /// An optimiser before its first step.
    ///
    /// # Errors
    /// A setting of the method or schedule is out of range.
    pub fn new(method: Method, schedule: Schedule) -> Result<Self> {
        method.check()?;
        schedule.check()?;
        Ok(Self::unchecked(method, schedule))
    }

    /// An optimiser whose settings its first step checks.
    fn unchecked(method: Method, schedule: Schedule) -> Self {
        Self {
            method,
            schedule,
            step: 0,
            states: BTreeMap::new(),
            joined: Default::default(),
        }
    }

    /// Replaces the schedule. Its steps are counted from the first step of this optimiser. The next
    /// step fails if a rate is out of range.
    pub fn set_schedule(&mut self, schedule: impl Into<Schedule>) {
        self.schedule = schedule.into();
    }

    /// Sets the rate of all later steps. The next step fails if it is out of range.
    ///
    /// ```
    /// use mlx_nn::Sgd;
    ///
    /// let mut optimizer = Sgd::new(0.1);
    /// optimizer.set_learning_rate(0.01);
    /// assert_eq!(optimizer.learning_rate(), 0.01);
    /// ```
    pub fn set_learning_rate(&mut self, rate: impl Into<f64>) {
        self.set_schedule(rate.into());
    }

    /// The rate of the next step, as [`rate`](Self::rate).
    pub fn learning_rate(&self) -> f64 {
        self.rate()
    }

    /// The number of steps taken.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The rate of the next step.
    pub fn rate(&self) -> f64 {
        self.schedule.rate(self.step)
    }

    /// Takes a step: changes every parameter of `module` that has a gradient, and evaluates the
    /// trainable parameters, the buffers, and the state of the method.
    ///
    /// # Errors
    /// A setting is out of range, or an error of [`apply_lazily`](Self::apply_lazily).
    pub fn update<M: Module>(
        &mut self,
        module: &mut M,
        grads: impl Borrow<Gradients>,
    ) -> Result<()> {
        self.apply_lazily(module, grads.borrow())?;
        eval(changing(module)?.iter().chain(self.pending()))
    }

    /// Takes a step without evaluating it: every parameter of `module` that has a gradient gets a lazy array.
    ///
    /// Evaluate the parameters and [`pending`](Self::pending) before the next step. [`update`](Self::update) does both.
    ///
    /// # Errors
    /// A gradient does not belong to a trainable parameter, or has another shape. Some parameters
    /// may already be changed.
    pub fn apply_lazily<M: Module + ?Sized>(
        &mut self,
        module: &mut M,
        grads: &Gradients,
    ) -> Result<()> {
        let layout = self.layout(grads);
        let grads = layout.join(grads.clone())?;
        self.apply_joined_lazily(module, &layout, &grads)
    }

    /// The gradients that are joined for [`apply_joined_lazily`](Self::apply_joined_lazily).
    pub fn layout(&self, grads: &Gradients) -> JoinedLayout {
        match self.method.is_elementwise() {
            true => JoinedLayout::of(grads),
            false => JoinedLayout::default(),
        }
    }

    /// [`apply_lazily`](Self::apply_lazily) with gradients that `layout`, which is [that of this optimiser](Self::layout), has
    /// joined.
    ///
    /// # Errors
    /// The errors of [`apply_lazily`](Self::apply_lazily).
    pub fn apply_joined_lazily<M: Module + ?Sized>(
        &mut self,
        module: &mut M,
        layout: &JoinedLayout,
        grads: &Gradients,
    ) -> Result<()> {
        self.method.check()?;
        self.schedule.check()?;
        let rate = self.rate();
        if !rate.is_finite() {
            let message = format!("the rate of step {} is {rate}", self.step);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.step += 1;
        if self.joined.0 != *layout {
            self.separate()?;
            self.joined = (layout.clone(), layout.gather(&mut self.states)?);
        }
        let mut visitor = Apply {
            grads,
            rate,
            small: BTreeMap::new(),
            done: 0,
            optimizer: self,
        };
        module.visit_mut(&mut Path::default(), &mut visitor)?;
        let (small, done) = (visitor.small, visitor.done);
        let given = grads.len() - usize::from(!layout.is_empty()) + layout.len();
        if done + small.len() != given {
            let message = format!(
                "{given} gradients, but the module has only {} of these parameters, trainable",
                done + small.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let Some(grad) = grads.get(joined::KEY) else {
            return Ok(());
        };
        let params: Vec<Array> = small.into_values().collect();
        let new = self.method.update(Update {
            name: joined::KEY,
            step: self.step,
            rate,
            param: joined::join(&params)?,
            grad: grad.clone(),
            state: &mut self.joined.1,
        })?;
        let mut new = layout.split(&new)?;
        module.visit_mut(&mut Path::default(), &mut Set(&mut new))
    }

    /// Splits the state of the joined parameters into a state for each parameter.
    fn separate(&mut self) -> Result<()> {
        let (layout, state) = std::mem::take(&mut self.joined);
        for (slot, array) in state {
            for (name, part) in layout.split(&array)? {
                self.states.entry(name).or_default().insert(slot, part);
            }
        }
        Ok(())
    }

    /// The arrays that hold the state. Callers of [`apply_lazily`](Self::apply_lazily) evaluate them.
    pub fn pending(&self) -> impl Iterator<Item = &Array> {
        let all = self.states.values().chain([&self.joined.1]);
        all.flat_map(BTreeMap::values)
    }

    /// All arrays of the state, named `parameter/slot`, for a file.
    ///
    /// # Errors
    /// The joined state cannot be split: there is no memory for a handle.
    pub fn arrays(&self) -> Result<Vec<(String, Array)>> {
        let mut all = self.clone();
        all.separate()?;
        let states = all.states.into_iter();
        Ok(states
            .flat_map(|(name, state)| {
                let slots = state.into_iter();
                slots.map(move |(slot, array)| (format!("{name}/{slot}"), array))
            })
            .collect())
    }

    /// Continues from the state of another optimiser with the same method: `step` steps done on `params`,
    /// the trainable parameters of a module, and its [`arrays`](Self::arrays).
    ///
    /// # Errors
    /// An array is missing, is not a state of this method and these parameters, or has another
    /// dtype or shape; the message names it.
    pub fn restore(
        &mut self,
        step: u64,
        params: &[(String, Array)],
        arrays: impl IntoIterator<Item = (String, Array)>,
    ) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let mut arrays: BTreeMap<String, Array> = arrays.into_iter().collect();
        let mut states: BTreeMap<String, OptimizerState> = BTreeMap::new();
        // There is no state before the first step.
        let params = if step == 0 { &[] } else { params };
        for (param, value) in params {
            let state = states.entry(param.clone()).or_default();
            for (slot, shape) in self.method.slots(param, value.shape()) {
                let name = format!("{param}/{slot}");
                let Some(array) = arrays.remove(&name) else {
                    return wrong(format!("{name} is missing"));
                };
                if array.dtype() != DType::F32 || array.shape() != shape {
                    let (dtype, found) = (array.dtype(), array.shape());
                    return wrong(format!(
                        "{name}: expected F32 {shape:?}, found {dtype} {found:?}"
                    ));
                }
                state.insert(slot, array);
            }
        }
        if let Some(name) = arrays.keys().next() {
            let method = self.method.name();
            return wrong(format!(
                "{name} is no state of {method} with these parameters"
            ));
        }
        self.step = step;
        self.states = states;
        self.joined = Default::default();
        Ok(())
    }
}
