//! Linear algebra on the last two dimensions; leading ones are batches.
//!
//! Arrays are F32 or F64. Most back ends have these kernels on the CPU only, so they run on the
//! current stream if that is on the CPU, and otherwise on the thread's default stream of the CPU;
//! [`norm()`] and [`norm_l2`] run on the current stream. A singular matrix is an error at
//! evaluation.
//!
//! ```
//! use mlx_core::{array, linalg};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let a = array![[2.0f32, 0.0], [0.0, 4.0]];
//! let x = linalg::solve(&a, &array![2.0f32, 8.0])?;
//! assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
//! # Ok(())
//! # }
//! ```

use std::ffi::CStr;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::checked::finite;
use crate::ops::reduce::{narrow, or_if_empty, wide};
use crate::ops::{Axes, require};
use crate::stream::{Device, Stream, is_on_gpu};

/// Which half of a symmetric or triangular matrix is read.
///
/// ```
/// use mlx_core::{array, linalg::{self, Half}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[2.0f32, 9.0], [0.0, 1.0]]; // the lower triangle counts
/// assert_eq!(linalg::eigvalsh_with(&a, Half::Lower)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// On and below the diagonal.
    Lower,
    /// On and above it.
    Upper,
}

impl Half {
    fn upper(self) -> bool {
        self == Half::Upper
    }

    fn letter(self) -> &'static CStr {
        if self.upper() { c"U" } else { c"L" }
    }
}

/// Norms of matrices that are not `p`-norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixNorm {
    /// Root of the sum of squares.
    Frobenius,
    /// Sum of the singular values.
    Nuclear,
}

/// Runs `f` with a CPU stream as the current one: with the current stream if it is one, so that the
/// caller's wait for that stream returns the failures of what `f` builds.
pub(crate) fn on_cpu<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    match is_on_gpu()? {
        true => Stream::default_of(Device::CPU)?.scope(f),
        false => f(),
    }
}

/// Refuses arrays that are no matrices, and empty matrices, which LAPACK refuses or divides by. If
/// `square`, also refuses matrices that are not square.
fn check(op: &str, a: &Array, square: bool) -> Result<()> {
    let (n, m) = match a.shape() {
        [.., n, m] => (*n, *m),
        shape => {
            let message = format!("{op}: expected a matrix, found shape {shape:?}");
            return Err(Error::new(ErrorKind::Shape, message));
        }
    };
    require(a.size() > 0, op, "matrix", "of at least one element", a)?;
    require(!square || n == m, op, "matrix", "square", a)
}

