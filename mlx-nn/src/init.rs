//! Initial values of parameters, for training from scratch.

use mlx_core::{Array, DType, Result, ops, random};

use crate::module::{Module, Param, Path, VisitMut};

/// How a parameter is initialised. The layer that owns it says so, because the shape does not tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// All elements are equal: biases, and norm weights, which start at the value that multiplies by 1.
    Constant(f32),
    /// A matrix `[.., out, in]`: normal with a standard deviation of `in^-1/2`, so that a product has the magnitude of
    /// its input (LeCun et al. 1998, "Efficient BackProp").
    Matrix,
    /// Normal with this standard deviation.
    Normal(f32),
    /// The logarithm of a number that is uniform between 0 and this value.
    LogUniform(f32),
    /// Rows of a table: normal, with the standard deviation that is passed to [`initialise`].
    Embedding,
}

/// Gives every parameter of `module` its initial value, in F32, drawn from `seed`, and evaluates them. The same seed gives the same values
/// on every machine's CPU. `embedding` is the standard deviation of embeddings; config.json calls it
/// `initializer_range`.
///
/// ```
/// use mlx_core::Result;
/// use mlx_nn::{Linear, init::initialise};
///
/// # fn main() -> Result<()> {
/// let mut layer = Linear::new(400, 300, true)?;
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
            let [now, later] = self.key.split_pair()?;
            self.key = later;
            random::normal(&now, shape, DType::F32, 0.0, deviation)
        }
    }
    impl VisitMut for Draw {
        fn param(&mut self, _path: &Path, param: &mut Param) -> Result<()> {
            let shape = param.shape().to_vec();
            let value = match param.initial() {
                Initial::Constant(value) => ops::create::full(&shape, value, DType::F32)?,
                Initial::Matrix => {
                    let inputs = shape.last().copied().unwrap_or(1).max(1);
                    self.normal(&shape, (inputs as f32).powf(-0.5))?
                }
                Initial::Normal(deviation) => self.normal(&shape, deviation)?,
                Initial::LogUniform(most) => {
                    let [now, later] = self.key.split_pair()?;
                    self.key = later;
                    random::uniform(&now, &shape, DType::F32, 1e-3, most)?.log()?
                }
                Initial::Embedding => self.normal(&shape, self.embedding)?,
            };
            self.values.push(value.clone());
            param.set(value);
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
