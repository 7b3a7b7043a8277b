//! Modules: structs whose fields are named as the checkpoint names them.
//!
//! A layer lists its children once, with [`module!`](crate::module!). Operations on parameters (load, save, cast,
//! count, quantise, attach LoRA, choose trainables) are visitors in files of their own; layers do not depend on them.

use mlx_core::{Array, DType, Result};

use crate::init::Initial;
use crate::lora::{Adaptable, Layout};
use crate::weight::Weight;

/// The place of a visitor in the module tree: `model.layers.3.self_attn.q_proj`.
#[derive(Clone, Debug, Default)]
pub struct Path(String);

impl Path {
    /// The root, or a prefix that every name shares.
    pub fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    /// The names so far, joined by dots.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The full name of `child` here.
    pub fn join(&self, child: &str) -> String {
        if self.0.is_empty() {
            child.to_owned()
        } else {
            format!("{}.{child}", self.0)
        }
    }

    /// Runs `f` one level down.
    pub fn scoped<R>(&mut self, child: &str, f: impl FnOnce(&mut Self) -> R) -> R {
        let len = self.0.len();
        if len > 0 {
            self.0.push('.');
        }
        self.0.push_str(child);
        let result = f(self);
        self.0.truncate(len);
        result
    }
}

/// An array with a name in the checkpoint. Gradients reach it only if it is `trainable`.
#[derive(Clone, Debug)]
pub struct Param {
    value: Array,
    shape: Vec<i32>,
    initial: Initial,
    never_narrowed: bool,
    /// Whether training changes it.
    pub trainable: bool,
}

impl Param {
    /// A parameter of `shape` without a value. A checkpoint sets the value, or [`initialise`](crate::init::initialise)
    /// sets it to zeros.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(shape: &[i32]) -> Result<Self> {
        Self::starting(shape, Initial::Constant(0.0))
    }

    /// A parameter of `shape` without a value, and its initial value for when no checkpoint sets one.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn starting(shape: &[i32], initial: Initial) -> Result<Self> {
        Ok(Self {
            value: Array::scalar(0.0f32)?,
            shape: shape.to_vec(),
            initial,
            never_narrowed: false,
            trainable: false,
        })
    }

    /// A parameter with a value.
    pub fn new(value: Array) -> Self {
        Self {
            shape: value.shape().to_vec(),
            value,
            initial: Initial::Constant(0.0),
            never_narrowed: false,
            trainable: false,
        }
    }

    /// Marks the parameter as one that keeps its stored dtype when a model is converted to 16 bits, because rounding would
    /// change the results.
    #[must_use]
    pub fn never_narrowed(mut self) -> Self {
        self.never_narrowed = true;
        self
    }

    /// The dtype of the parameter when the model is converted to `dtype`.
    pub fn dtype_in(&self, dtype: Option<DType>) -> Option<DType> {
        dtype.filter(|&dtype| !self.never_narrowed || dtype == DType::F32)
    }

    /// The array. A parameter without a value holds a zero scalar.
    pub fn value(&self) -> &Array {
        &self.value
    }

    /// The shape that the module expects.
    pub fn shape(&self) -> &[i32] {
        &self.shape
    }

    /// The initial value for when no checkpoint sets one.
    pub fn initial(&self) -> Initial {
        self.initial
    }

    /// Whether a value was set.
    pub fn is_filled(&self) -> bool {
        self.value.shape() == self.shape
    }

    /// Replaces the value (with a loaded array, a cast array, a tracer).
    pub fn set(&mut self, value: Array) {
        self.shape = value.shape().to_vec();
        self.value = value;
    }
}

/// Reads the parameters of a module, in a fixed order.
pub trait Visit {
    /// Called before the arrays of a layer that can have an adapter.
    ///
    /// # Errors
    /// The visitor's own.
    fn adaptable(&mut self, _path: &Path, _layout: Layout) -> Result<()> {
        Ok(())
    }
    /// Called before the arrays of a matrix.
    ///
    /// # Errors
    /// The visitor's own.
    fn weight(&mut self, _path: &Path, _weight: &Weight) -> Result<()> {
        Ok(())
    }
    /// Called for each array; `path` is its full name.
    ///
    /// # Errors
    /// The visitor's own.
    fn param(&mut self, _path: &Path, _param: &Param) -> Result<()> {
        Ok(())
    }
    /// Called for each array that a module derives once from its parameters, so that it can be evaluated when the model
    /// is loaded.
    ///
    /// # Errors
    /// The visitor's own.
    fn derived(&mut self, _array: &Array) -> Result<()> {
        Ok(())
    }
}

