//! [`Weight`]: a matrix, dense or packed, that linear layers, embeddings and experts share.

use mlx_core::{
    Array, DType, Error, ErrorKind, QuantMode, Result, Scheme, fast, full, ops::quantize,
};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::shard::Cut;

/// The parts of a packed matrix in a checkpoint, beside those that follow from its scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub factor: bool,
    pub residues: bool,
    /// Scales and biases keep F32 in a model of 16 bits.
    pub wide: bool,
}

/// The code of 1 in E4M3.
const ONE: u8 = 0x38;

/// Refuses a factor for schemes other than nvfp4 and affine ones.
fn check_factor(scheme: Scheme) -> Result<()> {
    match scheme.mode {
        QuantMode::Nvfp4 | QuantMode::Affine => Ok(()),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{scheme} with a factor is not supported; known: nvfp4, affine"),
        )),
    }
}

/// The matrix `codes * (scales * factor)` in F32, for a `factor` `[.., out]`. MLX and ModelOpt
/// multiply the scales of nvfp4 by the factor first, which rounds differently.
fn with_factor(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    factor: &Array,
    scheme: Scheme,
) -> Result<Array> {
    let factor = factor.expand_dims(-1)?;
    let unpack = |scales: &Array| {
        quantize::dequantize_with(packed, scales, biases, scheme, Some(DType::F32))
    };
    match scheme.mode {
        QuantMode::Nvfp4 => {
            let codes = unpack(&full(scales.shape(), ONE, DType::U8)?)?;
            let scales = scales.from_fp8(DType::F32)?.multiply(factor)?;
            codes.multiply(scales.repeat(scheme.group_size, -1)?)
        }
        _ => unpack(scales)?.multiply(factor),
    }
}

/// The sums of the groups of `x`: `[.., in] -> [.., in / group_size]`. With residues they give what
/// the rounding of biases takes from a product.
fn group_sums(x: &Array, scheme: Scheme) -> Result<Array> {
    x.unflatten(-1, &[-1, scheme.group_size])?.sum(-1, false)
}