macro_rules! of_matrix {
    ($($(#[$doc:meta])* $name:ident = $c:ident, $square:literal, $finite:literal, $called:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The shape or dtype does not fit.
        pub fn $name(a: &Array) -> Result<Array> {
            check(stringify!($name), a, $square)?;
            let checks: bool = $finite;
            on_cpu(|| {
                let a = if checks { &finite($called, a)? } else { a };
                op!($c(a))
            })
        }
    )* };
}

of_matrix! {
    /// The inverse: `[…, n, n]` → the same.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
    /// let back = linalg::inv(&a)?.matmul(&a)?;
    /// assert!(back.allclose(&mlx_core::eye(2, mlx_core::DType::F32)?)?.item::<bool>()?);
    /// # Ok(())
    /// # }
    /// ```
    inv = mlx_linalg_inv, true, false, c"inv";
    /// The pseudo-inverse of Moore and Penrose: `[…, n, m]` → `[…, m, n]`.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let a = array![[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    /// assert_eq!(linalg::pinv(&a)?.shape(), [3, 2]);
    /// # Ok(())
    /// # }
    /// ```
    pinv = mlx_linalg_pinv, false, true, c"pinv";
    /// The determinant: `[…, n, n]` → `[…]`.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
    /// assert!((linalg::det(&a)?.item::<f32>()? - 11.0).abs() < 1e-4);
    /// # Ok(())
    /// # }
    /// ```
    det = mlx_linalg_det, true, false, c"det";
    /// The eigenvalues, C64 in no particular order: `[…, n, n]` → `[…, n]`.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
    /// assert_eq!(linalg::eigvals(&a)?.shape(), [2]); // complex numbers
    /// # Ok(())
    /// # }
    /// ```
    eigvals = mlx_linalg_eigvals, true, true, c"eigvals";
}

macro_rules! of_half {
    ($($(#[$doc:meta])* $name:ident, $with:ident = $c:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The matrix is not square, or the dtype does not fit.
        pub fn $name(a: &Array) -> Result<Array> {
            $with(a, Half::Lower)
        }

        #[doc = concat!("As [`", stringify!($name), "`], for the lower or the upper triangle.")]
        ///
        /// # Errors
        /// The matrix is not square, or the dtype does not fit.
        pub fn $with(a: &Array, half: Half) -> Result<Array> {
            check(stringify!($name), a, true)?;
            let upper = half.upper();
            on_cpu(|| op!($c(a, upper)))
        }
    )* };
}

of_half! {
    /// The lower triangular factor L of a symmetric positive definite matrix `L L^T`; the upper one, U, is that of
    /// `U^T U`. Other matrices give no meaningful result.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
    /// let l = linalg::cholesky(&a)?;
    /// assert!(l.matmul(&l.t()?)?.allclose(&a)?.item::<bool>()?);
    /// # Ok(())
    /// # }
    /// ```
    cholesky, cholesky_with = mlx_linalg_cholesky;
    /// The inverse of the matrix whose [`cholesky`] factor is given: `[…, n, n]` → the same.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
    /// let inverse = linalg::cholesky_inv(&linalg::cholesky(&a)?)?;
    /// assert!(inverse.allclose(&linalg::inv(&a)?)?.item::<bool>()?);
    /// # Ok(())
    /// # }
    /// ```
    cholesky_inv, cholesky_inv_with = mlx_linalg_cholesky_inv;
    /// The inverse of a lower triangular matrix: `[…, n, n]` → the same.
    ///
    /// ```
    /// use mlx_core::{array, linalg};
    ///
    /// # fn main() -> mlx_core::Result<()> {
    /// let l = array![[2.0f32, 0.0], [1.0, 4.0]];
    /// assert_eq!(linalg::tri_inv(&l)?.matmul(&l)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    tri_inv, tri_inv_with = mlx_linalg_tri_inv;
}

/// The factors of `a = Q R`, Q with orthonormal columns and R upper triangular: `[n, m]` →
/// `[n, min(n, m)]`, `[min(n, m), m]`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (q, r) = linalg::qr(&a)?;
/// assert!(q.matmul(&r)?.allclose(&a)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shape or dtype does not fit.
pub fn qr(a: &Array) -> Result<(Array, Array)> {
    check("qr", a, false)?;
    on_cpu(|| op!(pair mlx_linalg_qr(a)))
}

/// The singular value decomposition of `a`: U, the singular values in descending order, and V
/// transposed: `[…, n, m]` → `[…, n, n]`, `[…, min(n, m)]`, `[…, m, m]`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (u, s, vt) = linalg::svd(&a)?;
/// let back = u.multiply(&s)?.matmul(&vt)?;
/// assert!(back.allclose_with(&a, 1e-4, 1e-5, false)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shape or dtype does not fit.
pub fn svd(a: &Array) -> Result<(Array, Array, Array)> {
    check("svd", a, false)?;
    let parts = on_cpu(|| {
        let a = finite(c"svd", a)?;
        op!(vector mlx_linalg_svd(a, true))
    })?;
    let [u, s, vt]: [Array; 3] = parts.try_into().map_err(|_| unexpected("svd"))?;
    Ok((u, s, vt))
}

/// The singular values alone, in descending order: `[…, n, m]` → `[…, min(n, m)]`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[3.0f32, 0.0], [0.0, 2.0]];
/// assert!(linalg::singular_values(&a)?.allclose(&array![3.0f32, 2.0])?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shape or dtype does not fit.
pub fn singular_values(a: &Array) -> Result<Array> {
    check("singular_values", a, false)?;
    let parts = on_cpu(|| {
        let a = finite(c"singular_values", a)?;
        op!(vector mlx_linalg_svd(a, false))
    })?;
    let [s]: [Array; 1] = parts.try_into().map_err(|_| unexpected("svd"))?;
    Ok(s)
}

/// The eigenvalues and the eigenvectors as columns, C64: `[…, n, n]` → `[…, n]`, `[…, n, n]`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (values, vectors) = linalg::eig(&a)?;
/// assert_eq!((values.shape(), vectors.shape()), (&[2][..], &[2, 2][..]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The matrix is not square, or the dtype does not fit.
pub fn eig(a: &Array) -> Result<(Array, Array)> {
    check("eig", a, true)?;
    on_cpu(|| {
        let a = finite(c"eig", a)?;
        op!(pair mlx_linalg_eig(a))
    })
}

/// The eigenvalues, ascending, and eigenvectors as columns, of a symmetric matrix of which the lower half is read:
/// `[…, n, n]` → `[…, n]`, `[…, n, n]`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (values, vectors) = linalg::eigh(&a)?;
/// let back = vectors.multiply(&values)?.matmul(&vectors.t()?)?;
/// assert!(back.allclose_with(&a, 1e-4, 1e-5, false)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The matrix is not square, or the dtype does not fit.
pub fn eigh(a: &Array) -> Result<(Array, Array)> {
    eigh_with(a, Half::Lower)
}

/// As [`eigh`]; the given half is read.
///
/// # Errors
/// The matrix is not square, or the dtype does not fit.
pub fn eigh_with(a: &Array, half: Half) -> Result<(Array, Array)> {
    check("eigh", a, true)?;
    let half = half.letter();
    on_cpu(|| {
        let a = finite(c"eigh", a)?;
        op!(pair mlx_linalg_eigh(a, half))
    })
}

/// The eigenvalues alone of [`eigh`].
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[2.0f32, 0.0], [0.0, 1.0]];
/// assert_eq!(linalg::eigvalsh(&a)?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The matrix is not square, or the dtype does not fit.
pub fn eigvalsh(a: &Array) -> Result<Array> {
    eigvalsh_with(a, Half::Lower)
}

/// The eigenvalues alone of [`eigh_with`].
///
/// # Errors
/// The matrix is not square, or the dtype does not fit.
pub fn eigvalsh_with(a: &Array, half: Half) -> Result<Array> {
    check("eigvalsh", a, true)?;
    let half = half.letter();
    on_cpu(|| {
        let a = finite(c"eigvalsh", a)?;
        op!(mlx_linalg_eigvalsh(a, half))
    })
}

/// Row permutation (U32), L and U, such that `L[perm] U = a`: `[…, n, m]`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (_rows, l, u) = linalg::lu(&a)?;
/// assert!(l.matmul(&u)?.allclose(&a)?.item::<bool>()?); // no rows changed places
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shape or dtype does not fit.
pub fn lu(a: &Array) -> Result<(Array, Array, Array)> {
    check("lu", a, false)?;
    let parts = on_cpu(|| op!(vector mlx_linalg_lu(a)))?;
    let [p, l, u]: [Array; 3] = parts.try_into().map_err(|_| unexpected("lu"))?;
    Ok((p, l, u))
}

/// L and U in one matrix, and the pivots (U32), in LAPACK's format.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (lu, pivots) = linalg::lu_factor(&a)?;
/// assert_eq!((lu.shape(), pivots.shape()), (&[2, 2][..], &[2][..]));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shape or dtype does not fit.
pub fn lu_factor(a: &Array) -> Result<(Array, Array)> {
    check("lu_factor", a, false)?;
    on_cpu(|| op!(pair mlx_linalg_lu_factor(a)))
}

/// Sign and natural logarithm of the absolute determinant: `[…, n, n]` → `[…]` twice.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let (sign, log) = linalg::slogdet(&a)?;
/// assert_eq!(sign.item::<f32>()?, 1.0);
/// assert!((log.item::<f32>()? - 11f32.ln()).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The matrix is not square, or the dtype does not fit.
pub fn slogdet(a: &Array) -> Result<(Array, Array)> {
    check("slogdet", a, true)?;
    on_cpu(|| op!(pair mlx_linalg_slogdet(a)))
}

/// The x of `a x = b`: `[…, n, n]` and `[…, n]` or `[…, n, k]` → the shape of `b`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[4.0f32, 1.0], [1.0, 3.0]];
/// let x = linalg::solve(&a, &array![5.0f32, 4.0])?;
/// assert!(x.allclose(&array![1.0f32, 1.0])?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes or dtypes do not fit.
pub fn solve(a: &Array, b: &Array) -> Result<Array> {
    check("solve", a, true)?;
    require(b.size() > 0, "solve", "b", "of at least one element", b)?;
    on_cpu(|| op!(mlx_linalg_solve(a, b)))
}

/// As [`solve`], for a lower triangular `a`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let l = array![[2.0f32, 0.0], [1.0, 4.0]];
/// let x = linalg::solve_triangular(&l, &array![[2.0f32], [5.0]])?;
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes or dtypes do not fit.
pub fn solve_triangular(a: &Array, b: &Array) -> Result<Array> {
    solve_triangular_with(a, b, Half::Lower)
}

/// As [`solve`], for a triangular `a`.
///
/// # Errors
/// The shapes or dtypes do not fit.
pub fn solve_triangular_with(a: &Array, b: &Array, half: Half) -> Result<Array> {
    check("solve_triangular", a, true)?;
    require(
        b.size() > 0,
        "solve_triangular",
        "b",
        "of at least one element",
        b,
    )?;
    let upper = half.upper();
    on_cpu(|| op!(mlx_linalg_solve_triangular(a, b, upper)))
}

/// The root of the sum of the squares of all elements: a scalar.
///
/// ```
/// # use mlx_core::{Array, Result, linalg};
/// # fn main() -> Result<()> {
/// let v = Array::from_slice(&[3.0f32, 4.0], &[2])?;
/// assert_eq!(linalg::norm(&v)?.item::<f32>()?, 5.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// None that is known.
pub fn norm(a: &Array) -> Result<Array> {
    norm_l2(&a.flatten()?, 0, false)
}

/// The `ord`-norm over one axis (vectors) or two (matrices: 1, -1, 2, -2 or an infinity).
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[1.0f32, -2.0], [3.0, 4.0]];
/// assert_eq!(linalg::norm_with(&a, 1.0, -1, false)?.to_vec::<f32>()?, [3.0, 7.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There are no such axes, or matrices have no such norm.
pub fn norm_with(a: &Array, ord: f64, axes: impl Axes, keepdims: bool) -> Result<Array> {
    let axes = axes.axes(a.ndim());
    let this = wide(a, "norm")?;
    // The 2-norms of matrices are singular values.
    let singular = axes.len() == 2 && ord.abs() == 2.0;
    let result = on_cpu(|| {
        let this = if singular {
            finite(c"norm", &this)?
        } else {
            Array::clone(&this)
        };
        op!(mlx_linalg_norm(this, ord, [axes], keepdims))
    })?;
    // The sum of no powers is 0, whose root of a negative order is infinite.
    let is_inverse = axes.len() == 1 && ord < 0.0;
    let empty = if is_inverse { f32::INFINITY } else { 0.0 };
    or_if_empty(a, narrow(result, &this, a)?, empty)
}

