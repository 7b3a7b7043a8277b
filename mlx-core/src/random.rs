//! Random arrays from explicit keys.
//!
//! The same [`Key`] gives the same numbers, on every thread. Use a key once and [`split`](Key::split) it for more. `None`
//! in place of a key takes the thread's [`next_key`], which follows from its [`seed`].
//!
//! Arguments come in Python's order, after the key. Functions named `NAME_with` take those that
//! have a default in Python. `shape` and `dtype` are those of the result, unless a function says
//! more.
//!
//! ```
//! use mlx_core::{DType, random::{self, Key}};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let [a, b] = Key::new(7)?.split()?;
//! let x = random::normal(&a, &[2, 3], DType::F32)?;
//! let y = random::normal(&a, &[2, 3], DType::F32)?;
//! assert_eq!(x.to_vec::<f32>()?, y.to_vec::<f32>()?);
//! let z = random::normal(&b, &[2, 3], DType::F32)?;
//! assert_ne!(x.to_vec::<f32>()?, z.to_vec::<f32>()?);
//!
//! random::seed(7); // the numbers of `mx.random.seed(7); mx.random.uniform(-1, 1, (2,))`
//! let w = random::uniform(None, -1.0, 1.0, &[2], DType::F32)?;
//! assert!(w.abs()?.less_equal(1)?.all_all()?.item::<bool>()?);
//! # Ok(())
//! # }
//! ```

mod sequence;

pub use sequence::{next_key, seed};
pub(crate) use sequence::{state, with_state};

use std::borrow::Cow;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ffi::op;
use crate::into_shape::IntoShape;
use crate::memory::check_shape;
use crate::ops::checked::finite;
use crate::ops::{Operand, ones, require, require_fit};

/// The key of a random number generator: two U32.
///
/// ```
/// use mlx_core::{DType, random::{self, Key}};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = Key::new(7)?;
/// let [now, _later] = key.split()?;
/// let x = random::normal(&now, [2, 3], DType::F32)?;
/// let again = random::normal(&now, [2, 3], DType::F32)?;
/// assert!(x.array_equal(&again)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Key(Array);

impl Key {
    /// The key of a seed, as `mx.random.key` makes it.
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
    pub fn split_n(&self, n: i32) -> Result<Vec<Key>> {
        require(n >= 0, "split_n", "n", "at least 0", n)?;
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
    pub fn split(&self) -> Result<[Key; 2]> {
        let (a, b) = op!(pair mlx_random_split(self.0))?;
        Ok([Key(a), Key(b)])
    }
}

/// The key of a seed, as [`Key::new`].
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::key(7)?;
/// assert_eq!(random::normal(&key, [2, 3], DType::F32)?.shape(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Key::new`].
pub fn key(seed: u64) -> Result<Key> {
    Key::new(seed)
}

/// Two new keys: [`Key::split`] as a function, as in Python's MLX.
///
/// ```
/// use mlx_core::random;
///
/// # fn main() -> mlx_core::Result<()> {
/// let [a, b] = random::split(&random::key(7)?)?;
/// assert_ne!(a.as_array().to_vec::<u32>()?, b.as_array().to_vec::<u32>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Key::split`].
pub fn split(key: &Key) -> Result<[Key; 2]> {
    key.split()
}

/// The key of a call: `&key`, or `None` for the thread's [`next_key`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key of random numbers",
    note = "give `&key` of a `random::Key`, or `None` for the thread's next key"
)]
pub trait KeyOrNext {
    /// The key.
    ///
    /// # Errors
    /// There is no memory for the next key.
    fn key(&self) -> Result<Cow<'_, Key>>;
}

impl KeyOrNext for Key {
    fn key(&self) -> Result<Cow<'_, Key>> {
        Ok(Cow::Borrowed(self))
    }
}

impl<K: KeyOrNext> KeyOrNext for &K {
    fn key(&self) -> Result<Cow<'_, Key>> {
        (**self).key()
    }
}

impl KeyOrNext for Option<&Key> {
    fn key(&self) -> Result<Cow<'_, Key>> {
        match self {
            Some(key) => Ok(Cow::Borrowed(key)),
            None => next_key().map(Cow::Owned),
        }
    }
}

/// Uniform from `low` to below `high`, both of which broadcast to `shape`.
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let x = random::uniform(&key, -1.0, 1.0, [100], DType::F32)?;
/// assert!(x.abs()?.max_all()?.item::<f32>()? <= 1.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn uniform(
    key: impl KeyOrNext,
    low: impl Operand,
    high: impl Operand,
    shape: impl IntoShape,
    dtype: DType,
) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let key = key.key()?;
    let (low, high) = (low.to_array(dtype)?, high.to_array(dtype)?);
    op!(mlx_random_uniform(
        *low,
        *high,
        [shape],
        dtype,
        Some(&key.0)
    ))
}

