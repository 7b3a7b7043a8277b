//! [`Layer`]: modules from one array to one array, and [`Sequential`], a chain of them.

use std::fmt;

use mlx_core::{Array, Result};

use crate::activation::Activation;
use crate::module::{Module, Path, Visit, VisitMut};

/// A module that computes one array from one array.
///
/// Most layers of this crate implement it. A program's layer that implements it can be added to a
/// [`Sequential`].
///
/// ```
/// use mlx_core::{Array, Result, array};
/// use mlx_nn::{Layer, Module, Param, Sequential};
///
/// # fn main() -> Result<()> {
/// #[derive(Module)]
/// struct Scale { by: Param }
///
/// impl Layer for Scale {
///     fn forward(&self, x: &Array) -> Result<Array> {
///         x * self.by.get()?
///     }
/// }
/// let scale = Scale { by: Param::new(array![2.0, 3.0]) };
/// let net = Sequential::new().add(scale).add_fn(Array::square);
/// assert_eq!(net.forward(&array![1.0, 1.0])?.to_vec::<f32>()?, [4.0, 9.0]);
/// # Ok(())
/// # }
/// ```
pub trait Layer: Module {
    /// The output for `x`.
    ///
    /// # Errors
    /// The shape or dtype does not fit the layer.
    fn forward(&self, x: &Array) -> Result<Array>;
}

/// Implements [`Layer`] by the type's own `forward`.
macro_rules! layer {
    ([$($param:tt)*] $ty:ty) => {
        impl<$($param)*> $crate::layer::Layer for $ty {
            fn forward(&self, x: &mlx_core::Array) -> mlx_core::Result<mlx_core::Array> {
                <$ty>::forward(self, x)
            }
        }
    };
    ($($ty:ty;)*) => { $($crate::layer::layer!([] $ty);)* };
}
pub(crate) use layer;

layer! {
    crate::Linear;
    crate::Embedding;
    crate::LayerNorm;
    crate::NormByHead;
    crate::RmsNorm;
    crate::Norm;
    crate::Xielu;
    crate::GatedMlp;
    crate::PlainMlp;
    crate::FeedForward;
}

impl Layer for Activation {
    fn forward(&self, x: &Array) -> Result<Array> {
        Activation::forward(*self, x)
    }
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    fn forward(&self, x: &Array) -> Result<Array> {
        (**self).forward(x)
    }
}

/// What [`Sequential::add`] takes: a [`Layer`], or a function from one array to one array. `Form` is
/// inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no layer of a chain",
    label = "neither a layer nor a function of an array",
    note = "a layer implements `Layer`; a function takes `&Array` and gives `Result<Array>`: `.add(|x: &Array| x.square())`"
)]
pub trait IntoLayer<Form> {
    /// The layer.
    fn into_layer(self) -> Box<dyn Layer>;
}

/// The form of [`IntoLayer`] that is a layer.
#[derive(Debug)]
pub enum AsLayer {}
/// The form of [`IntoLayer`] that is a function.
#[derive(Debug)]
pub enum AsFunction {}

impl<L: Layer + 'static> IntoLayer<AsLayer> for L {
    fn into_layer(self) -> Box<dyn Layer> {
        Box::new(self)
    }
}

impl<F: Fn(&Array) -> Result<Array> + 'static> IntoLayer<AsFunction> for F {
    fn into_layer(self) -> Box<dyn Layer> {
        Box::new(Function(self))
    }
}

/// Layers, each of which gets the output of the one before. Their parameters are `layers.0.weight`
/// and so on, as in MLX's Python.
///
/// ```
/// use mlx_core::{Array, DType, Result};
/// use mlx_nn::{Activation, Conv2d, Linear, MaxPool2d, Sequential};
///
/// # fn main() -> Result<()> {
/// let net = Sequential::new()
///     .add(Conv2d::new(1, 8, 3)?.padding(1))
///     .add(Activation::Relu)
///     .add(MaxPool2d::new(2))
///     .add_fn(|x| x.reshape(&[x.dim(0)?, -1]))
///     .add(Linear::new(8 * 4 * 4, 10, true)?);
/// let images = mlx_core::ops::create::zeros(&[5, 8, 8, 1], DType::F32)?;
/// assert_eq!(net.forward(&images)?.shape(), [5, 10]);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

crate::module!(Sequential { layers });
layer!(Sequential;);

impl Sequential {
    /// A chain without layers: its output is its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// The chain with `layer` at its end: a [`Layer`], or a function without parameters.
    ///
    /// ```
    /// use mlx_core::{Array, Result, array};
    /// use mlx_nn::{Relu, Sequential, tanh};
    ///
    /// # fn main() -> Result<()> {
    /// let net = Sequential::new().add(Relu).add(tanh).add(|x: &Array| x.square());
    /// assert_eq!(net.forward(&array![-1.0, 0.0])?.to_vec::<f32>()?, [0.0, 0.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "the operator adds numbers")]
    pub fn add<Form>(mut self, layer: impl IntoLayer<Form>) -> Self {
        self.layers.push(layer.into_layer());
        self
    }

    /// The chain with a function without parameters at its end. [`add`](Self::add) takes functions too; here the
    /// compiler knows the type of the closure's argument.
    #[must_use]
    pub fn add_fn(self, function: impl Fn(&Array) -> Result<Array> + 'static) -> Self {
        self.add(Function(function))
    }

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The output of the last layer.
    ///
    /// # Errors
    /// The error of a layer.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let layers = self.layers.iter();
        layers
            .clone()
            .try_fold(x.clone(), |x, layer| layer.forward(&x))
    }
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.layers.iter().map(|layer| layer.type_name());
        f.debug_list().entries(names).finish()
    }
}

/// A function as a layer.
struct Function<F>(F);

impl<F> Module for Function<F> {
    fn visit(&self, _path: &mut Path, _v: &mut dyn Visit) -> Result<()> {
        Ok(())
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)
    }
}

impl<F: Fn(&Array) -> Result<Array>> Layer for Function<F> {
    fn forward(&self, x: &Array) -> Result<Array> {
        self.0(x)
    }
}

/// The input, unchanged.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::Identity;
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// assert_eq!(Identity.forward(&x)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity;

impl Identity {
    /// `x`
    ///
    /// # Errors
    /// This function never fails.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        Ok(x.clone())
    }
}

crate::module!(Identity {});
layer!(Identity;);
