//! Quantised matrices: packed integers with a scale (and bias) for each group of a row.
//!
//! A matrix `[…, n, k]` of `bits` becomes `packed` `[…, n, k * bits / 32]` U32 and `scales`
//! `[…, n, k / group_size]`; affine matrices also have `biases` of that shape.

use std::fmt;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Opt, cstring, op};
use crate::ops::require;

/// How the integers of a quantised matrix stand for numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantMode {
    /// `q * scale + bias`, with scales of the matrix's dtype.
    Affine,
    /// OCP MX: 4-bit floating point, a power-of-two scale for 32 of them.
    Mxfp4,
    /// OCP MX: 8-bit floating point, a power-of-two scale for 32 of them.
    Mxfp8,
    /// Nvidia's: 4-bit floating point, an 8-bit floating-point scale for 16 of them.
    Nvfp4,
}

impl QuantMode {
    /// Every mode.
    pub const ALL: [QuantMode; 4] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];

    /// The name that MLX and checkpoints use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Whether a matrix has `biases` beside its scales.
    pub const fn has_biases(self) -> bool {
        matches!(self, Self::Affine)
    }

    /// The mode of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                let message = format!("quantization mode {name:?} is unknown; known: {known}");
                Error::new(ErrorKind::Unsupported, message)
            })
    }
}

impl fmt::Display for QuantMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A mode with its bits for each element and elements for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// The mode.
    pub mode: QuantMode,
    /// Bits for each element.
    pub bits: i32,
    /// Elements for each scale.
    pub group_size: i32,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            bits,
            group_size,
        } = self;
        write!(f, "{mode}, {bits} bits in groups of {group_size}")
    }
}

impl Scheme {
    /// A scheme that MLX knows.
    ///
    /// # Errors
    /// The mode does not have these bits or this group size.
    pub fn new(mode: QuantMode, bits: i32, group_size: i32) -> Result<Self> {
        let (all_bits, groups): (&[i32], &[i32]) = match mode {
            QuantMode::Affine => (&[1, 2, 3, 4, 5, 6, 8], &[32, 64, 128]),
            QuantMode::Mxfp4 => (&[4], &[32]),
            QuantMode::Mxfp8 => (&[8], &[32]),
            QuantMode::Nvfp4 => (&[4], &[16]),
        };
        let refuse = |what: &str, found: i32, known: &[i32]| {
            let message = format!("{mode} quantization has {what} {known:?}, given {found}");
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        if !all_bits.contains(&bits) {
            return refuse("bits", bits, all_bits);
        }
        if !groups.contains(&group_size) {
            return refuse("group sizes", group_size, groups);
        }
        Ok(Self {
            mode,
            bits,
            group_size,
        })
    }

    /// The scheme `mode` has if nothing else is said.
    pub const fn default_of(mode: QuantMode) -> Self {
        let (bits, group_size) = match mode {
            QuantMode::Affine => (4, 64),
            QuantMode::Mxfp4 => (4, 32),
            QuantMode::Mxfp8 => (8, 32),
            QuantMode::Nvfp4 => (4, 16),
        };
        Self {
            mode,
            bits,
            group_size,
        }
    }

    /// A scheme's fields are public, so every use checks them again.
    fn checked(self) -> Result<Self> {
        Self::new(self.mode, self.bits, self.group_size)
    }

    /// Refuses parts that do not belong together: MLX would read beyond the smaller one.
    fn check_parts(
        self,
        op: &str,
        packed: &Array,
        scales: &Array,
        biases: Option<&Array>,
    ) -> Result<()> {
        self.checked()?;
        require(packed.dtype() == DType::U32, op, "packed", "U32", packed)?;
        let Some((&words, rows)) = packed.shape().split_last() else {
            return require(false, op, "packed", "a matrix", packed);
        };
        let expected: Vec<i64> = rows
            .iter()
            .map(|&n| i64::from(n))
            .chain([i64::from(words) * 32 / i64::from(self.bits) / i64::from(self.group_size)])
            .collect();
        let fits = |array: &Array| {
            array
                .shape()
                .iter()
                .map(|&n| i64::from(n))
                .eq(expected.iter().copied())
        };
        let described = format!(
            "of shape {expected:?} for packed {:?} and {self:?}",
            packed.shape()
        );
        require(fits(scales), op, "scales", &described, scales)?;
        match (biases, self.mode) {
            (Some(biases), QuantMode::Affine) => {
                require(fits(biases), op, "biases", &described, biases)
            }
            (None, QuantMode::Affine) => {
                require(false, op, "biases", "given for affine quantization", "none")
            }
            (Some(biases), mode) => {
                require(false, op, "biases", &format!("absent for {mode}"), biases)
            }
            (None, _) => Ok(()),
        }
    }
}

/// The parts of a quantised matrix.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The integers, several in a U32.
    pub packed: Array,
    /// One for each group: of the matrix's dtype if affine, else U8.
    pub scales: Array,
    /// One for each group, affine only.
    pub biases: Option<Array>,
}

