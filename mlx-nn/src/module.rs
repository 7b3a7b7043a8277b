//! Modules: structs whose fields are named as the checkpoint names them.
//!
//! A layer's children are its fields: `#[derive(Module)]` reads them, or the layer lists them once
//! with [`module!`](crate::module!). Operations on parameters (load, save, cast, count, quantise,
//! attach LoRA, choose trainable parameters) are visitors in files of their own; layers do not
//! depend on them.

use std::any::Any;
use std::collections::BTreeMap;

use mlx_core::{Array, DType, Result};

use crate::lora::{Adaptable, AdaptableLayer};
use crate::training::Mode;
use crate::weight::Weight;

mod buffers;
mod containers;
mod files;
mod param;
mod parameters;
mod walk;

pub use buffers::Buffers;
pub use param::Param;

/// Arrays by the names of the parameters that hold them.
pub type Parameters = BTreeMap<String, Array>;

/// The place of a visitor in the module tree: `model.layers.3.self_attn.q_proj`.
#[derive(Clone, Debug, Default)]
pub struct Path(String);

impl Path {
    /// A path at `prefix`, with which every name begins; an empty prefix is the root.
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

    /// Runs `f` with the path of `child`.
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

/// Reads the parameters of a module, in a fixed order.
pub trait Visit {
    /// Called before the arrays of a layer that can have an adapter.
    ///
    /// # Errors
    /// An error of the visitor.
    fn adaptable(&mut self, _path: &Path, _layer: AdaptableLayer<'_>) -> Result<()> {
        Ok(())
    }
    /// Called before the arrays of a matrix.
    ///
    /// # Errors
    /// An error of the visitor.
    fn weight(&mut self, _path: &Path, _weight: &Weight) -> Result<()> {
        Ok(())
    }
    /// Called for each array; `path` is its full name.
    ///
    /// # Errors
    /// An error of the visitor.
    #[doc(alias = "valid_parameter_filter")]
    fn param(&mut self, _path: &Path, _param: &Param) -> Result<()> {
        Ok(())
    }
    /// Called for each buffer: an array that is saved and loaded, and never trained. A visitor that
    /// does not implement this method treats the buffer as a parameter.
    ///
    /// # Errors
    /// An error of the visitor.
    fn state(&mut self, path: &Path, state: &Array) -> Result<()> {
        self.param(path, &Param::state(state.clone()))
    }
    /// Called for the training mode of each layer that has one.
    ///
    /// # Errors
    /// An error of the visitor.
    fn mode(&mut self, _path: &Path, _mode: &Mode) -> Result<()> {
        Ok(())
    }
    /// Called for each array that a module derives once from its parameters, so that it can be evaluated when the model
    /// is loaded.
    ///
    /// # Errors
    /// An error of the visitor.
    fn derived(&mut self, _array: &Array) -> Result<()> {
        Ok(())
    }
}

/// Changes the parameters of a module, in the same order as [`Visit`].
pub trait VisitMut {
    /// Called before the arrays of a layer that can have an adapter: attach, detach, fuse.
    ///
    /// # Errors
    /// An error of the visitor.
    fn adaptable(&mut self, _path: &Path, _layer: Adaptable<'_>) -> Result<()> {
        Ok(())
    }
    /// Called before the arrays of a matrix: quantise, dequantise, or choose its storage.
    ///
    /// # Errors
    /// An error of the visitor.
    fn weight(&mut self, _path: &Path, _weight: &mut Weight) -> Result<()> {
        Ok(())
    }
    /// Called for each array: fill, cast, swap.
    ///
    /// # Errors
    /// An error of the visitor.
    fn param(&mut self, _path: &Path, _param: &mut Param) -> Result<()> {
        Ok(())
    }
    /// Called for each buffer. A visitor that does not implement this method treats the buffer as a
    /// parameter.
    ///
    /// # Errors
    /// An error of the visitor.
    fn state(&mut self, path: &Path, state: &mut Array) -> Result<()> {
        let mut param = Param::state(state.clone());
        self.param(path, &mut param)?;
        *state = param.into_value();
        Ok(())
    }
    /// Called for the training mode of each layer that has one.
    ///
    /// # Errors
    /// An error of the visitor.
    fn mode(&mut self, _path: &Path, _mode: &mut Mode) -> Result<()> {
        Ok(())
    }
    /// Called for each module, before what it holds. A module that adds nothing to the names of its
    /// parameters comes under the name of the module that holds it, after that one. Parameters and
    /// containers are not modules.
    ///
    /// # Errors
    /// An error of the visitor.
    fn module(&mut self, _path: &Path, _module: &mut dyn Module) -> Result<()> {
        Ok(())
    }
}

/// A layer, a model or a container of these: a type with named parameters.
///
/// ```
/// use mlx_core::{DType, Result};
/// use mlx_nn::{Linear, Module};
///
/// #[derive(Module)]
/// struct Mlp { l1: Linear, l2: Linear }
///
/// # fn main() -> Result<()> {
/// let mut model = Mlp { l1: Linear::new(4, 8, true)?, l2: Linear::new(8, 3, true)? };
/// let parameters = model.parameters();
/// assert!(parameters.keys().eq(["l1.bias", "l1.weight", "l2.bias", "l2.weight"]));
/// assert_eq!(model.num_parameters(), 4 * 8 + 8 + 8 * 3 + 3);
/// model.freeze("l1")?;
/// assert!(model.trainable_parameters().keys().eq(["l2.bias", "l2.weight"]));
/// model.set_dtype(DType::BF16)?;
/// assert_eq!(model.parameters()["l1.weight"].dtype(), DType::BF16);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    label = "not a module",
    note = "a parameter is a `Param`, and a nested module implements `Module`, for instance by `#[derive(Module)]`",
    note = "mark an `Array` that is saved and not trained with `#[module(state)]`, and a field without arrays with \
            `#[module(skip)]`"
)]
pub trait Module {
    /// Walks the parameters.
    ///
    /// # Errors
    /// An error of the visitor, and no other: [`parameters`](Self::parameters) and similar methods
    /// rely on this.
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()>;

