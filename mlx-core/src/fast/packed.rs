//! Packed rows: the storage format of keys and values in a quantised cache.
//!
//! A row of `D` numbers becomes a row of U32 words: its codes (`D · bits / 32` words, as
//! [`quantize`](crate::ops::quantize::quantize) packs them), then scale and bias of each group in the row's own dtype.
//! So a cache of packed rows is a single array, like a cache of numbers, and the same code moves the rows of both.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::quantize::{QuantMode, Scheme};

/// The rows along the last axis of `x` `[…, D]`, packed: U32 `[…, words]`.
///
/// Codes, scales and biases are those of [`quantize`](crate::ops::quantize::quantize), to the bit.
///
/// ```
/// use mlx_core::{DType, QuantMode, Scheme, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let scheme = Scheme::new(32, 8, QuantMode::Affine)?;
/// let rows = fast::pack(&ones(&[2, 64], DType::F32)?, scheme)?;
/// assert_eq!(rows.dim(1)?, fast::packed_words(64, DType::F32, scheme)?);
/// assert_eq!(fast::unpack(&rows, scheme, DType::F32)?.to_vec::<f32>()?, [1.0; 128]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Rows cannot be packed in this scheme ([`check_packing`]), `D` does not divide into its groups,
/// or `x` is not F32, F16 or BF16.
pub fn pack(x: &Array, scheme: Scheme) -> Result<Array> {
    packed_words(x.dim(-1)?, x.dtype(), scheme)?;
    let (bits, group_size) = packing(scheme)?;
    op!(mlxrs_fast_pack(x, bits, group_size))
}

/// The numbers of packed rows that were made from `dtype`, in F32: `[…, words]` -> `[…, D]`.
///
/// ```
/// use mlx_core::{DType, QuantMode, Scheme, fast, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let scheme = Scheme::new(32, 4, QuantMode::Affine)?;
/// let rows = fast::pack(&zeros(&[1, 32], DType::F16)?, scheme)?;
/// assert_eq!(fast::unpack(&rows, scheme, DType::F16)?.shape(), [1, 32]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// They are not packed rows of this scheme.
pub fn unpack(rows: &Array, scheme: Scheme, dtype: DType) -> Result<Array> {
    let words = rows.dim(-1)?;
    let of_group = packed_words(scheme.group_size, dtype, scheme)?;
    if rows.dtype() != DType::U32 || words < 1 || words % of_group != 0 {
        let (found, shape) = (rows.dtype(), rows.shape());
        let message = format!(
            "packed rows of {dtype} in {scheme} are U32 of a multiple of {of_group} words, found {found} {shape:?}"
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    let (bits, group_size) = packing(scheme)?;
    op!(mlxrs_fast_unpack(rows, bits, group_size, dtype))
}

/// The number of words of a packed row of `d` numbers of `dtype`.
///
/// ```
/// use mlx_core::{DType, QuantMode, Scheme, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let scheme = Scheme::new(64, 4, QuantMode::Affine)?;
/// // 64 codes of 4 bits, and a scale and a bias of 16 bits.
/// assert_eq!(fast::packed_words(64, DType::BF16, scheme)?, 9);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`pack`].
pub fn packed_words(d: i32, dtype: DType, scheme: Scheme) -> Result<i32> {
    check_packing(scheme)?;
    let Scheme {
        bits, group_size, ..
    } = scheme;
    if d < 1 || d % group_size != 0 {
        let message = format!("rows of {d} do not divide into groups of {group_size}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        let message = format!("rows are packed of F32, F16 or BF16, found {dtype}");
        return Err(Error::new(ErrorKind::DType, message));
    }
    let (d, bits, groups) = (i64::from(d), i64::from(bits), i64::from(d / group_size));
    let words = d * bits / 32 + groups * 2 * dtype.size() as i64 / 4;
    i32::try_from(words).map_err(|_| {
        let message = format!("rows of {d} need {words} words, more than an axis may have");
        Error::new(ErrorKind::Shape, message)
    })
}

/// Checks that rows can be packed in this scheme: affine, 4 or 8 bits, groups of 32, 64 or 128.
///
/// ```
/// use mlx_core::{QuantMode, Scheme, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert!(fast::check_packing(Scheme::new(64, 8, QuantMode::Affine)?).is_ok());
/// assert!(fast::check_packing(Scheme::new(64, 3, QuantMode::Affine)?).is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Rows cannot be packed in the scheme; the message lists the supported schemes.
pub fn check_packing(scheme: Scheme) -> Result<()> {
    let scheme = Scheme::new(scheme.group_size, scheme.bits, scheme.mode)?;
    if scheme.mode == QuantMode::Affine && matches!(scheme.bits, 4 | 8) {
        return Ok(());
    }
    let message = format!("rows are packed affinely in 4 or 8 bits, given {scheme}");
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Bits and group size, as the shim takes them.
pub(crate) fn packing(scheme: Scheme) -> Result<(i32, i32)> {
    check_packing(scheme)?;
    Ok((scheme.bits, scheme.group_size))
}
