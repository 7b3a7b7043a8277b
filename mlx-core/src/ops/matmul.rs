//! Products of matrices and tensors.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let a = array![[1.0f32, 2.0], [3.0, 4.0]];
//! assert_eq!(a.matmul(&a)?.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
//! # Ok(())
//! # }
//! ```

use std::borrow::Borrow;
use std::ffi::CStr;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::vector::{self, VectorArray};
use crate::ffi::{Opt, cstring, op};
use crate::ops::checked::Indexed;
use crate::ops::reduce::{or_if_empty, wide};
use crate::ops::{borrowed, require};

/// The masks of [`Array::block_masked_mm_with`], one element for each block; `None` keeps all.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockMasks<'a> {
    /// Of the result: `[…, ceil(m / block), ceil(n / block)]`.
    pub out: Option<&'a Array>,
    /// Of the left matrix: `[…, ceil(m / block), ceil(k / block)]`.
    pub lhs: Option<&'a Array>,
    /// Of the right matrix: `[…, ceil(k / block), ceil(n / block)]`.
    pub rhs: Option<&'a Array>,
}

/// `x` times its mask, which has one element for each block of the last two axes. Booleans keep a block or zero it.
fn masked(x: &Array, mask: &Array, block: i32) -> Result<Array> {
    let mut wide = mask.clone();
    for axis in [-2, -1] {
        let size = x.dim(axis)?;
        let blocks = size / block + i32::from(size % block != 0);
        require(
            wide.dim(axis)? == blocks,
            "block_masked_mm",
            "a mask",
            "of one element for each block",
            mask,
        )?;
        wide = wide.repeat(block, axis)?.slice_axis(axis, 0, size)?;
    }
    match wide.dtype() {
        DType::Bool => wide.select(x, 0),
        _ => x.multiply(&wide.astype(x.dtype())?),
    }
}