    /// Walks the parameters to change them. An implementation by hand begins with `v.module(path, self)?`: without it
    /// [`apply_to_modules`](Self::apply_to_modules) does not meet the module.
    ///
    /// # Errors
    /// An error of the visitor, or an array that the module derives from its parameters cannot be
    /// made.
    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()>;

    /// The modules that are directly in this one, by name. An element of a container is `layers.0`.
    /// Parameters are not modules.
    fn children(&self) -> Vec<(String, &dyn Module)> {
        Vec::new()
    }

    /// The Rust type, with its path, for listings.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Adds this module, or those in this container, to the children of another.
    #[doc(hidden)]
    fn list<'a>(&'a self, name: &str, into: &mut Vec<(String, &'a dyn Module)>)
    where
        Self: Sized,
    {
        into.push((name.to_owned(), self));
    }

    /// The module as a value whose type can be asked. `None`: the type has lifetimes or parameters
    /// for types, or its `impl Module` is written by hand without this method.
    #[doc(hidden)]
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// [`as_any`](Self::as_any), to change the module.
    #[doc(hidden)]
    fn as_any_mut(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// This module, whose name is empty, and all modules in it. Each comes before its children.
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Linear, Module};
    ///
    /// #[derive(Module)]
    /// struct Stack { layers: Vec<Linear> }
    ///
    /// # fn main() -> Result<()> {
    /// let stack = Stack { layers: vec![Linear::new(2, 2, false)?, Linear::new(2, 1, false)?] };
    /// let names: Vec<String> = stack.named_modules().into_iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["", "layers.0", "layers.1"]);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "modules")]
    fn named_modules(&self) -> Vec<(String, &dyn Module)>
    where
        Self: Sized,
    {
        parameters::named_modules(self)
    }

    /// Those of [`named_modules`](Self::named_modules) that have no children.
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Linear, Module};
    ///
    /// #[derive(Module)]
    /// struct Stack { layers: Vec<Linear> }
    ///
    /// # fn main() -> Result<()> {
    /// let stack = Stack { layers: vec![Linear::new(2, 2, false)?, Linear::new(2, 1, false)?] };
    /// let names: Vec<String> = stack.leaf_modules().into_iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["layers.0", "layers.1"]);
    /// # Ok(())
    /// # }
    /// ```
    fn leaf_modules(&self) -> Vec<(String, &dyn Module)>
    where
        Self: Sized,
    {
        let mut leaves = self.named_modules();
        leaves.retain(|(_, module)| module.children().is_empty());
        leaves
    }

