//! Matrices of -1, 0 and 1 with one scale (BitNet b1.58, arXiv:2402.17764): from the published
//! forms to packed codes of 2 bits, and back.
//!
//! A code is the number plus 1, so that affine codes with the scale s and the bias -s represent the matrix exactly.

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Error, ErrorKind, QuantMode, Result, Scheme};

/// Codes in a byte.
const CODES: i32 = 4;

/// The form in which a checkpoint stores a matrix of -1, 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TernaryForm {
    /// `weight` has four codes in a byte, U8 `[out / 4, in]`. Code k of byte row r is of matrix row
    /// `k · out / 4 + r`. The scale is `weight_scale`.
    Packed {
        /// Products are divided by `weight_scale`, not multiplied.
        divides: bool,
    },
    /// `weight` has floating-point numbers that are rounded to the nearest ternary matrix. The
    /// scale is the mean of their absolute values.
    Dense,
}

/// One matrix: its path, shape and form in the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    pub path: String,
    pub shape: [i32; 2],
    pub form: TernaryForm,
    /// The inverse rule: from packed codes to the published form.
    pub back: bool,
}

impl Matrix {
    /// The names of the tensors that the rule changes.
    pub fn sources(&self) -> Vec<String> {
        let names: &[&str] = match (self.back, self.form) {
            (true, _) => &["weight", "scales", "biases"],
            (false, TernaryForm::Packed { .. }) => &["weight", "weight_scale"],
            (false, TernaryForm::Dense) => &["weight"],
        };
        names
            .iter()
            .map(|name| format!("{}.{name}", self.path))
            .collect()
    }

    /// The names and changes of the tensors that are made from source `at`.
    pub fn made(&self, at: usize) -> Vec<(String, TernaryChange)> {
        let grid = |negative: bool, form: TernaryForm| TernaryChange::Grid {
            shape: self.shape,
            negative,
            form,
        };
        let made: Vec<(&str, TernaryChange)> = match (self.back, self.form, at) {
            (true, _, 0) => vec![("weight", TernaryChange::Bytes)],
            (true, _, 1) => vec![("weight_scale", TernaryChange::One)],
            // Biases follow from scales.
            (true, _, _) => Vec::new(),
            (false, TernaryForm::Packed { .. }, 0) => vec![("weight", TernaryChange::Words)],
            (false, form, at) => {
                let codes = (at == 0).then_some(("weight", TernaryChange::Nearest(self.shape)));
                let grids = [("scales", grid(false, form)), ("biases", grid(true, form))];
                codes.into_iter().chain(grids).collect()
            }
        };
        let path = |(name, change)| (format!("{}.{name}", self.path), change);
        made.into_iter().map(path).collect()
    }
}

