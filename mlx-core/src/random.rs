//! Random arrays from explicit keys.
//!
//! The same [`Key`] gives the same numbers, on every thread. Use a key once and [`split`](Key::split) it for more, or
//! take the thread's [`next_key`], which follows from its [`seed`].
//!
//! ```
//! use mlx_core::{DType, random::{self, Key}};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let [a, b] = Key::new(7)?.split_pair()?;
//! let x = random::normal(&a, &[2, 3], DType::F32, 0.0, 1.0)?;
//! let y = random::normal(&a, &[2, 3], DType::F32, 0.0, 1.0)?;
//! assert_eq!(x.to_vec::<f32>()?, y.to_vec::<f32>()?);
//! let z = random::normal(&b, &[2, 3], DType::F32, 0.0, 1.0)?;
//! assert_ne!(x.to_vec::<f32>()?, z.to_vec::<f32>()?);
//! # Ok(())
//! # }
//! ```

mod sequence;

pub use sequence::{next_key, seed};

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::op;
use crate::memory::check_shape;
use crate::ops::checked::finite;
use crate::ops::{Operand, ones, require, require_fit};

/// The state of a generator: two U32.
#[derive(Clone, Debug)]
pub struct Key(Array);

impl Key {
    /// The key of a seed.
    ///
    /// # Errors
    /// None that is known.
    pub fn new(seed: u64) -> Result<Self> {
        op!(bare mlx_random_key(seed)).map(|array| Self(array.data()))
    }

    /// A key that was computed: U32 of shape `[2]`.
    ///
    /// # Errors
    /// The array has another dtype or shape.
    pub fn from_array(array: Array) -> Result<Self> {
        let ok = array.dtype() == DType::U32 && array.shape() == [2];
        require(ok, "Key", "array", "U32 of shape [2]", &array)?;
        Ok(Self(array))
    }

    /// The key as an array, U32 of shape `[2]`.
    pub fn as_array(&self) -> &Array {
        &self.0
    }

    /// `n` new keys.
    ///
    /// # Errors
    /// `n` is negative.
    pub fn split(&self, n: i32) -> Result<Vec<Key>> {
        require(n >= 0, "split", "n", "at least 0", n)?;
        if n == 0 {
            return Ok(Vec::new());
        }
        let keys = op!(mlx_random_split_num(self.0, n))?;
        Ok(keys.unstack(0)?.into_iter().map(Key).collect())
    }

    /// Two new keys.
    ///
    /// # Errors
    /// None that is known.
    pub fn split_pair(&self) -> Result<[Key; 2]> {
        let (a, b) = op!(pair mlx_random_split(self.0))?;
        Ok([Key(a), Key(b)])
    }
}

/// Uniform from `low` to below `high`, both of which broadcast to `shape`.
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn uniform(
    key: &Key,
    shape: &[i32],
    dtype: DType,
    low: impl Operand,
    high: impl Operand,
) -> Result<Array> {
    check_shape(shape, dtype)?;
    let (low, high) = (low.to_array(dtype)?, high.to_array(dtype)?);
    op!(mlx_random_uniform(
        *low,
        *high,
        [shape],
        dtype,
        Some(&key.0)
    ))
}

/// Normal with mean `loc` and standard deviation `scale`, both of which broadcast to `shape`.
///
/// # Errors
/// The dtype is not floating point, or the array exceeds the byte limit.
pub fn normal(
    key: &Key,
    shape: &[i32],
    dtype: DType,
    loc: impl Operand,
    scale: impl Operand,
) -> Result<Array> {
    check_shape(shape, dtype)?;
    let (loc, scale) = (loc.to_array(dtype)?, scale.to_array(dtype)?);
    op!(mlx_random_normal_broadcast(
        [shape],
        dtype,
        Some(&*loc),
        Some(&*scale),
        Some(&key.0)
    ))
}

/// Standard normal, restricted to `lower ..= upper`, both of which broadcast to `shape`.
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn truncated_normal(
    key: &Key,
    shape: &[i32],
    dtype: DType,
    lower: impl Operand,
    upper: impl Operand,
) -> Result<Array> {
    check_shape(shape, dtype)?;
    let (lower, upper) = (lower.to_array(dtype)?, upper.to_array(dtype)?);
    op!(mlx_random_truncated_normal(
        *lower,
        *upper,
        [shape],
        dtype,
        Some(&key.0)
    ))
}

