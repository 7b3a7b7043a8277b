//! The known quantisation schemes, and the parts of a quantised matrix.

use std::ffi::CStr;
use std::fmt;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::Opt;
use crate::ops::require;

/// How the codes of a quantised matrix stand for numbers.
///
/// ```
/// use mlx_core::QuantMode;
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(QuantMode::parse("mxfp4")?, QuantMode::Mxfp4);
/// assert!(!QuantMode::Mxfp4.has_biases());
/// # Ok(())
/// # }
/// ```
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

    pub(crate) const fn c_name(self) -> &'static CStr {
        match self {
            Self::Affine => c"affine",
            Self::Mxfp4 => c"mxfp4",
            Self::Mxfp8 => c"mxfp8",
            Self::Nvfp4 => c"nvfp4",
        }
    }

    /// The mode of this name.
    ///
    /// # Errors
    /// There is no mode of this name.
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
///
/// ```
/// use mlx_core::{QuantMode, Scheme};
///
/// # fn main() -> mlx_core::Result<()> {
/// let scheme = Scheme::new(64, 4, QuantMode::Affine)?;
/// assert_eq!((scheme.bits, scheme.group_size), (4, 64));
/// assert!(Scheme::new(64, 7, QuantMode::Affine).is_err());
/// # Ok(())
/// # }
/// ```
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
    /// Group size, bits and mode, as mlx-c takes them.
    pub(crate) fn args(self) -> (Opt<i32>, Opt<i32>, &'static CStr) {
        let (group_size, bits) = (Opt(Some(self.group_size)), Opt(Some(self.bits)));
        (group_size, bits, self.mode.c_name())
    }

    /// A scheme that MLX supports. The order is that of Python's arguments, and of [`quantize`](crate::quantize()).
    ///
    /// # Errors
    /// The mode does not have these bits or this group size.
    pub fn new(group_size: i32, bits: i32, mode: QuantMode) -> Result<Self> {
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

    /// The default scheme of `mode`.
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
    pub(super) fn checked(self) -> Result<Self> {
        Self::new(self.group_size, self.bits, self.mode)
    }

    /// Refuses parts that do not fit each other: MLX would read beyond the smaller one.
    pub(crate) fn check_parts(
        self,
        op: &str,
        packed: &Array,
        scales: &Array,
        biases: Option<&Array>,
    ) -> Result<()> {
        self.checked()?;
        require(packed.dtype() == DType::U32, op, "packed", "U32", packed)?;
        let (dtype, fits): (_, fn(DType) -> bool) = match self.mode {
            QuantMode::Affine => ("of floating point", DType::is_float),
            _ => ("U8", |dtype| dtype == DType::U8),
        };
        require(fits(scales.dtype()), op, "scales", dtype, scales)?;
        require(
            biases.is_none_or(|biases| fits(biases.dtype())),
            op,
            "biases",
            dtype,
            biases,
        )?;
        let fits = |part: &Array| match (packed.shape().split_last(), part.shape().split_last()) {
            (Some((&words, rows)), Some((&groups, same))) => {
                let elements = i64::from(words) * 32 / i64::from(self.bits);
                rows == same && elements == i64::from(groups) * i64::from(self.group_size)
            }
            _ => false,
        };
        let belongs = |name: &str, part: &Array| {
            if fits(part) {
                return Ok(());
            }
            let Self {
                mode,
                bits,
                group_size,
            } = self;
            let message = format!(
                "{op}: {name} of shape {:?} do not belong to packed {:?} ({mode}, {bits} bits, groups of {group_size})",
                part.shape(),
                packed.shape()
            );
            Err(Error::new(ErrorKind::Shape, message))
        };
        belongs("scales", scales)?;
        match (biases, self.mode) {
            (Some(biases), QuantMode::Affine) => belongs("biases", biases),
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
