//! Function transforms: derivatives, vectorisation, recomputation, compilation.
//!
//! A transform takes a function of one to eight references to arrays, or to slices, tuples and maps of arrays ([`Tree`]), and
//! gives another function of them:
//!
//! ```
//! use mlx_core::{Array, grad, value_and_grad};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let (x, y) = (Array::scalar(3.0f32)?, Array::scalar(4.0f32)?);
//! let df = grad(|x: &Array| x.square()?.sum_all());
//! assert_eq!(df(&x)?.item::<f32>()?, 6.0);
//! let vdf = value_and_grad(|x: &Array, y: &Array| x.multiply(y)?.sum_all());
//! let (v, dx) = vdf(&x, &y)?;
//! assert_eq!((v.item::<f32>()?, dx.item::<f32>()?), (12.0, 4.0));
//! # Ok(())
//! # }
//! ```
//!
//! The forms `NAME_with` take a function of a slice that returns a vector, and its arguments; [`Compiled`] keeps one. Where
//! MLX calls the function before the transform returns it may borrow from its surroundings; where MLX keeps it
//! (checkpoints, custom derivatives, compilation) it is `'static`.
//!
//! An error that the closure returns is the error of the transform. A panic inside resumes after
//! MLX's own frames are gone.
//!
//! Derivatives are taken with respect to the arguments only. What a closure captures is a constant.

mod checkpoint;
pub mod compile;
mod compile_of;
mod custom;
mod custom_of;
mod function;
mod grad;
mod grad_of;
mod push_pull;
mod tree;
mod vmap;
mod vmap_of;

pub use checkpoint::checkpoint_with;
pub use compile::Compiled;
pub use compile_of::{Compile, compile};
pub(crate) use custom::check_derivatives;
pub use custom::custom_vjp_with;
pub use custom_of::{Custom, checkpoint, custom_function, custom_vjp};
pub use function::{
    Differentiable, Function, Inputs, Output, Run, Signature, Transformed, Uniform,
};
pub use grad::{grad_with, jvp_with, value_and_grad_with, vjp_with};
pub use grad_of::{Argnums, First, Grad, ValueAndGrad, grad, value_and_grad};
pub use push_pull::{jvp, vjp};
pub use tree::{Structure, Tree};
pub(crate) use vmap::is_mapping;
pub use vmap::vmap_with;
pub use vmap_of::{Mapped, Vmap, vmap};

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// MLX reads the first output of some functions without checking that there is one.
fn not_empty(transform: &str, outputs: Vec<Array>) -> Result<Vec<Array>> {
    if outputs.is_empty() {
        let message =
            format!("{transform} needs a function that returns at least one array, found none");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(outputs)
}