/// Normal with mean 0 and standard deviation 1.
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let x = random::normal(&key, [1000], DType::F32)?;
/// assert!(x.mean_all()?.item::<f32>()?.abs() < 0.2);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The dtype is not floating point, or the array exceeds the byte limit.
pub fn normal(key: impl KeyOrNext, shape: impl IntoShape, dtype: DType) -> Result<Array> {
    normal_with(key, shape, dtype, 0.0, 1.0)
}

/// Normal with mean `loc` and standard deviation `scale`, both of which broadcast to `shape`.
///
/// # Errors
/// The dtype is not floating point, or the array exceeds the byte limit.
pub fn normal_with(
    key: impl KeyOrNext,
    shape: impl IntoShape,
    dtype: DType,
    loc: impl Operand,
    scale: impl Operand,
) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let key = key.key()?;
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
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let x = random::truncated_normal(&key, -1.0, 1.0, [100], DType::F32)?;
/// assert!(x.abs()?.max_all()?.item::<f32>()? <= 1.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn truncated_normal(
    key: impl KeyOrNext,
    lower: impl Operand,
    upper: impl Operand,
    shape: impl IntoShape,
    dtype: DType,
) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let key = key.key()?;
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
/// ```
/// use mlx_core::{array, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let (mean, covariance) = (array![0.0f32, 1.0], array![[1.0f32, 0.5], [0.5, 1.0]]);
/// let x = random::multivariate_normal(&key, &mean, &covariance, [10])?;
/// assert_eq!(x.shape(), [10, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not fit, or the array exceeds the byte limit.
pub fn multivariate_normal(
    key: impl KeyOrNext,
    mean: &Array,
    covariance: &Array,
    shape: impl IntoShape,
) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, DType::F32)?;
    let key = key.key()?;
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

/// Laplace with mean 0 and scale 1.
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// assert_eq!(random::laplace(&key, [2, 3], DType::F32)?.shape(), [2, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn laplace(key: impl KeyOrNext, shape: impl IntoShape, dtype: DType) -> Result<Array> {
    laplace_with(key, shape, dtype, 0.0, 1.0)
}

/// Laplace with mean `loc` and scale `scale`.
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn laplace_with(
    key: impl KeyOrNext,
    shape: impl IntoShape,
    dtype: DType,
    loc: f32,
    scale: f32,
) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let key = key.key()?;
    op!(mlx_random_laplace([shape], dtype, loc, scale, Some(&key.0)))
}

/// Standard Gumbel: `-ln(-ln(u))` for uniform u.
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// assert_eq!(random::gumbel(&key, [4], DType::F32)?.shape(), [4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The dtype is not real floating point, or the array exceeds the byte limit.
pub fn gumbel(key: impl KeyOrNext, shape: impl IntoShape, dtype: DType) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let key = key.key()?;
    op!(mlx_random_gumbel([shape], dtype, Some(&key.0)))
}

/// Bool that is true with probability `p`, which broadcasts to `shape`.
///
/// ```
/// use mlx_core::random;
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let heads = random::bernoulli(&key, 0.25, [1000])?.sum_all()?;
/// assert!((150..350).contains(&heads.item::<i32>()?));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The probability does not broadcast, or the array exceeds the byte limit.
pub fn bernoulli(key: impl KeyOrNext, p: impl Operand, shape: impl IntoShape) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, DType::Bool)?;
    let key = key.key()?;
    let p = p.to_array(DType::F32)?;
    op!(mlx_random_bernoulli(*p, [shape], Some(&key.0)))
}

/// Integers from `low` to below `high`, both of which broadcast to `shape`. All are equally likely. If bounds are
/// arrays, an element whose `high` is not above `low` is `low`.
///
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let dice = random::randint(&key, 1, 7, [100], DType::I32)?.to_vec::<i32>()?;
/// assert!(dice.iter().all(|die| (1..7).contains(die)));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The dtype is not an integer or Bool, or cannot hold all numbers of the range; a `high` that is a number is not above
/// `low`, or a number is not an integer; or the array exceeds the byte limit.
pub fn randint(
    key: impl KeyOrNext,
    low: impl Operand,
    high: impl Operand,
    shape: impl IntoShape,
    dtype: DType,
) -> Result<Array> {
    let shape = shape.sizes()?;
    check_shape(&shape, dtype)?;
    let key = key.key()?;
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
        let offset = below(&key, &shape, &Array::scalar((to - from) as u64)?)?;
        return offset.add(Array::scalar(from as u64)?)?.astype(dtype);
    }
    let (low, high) = (low.to_array(DType::I64)?, high.to_array(DType::I64)?);
    let whole = low.dtype().is_integer() && high.dtype().is_integer();
    require(whole, "randint", "bounds", "integers", (&*low, &*high))?;
    let within = |bound: &Array| bound.broadcast_to(&*shape);
    let (low, high) = (within(&low)?, within(&high)?);
    let empty = high.less_equal(&low)?;
    let start = low.astype(DType::U64)?;
    let span = high.astype(DType::U64)?.subtract(&start)?;
    let span = empty.select(ones((), DType::U64)?, span)?;
    below(&key, &shape, &span)?.add(start)?.astype(dtype)
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
/// ```
/// use mlx_core::{DType, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// assert_eq!(random::bits(&key, [4], 1)?.dtype(), DType::U8);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Another width, or the array exceeds the byte limit.
pub fn bits(key: impl KeyOrNext, shape: impl IntoShape, width: i32) -> Result<Array> {
    let shape = shape.sizes()?;
    require(
        matches!(width, 1 | 2 | 4),
        "bits",
        "width",
        "1, 2 or 4 bytes",
        width,
    )?;
    check_shape(&shape, DType::U32)?;
    let key = key.key()?;
    op!(mlx_random_bits([shape], width, Some(&key.0)))
}