/// Normal vectors: mean `[…, d]`, covariance `[…, d, d]` → `shape` and then `[d]`, in F32.
///
/// # Errors
/// The shapes do not fit, or the array exceeds the byte limit.
pub fn multivariate_normal(
    key: &Key,
    shape: &[i32],
    mean: &Array,
    covariance: &Array,
) -> Result<Array> {
    check_shape(shape, DType::F32)?;
    crate::linalg::on_cpu(|| {
        let covariance = finite(c"multivariate_normal", &covariance.astype(DType::F32)?)?;
        op!(mlx_random_multivariate_normal(
            mean,
            covariance,
            [shape],
            DType::F32,
            Some(&key.0)
        ))
    })
}

/// Laplace with mean `loc` and scale `scale`.
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn laplace(key: &Key, shape: &[i32], dtype: DType, loc: f32, scale: f32) -> Result<Array> {
    check_shape(shape, dtype)?;
    op!(mlx_random_laplace([shape], dtype, loc, scale, Some(&key.0)))
}

/// Standard Gumbel: `-ln(-ln(u))` for uniform u.
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn gumbel(key: &Key, shape: &[i32], dtype: DType) -> Result<Array> {
    check_shape(shape, dtype)?;
    op!(mlx_random_gumbel([shape], dtype, Some(&key.0)))
}

/// Bool that is true with probability `p`, which broadcasts to `shape`.
///
/// # Errors
/// The probability does not broadcast, or the array exceeds the byte limit.
pub fn bernoulli(key: &Key, shape: &[i32], p: impl Operand) -> Result<Array> {
    check_shape(shape, DType::Bool)?;
    let p = p.to_array(DType::F32)?;
    op!(mlx_random_bernoulli(*p, [shape], Some(&key.0)))
}

/// Integers from `low` to below `high`, both of which broadcast to `shape`. All are equally likely. If bounds are
/// arrays, an element whose `high` is not above `low` is `low`.
///
/// # Errors
/// The dtype is not an integer or Bool, or cannot hold all numbers of the range; a `high` that is a number is not above
/// `low`, or a number is not an integer; or the array exceeds the byte limit.
pub fn randint(
    key: &Key,
    shape: &[i32],
    dtype: DType,
    low: impl Operand,
    high: impl Operand,
) -> Result<Array> {
    check_shape(shape, dtype)?;
    let whole = dtype.is_integer() || dtype == DType::Bool;
    require(whole, "randint", "dtype", "an integer dtype or Bool", dtype)?;
    if let (Some(from), Some(to)) = (bound(&low)?, bound(&high)?) {
        require(from < to, "randint", "high", "above low", (from, to))?;
        let bits = if dtype == DType::Bool {
            (from, to - 1)
        } else {
            (0, 0)
        };
        let is_bit = matches!(bits, (0 | 1, 0 | 1));
        require(is_bit, "randint", "bounds of Bool", "0 to 2", (from, to))?;
        require_fit("randint: low", from, dtype)?;
        require_fit("randint: high - 1", to - 1, dtype)?;
        // MLX draws F32 numbers of 24 bits and rounds them down, which suffices for small ranges.
        let simple = to - from <= 1 << 16 && from.abs() <= 1 << 20;
        if simple {
            let (low, high) = (Array::scalar(from as i32)?, Array::scalar(to as i32)?);
            return op!(mlx_random_randint(
                low,
                high,
                [shape],
                DType::I32,
                Some(&key.0)
            ))?
            .astype(dtype);
        }
        // Two's complement wraps to the right number.
        let offset = below(key, shape, &Array::scalar((to - from) as u64)?)?;
        return offset.add(Array::scalar(from as u64)?)?.astype(dtype);
    }
    let (low, high) = (low.to_array(DType::I64)?, high.to_array(DType::I64)?);
    let whole = low.dtype().is_integer() && high.dtype().is_integer();
    require(whole, "randint", "bounds", "integers", (&*low, &*high))?;
    let within = |bound: &Array| bound.broadcast_to(shape);
    let (low, high) = (within(&low)?, within(&high)?);
    let empty = high.less_equal(&low)?;
    let start = low.astype(DType::U64)?;
    let span = high.astype(DType::U64)?.subtract(&start)?;
    let span = empty.select(ones(&[], DType::U64)?, span)?;
    below(key, shape, &span)?.add(start)?.astype(dtype)
}

