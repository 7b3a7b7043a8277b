//! Inputs of the benchmarks of kernels, and the work of a kernel.

use mlx_core::fast::Matrix;
use mlx_core::ops::quantize::{self, QuantMode, Quantized, Scheme};
use mlx_core::{Array, DType, Result, random};

/// The work of one run of a kernel.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes that must be read and written, each counted once.
    pub bytes: f64,
}

impl Amount {
    /// Arrays that are read or written once, and this many operations for each number of the first.
    pub fn elementwise(arrays: &[&Array], operations: f64) -> Self {
        Self {
            operations: operations * arrays[0].size() as f64,
            bytes: arrays.iter().map(|array| array.nbytes() as f64).sum(),
        }
    }
}

/// Random numbers, evaluated.
pub fn normal(shape: &[i32], dtype: DType) -> Result<Array> {
    let array = random::normal(&random::Key::new(7)?, shape, DType::F32)?;
    let array = array.astype(dtype)?;
    mlx_core::eval([&array])?;
    Ok(array)
}

pub fn affine(bits: i32) -> Scheme {
    Scheme {
        mode: QuantMode::Affine,
        bits,
        group_size: 64,
    }
}

/// A quantised matrix, evaluated, and its bytes.
pub fn quantized(shape: &[i32], scheme: Scheme) -> Result<(Quantized, usize)> {
    let weight = quantize::quantize_with(&normal(shape, DType::BF16)?, scheme)?;
    let biases = weight.biases.as_ref();
    let parts = [Some(&weight.packed), Some(&weight.scales), biases];
    mlx_core::eval(parts.into_iter().flatten())?;
    let bytes = parts.into_iter().flatten().map(Array::nbytes).sum();
    Ok((weight, bytes))
}

pub fn matrix(w: &Quantized, scheme: Scheme) -> Matrix<'_> {
    Matrix::Quantized {
        packed: &w.packed,
        scales: &w.scales,
        biases: w.biases.as_ref(),
        scheme,
    }
}

/// The product of `[m, k]` and a matrix `[n, k]` of this many bytes.
pub fn product(m: i32, n: i32, k: i32, dtype: DType, weight: usize) -> Amount {
    Amount {
        operations: 2.0 * f64::from(m) * f64::from(n) * f64::from(k),
        bytes: (weight + (m * (n + k)) as usize * dtype.size()) as f64,
    }
}