/// # Products of matrices and vectors
///
/// ```
/// use mlx_core::array;
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
/// assert_eq!(a.matmul(&array![1.0f32, 1.0])?.to_vec::<f32>()?, [3.0, 7.0]);
/// assert_eq!(array![1.0f32, 2.0].outer(&array![3.0f32])?.shape(), [2, 1]);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// Matrix product: `[…, m, k]` and `[…, k, n]` → `[…, m, n]`; leading dimensions broadcast, a
    /// vector counts as a row on the left and as a column on the right. Integers become F32.
    ///
    /// # Errors
    /// The sizes do not fit, or a side is a scalar.
    pub fn matmul(&self, other: &Array) -> Result<Array> {
        op!(mlx_matmul(self, other))
    }

    /// `self + a @ b`; this array broadcasts to `[…, m, n]`.
    ///
    /// # Errors
    /// The sizes do not fit.
    pub fn addmm(&self, a: &Array, b: &Array) -> Result<Array> {
        self.addmm_with(a, b, 1.0, 1.0)
    }

    /// `beta * self + alpha * (a @ b)`; this array broadcasts to `[…, m, n]`.
    ///
    /// # Errors
    /// The sizes do not fit.
    pub fn addmm_with(&self, a: &Array, b: &Array, alpha: f32, beta: f32) -> Result<Array> {
        op!(mlx_addmm(self, a, b, alpha, beta))
    }

    /// Products over the last dimension of both: `[…a, k]` and `[…b, k]` → `[…a, …b]`.
    ///
    /// # Errors
    /// The last dimensions differ.
    pub fn inner(&self, other: &Array) -> Result<Array> {
        op!(mlx_inner(self, other))
    }

    /// NumPy's `dot`: sums products over the last dimension of this array and the last but one of `other`, or its only one:
    /// `[…a, k]` and `[…b, k, n]` → `[…a, …b, n]`. Of vectors a scalar, of matrices their product. A scalar multiplies.
    ///
    /// ```
    /// use mlx_core::array;
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let v = array![1.0, 2.0];
    /// assert_eq!(v.dot(&v)?.item::<f32>()?, 5.0);
    /// assert_eq!(array![[1.0, 0.0], [1.0, 1.0]].dot(&v)?.to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The sizes of the summed dimensions differ.
    pub fn dot(&self, other: &Array) -> Result<Array> {
        match (self.ndim(), other.ndim()) {
            (0, _) | (_, 0) => self.multiply(other),
            (_, 1) => self.tensordot_with(other, &[-1], &[-1]),
            _ => self.tensordot_with(other, &[-1], &[-2]),
        }
    }

    /// All products of the flattened arrays: `n` and `m` elements → `[n, m]`.
    ///
    /// # Errors
    /// The result exceeds the byte limit.
    pub fn outer(&self, other: &Array) -> Result<Array> {
        op!(mlx_outer(self, other))
    }

    /// Sums products over the last two dimensions of this array and the first two of `other`, in order:
    /// `[…a, m, n]` and `[m, n, …b]` → `[…a, …b]`.
    ///
    /// # Errors
    /// The sizes differ, or an array has fewer than two dimensions.
    pub fn tensordot(&self, other: &Array) -> Result<Array> {
        self.tensordot_with(other, &[-2, -1], &[0, 1])
    }

    /// Sums products over pairs of dimensions, `axes_a[i]` with `axes_b[i]`. The result has the other dimensions of
    /// this array, then those of `other`.
    ///
    /// # Errors
    /// The axes differ in number or size, or do not exist.
    pub fn tensordot_with(&self, other: &Array, axes_a: &[i32], axes_b: &[i32]) -> Result<Array> {
        axes_a
            .iter()
            .try_for_each(|&axis| self.dim(axis).map(drop))?;
        axes_b
            .iter()
            .try_for_each(|&axis| other.dim(axis).map(drop))?;
        op!(mlx_tensordot(self, other, [axes_a], [axes_b]))
    }

    /// Sum of products along the last axis, the first factor conjugated: `[…, k]` twice → `[…]`.
    ///
    /// # Errors
    /// There is no axis, or the shapes do not broadcast.
    pub fn vecdot(&self, other: &Array) -> Result<Array> {
        self.vecdot_with(other, -1)
    }

    /// Sum of products along `axis`, the first factor conjugated: `[…, k, …]` twice → `[…, …]`.
    ///
    /// # Errors
    /// There is no such axis, or the shapes do not broadcast.
    pub fn vecdot_with(&self, other: &Array, axis: i32) -> Result<Array> {
        let empty = if self.size() == 0 { self } else { other };
        // MLX sums in the dtype of the products, so these are F32 first.
        let (this, that) = (wide(self, "vecdot")?, wide(other, "vecdot")?);
        let result = op!(mlx_vecdot(*this, *that, axis))?;
        let short = this.dtype() != self.dtype() && that.dtype() != other.dtype();
        let result = match (short, self.dtype() == other.dtype()) {
            (true, true) => result.astype(self.dtype())?,
            _ => result,
        };
        or_if_empty(empty, result, 0.0)
    }

    /// Kronecker product: `[n, m]` and `[p, q]` → `[n p, m q]`.
    ///
    /// # Errors
    /// The result exceeds the byte limit.
    pub fn kron(&self, other: &Array) -> Result<Array> {
        op!(mlx_kron(self, other))
    }

    /// Matrix products of chosen pairs: `[…A, m, k]` and `[…B, k, n]` → `[…I, m, n]`. The index arrays (broadcast
    /// together to `I`, not negative) choose from the flattened leading dimensions. `None` takes all in order.
    ///
    /// # Errors
    /// The sizes do not fit, or an index array holds no integers.
    pub fn gather_mm(
        &self,
        other: &Array,
        lhs_indices: Option<&Array>,
        rhs_indices: Option<&Array>,
    ) -> Result<Array> {
        self.gather_mm_with(other, lhs_indices, rhs_indices, false)
    }

    /// As [`gather_mm`](Self::gather_mm). `sorted` promises that the right indices ascend.
    ///
    /// # Errors
    /// The sizes do not fit, or an index array holds no integers.
    pub fn gather_mm_with(
        &self,
        other: &Array,
        lhs_indices: Option<&Array>,
        rhs_indices: Option<&Array>,
        sorted: bool,
    ) -> Result<Array> {
        let lhs_indices = checked_matrices(c"gather_mm", self, lhs_indices)?;
        let rhs_indices = checked_matrices(c"gather_mm", other, rhs_indices)?;
        op!(mlx_gather_mm(self, other, lhs_indices, rhs_indices, sorted))
    }

    /// Matrix product with some blocks of 64 × 64 masked out.
    ///
    /// # Errors
    /// Masks that do not fit.
    pub fn block_masked_mm(&self, other: &Array, masks: BlockMasks<'_>) -> Result<Array> {
        self.block_masked_mm_with(other, 64, masks)
    }

    /// Matrix product with some blocks (of `block_size` squared, 32 or 64) masked out.
    ///
    /// # Errors
    /// Another block size, or masks that do not fit.
    pub fn block_masked_mm_with(
        &self,
        other: &Array,
        block_size: i32,
        masks: BlockMasks<'_>,
    ) -> Result<Array> {
        require(
            matches!(block_size, 32 | 64),
            "block_masked_mm",
            "block_size",
            "32 or 64",
            block_size,
        )?;
        // MLX copies arrays of other layouts, and those that have masks, and frees the copies before it has filled them.
        let side = |x: &Array, mask: Option<&Array>| match mask {
            Some(mask) => masked(x, mask, block_size)?.contiguous(),
            None => x.contiguous(),
        };
        let (a, b) = (side(self, masks.lhs)?, side(other, masks.rhs)?);
        let out = masks.out.map(Array::contiguous).transpose()?;
        let none = None::<&Array>;
        op!(mlx_block_masked_mm(
            a,
            b,
            block_size,
            out.as_ref(),
            none,
            none
        ))
    }

    /// Products over ranges of the inner dimension: `[m, k]` and `[k, n]` → `[…, m, n]` for
    /// `segments` of shape `[…, 2]` that hold starts and ends.
    ///
    /// # Errors
    /// The sizes do not fit.
    pub fn segmented_mm(&self, other: &Array, segments: &Array) -> Result<Array> {
        require(
            self.ndim() == 2,
            "segmented_mm",
            "the left side",
            "a matrix",
            self,
        )?;
        let fits = other.ndim() == 2 && other.shape()[0] == self.shape()[1];
        require(
            fits && self.size() > 0 && other.size() > 0,
            "segmented_mm",
            "the right side",
            "a matrix with as many rows as the left side has columns, neither empty",
            other,
        )?;
        // An end may be one behind the last place.
        let segments = Indexed {
            op: c"segmented_mm",
            source: self,
            axes: &[1],
            windows: &[0],
            from_end: false,
        }
        .check(segments)?;
        op!(mlx_segmented_mm(self, other, segments))
    }

    /// Walsh-Hadamard transform of the last dimension, `n = m * 2^k` long with m 1, 12, 20 or 28, times `1 / sqrt(n)`.
    ///
    /// # Errors
    /// Another length.
    pub fn hadamard_transform(&self) -> Result<Array> {
        op!(mlx_hadamard_transform(self, Opt(None::<f32>)))
    }

    /// As [`hadamard_transform`](Self::hadamard_transform), times `scale` instead.
    ///
    /// # Errors
    /// Another length.
    pub fn hadamard_transform_with(&self, scale: f32) -> Result<Array> {
        op!(mlx_hadamard_transform(self, Opt(Some(scale))))
    }

    /// Cross product of vectors of 3 along the last axis (or of 2, the third then being 0): vectors of 3. The other
    /// dimensions broadcast.
    ///
    /// # Errors
    /// Another length.
    pub fn cross(&self, other: &Array) -> Result<Array> {
        self.cross_with(other, -1)
    }

    /// Cross product of vectors of 3 along `axis` (or of 2, the third then being 0): vectors of 3.
    /// The other dimensions broadcast.
    ///
    /// # Errors
    /// Another length.
    pub fn cross_with(&self, other: &Array, axis: i32) -> Result<Array> {
        op!(mlx_linalg_cross(self, other, axis))
    }
}

