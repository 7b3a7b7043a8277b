//! Scaled dot-product attention.

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::ops::quantize::Scheme;

use super::mask::{IntoMask, Mask};
use super::packed::{packed_words, packing};
use super::{Form, Op, form};

/// Options of [`attention()`].
///
/// ```
/// use mlx_core::{DType, fast::{self, Attention, Mask}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let q = ones(&[1, 4, 3, 8], DType::F32)?; // four heads, three new tokens
/// let kv = ones(&[1, 2, 5, 8], DType::F32)?; // two heads, five stored tokens
/// // Gemma 2 caps its scores.
/// let options = Attention { scale: 0.35, soft_cap: Some(50.0), mask: Mask::None, sinks: None };
/// assert_eq!(fast::attention(&q, &kv, &kv, &options)?.to_vec::<f32>()?, [1.0; 96]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Attention<'a> {
    /// The factor of the scores.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`, before the mask.
    pub soft_cap: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// `[H]`: for each head, the score of one more token that takes part in the softmax and has no value.
    pub sinks: Option<&'a Array>,
}

/// `softmax(scale · q kᵀ + mask) v`, with F32 softmax.
///
/// `q` is `[B, H, L, D]`, `k` and `v` are `[B, K, S, D]`; `H` is a multiple of `K`, and query head
/// `h` reads head `h · K / H`. The result is `[B, H, L, D of v]`.
///
/// On the CPU, a query's result depends only on the keys that it sees and on their positions. Other rows, other
/// queries, and the chunks in which a prompt was computed do not change a bit of it.
///
/// A query that sees no key gives a meaningless but finite result. A stored NaN makes every result NaN, even if no
/// query sees its key.
///
/// ```
/// use mlx_core::{DType, fast::{self, Attention, Mask}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let q = ones(&[1, 4, 3, 8], DType::F32)?; // four heads, three new tokens
/// let kv = ones(&[1, 2, 5, 8], DType::F32)?; // two heads, five stored tokens
/// let options = Attention { scale: 0.35, soft_cap: None, mask: Mask::Causal, sinks: None };
/// assert_eq!(fast::attention(&q, &kv, &kv, &options)?.shape(), [1, 4, 3, 8]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes do not fit.
pub fn attention(q: &Array, k: &Array, v: &Array, options: &Attention<'_>) -> Result<Array> {
    attend(q, k, v, (0, 0), options)
}

/// [`attention`] over keys and values that [`pack`](super::pack) has packed: `k` and `v` are U32
/// `[B, K, S, words]`, of arrays in `q`'s dtype.
///
/// A key or value is the number that its codes, scale and bias give in F32. It is rounded to `q`'s dtype if the back
/// end multiplies in BF16 tiles, and on GPUs. On the CPU a block of keys or values is unpacked at a time, never all of
/// them.
///
/// # Errors
/// Rows cannot be packed in this scheme, or as [`attention`].
pub fn packed_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scheme: Scheme,
    options: &Attention<'_>,
) -> Result<Array> {
    let packing = packing(scheme)?;
    let ([.., d], [.., words]) = (q.dims::<4>()?, k.dims::<4>()?);
    let wanted = packed_words(d, q.dtype(), scheme)?;
    if words != wanted || k.dtype() != DType::U32 || v.dtype() != DType::U32 {
        let message = format!(
            "attention needs packed keys and values, U32, of {wanted} words for heads of {d} in {}, found {} {:?} and {} {:?}",
            q.dtype(),
            k.dtype(),
            k.shape(),
            v.dtype(),
            v.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    attend(q, k, v, packing, options)
}

fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    (bits, group_size): (i32, i32),
    options: &Attention<'_>,
) -> Result<Array> {
    check_attention(q, k, v)?;
    let [_, _, queries, _] = q.dims()?;
    let [_, _, slots, _] = k.dims()?;
    let mut how = sys::mlxrs_attention_options {
        scale: options.scale,
        soft_cap: options.soft_cap.unwrap_or(0.0),
        mask: sys::MLXRS_MASK_NONE,
        slots: sys::MLXRS_SLOTS_STRAIGHT,
        window: 0,
        bits,
        group_size,
    };
    let dense;
    let told = match &options.mask {
        Mask::None => None,
        Mask::Causal => {
            how.mask = sys::MLXRS_MASK_CAUSAL;
            None
        }
        Mask::Array(array) => {
            how.mask = sys::MLXRS_MASK_ARRAY;
            Some(array)
        }
        Mask::Positions(positions) => {
            positions.check(q, k)?;
            if form(Op::Attention)? == Form::Plain {
                // Made once, and shared by all layers of a step.
                dense = positions.dense(queries, slots)?;
                how.mask = sys::MLXRS_MASK_ARRAY;
                Some(&dense)
            } else {
                how.mask = sys::MLXRS_MASK_POSITIONS;
                how.slots = positions.slots.raw();
                how.window = positions.raw_window();
                Some(&positions.offsets)
            }
        }
    };
    op!(mlxrs_fast_attention(q, k, v, told, options.sinks, how))
}

impl Arg for sys::mlxrs_attention_options {
    type C = Self;
    fn c(&self) -> Self {
        *self
    }
}

/// [`attention`] without a soft cap. The mask is a [`Mask`], or what Python takes: an array, `None`, or `"causal"`.
///
/// ```
/// use mlx_core::{DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones([1, 2, 3, 8], DType::F32)?; // [B, H, L, D]
/// let y = fast::scaled_dot_product_attention(&x, &x, &x, 0.35, "causal", None)?;
/// assert_eq!(y.shape(), [1, 2, 3, 8]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The same as those of [`attention`], or the mask is another text.
pub fn scaled_dot_product_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    mask: impl IntoMask,
    sinks: Option<&Array>,
) -> Result<Array> {
    let options = Attention {
        scale,
        soft_cap: None,
        mask: mask.into_mask()?,
        sinks,
    };
    attention(q, k, v, &options)
}

/// Checks that MLX does not make: MLX divides by the number of heads, and reads as many rows of `v`
/// as `k` has.
fn check_attention(q: &Array, k: &Array, v: &Array) -> Result<()> {
    let ([_, heads, ..], [_, kv_heads, stored, _], [_, _, values, _]) =
        (q.dims::<4>()?, k.dims::<4>()?, v.dims::<4>()?);
    if heads == 0 || kv_heads == 0 {
        let message =
            format!("attention needs heads, found {heads} of queries and {kv_heads} of keys");
        return Err(Error::new(ErrorKind::Shape, message));
    }
    if stored != values {
        let message =
            format!("attention needs as many values as keys, found {values} and {stored}");
        return Err(Error::new(ErrorKind::Shape, message));
    }
    Ok(())
}