/// Changes the parameters of a module, in the same order as [`Visit`].
pub trait VisitMut {
    /// Called before the arrays of a layer that can have an adapter: attach, detach, fuse.
    ///
    /// # Errors
    /// The visitor's own.
    fn adaptable(&mut self, _path: &Path, _layer: Adaptable<'_>) -> Result<()> {
        Ok(())
    }
    /// Called before the arrays of a matrix: quantise, dequantise, or choose its storage.
    ///
    /// # Errors
    /// The visitor's own.
    fn weight(&mut self, _path: &Path, _weight: &mut Weight) -> Result<()> {
        Ok(())
    }
    /// Called for each array: fill, cast, swap.
    ///
    /// # Errors
    /// The visitor's own.
    fn param(&mut self, _path: &Path, _param: &mut Param) -> Result<()> {
        Ok(())
    }
}

/// Something with named parameters.
pub trait Module {
    /// Walks the parameters.
    ///
    /// # Errors
    /// The visitor's own.
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()>;
    /// Walks the parameters to change them.
    ///
    /// # Errors
    /// The visitor's own.
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()>;
}

impl Module for Param {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        v.param(path, self)
    }
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.param(path, self)
    }
}

/// No parameters.
impl Module for () {
    fn visit(&self, _path: &mut Path, _v: &mut dyn Visit) -> Result<()> {
        Ok(())
    }
    fn visit_mut(&mut self, _path: &mut Path, _v: &mut dyn VisitMut) -> Result<()> {
        Ok(())
    }
}

impl<M: Module> Module for Box<M> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        (**self).visit(path, v)
    }
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        (**self).visit_mut(path, v)
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.as_ref().map_or(Ok(()), |module| module.visit(path, v))
    }
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        self.as_mut()
            .map_or(Ok(()), |module| module.visit_mut(path, v))
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        for (index, module) in self.iter().enumerate() {
            path.scoped(&index.to_string(), |path| module.visit(path, v))?;
        }
        Ok(())
    }
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        for (index, module) in self.iter_mut().enumerate() {
            path.scoped(&index.to_string(), |path| module.visit_mut(path, v))?;
        }
        Ok(())
    }
}

/// Implements [`Module`] for a struct by listing its fields, each once.
///
/// Children are modules, parameters, or an `Option` or `Vec` of them; `plain` fields hold no
/// parameters. The struct is destructured exhaustively, so a forgotten field does not compile.
///
/// ```
/// use mlx_nn::{Linear, RmsNorm, module};
///
/// struct Head { norm: RmsNorm, lm_head: Linear, vocab: i32 }
/// module!(Head { norm, lm_head } plain { vocab });
/// ```
///
/// The children of `flat` fields have names without that of the field: `module!(Layer { mlp } flat { gate } plain {
/// vocab })`.
///
/// A struct with type parameters names their bounds: `module!(Stack<L: Module> { layers })`.
#[macro_export]
macro_rules! module {
    ($ty:ident $(<$($param:ident : $bound:path),+>)? { $($child:ident),* $(,)? } $(flat { $($flat:ident),* $(,)? })? $(plain { $($plain:ident),* $(,)? })?) => {
        impl $(<$($param: $bound),+>)? $crate::Module for $ty $(<$($param),+>)? {
            fn visit(&self, path: &mut $crate::Path, v: &mut dyn $crate::Visit) -> ::mlx_core::Result<()> {
                let Self { $($child,)* $($($flat,)*)? $($($plain: _,)*)? } = self;
                $(path.scoped(stringify!($child), |path| $crate::Module::visit($child, path, v))?;)*
                $($($crate::Module::visit($flat, path, v)?;)*)?
                Ok(())
            }
            fn visit_mut(&mut self, path: &mut $crate::Path, v: &mut dyn $crate::VisitMut) -> ::mlx_core::Result<()> {
                let Self { $($child,)* $($($flat,)*)? $($($plain: _,)*)? } = self;
                $(path.scoped(stringify!($child), |path| $crate::Module::visit_mut($child, path, v))?;)*
                $($($crate::Module::visit_mut($flat, path, v)?;)*)?
                Ok(())
            }
        }
    };
}
