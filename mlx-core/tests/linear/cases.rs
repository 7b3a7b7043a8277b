//! Matrices in every stored form, each with its product.

use mlx_core::fast::{self, Matrix};
use mlx_core::ops::quantize::{QuantMode, Quantized, Scheme, dequantize_with, quantize_with};
use mlx_core::random::{self, Key};
use mlx_core::{Array, DType, Result};

use super::kernels_are_off;

pub fn normal(seed: u64, shape: &[i32], dtype: DType) -> Result<Array> {
    random::normal(&Key::new(seed)?, shape, DType::F32)?.astype(dtype)
}

pub fn schemes() -> Vec<Scheme> {
    let mut schemes = Vec::new();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            schemes.push(Scheme::new(group, bits, QuantMode::Affine).unwrap());
        }
    }
    for mode in [QuantMode::Mxfp4, QuantMode::Mxfp8, QuantMode::Nvfp4] {
        schemes.push(Scheme::default_of(mode));
    }
    schemes
}

/// None for a dense matrix, and one scheme for each way of reading codes.
pub fn some_schemes() -> Result<[Option<Scheme>; 5]> {
    let affine = |bits, group| Scheme::new(group, bits, QuantMode::Affine).map(Some);
    Ok([
        None,
        affine(4, 64)?,
        affine(8, 32)?,
        affine(3, 64)?,
        Some(Scheme::default_of(QuantMode::Mxfp4)),
    ])
}

/// A matrix `[n, k]` by which `x` is multiplied.
pub struct Weights {
    parts: Quantized,
    scheme: Option<Scheme>,
}

impl Weights {
    pub fn new(x: &Array, seed: u64, n: i32, scheme: Option<Scheme>) -> Result<Self> {
        let w = normal(seed, &[n, x.dim(-1)?], x.dtype())?;
        let parts = match scheme {
            Some(scheme) => quantize_with(&w, scheme)?,
            None => Quantized {
                packed: w.clone(),
                scales: w,
                biases: None,
            },
        };
        Ok(Self { parts, scheme })
    }

    pub fn matrix(&self) -> Matrix<'_> {
        let Quantized {
            packed,
            scales,
            biases,
        } = &self.parts;
        match self.scheme {
            Some(scheme) => Matrix::Quantized {
                packed,
                scales,
                biases: biases.as_ref(),
                scheme,
            },
            None => Matrix::Dense(packed),
        }
    }

    /// The product by the function that multiplies by one matrix.
    pub fn product(&self, x: &Array) -> Result<Array> {
        match self.matrix() {
            Matrix::Dense(w) => fast::linear(x, w),
            Matrix::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => fast::quantized_linear(x, packed, scales, biases, scheme),
        }
    }
}

pub type Product = Box<dyn Fn(&Array) -> Result<Array>>;

/// A matrix, and the numbers of which its product is made.
pub struct Case {
    pub name: String,
    /// The `[n, k]` numbers of the matrix.
    pub wide: Array,
    /// The numbers before they are rounded to x's type, where codes are multiplied as integers: on some instruction
    /// sets and for few rows of x.
    pub exact: Option<Array>,
    /// Whether few rows of x are multiplied by another kernel than many, also on instruction sets without tiles.
    pub is_apart_if_few: bool,
    pub product: Product,
}

/// Up to this many rows of x in 16 bits have their own kernel: on tiles for all packed weights, without tiles for nvfp4
/// and mxfp8.
pub const FEW: i32 = 4;
/// On tiles, up to this many rows have another kernel.
pub const SOME: i32 = 8;

pub fn dense(dtype: DType, n: i32, k: i32) -> Result<Case> {
    let w = normal(2, &[n, k], dtype)?;
    Ok(Case {
        name: format!("{dtype} [{n}, {k}]"),
        wide: w.astype(DType::F32)?,
        exact: None,
        is_apart_if_few: false,
        product: Box::new(move |x| fast::linear(x, &w)),
    })
}

pub fn packed(scheme: Scheme, dtype: DType, n: i32, k: i32) -> Result<Case> {
    let parts = quantize_with(&normal(3, &[n, k], dtype)?, scheme)?;
    let (scales, biases) = (parts.scales.clone(), parts.biases.clone());
    // In F32 and rounded once, whereas MLX rounds after each operation.
    let exact = |array: &Array| match scheme.mode {
        QuantMode::Affine => array.astype(DType::F32),
        _ => Ok(array.clone()),
    };
    let biases32 = biases.as_ref().map(exact).transpose()?;
    let mut wide = dequantize_with(
        &parts.packed,
        &exact(&scales)?,
        biases32.as_ref(),
        scheme,
        Some(DType::F32),
    )?;
    let exact = (dtype != DType::F32).then(|| wide.clone());
    if dtype == DType::BF16 {
        wide = wide.astype(dtype)?.astype(DType::F32)?;
    }
    Ok(Case {
        name: format!("{scheme} in {dtype} [{n}, {k}]"),
        wide,
        exact,
        is_apart_if_few: dtype != DType::F32
            && matches!(scheme.mode, QuantMode::Mxfp8 | QuantMode::Nvfp4),
        product: Box::new(move |x| {
            fast::quantized_linear(x, &parts.packed, &scales, biases.as_ref(), scheme)
        }),
    })
}

/// Sizes with remainders of all kinds: of blocks of 16, 32, 48 and 64 rows, and of 32 to 512 elements.
pub fn cases(dtype: DType) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (n, k) in [(1, 1), (5, 33), (64, 64), (70, 96), (130, 1100), (300, 520)] {
        cases.push(dense(dtype, n, k)?);
    }
    // MLX's own operations multiply by packed weights number by number, whatever the sizes.
    let shapes = [(3, 1), (70, 5), (200, 11)];
    let shapes = if kernels_are_off() {
        &shapes[..2]
    } else {
        &shapes
    };
    for scheme in schemes() {
        for &(n, groups) in shapes {
            cases.push(packed(
                scheme,
                dtype,
                n,
                groups * scheme.group_size.max(32),
            )?);
        }
    }
    if kernels_are_off() {
        return Ok(cases);
    }
    cases.push(packed(
        Scheme::default_of(QuantMode::Affine),
        dtype,
        150,
        1152,
    )?);
    // Long rows, of which a task has hundreds.
    for bits in [4, 8] {
        let scheme = Scheme::new(64, bits, QuantMode::Affine)?;
        cases.push(packed(scheme, dtype, 560, 37 * 64)?);
    }
    Ok(cases)
}
