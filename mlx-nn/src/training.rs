//! Training mode of layers, and the state that a forward pass changes.
//!
//! A layer that computes something else in training has a field [`Mode`], which [`Module::train`]
//! sets. A layer that changes a buffer in training, such as the running mean of a batch norm, has a
//! field of type [`Array`] that is marked as state (`#[module(state)]`, or `state { .. }` in
//! [`module!`](crate::module!)), and calls [`update_state`] in its forward pass. The pass takes
//! `&self`, so it cannot write the field, and the caller writes the new value:
//! [`value_and_grad`](crate::value_and_grad) makes the value an output of the differentiated
//! function and writes it into the module, and [`with_state`] does so for a pass without gradients.
//! A layer that draws random numbers uses [`mlx_core::random::next_key`].
//!
//! ```
//! use mlx_core::{Array, DType, Result, random};
//! use mlx_nn::{Mode, Module, module, training::{update_state, with_state}};
//!
//! /// Adds noise, and counts its passes.
//! struct Noise { passes: Array, mode: Mode }
//! module!(Noise { mode } state { passes });
//!
//! impl Noise {
//!     fn forward(&self, x: &Array) -> Result<Array> {
//!         if !self.mode.is_training() {
//!             return Ok(x.clone());
//!         }
//!         update_state(&self.passes, |old| old.add(1.0))?;
//!         x.add(&random::normal(None, x.shape(), x.dtype())?)
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let mut layer = Noise { passes: Array::scalar(0.0f32)?, mode: Mode::default() };
//! let x = mlx_core::ops::create::zeros(&[3], DType::F32)?;
//! with_state(&mut layer, |layer| layer.forward(&x))?;
//! assert_eq!(layer.passes.item::<f32>()?, 1.0);
//! layer.train(false)?;
//! assert_eq!(layer.forward(&x)?.to_vec::<f32>()?, [0.0; 3]);
//! # Ok(())
//! # }
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;

use mlx_core::{Array, Error, ErrorKind, Result};

use crate::module::{Module, Path, Visit, VisitMut};

/// Whether a layer is in training mode. A new layer is, as in MLX's Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    training: bool,
}

impl Default for Mode {
    fn default() -> Self {
        Self { training: true }
    }
}

impl Mode {
    /// Whether the layer is in training mode.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Switches training mode on or off.
    pub fn set(&mut self, training: bool) {
        self.training = training;
    }
}

impl Module for Mode {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        v.mode(path, self)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.mode(path, self)
    }

    fn list<'a>(&'a self, _name: &str, _into: &mut Vec<(String, &'a dyn Module)>) {}
}

/// A running forward pass: the new values of its states, by the addresses of the arrays that they replace.
type Pass = BTreeMap<usize, Array>;

thread_local! {
    /// The passes that are running on this thread. Each runs inside the previous one. A [`Scope`]
    /// removes its pass, so that no array outlives the call.
    static PASSES: RefCell<Vec<Pass>> = const { RefCell::new(Vec::new()) };
}

fn address(state: &Array) -> usize {
    std::ptr::from_ref(state).addr()
}

/// Replaces a state of a module at the end of the running pass. `state` is the field of the layer.
/// `next` gets the field's value, or the value that the same pass has already set. No gradient
/// flows through the new value.
///
/// # Errors
/// No pass that keeps states is running ([`with_state`],
/// [`value_and_grad`](crate::value_and_grad)), `next` fails, or the new value has another shape.
pub fn update_state(state: &Array, next: impl FnOnce(&Array) -> Result<Array>) -> Result<()> {
    let at = address(state);
    let old = PASSES.with_borrow(|passes| {
        let pass = passes.last()?;
        Some(pass.get(&at).unwrap_or(state).clone())
    });
    let Some(old) = old else {
        return Err(Error::new(
            ErrorKind::Invalid,
            "a layer in training mode changes its state, which only value_and_grad and with_state keep: call one of them, \
             or train(false) before",
        ));
    };
    let new = next(&old)?.stop_gradient()?;
    if new.shape() != state.shape() {
        let message = format!(
            "a state of shape {:?} cannot become one of shape {:?}",
            state.shape(),
            new.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    PASSES.with_borrow_mut(|passes| {
        if let Some(pass) = passes.last_mut() {
            pass.insert(at, new);
        }
    });
    Ok(())
}

/// The new values of a pass, and the addresses of the arrays that they replace.
pub(crate) struct Updates {
    pub(crate) places: Vec<usize>,
    pub(crate) values: Vec<Array>,
}

/// A running pass; it ends when this is dropped.
pub(crate) struct Scope(());

impl Scope {
    pub(crate) fn enter() -> Self {
        PASSES.with_borrow_mut(|passes| passes.push(Pass::default()));
        Self(())
    }

    /// The states that the pass has changed.
    pub(crate) fn end(&self) -> Updates {
        let pass = PASSES.with_borrow_mut(|passes| passes.last_mut().map(std::mem::take));
        let (places, values) = pass.unwrap_or_default().into_iter().unzip();
        Updates { places, values }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let pass = PASSES.with_borrow_mut(Vec::pop);
        drop(pass);
    }
}

impl Updates {
    /// Writes the values into `module`, which has not moved since the pass.
    ///
    /// # Errors
    /// An array is not a state of `module`. Nothing is written then.
    pub(crate) fn write<M: Module + ?Sized>(self, module: &mut M) -> Result<()> {
        struct Find<'a>(&'a [usize], usize);
        impl Visit for Find<'_> {
            fn state(&mut self, _path: &Path, state: &Array) -> Result<()> {
                self.1 += usize::from(self.0.contains(&address(state)));
                Ok(())
            }
        }
        struct Write(BTreeMap<usize, Array>);
        impl VisitMut for Write {
            fn state(&mut self, _path: &Path, state: &mut Array) -> Result<()> {
                if let Some(new) = self.0.remove(&address(state)) {
                    *state = new;
                }
                Ok(())
            }
        }
        if self.places.is_empty() {
            return Ok(());
        }
        let mut found = Find(&self.places, 0);
        module.visit(&mut Path::default(), &mut found)?;
        if found.1 != self.places.len() {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{} states changed in the pass, and {} of them are the module's: a layer outside of it is in training \
                     mode, or the function works on a copy",
                    self.places.len(),
                    found.1
                ),
            ));
        }
        let mut write = Write(self.places.into_iter().zip(self.values).collect());
        module.visit_mut(&mut Path::default(), &mut write)
    }
}

/// Runs `forward` and writes the states that it changes ([`update_state`]) into `module`: a pass in
/// training mode without gradients. The new states are not evaluated.
///
/// # Errors
/// The error of `forward`, or `forward` changed a state that is not in `module`. Nothing is written
/// then.
pub fn with_state<M: Module + ?Sized, T>(
    module: &mut M,
    forward: impl FnOnce(&M) -> Result<T>,
) -> Result<T> {
    let scope = Scope::enter();
    let output = forward(module)?;
    let updates = scope.end();
    drop(scope);
    updates.write(module)?;
    Ok(output)
}