/// One index along the last axis, drawn by the unnormalised log probabilities there, as U32: `[…, n]` → `[…]`.
///
/// ```
/// use mlx_core::{array, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let logits = array![[0.0f32, 100.0], [100.0, 0.0]];
/// assert_eq!(random::categorical(&key, &logits)?.to_vec::<u32>()?, [1, 0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no axis, or it is empty.
pub fn categorical(key: impl KeyOrNext, logits: &Array) -> Result<Array> {
    categorical_with(key, logits, -1)
}

/// One index along `axis`, drawn by the unnormalised log probabilities there, as U32: `[…, n, …]` → `[…, …]`.
///
/// # Errors
/// There is no such axis, or it is empty.
pub fn categorical_with(key: impl KeyOrNext, logits: &Array, axis: i32) -> Result<Array> {
    let key = key.key()?;
    op!(mlx_random_categorical(logits, axis, Some(&key.0)))
}

/// As [`categorical_with`], with `n` draws of each: `[…, n]` of U32, the draws last.
///
/// ```
/// use mlx_core::{array, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let logits = array![[0.0f32, 1.0]];
/// assert_eq!(random::categorical_n(&key, &logits, -1, 5)?.shape(), [1, 5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no such axis or it is empty, or `n` is negative.
pub fn categorical_n(key: impl KeyOrNext, logits: &Array, axis: i32, n: i32) -> Result<Array> {
    require(n >= 0, "categorical_n", "n", "at least 0", n)?;
    let key = key.key()?;
    op!(mlx_random_categorical_num_samples(
        logits,
        axis,
        n,
        Some(&key.0)
    ))
}

/// What [`permutation`] puts in order: an array, or a number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that can be put in random order",
    note = "give an array, or an `i32` for the numbers below it: `random::permutation(&key, &x)`, `random::permutation(&key, 10)`"
)]
pub trait Permuted {
    /// The slots of the first axis, or the numbers, in random order.
    ///
    /// # Errors
    /// Those of [`permutation`].
    fn permuted(&self, key: impl KeyOrNext) -> Result<Array>;
}

impl Permuted for Array {
    fn permuted(&self, key: impl KeyOrNext) -> Result<Array> {
        permutation_with(key, self, 0)
    }
}

impl Permuted for i32 {
    fn permuted(&self, key: impl KeyOrNext) -> Result<Array> {
        permutation_of(key, *self)
    }
}

impl<T: Permuted> Permuted for &T {
    fn permuted(&self, key: impl KeyOrNext) -> Result<Array> {
        (**self).permuted(key)
    }
}

/// The slots of the first axis in random order; the shape stays. Of a number `n`, as [`permutation_of`]: the numbers
/// `0 .. n` in random order.
///
/// ```
/// use mlx_core::{array, random};
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let mut mixed = random::permutation(&key, &array![1, 2, 3])?.to_vec::<i32>()?;
/// mixed.sort();
/// assert_eq!(mixed, [1, 2, 3]);
/// assert_eq!(random::permutation(&key, 10)?.shape(), [10]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no axis, or a number is negative or exceeds the byte limit.
pub fn permutation(key: impl KeyOrNext, x: impl Permuted) -> Result<Array> {
    x.permuted(key)
}

/// The slots of `axis` in random order; the shape stays.
///
/// # Errors
/// There is no such axis.
pub fn permutation_with(key: impl KeyOrNext, x: &Array, axis: i32) -> Result<Array> {
    x.dim(axis)?;
    let key = key.key()?;
    op!(mlx_random_permutation(x, axis, Some(&key.0)))
}

/// The numbers `0 .. n` in random order, as U32: `[n]`.
///
/// ```
/// use mlx_core::random;
///
/// # fn main() -> mlx_core::Result<()> {
/// let key = random::Key::new(7)?;
/// let mut order = random::permutation_of(&key, 3)?.to_vec::<u32>()?;
/// order.sort();
/// assert_eq!(order, [0, 1, 2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `n` is negative or exceeds the byte limit.
pub fn permutation_of(key: impl KeyOrNext, n: i32) -> Result<Array> {
    check_shape(&[n], DType::U32)?;
    let key = key.key()?;
    op!(mlx_random_permutation_arange(n, Some(&key.0)))
}