/// A matrix `[.., out, in]`, dense or quantised; experts stack their matrices along a first axis.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "a model has few matrices, and most are packed or large"
)]
pub enum Weight {
    /// `weight`, floating point.
    Dense(Param),
    /// `weight` (packed, U32), `scales`, for affine schemes `biases`, and for some matrices
    /// `factor` or `residues`.
    Quantized {
        /// `[.., out, in * bits / 32]`
        packed: Param,
        /// `[.., out, in / group_size]`
        scales: Param,
        /// `[.., out, in / group_size]`
        biases: Option<Param>,
        /// `[.., out]`, F32: each row of the matrix is multiplied by its number. Only of nvfp4,
        /// whose scales of 8 bits have a small range, and of affine schemes.
        factor: Option<Box<Param>>,
        /// `[.., out, in / group_size]`: what the biases, rounded to 16 bits, lack of their exact
        /// values. Only of affine schemes.
        residues: Option<Box<Param>>,
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
            factor: None,
            residues: None,
            scheme,
        })
    }

    /// [`quantized_like`](Self::quantized_like) with the parts that a checkpoint has.
    pub(crate) fn stored_like(shape: &[i32], scheme: Scheme, stored: Stored) -> Result<Self> {
        let mut weight = Self::quantized_like(shape, scheme)?;
        if let Self::Quantized {
            scales,
            biases,
            factor,
            residues,
            ..
        } = &mut weight
        {
            if stored.factor {
                check_factor(scheme)?;
                let rows = Param::empty(&shape[..shape.len() - 1])?;
                *factor = Some(Box::new(rows.called("factor").never_narrowed()));
            }
            if stored.residues {
                let groups = Param::empty(scales.shape())?;
                *residues = Some(Box::new(groups.called("residues")));
            }
            for part in [Some(scales), biases.as_mut()].into_iter().flatten() {
                if stored.wide {
                    *part = part.clone().never_narrowed();
                }
            }
        }
        Ok(weight)
    }

    /// Leaves only ranges of an axis of the matrix, `[.., out, in]`.
    ///
    /// # Errors
    /// The ranges of the last axis of a packed matrix are not whole groups.
    pub(crate) fn cut(&mut self, cut: &Cut) -> Result<()> {
        let is_last = cut.axis + 1 == self.shape().len();
        match self {
            Self::Dense(weight) => weight.cut(cut.clone()),
            Self::Quantized {
                packed,
                scales,
                biases,
                factor,
                residues,
                scheme,
            } => {
                let (words, groups) = match is_last {
                    true => (
                        cut.scaled(scheme.bits, 32)?,
                        cut.scaled(1, scheme.group_size)?,
                    ),
                    false => (cut.clone(), cut.clone()),
                };
                packed.cut(words)?;
                scales.cut(groups.clone())?;
                for part in [biases.as_mut(), residues.as_deref_mut()]
                    .into_iter()
                    .flatten()
                {
                    part.cut(groups.clone())?;
                }
                match factor {
                    Some(factor) if !is_last => factor.cut(cut.clone()),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The part of the matrix that this rank holds, if it does not hold all of it.
    pub(crate) fn held(&self) -> Result<Option<Cut>> {
        match self {
            Self::Dense(weight) => Ok(weight.held().cloned()),
            Self::Quantized { packed, scheme, .. } => {
                let is_last = |cut: &&Cut| cut.axis + 1 == packed.shape().len();
                match packed.held() {
                    Some(cut) if is_last(&cut) => cut.scaled(32, scheme.bits).map(Some),
                    cut => Ok(cut.cloned()),
                }
            }
        }
    }

    /// Whether a product with the matrix has more steps than one operation: `x` is converted to
    /// F32 first, the result is multiplied by factors, or a product with residues is added.
    pub(crate) fn has_steps(&self, x: DType) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::Quantized {
                factor, residues, ..
            } => factor.is_some() || residues.is_some() || self.is_wide(x),
        }
    }

    /// Whether `x` of this dtype is multiplied in F32: F32 biases would be rounded in 16 bits, and
    /// F16 cannot hold products that are still to be multiplied by a factor.
    fn is_wide(&self, x: DType) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::Quantized { biases, factor, .. } => {
                let biases = biases.as_ref().map(|biases| biases.value().dtype());
                x.size() < 4 && biases == Some(DType::F32) || x == DType::F16 && factor.is_some()
            }
        }
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
                factor,
                residues,
                ..
            } => {
                biases.as_ref().map(Param::get).transpose()?;
                factor.as_deref().map(Param::get).transpose()?;
                residues.as_deref().map(Param::get).transpose()?;
                packed.get()?;
                scales.get()?
            }
        };
        Ok(())
    }

    /// The matrix in the form that fused operations take. [`has_steps`](Self::has_steps) is false.
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
                factor: _,
                residues: _,
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
                factor,
                residues,
                scheme,
            } => {
                let y = self.in_steps(x, factor.as_deref().map(Param::value), |x| {
                    fast::quantized_linear(
                        x,
                        packed.value(),
                        scales.value(),
                        biases.as_ref().map(Param::value),
                        *scheme,
                    )
                })?;
                match residues {
                    Some(residues) => {
                        y.add(fast::linear(&group_sums(x, *scheme)?, residues.value())?)
                    }
                    None => Ok(y),
                }
            }
        }
    }

    /// `product(x)` with the steps around it ([`has_steps`](Self::has_steps)), in the dtype of `x`.
    fn in_steps(
        &self,
        x: &Array,
        factor: Option<&Array>,
        product: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        if !self.has_steps(x.dtype()) {
            return product(x);
        }
        let y = match self.is_wide(x.dtype()) {
            true => product(&x.astype(DType::F32)?)?,
            false => product(x)?,
        };
        let y = match factor {
            Some(factor) => y.multiply(factor)?,
            None => y,
        };
        y.astype(x.dtype())
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
                factor,
                residues,
                scheme,
            } => {
                let factor = factor.as_ref().map(|factor| {
                    let chosen = factor.value().take(indices, 0)?;
                    chosen.expand_dims(-2)
                });
                let y = self.in_steps(x, factor.transpose()?.as_ref(), |x| {
                    fast::quantized_experts_linear(
                        x,
                        packed.value(),
                        scales.value(),
                        biases.as_ref().map(Param::value),
                        indices,
                        *scheme,
                    )
                })?;
                match residues {
                    Some(residues) => {
                        let sums = group_sums(x, *scheme)?;
                        y.add(fast::experts_linear(&sums, residues.value(), indices)?)
                    }
                    None => Ok(y),
                }
            }
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
                factor,
                residues,
                scheme,
            } => {
                // The scales of floating-point modes are bytes; MLX dequantises such matrices to BF16.
                let own = match scheme.mode {
                    QuantMode::Affine => scales.value().dtype(),
                    _ => DType::BF16,
                };
                let dtype = dtype.unwrap_or(own);
                let has_steps = factor.is_some() || residues.is_some();
                let mut rows = fast::quantized_rows(
                    packed.value(),
                    scales.value(),
                    biases.as_ref().map(Param::value),
                    indices,
                    *scheme,
                    if has_steps { DType::F32 } else { dtype },
                )?;
                if let Some(residues) = residues {
                    let chosen = residues.value().take(indices, 0)?;
                    rows = rows.add(chosen.repeat(scheme.group_size, -1)?)?;
                }
                if let Some(factor) = factor {
                    let chosen = factor.value().take(indices, 0)?.expand_dims(-1)?;
                    rows = rows.multiply(chosen)?;
                }
                rows.astype(dtype)
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
                factor: Some(factor),
                residues: _,
                scheme,
            } => {
                let biases = biases.as_ref().map(Param::value);
                let own = match biases {
                    Some(biases) => biases.dtype(),
                    None => DType::BF16,
                };
                let (packed, scales) = (packed.value(), scales.value());
                let dense = with_factor(packed, scales, biases, factor.value(), *scheme)?;
                dense.astype(dtype.unwrap_or(own))
            }
            Self::Quantized {
                scales,
                residues: Some(_),
                ..
            } => {
                let dtype = dtype.unwrap_or(scales.value().dtype());
                self.dense_in_f32()?.astype(dtype)
            }
            Self::Quantized {
                packed,
                scales,
                biases,
                factor: None,
                residues: None,
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

impl Weight {
    /// The dense matrix in F32, without rounding on the way.
    pub(crate) fn dense_in_f32(&self) -> Result<Array> {
        let Self::Quantized {
            packed,
            scales,
            biases: Some(biases),
            factor: None,
            residues,
            scheme,
        } = self
        else {
            return self.dense(Some(DType::F32));
        };
        self.check()?;
        let scales = scales.value().astype(DType::F32)?;
        let mut biases = biases.value().astype(DType::F32)?;
        if let Some(residues) = residues {
            biases = biases.add(residues.value().astype(DType::F32)?)?;
        }
        quantize::dequantize_with(packed.value(), &scales, Some(&biases), *scheme, None)
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
                factor,
                residues,
                scheme: _,
            } => {
                path.scoped("weight", |path| packed.visit(path, v))?;
                path.scoped("scales", |path| scales.visit(path, v))?;
                path.scoped("biases", |path| biases.visit(path, v))?;
                path.scoped("factor", |path| factor.visit(path, v))?;
                path.scoped("residues", |path| residues.visit(path, v))
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
                factor,
                residues,
                scheme: _,
            } => {
                path.scoped("weight", |path| packed.visit_mut(path, v))?;
                path.scoped("scales", |path| scales.visit_mut(path, v))?;
                path.scoped("biases", |path| biases.visit_mut(path, v))?;
                path.scoped("factor", |path| factor.visit_mut(path, v))?;
                path.scoped("residues", |path| residues.visit_mut(path, v))
            }
        }
    }
}