    /// Calls `f` with the name of this module, which is empty, and with those of all modules in it, and lets `f` change
    /// them. Each comes before what it holds. Arrays that a module derives from its parameters are made again. `f` asks
    /// for a type with [`is`](trait@Module#method.is) and
    /// [`downcast_mut`](trait@Module#method.downcast_mut).
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Dropout, Linear, Module};
    ///
    /// #[derive(Module)]
    /// struct Net { l1: Linear, dropout: Dropout, l2: Linear }
    ///
    /// # fn main() -> Result<()> {
    /// let linear = || Linear::new(2, 2, false);
    /// let mut net = Net { l1: linear()?, dropout: Dropout::new(0.1)?, l2: linear()? };
    /// net.apply_to_modules(|name, module| match module.downcast_mut::<Linear>() {
    ///     Some(linear) if name != "l2" => linear.freeze("*"),
    ///     _ => Ok(()),
    /// })?;
    /// assert!(net.trainable_parameters().keys().eq(["l2.weight"]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A module that adds nothing to the names of its parameters (a field with `#[module(flat)]`, the only unnamed field
    /// of a struct) has the name of the module that holds it, and comes after it.
    ///
    /// # Errors
    /// The error of `f`, with the module's name, or an array that a module derives from its parameters cannot be made.
    /// What `f` has changed stays changed.
    fn apply_to_modules(&mut self, f: impl FnMut(&str, &mut dyn Module) -> Result<()>) -> Result<()>
    where
        Self: Sized,
    {
        walk::apply(self, f)
    }

    /// Replaces modules by others of the same type, by name: the names of [`named_modules`](Self::named_modules).
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Linear, Module};
    ///
    /// #[derive(Module)]
    /// struct Stack { layers: Vec<Linear> }
    ///
    /// # fn main() -> Result<()> {
    /// let mut stack = Stack { layers: vec![Linear::new(2, 4, false)?, Linear::new(4, 2, false)?] };
    /// stack.update_modules([("layers.1", Linear::new(4, 3, true)?)])?;
    /// assert!(stack.parameters().keys().eq(["layers.0.weight", "layers.1.bias", "layers.1.weight"]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// No module has one of the names, it has another type, or a name stands twice. Nothing is changed then. Or an array
    /// that a module derives from its parameters cannot be made.
    fn update_modules<M: Module + 'static>(
        &mut self,
        modules: impl IntoIterator<Item = (impl Into<String>, M)>,
    ) -> Result<()>
    where
        Self: Sized,
    {
        let modules = modules.into_iter();
        walk::replace(self, modules.map(|(name, module)| (name.into(), module)))
    }

    /// The parameters and buffers by name. They share the module's arrays. A parameter without a value is left out.
    #[doc(alias = "state")]
    fn parameters(&self) -> Parameters {
        parameters::named(self, |_| true)
    }

    /// The parameters that training changes, by name.
    fn trainable_parameters(&self) -> Parameters {
        parameters::named(self, |param| param.trainable)
    }

    /// The number of elements of all parameters and buffers. A quantised matrix counts as the
    /// matrix that it stands for.
    fn num_parameters(&self) -> usize {
        parameters::count(self)
    }

    /// Replaces every parameter and buffer by `f` of it.
    ///
    /// # Errors
    /// The error of `f`, with the parameter's name, or a parameter has no value. The parameters
    /// before it stay replaced.
    fn apply(&mut self, f: impl FnMut(&Array) -> Result<Array>) -> Result<()>
    where
        Self: Sized,
    {
        parameters::apply(self, f)
    }

    /// The results of `f` for the name and the value of every parameter and buffer, by name.
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Linear, Module};
    ///
    /// # fn main() -> Result<()> {
    /// let layer = Linear::new(4, 8, true)?;
    /// let shapes = layer.map(|_, array| Ok(array.shape().to_vec()))?;
    /// assert_eq!(shapes["weight"], [8, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of `f`, with the parameter's name, or a parameter has no value.
    fn map<T>(&self, f: impl FnMut(&str, &Array) -> Result<T>) -> Result<BTreeMap<String, T>>
    where
        Self: Sized,
    {
        parameters::map(self, |_, _| true, f)
    }

    /// [`map`](Self::map) for the parameters and buffers that `filter` accepts. Filters of Python's MLX have a form of
    /// their own: [`Param::trainable`] is `trainable_parameter_filter`, and [`Param::is_state`] tells buffers from
    /// parameters.
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Linear, Module};
    ///
    /// # fn main() -> Result<()> {
    /// let mut layer = Linear::new(4, 8, true)?;
    /// layer.freeze("bias")?;
    /// let sizes = layer.filter_and_map(|_, param| param.trainable, |_, array| Ok(array.size()))?;
    /// assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [("weight".to_owned(), 32)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of `f`, with the parameter's name, or a parameter that `filter` accepts has no value.
    fn filter_and_map<T>(
        &self,
        filter: impl FnMut(&str, &Param) -> bool,
        f: impl FnMut(&str, &Array) -> Result<T>,
    ) -> Result<BTreeMap<String, T>>
    where
        Self: Sized,
    {
        parameters::map(self, filter, f)
    }

    /// Gives the named parameters and buffers new values; the others keep theirs.
    ///
    /// # Errors
    /// A name is not one of the module's, or an array has another shape than the parameter. Nothing
    /// is changed then.
    fn update(&mut self, values: &Parameters) -> Result<()> {
        parameters::update(self, values)
    }

    /// Excludes parameters from training: those whose name, or that of a module that holds them, matches `pattern`, in
    /// which `*` stands for any characters. `l1` freezes `l1.weight` and `l1.bias`, and `*` all.
    ///
    /// # Errors
    /// The pattern matches no parameter.
    fn freeze(&mut self, pattern: &str) -> Result<()> {
        parameters::freeze(self, pattern)
    }

    /// Makes every parameter trainable that is floating point and is neither a buffer nor a part of
    /// a quantised matrix. [`set_trainable`](crate::trainable::set_trainable) chooses by name.
    ///
    /// # Errors
    /// An array that the module derives from its parameters cannot be made.
    fn unfreeze(&mut self) -> Result<()> {
        parameters::unfreeze(self)
    }

    /// Casts the floating-point parameters and buffers to `dtype`, except those that a 16-bit dtype would damage
    /// ([`Param::never_narrowed`]).
    ///
    /// # Errors
    /// `dtype` is not floating point.
    fn set_dtype(&mut self, dtype: DType) -> Result<()> {
        parameters::set_dtype(self, dtype)
    }

    /// Switches training mode on or off, in every layer that computes something else in training.
    /// Layers are in training mode at first.
    ///
    /// # Errors
    /// An array that the module derives from its parameters cannot be made.
    fn train(&mut self, training: bool) -> Result<()> {
        parameters::train(self, training)
    }

    /// Switches training mode off: [`train`](Self::train) with `false`. It evaluates no array.
    ///
    /// # Errors
    /// Those of [`train`](Self::train).
    fn eval(&mut self) -> Result<()> {
        self.train(false)
    }

    /// The function [`value_and_grad`](crate::value_and_grad) of this module, under a name that is not ambiguous beside
    /// that of `mlx_core`.
    ///
    /// ```
    /// use mlx_core::*;
    /// use mlx_nn::*;
    ///
    /// # fn main() -> Result<()> {
    /// let x = array![[1.0, 2.0]];
    /// let mut model = Linear::new(2, 1, true)?;
    /// let mut opt = AdamW::new(0.1);
    /// let (loss, grads) = model.value_and_grad(|m| m.forward(&x)?.square()?.mean_all())?;
    /// opt.update(&mut model, &grads)?;
    /// assert!(loss.item::<f32>()? >= 0.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`value_and_grad`](crate::value_and_grad).
    fn value_and_grad<O: crate::Outputs>(
        &mut self,
        loss: impl FnMut(&Self) -> Result<O>,
    ) -> Result<(O, crate::Gradients)>
    where
        Self: Sized,
    {
        crate::grad::value_and_grad(self, loss)
    }

    /// Whether a layer that computes something else in training is in training mode. False for a
    /// module without such layers.
    #[doc(alias = "training")]
    fn is_training(&self) -> bool {
        parameters::is_training(self)
    }

    /// Writes parameters and buffers, under their names, to a `.safetensors` or `.npz` file. An
    /// existing file is replaced when the new one is complete.
    ///
    /// ```
    /// use mlx_core::Result;
    /// use mlx_nn::{Linear, Module};
    ///
    /// # fn main() -> Result<()> {
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let path = folder.path().join("layer.safetensors");
    /// let layer = Linear::new(4, 8, true)?;
    /// layer.save(&path)?;
    /// let mut other = Linear::empty(4, 8, true)?;
    /// other.load(&path)?;
    /// assert_eq!(other.parameters()["bias"].to_vec::<f32>()?, layer.parameters()["bias"].to_vec::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A parameter has no value, the name of the file has another ending, or it cannot be written.
    fn save(&self, path: impl AsRef<std::path::Path>) -> Result<()>
    where
        Self: Sized,
    {
        files::save(self, path.as_ref())
    }

    /// [`save`](Self::save), by the name of MLX's Python.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    fn save_weights(&self, path: impl AsRef<std::path::Path>) -> Result<()>
    where
        Self: Sized,
    {
        self.save(path)
    }

    /// [`load`](Self::load), by the name of MLX's Python.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    fn load_weights(&mut self, path: impl AsRef<std::path::Path>) -> Result<()>
    where
        Self: Sized,
    {
        self.load(path)
    }

    /// Reads all parameters and buffers from a `.safetensors` or `.npz` file. Each keeps the dtype that the file gives it.
    ///
    /// # Errors
    /// The file cannot be read, or its tensors are not exactly those of the module: one report
    /// names all that are missing, unexpected or misshapen. Nothing is changed then.
    fn load(&mut self, path: impl AsRef<std::path::Path>) -> Result<()>
    where
        Self: Sized,
    {
        files::load(self, path.as_ref())
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
/// The children of `flat` fields have names without that of the field:
/// `module!(Layer { mlp } flat { gate } plain { vocab })`. Fields of `state` are arrays that are
/// saved and not trained: `module!(Counter { mode } state { passes })`.
///
/// A struct with type parameters names their bounds: `module!(Stack<L: Module> { layers })`.
#[macro_export]
macro_rules! module {
    ($ty:ident $(<$($param:ident : $bound:path),+>)? { $($child:ident),* $(,)? } $(flat { $($flat:ident),* $(,)? })? $(state { $($state:ident),* $(,)? })? $(plain { $($plain:ident),* $(,)? })?) => {
        impl $(<$($param: $bound),+>)? $crate::Module for $ty $(<$($param),+>)? {
            #[allow(unused_variables)]
            fn visit(&self, path: &mut $crate::Path, v: &mut dyn $crate::Visit) -> $crate::mlx_core::Result<()> {
                let Self { $($child,)* $($($flat,)*)? $($($state,)*)? $($($plain: _,)*)? } = self;
                $(path.scoped(stringify!($child), |path| $crate::Module::visit($child, path, v))?;)*
                $($($crate::Module::visit($flat, path, v)?;)*)?
                $($(path.scoped(stringify!($state), |path| $crate::module::Buffers::visit($state, path, v))?;)*)?
                Ok(())
            }
            #[allow(unused_variables)]
            fn visit_mut(&mut self, path: &mut $crate::Path, v: &mut dyn $crate::VisitMut) -> $crate::mlx_core::Result<()> {
                $crate::VisitMut::module(v, path, self)?;
                let Self { $($child,)* $($($flat,)*)? $($($state,)*)? $($($plain: _,)*)? } = self;
                $(path.scoped(stringify!($child), |path| $crate::Module::visit_mut($child, path, v))?;)*
                $($($crate::Module::visit_mut($flat, path, v)?;)*)?
                $($(path.scoped(stringify!($state), |path| $crate::module::Buffers::visit_mut($state, path, v))?;)*)?
                Ok(())
            }
            fn children(&self) -> Vec<(String, &dyn $crate::Module)> {
                #[allow(unused_mut)]
                let mut children = Vec::new();
                $($crate::Module::list(&self.$child, stringify!($child), &mut children);)*
                $($(children.extend($crate::Module::children(&self.$flat));)*)?
                children
            }
            $crate::known_type!($($($param)+)?);
        }
    };
}

/// The methods of an `impl Module` by which the type of a module can be asked. A type with parameters for types has none.
#[doc(hidden)]
#[macro_export]
macro_rules! known_type {
    () => {
        fn as_any(&self) -> Option<&dyn ::std::any::Any> {
            Some(self)
        }
        fn as_any_mut(&mut self) -> Option<&mut dyn ::std::any::Any> {
            Some(self)
        }
    };
    ($($param:ident)+) => {};
}