/// The scheme that packs a ternary matrix `[.., inputs]`.
///
/// # Errors
/// `inputs` is not a positive multiple of 32.
pub fn ternary_scheme(inputs: i32) -> Result<Scheme> {
    let sizes = [128, 64, 32];
    let fits = |group: &i32| inputs > 0 && inputs % group == 0;
    let Some(group) = sizes.into_iter().find(fits) else {
        let message = format!("a ternary matrix needs a multiple of 32 inputs, found {inputs}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    };
    Scheme::new(group, 2, QuantMode::Affine)
}

/// A change of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TernaryChange {
    /// Published codes are packed into words along the inputs.
    Words,
    /// Words become published codes.
    Bytes,
    /// The codes of the nearest ternary matrix.
    Nearest([i32; 2]),
    /// The scale, or its negative, of each group of a matrix of this shape.
    Grid {
        shape: [i32; 2],
        negative: bool,
        form: TernaryForm,
    },
    /// The single number that all scales are equal to.
    One,
}

impl TernaryChange {
    /// The shape after the change; the error is the reason why there is none.
    pub fn shape(self, dtype: DType, shape: &[i32]) -> Result<Vec<i32>, String> {
        let wrong = |what: &str| Err(format!("{shape:?} {dtype} {what}"));
        match (self, shape) {
            (Self::Words, &[rows, inputs]) if dtype == DType::U8 && inputs % 16 == 0 => {
                match rows.checked_mul(CODES) {
                    Some(rows) => Ok(vec![rows, inputs / 16]),
                    None => wrong("has too many rows"),
                }
            }
            (Self::Words, _) => wrong("is not a matrix of bytes of ternary codes"),
            (Self::Bytes, &[rows, words]) if dtype == DType::U32 && rows % CODES == 0 => {
                Ok(vec![rows / CODES, words * 16])
            }
            (Self::Bytes, _) => wrong("is not a matrix of words of ternary codes"),
            (Self::One, [_, _]) => Ok(vec![1]),
            (Self::One, _) => wrong("is not a matrix of scales"),
            (Self::Nearest(of), found) if found == of && dtype.is_float() => {
                Ok(vec![of[0], of[1] / 16])
            }
            (
                Self::Grid {
                    shape: of, form, ..
                },
                found,
            ) => {
                let fits = match form {
                    TernaryForm::Packed { .. } => found.iter().all(|&n| n == 1),
                    TernaryForm::Dense => found == of,
                };
                match ternary_scheme(of[1]) {
                    Ok(scheme) if fits && dtype.is_float() => {
                        Ok(vec![of[0], of[1] / scheme.group_size])
                    }
                    Ok(_) => wrong("is not the scale of a ternary matrix"),
                    Err(error) => Err(error.to_string()),
                }
            }
            (Self::Nearest(_), _) => wrong("is not a dense matrix of the expected shape"),
        }
    }

    /// The tensor after the change, which must fit its shape.
    pub fn of(self, array: &Array) -> Result<Array> {
        match self {
            Self::Words => {
                let rows = (0..CODES).map(|at| code(array, at));
                words(&concat(&rows.collect::<Result<Vec<_>>>()?, 0)?)
            }
            Self::Bytes => {
                let [rows, _] = array.dims()?;
                let bytes = array.contiguous()?.view(DType::U8)?;
                let codes = (0..CODES).map(|at| code(&bytes, at)?.expand_dims(-1));
                let codes = concat(&codes.collect::<Result<Vec<_>>>()?, -1)?;
                joined(&codes.reshape(&[CODES, rows / CODES, -1])?, 0)
            }
            Self::Nearest(_) => {
                let wide = array.astype(DType::F32)?;
                let nearest = wide.multiply(inverse_mean(&wide)?)?.round()?;
                words(&nearest.clip(-1.0, 1.0)?.add(1.0)?.astype(DType::U8)?)
            }
            Self::Grid {
                shape: [outputs, inputs],
                negative,
                form,
            } => {
                let wide = array.astype(DType::F32)?;
                let scale = match form {
                    TernaryForm::Packed { divides: false } => wide.reshape(&[1])?,
                    TernaryForm::Packed { divides: true } => wide.reshape(&[1])?.reciprocal()?,
                    TernaryForm::Dense => inverse_mean(&wide)?.reciprocal()?,
                };
                let scale = if negative { scale.negative()? } else { scale };
                let groups = inputs / ternary_scheme(inputs)?.group_size;
                scale.broadcast_to(&[outputs, groups])?.contiguous()
            }
            Self::One => array.flatten()?.slice_axis(0, 0, 1),
        }
    }
}

/// The reciprocal of the mean of absolute values, and 1e5 if the mean is below 1e-5: `[1]`.
fn inverse_mean(wide: &Array) -> Result<Array> {
    let mean = wide.abs()?.flatten()?.mean(0, true)?;
    mean.maximum(1e-5)?.reciprocal()
}

/// Code number `at` of each byte, 0 for the lowest bits.
fn code(bytes: &Array, at: i32) -> Result<Array> {
    bytes.right_shift(2 * at)?.bitwise_and(3)
}

/// Bytes of the four codes along an axis of length 4. The first code has the lowest bits.
fn joined(codes: &Array, axis: i32) -> Result<Array> {
    let shifted = |at: i32| {
        let codes = codes.slice_axis(axis, at, at + 1)?.squeeze(axis)?;
        codes.left_shift(2 * at)
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(shifted);
    a?.bitwise_or(&b?)?.bitwise_or(&c?)?.bitwise_or(&d?)
}

/// Codes `[out, in]` as words `[out, in / 16]`.
fn words(codes: &Array) -> Result<Array> {
    let [outputs, inputs] = codes.dims()?;
    let groups = codes.reshape(&[outputs, inputs / CODES, CODES])?;
    joined(&groups, -1)?.contiguous()?.view(DType::U32)
}
