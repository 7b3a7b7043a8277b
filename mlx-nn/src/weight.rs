//! [`Weight`]: a matrix, dense or packed, that linear layers, embeddings and experts share.

use mlx_core::{Array, DType, Error, ErrorKind, QuantMode, Result, Scheme, fast, ops::quantize};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};

/// A matrix `[.., out, in]`, dense or quantised; experts stack their matrices along a first axis.
#[derive(Clone, Debug)]
pub enum Weight {
    /// `weight`, floating point.
    Dense(Param),
    /// `weight` (packed, U32), `scales` and, for affine schemes, `biases`.
    Quantized {
        /// `[.., out, in * bits / 32]`
        packed: Param,
        /// `[.., out, in / group_size]`
        scales: Param,
        /// `[.., out, in / group_size]`
        biases: Option<Param>,
        /// How the elements are packed.
        scheme: Scheme,
    },
}

impl Weight {
    /// A dense matrix without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(shape: &[i32]) -> Result<Self> {
        let weight = Param::starting(shape, Initial::Matrix)?;
        Ok(Self::Dense(weight.called("weight")))
    }

    /// A quantised matrix without values, for a dense matrix of `shape`, `[.., out, in]`.
    ///
    /// # Errors
    /// `in` is not a multiple of the group size.
    pub fn quantized_like(shape: &[i32], scheme: Scheme) -> Result<Self> {
        let (&inputs, rest) = shape.split_last().expect("a matrix has dimensions");
        if inputs % scheme.group_size != 0 || inputs * scheme.bits % 32 != 0 {
            return Err(Error::new(
                ErrorKind::Shape,
                format!("{inputs} inputs cannot be packed with {scheme}"),
            ));
        }
        let last = |n: i32| [rest, &[n]].concat();
        let groups = last(inputs / scheme.group_size);
        Ok(Self::Quantized {
            packed: Param::empty(&last(inputs * scheme.bits / 32))?.called("weight"),
            scales: Param::empty(&groups)?.called("scales"),
            biases: match scheme.mode.has_biases() {
                true => Some(Param::empty(&groups)?.called("biases")),
                false => None,
            },
            scheme,
        })
    }

    /// The shape of the dense matrix: `[.., out, in]`.
    pub fn shape(&self) -> Vec<i32> {
        match self {
            Self::Dense(weight) => weight.shape().to_vec(),
            Self::Quantized { packed, scheme, .. } => {
                let mut shape = packed.shape().to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = *last * 32 / scheme.bits;
                }
                shape
            }
        }
    }

    /// The dtype of the dense matrix or of the scales; `None` if the scales are bytes.
    pub fn dtype(&self) -> Option<DType> {
        let param = match self {
            Self::Dense(weight) => weight,
            Self::Quantized { scales, .. } => scales,
        };
        Some(param.value().dtype()).filter(|dtype| dtype.is_float())
    }

    /// Whether all arrays of the matrix have values.
    pub(crate) fn is_filled(&self) -> bool {
        self.check().is_ok()
    }

    /// Refuses a matrix without values.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Dense(weight) => weight.get()?,
            Self::Quantized {
                packed,
                scales,
                biases,
                ..
            } => {
                biases.as_ref().map(Param::get).transpose()?;
                packed.get()?;
                scales.get()?
            }
        };
        Ok(())
    }

    /// The matrix in the form that fused operations take.
    ///
    /// # Errors
    /// The matrix has no values.
    pub(crate) fn matrix(&self) -> Result<fast::Matrix<'_>> {
        self.check()?;
        Ok(self.parts())
    }

    /// [`matrix`](Self::matrix) of a matrix whose values have been [checked](Self::check).
    pub(crate) fn parts(&self) -> fast::Matrix<'_> {
        match self {
            Self::Dense(weight) => fast::Matrix::Dense(weight.value()),
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => fast::Matrix::Quantized {
                packed: packed.value(),
                scales: scales.value(),
                biases: biases.as_ref().map(Param::value),
                scheme: *scheme,
            },
        }
    }

    /// `x @ weight.T`: `[.., in] -> [.., out]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn project(&self, x: &Array) -> Result<Array> {
        self.check()?;
        match self {
            Self::Dense(weight) => fast::linear(x, weight.value()),
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => fast::quantized_linear(
                x,
                packed.value(),
                scales.value(),
                biases.as_ref().map(Param::value),
                *scheme,
            ),
        }
    }

    /// `x @ weight[expert].T` for the expert that `indices` names: `[.., 1, in] -> [.., 1, out]`,
    /// where `indices` has `x`'s leading dimensions after broadcasting.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn project_experts(&self, x: &Array, indices: &Array) -> Result<Array> {
        self.check()?;
        match self {
            Self::Dense(weight) => fast::experts_linear(x, weight.value(), indices),
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => fast::quantized_experts_linear(
                x,
                packed.value(),
                scales.value(),
                biases.as_ref().map(Param::value),
                indices,
                *scheme,
            ),
        }
    }

    /// Rows of the matrix, dequantised, in `dtype` or the matrix's dtype:
    /// `indices [..] -> [.., in]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn rows(&self, indices: &Array, dtype: Option<DType>) -> Result<Array> {
        self.check()?;
        match self {
            Self::Dense(weight) => {
                let rows = fast::rows(weight.value(), indices)?;
                match dtype {
                    Some(dtype) => rows.astype(dtype),
                    None => Ok(rows),
                }
            }
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => {
                // The scales of floating-point modes are bytes; MLX dequantises such matrices to BF16.
                let own = match scheme.mode {
                    QuantMode::Affine => scales.value().dtype(),
                    _ => DType::BF16,
                };
                fast::quantized_rows(
                    packed.value(),
                    scales.value(),
                    biases.as_ref().map(Param::value),
                    indices,
                    *scheme,
                    dtype.unwrap_or(own),
                )
            }
        }
    }

    /// The dense matrix, in `dtype` or its own dtype.
    ///
    /// # Errors
    /// The arrays do not fit each other.
    pub fn dense(&self, dtype: Option<DType>) -> Result<Array> {
        self.check()?;
        match self {
            Self::Dense(weight) => match dtype {
                Some(dtype) => weight.value().astype(dtype),
                None => Ok(weight.value().clone()),
            },
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme,
            } => quantize::dequantize_with(
                packed.value(),
                scales.value(),
                biases.as_ref().map(Param::value),
                *scheme,
                dtype,
            ),
        }
    }
}

impl Module for Weight {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        v.weight(path, self)?;
        match self {
            Self::Dense(weight) => path.scoped("weight", |path| weight.visit(path, v)),
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme: _,
            } => {
                path.scoped("weight", |path| packed.visit(path, v))?;
                path.scoped("scales", |path| scales.visit(path, v))?;
                path.scoped("biases", |path| biases.visit(path, v))
            }
        }
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.weight(path, self)?;
        match self {
            Self::Dense(weight) => path.scoped("weight", |path| weight.visit_mut(path, v)),
            Self::Quantized {
                packed,
                scales,
                biases,
                scheme: _,
            } => {
                path.scoped("weight", |path| packed.visit_mut(path, v))?;
                path.scoped("scales", |path| scales.visit_mut(path, v))?;
                path.scoped("biases", |path| biases.visit_mut(path, v))
            }
        }
    }
}
