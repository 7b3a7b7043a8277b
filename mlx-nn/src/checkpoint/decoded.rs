//! [`Decoded`]: tensors that are computed from those of the files.

use std::collections::BTreeSet;

use mlx_core::{Array, DType, Result};

/// Tensors that replace the tensors of a format that no module can hold.
#[derive(Default)]
pub struct Decoded {
    /// The tensors.
    pub made: Vec<Made>,
    /// Published names of tensors that are parts of these, or have no effect.
    pub hidden: BTreeSet<String>,
}

impl Decoded {
    pub(super) fn hides(&self, name: &str) -> bool {
        self.hidden.contains(name)
    }
}

/// Computes a tensor from others.
pub type Make = dyn Fn(&[Array]) -> Result<Array>;

/// A tensor that is computed from those of the files.
pub struct Made {
    /// Its published name, to which rules apply.
    pub name: String,
    /// Published names of the tensors that it is made of; none if it comes from no file.
    pub of: Vec<String>,
    /// Its dtype.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<i32>,
    /// Whether scales or biases keep their dtype when the model is converted to 16 bits.
    pub keeps: bool,
    /// Computes it from the arrays of `of`.
    pub make: Box<Make>,
}