/// Root of the sum of squares over one or two `axes`.
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[3.0f32, 4.0], [6.0, 8.0]];
/// assert_eq!(linalg::norm_l2(&a, 1, true)?.to_vec::<f32>()?, [5.0, 10.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There are no such axes, or more than two.
pub fn norm_l2(a: &Array, axes: impl Axes, keepdims: bool) -> Result<Array> {
    let axes = axes.axes(a.ndim());
    let this = wide(a, "norm")?;
    let result = op!(mlx_linalg_norm_l2(*this, [axes], keepdims))?;
    or_if_empty(a, narrow(result, &this, a)?, 0.0)
}

/// A norm of matrices over two axes.
///
/// ```
/// use mlx_core::{array, linalg::{self, MatrixNorm}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let a = array![[1.0f32, 2.0], [2.0, 4.0]];
/// let norm = linalg::norm_matrix(&a, MatrixNorm::Frobenius, [0, 1], false)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There are no such axes, or not exactly two.
#[doc(alias = "matrix_norm")]
pub fn norm_matrix(
    a: &Array,
    ord_of: MatrixNorm,
    axes: impl Axes,
    keepdims: bool,
) -> Result<Array> {
    let axes = axes.axes(a.ndim());
    let ord = match ord_of {
        MatrixNorm::Frobenius => c"fro",
        MatrixNorm::Nuclear => c"nuc",
    };
    let this = wide(a, "norm")?;
    let result = on_cpu(|| {
        let this = match ord_of {
            MatrixNorm::Nuclear => finite(c"norm_matrix", &this)?,
            MatrixNorm::Frobenius => Array::clone(&this),
        };
        op!(mlx_linalg_norm_matrix(this, ord, [axes], keepdims))
    })?;
    or_if_empty(a, narrow(result, &this, a)?, 0.0)
}

/// The cross product of vectors along the last axis, as [`Array::cross`].
///
/// ```
/// use mlx_core::{array, linalg};
///
/// # fn main() -> mlx_core::Result<()> {
/// let z = linalg::cross(&array![1.0, 0.0, 0.0], &array![0.0, 1.0, 0.0])?;
/// assert_eq!(z.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Array::cross`].
pub fn cross(a: &Array, b: &Array) -> Result<Array> {
    a.cross(b)
}

fn unexpected(op: &str) -> Error {
    Error::new(
        ErrorKind::Mlx,
        format!("{op} gave another number of arrays than expected"),
    )
}