/// A bound as a number; `None` for an array.
fn bound(operand: &impl Operand) -> Result<Option<i128>> {
    match (operand.integer(), operand.number()) {
        (Some(integer), _) => Ok(Some(integer.into())),
        (None, Some(number)) => {
            let exact = number.fract() == 0.0 && number.abs() < 2f64.powi(64);
            require(exact, "randint", "bounds", "integers", number)?;
            Ok(Some(number as i128))
        }
        (None, None) => Ok(None),
    }
}

/// U64 numbers below `span`, a U64 that broadcasts to `shape`: the upper half of its product with 64 random bits.
fn below(key: &Key, shape: &[i32], span: &Array) -> Result<Array> {
    let mut pairs = vec![2];
    pairs.extend_from_slice(shape);
    check_shape(&pairs, DType::U64)?;
    let words = op!(mlx_random_bits([pairs], 4, Some(&key.0)))?.astype(DType::U64)?;
    let upper = |x: &Array| x.right_shift(32);
    let lower = |x: &Array| x.bitwise_and(i64::from(u32::MAX));
    let [word_upper, word_lower]: [Array; 2] =
        words.unstack(0)?.try_into().expect("two words of each");
    let (span_upper, span_lower) = (upper(span)?, lower(span)?);
    let left = word_upper.multiply(&span_lower)?;
    let right = word_lower.multiply(&span_upper)?;
    let carry = upper(&word_lower.multiply(&span_lower)?)?
        .add(lower(&left)?)?
        .add(lower(&right)?)?;
    word_upper
        .multiply(&span_upper)?
        .add(upper(&left)?)?
        .add(upper(&right)?)?
        .add(upper(&carry)?)
}

/// Random bits, `width` bytes each: 1 (U8), 2 (U16) or 4 (U32).
///
/// # Errors
/// Another width, or the array exceeds the byte limit.
pub fn bits(key: &Key, shape: &[i32], width: i32) -> Result<Array> {
    require(
        matches!(width, 1 | 2 | 4),
        "bits",
        "width",
        "1, 2 or 4 bytes",
        width,
    )?;
    check_shape(shape, DType::U32)?;
    op!(mlx_random_bits([shape], width, Some(&key.0)))
}

/// One index along `axis`, drawn by the unnormalised log probabilities there, as U32: `[…, n, …]` → `[…, …]`.
///
/// # Errors
/// There is no such axis, or it is empty.
pub fn categorical(key: &Key, logits: &Array, axis: i32) -> Result<Array> {
    op!(mlx_random_categorical(logits, axis, Some(&key.0)))
}

/// As [`categorical`], with `n` draws of each: `[…, n]` of U32, the draws last.
///
/// # Errors
/// There is no such axis or it is empty, or `n` is negative.
pub fn categorical_n(key: &Key, logits: &Array, axis: i32, n: i32) -> Result<Array> {
    require(n >= 0, "categorical_n", "n", "at least 0", n)?;
    op!(mlx_random_categorical_num_samples(
        logits,
        axis,
        n,
        Some(&key.0)
    ))
}

/// The slots of `axis` in random order; the shape stays.
///
/// # Errors
/// There is no such axis.
pub fn permutation(key: &Key, x: &Array, axis: i32) -> Result<Array> {
    x.dim(axis)?;
    op!(mlx_random_permutation(x, axis, Some(&key.0)))
}

/// The numbers `0 .. n` in random order, as U32: `[n]`.
///
/// # Errors
/// `n` is negative or exceeds the byte limit.
pub fn permutation_of(key: &Key, n: i32) -> Result<Array> {
    check_shape(&[n], DType::U32)?;
    op!(mlx_random_permutation_arange(n, Some(&key.0)))
}