/// Checks the indices of matrices, which count along the flattened leading dimensions of `source`.
pub(super) fn checked_matrices(
    op: &'static CStr,
    source: &Array,
    indices: Option<&Array>,
) -> Result<Option<Array>> {
    let check = |indices| {
        Indexed {
            op,
            source,
            axes: &[],
            windows: &[1],
            from_end: false,
        }
        .check(indices)
    };
    indices.map(check).transpose()
}

/// Einstein's sum convention, such as `"bij,bjk->bik"`.
///
/// ```
/// use mlx_core::{array, einsum};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[1.0f32, 2.0], [3.0, 4.0]];
/// assert_eq!(einsum("ii->", &[a])?.item::<f32>()?, 5.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The subscripts do not parse or do not fit the operands.
pub fn einsum<A: Borrow<Array>>(subscripts: &str, operands: impl AsRef<[A]>) -> Result<Array> {
    check_result(subscripts)?;
    let operands = VectorArray::new(borrowed(operands.as_ref()))?;
    let subscripts = cstring(subscripts)?;
    op!(mlx_einsum(subscripts, operands))
}

/// Refuses an index of the result that no operand has, for which MLX finds a path and then fails to transpose.
fn check_result(subscripts: &str) -> Result<()> {
    let (operands, result) = subscripts.split_once("->").unwrap_or((subscripts, ""));
    let alien = result
        .chars()
        .find(|&index| index.is_ascii_alphabetic() && !operands.contains(index));
    alien.map_or(Ok(()), |index| {
        let message =
            format!("einsum {subscripts:?}: no operand has the index {index} of the result");
        Err(Error::new(ErrorKind::Invalid, message))
    })
}

/// The contractions that [`einsum`] makes, in their order, and a report about the costs.
///
/// Each contraction is the places of its operands in the list of operands. They are removed from the list, and the
/// result is put at its end.
///
/// ```
/// use mlx_core::{DType, einsum_path, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (a, b, c) = (ones([2, 9], DType::F32)?, ones([9, 3], DType::F32)?, ones([3, 4], DType::F32)?);
/// let (path, report) = einsum_path("ij,jk,kl->il", &[a, b, c])?;
/// assert_eq!(path, [[0, 1], [0, 1]]); // first a with b, then c with the result
/// assert!(report.contains("Optimized scaling"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`einsum`].
pub fn einsum_path<A: Borrow<Array>>(
    subscripts: &str,
    operands: impl AsRef<[A]>,
) -> Result<(Vec<Vec<usize>>, String)> {
    check_result(subscripts)?;
    let operands = VectorArray::new(borrowed(operands.as_ref()))?;
    vector::einsum_path(&cstring(subscripts)?, &operands)
}