/// Quantises a matrix `[…, n, k]` of floating point.
///
/// # Errors
/// MLX does not know the scheme, or `k` does not divide into groups.
pub fn quantize(w: &Array, scheme: Scheme) -> Result<Quantized> {
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme.checked()?;
    let name = cstring(mode.name())?;
    let parts =
        op!(vector mlx_quantize(w, Opt(Some(group_size)), Opt(Some(bits)), name, None::<&Array>))?;
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(packed), Some(scales)) => Ok(Quantized {
            packed,
            scales,
            biases: parts.next(),
        }),
        _ => Err(Error::new(
            ErrorKind::Mlx,
            "quantize gave fewer than two arrays",
        )),
    }
}

/// The matrix `[…, n, k]` that the parts stand for, in `dtype` (that of affine scales, or BF16).
///
/// # Errors
/// The parts do not belong together, or MLX does not know the scheme.
pub fn dequantize(
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    scheme: Scheme,
    dtype: Option<DType>,
) -> Result<Array> {
    scheme.check_parts("dequantize", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let name = cstring(mode.name())?;
    op!(mlx_dequantize(
        packed,
        scales,
        biases,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name,
        None::<&Array>,
        Opt(dtype)
    ))
}

/// `x @ w`, or `x @ wᵀ` if `transpose`, for a quantised `w`: `[…, k]` → `[…, n]`.
///
/// # Errors
/// The parts do not belong together, the sizes do not fit, or MLX does not know the scheme.
pub fn quantized_matmul(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    transpose: bool,
    scheme: Scheme,
) -> Result<Array> {
    require(
        x.ndim() > 0,
        "quantized_matmul",
        "x",
        "at least a vector",
        x,
    )?;
    scheme.check_parts("quantized_matmul", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let name = cstring(mode.name())?;
    op!(mlx_quantized_matmul(
        x,
        packed,
        scales,
        biases,
        transpose,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name
    ))
}

/// Quantised products of chosen pairs, as [`gather_mm`](Array::gather_mm): `x` `[…A, m, k]` with
/// the matrices `[…B, n, k]` → `[…I, m, n]`. The index arrays are not checked.
///
/// # Errors
/// The parts do not belong together, the sizes do not fit, or MLX does not know the scheme.
#[allow(clippy::too_many_arguments)] // As MLX has it; a struct would only rename them.
pub fn gather_qmm(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: Option<&Array>,
    lhs_indices: Option<&Array>,
    rhs_indices: Option<&Array>,
    transpose: bool,
    scheme: Scheme,
    sorted: bool,
) -> Result<Array> {
    require(x.ndim() > 1, "gather_qmm", "x", "at least a matrix", x)?;
    scheme.check_parts("gather_qmm", packed, scales, biases)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme;
    let name = cstring(mode.name())?;
    op!(mlx_gather_qmm(
        x,
        packed,
        scales,
        biases,
        lhs_indices,
        rhs_indices,
        transpose,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name,
        sorted
    ))
}

/// `x @ wᵀ` with both sides quantised on the way (mxfp8 or nvfp4); `w` `[n, k]` may be packed
/// already, with its scales.
///
/// # Errors
/// The mode or back end has no such product, or the sizes do not fit.
pub fn qqmm(x: &Array, w: &Array, w_scales: Option<&Array>, scheme: Scheme) -> Result<Array> {
    require(x.ndim() > 0 && w.ndim() > 1, "qqmm", "w", "a matrix", w)?;
    let Scheme {
        mode,
        bits,
        group_size,
    } = scheme.checked()?;
    if let Some(scales) = w_scales {
        scheme.check_parts("qqmm", w, scales, None)?;
    }
    let name = cstring(mode.name())?;
    let none = None::<&Array>;
    op!(mlx_qqmm(
        x,
        w,
        w_scales,
        Opt(Some(group_size)),
        Opt(Some(bits)),
        name,
        none,
        none
    ))
}

impl Array {
    /// Converts floating point to 8 bits (E4M3), as U8; the shape stays.
    ///
    /// # Errors
    /// The array is not real floating point.
    pub fn to_fp8(&self) -> Result<Array> {
        op!(mlx_to_fp8(self))
    }

    /// Converts from 8-bit floating point (E4M3, as U8) to `dtype`; the shape stays.
    ///
    /// # Errors
    /// The array is not U8.
    pub fn from_fp8(&self, dtype: DType) -> Result<Array> {
        op!(mlx_from_fp8(self, dtype))
    }
}
