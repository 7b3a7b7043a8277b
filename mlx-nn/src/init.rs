//! Initial values of parameters, for training from scratch.
//!
//! ```
//! use mlx_core::{DType, Result, random};
//! use mlx_nn::{Linear, Module, init};
//!
//! # fn main() -> Result<()> {
//! random::seed(7);
//! // Another distribution for the parameters of a layer; `init::initialise` does all by their kinds.
//! let mut layer = Linear::new(64, 64, false)?;
//! let drawn = init::orthogonal();
//! layer.update(&[("weight".to_owned(), drawn.draw(&[64, 64])?)].into())?;
//! let weight = layer.parameters()["weight"].clone();
//! let identity = mlx_core::eye(64, DType::F32)?;
//! assert!(weight.matmul(&weight.t()?)?.allclose_with(&identity, 1e-4, 1e-4, false)?.item::<bool>()?);
//! # Ok(())
//! # }
//! ```

use mlx_core::{Array, DType, Error, ErrorKind, Result, ops, random};

use crate::module::{Module, Param, Path, VisitMut};

mod initializer;

pub(crate) use initializer::drawn_uniform;
pub use initializer::{
    Fan, Initializer, constant, glorot_normal, glorot_uniform, he_normal, he_uniform, identity,
    normal, orthogonal, sparse, uniform,
};

/// How a parameter is initialised. The layer that owns the parameter chooses, because the shape
/// does not determine it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// All elements are equal: biases, and norm weights, which start at the value that multiplies by 1.
    Constant(f32),
    /// A bias of a linear layer: zeros. [`draw`] makes it uniform in ±inputs^-1/2.
    Bias {
        /// The number of inputs of the layer.
        inputs: i32,
    },
    /// A matrix `[.., out, in]`: normal with a standard deviation of `in^-1/2`, so that a product has the magnitude of
    /// its input (LeCun et al. 1998, "Efficient BackProp"). [`draw`] makes it uniform in ±in^-1/2.
    Matrix,
    /// Normal with this standard deviation.
    Normal(f32),
    /// The logarithm of a number that is uniform between 0 and this value.
    LogUniform(f32),
    /// Rows of a table `[V, E]`: normal, with the standard deviation that is passed to
    /// [`initialise`], or E^-1/2 by [`draw`].
    Embedding,
}

/// Gives every parameter of `module` its initial value, in F32, drawn from `seed`, and evaluates
/// them. Buffers keep their values. The same seed gives the same values on every machine's CPU. `embedding` is the standard
/// deviation of embeddings; config.json calls it `initializer_range`.
///
/// ```
/// use mlx_core::Result;
/// use mlx_nn::{Linear, init::initialise};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::empty(400, 300, true)?;
/// initialise(&mut layer, 7, 0.02)?;
/// let spread = layer.weight().dense(None)?.square()?.mean(.., false)?.item::<f32>()?;
/// assert!((spread * 400.0 - 1.0).abs() < 0.02);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// No memory.
pub fn initialise<M: Module + ?Sized>(module: &mut M, seed: u64, embedding: f32) -> Result<()> {
    struct Draw {
        key: random::Key,
        embedding: f32,
        values: Vec<Array>,
    }
    impl Draw {
        fn normal(&mut self, shape: &[i32], deviation: f32) -> Result<Array> {
            let [now, later] = self.key.split()?;
            self.key = later;
            random::normal_with(&now, shape, DType::F32, 0.0, deviation)
        }
    }
    impl VisitMut for Draw {
        fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
            let shape = param.shape().to_vec();
            let value = match param.initial() {
                Initial::Constant(value) => ops::create::full(&shape, value, DType::F32)?,
                Initial::Bias { .. } => ops::create::zeros(&shape, DType::F32)?,
                Initial::Matrix => {
                    let inputs = shape.last().copied().unwrap_or(1).max(1);
                    self.normal(&shape, (inputs as f32).powf(-0.5))?
                }
                Initial::Normal(deviation) => self.normal(&shape, deviation)?,
                Initial::LogUniform(most) => {
                    let [now, later] = self.key.split()?;
                    self.key = later;
                    random::uniform(&now, 1e-3, most, &shape, DType::F32)?.log()?
                }
                Initial::Embedding => self.normal(&shape, self.embedding)?,
            };
            self.values.push(value.clone());
            param.set(value);
            Ok(())
        }

        /// Buffers keep the values that their modules gave them.
        fn state(&mut self, _path: &Path, _state: &mut Array) -> Result<()> {
            Ok(())
        }
    }
    let mut draw = Draw {
        key: random::Key::new(seed)?,
        embedding,
        values: Vec::new(),
    };
    module.visit_mut(&mut Path::default(), &mut draw)?;
    mlx_core::eval(&draw.values)
}

/// Gives every parameter of `module` that has no value the value that MLX's Python draws for it, in
/// F32, with the thread's keys ([`random::seed`]), and makes it trainable. The values are lazy.
///
/// ```
/// use mlx_core::{Result, random};
/// use mlx_nn::{Activation, GatedMlp, Module, init};
///
/// # fn main() -> Result<()> {
/// random::seed(7);
/// let mut mlp = GatedMlp::empty(8, 32, false, Activation::Silu)?;
/// init::draw(&mut mlp)?;
/// assert_eq!(mlp.trainable_parameters().len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A parameter has an axis that is not positive, or no memory.
pub fn draw<M: Module + ?Sized>(module: &mut M) -> Result<()> {
    struct Draw;
    impl VisitMut for Draw {
        fn param(&mut self, path: &Path, param: &mut Param) -> Result<()> {
            if param.is_filled() {
                return Ok(());
            }
            let shape = param.shape();
            if let Some(axis) = shape.iter().find(|&&axis| axis < 1) {
                let message = format!("{} {shape:?}: an axis of {axis}", path.as_str());
                return Err(Error::new(ErrorKind::Shape, message));
            }
            let value = start(shape, param.initial());
            param.set(value.map_err(|error| error.context(path.as_str()))?);
            param.trainable = true;
            Ok(())
        }
    }
    module.visit_mut(&mut Path::default(), &mut Draw)
}

/// The module, after [`draw`] has set its values.
pub(crate) fn drawn<M: Module>(mut module: M) -> Result<M> {
    draw(&mut module)?;
    Ok(module)
}

/// The value with which a parameter starts in MLX's Python.
fn start(shape: &[i32], initial: Initial) -> Result<Array> {
    // Python computes the bound in F64.
    let bound = |inputs: i32| (1.0 / f64::from(inputs)).sqrt() as f32;
    let uniform = |most: f32| random::uniform(None, -most, most, shape, DType::F32);
    let normal = |spread: f32| random::normal_with(None, shape, DType::F32, 0.0, spread);
    let last = shape.last().copied().unwrap_or(1);
    match initial {
        Initial::Constant(value) => ops::create::full(shape, value, DType::F32),
        Initial::Bias { inputs } => uniform(bound(inputs)),
        Initial::Matrix => uniform(bound(last)),
        Initial::Normal(deviation) => normal(deviation),
        Initial::LogUniform(most) => random::uniform(None, 1e-3, most, shape, DType::F32)?.log(),
        Initial::Embedding => normal(bound(last)),
    }
}
