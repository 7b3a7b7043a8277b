//! Function transforms: derivatives, vectorisation, recomputation, compilation.
//!
//! A function here is a Rust closure from arrays to arrays. Where MLX calls it before the transform
//! returns ([`vjp`], [`jvp`], [`value_and_grad`], [`vmap`]) it may borrow from its surroundings;
//! where MLX keeps it ([`checkpoint`], [`custom_vjp`], [`Compiled`]) it is `'static`.
//!
//! An error that the closure returns is the error of the transform. A panic inside resumes after
//! MLX's own frames are gone.
//!
//! Derivatives are taken with respect to the arguments only. What a closure captures is a constant.

mod checkpoint;
pub mod compile;
mod custom;
mod grad;
mod vmap;

pub use checkpoint::checkpoint;
pub use compile::Compiled;
pub(crate) use custom::check_derivatives;
pub use custom::custom_vjp;
pub use grad::{grad, jvp, value_and_grad, vjp};
pub use vmap::vmap;

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
