//! Attention: who sees whom, and the operation.

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::quantize::Scheme;

use super::packed::{packed_words, packing};

/// Which stored tokens a query sees.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// All of them.
    None,
    /// Query `l` of `L` sees stored tokens `0 ..= S - L + l`: the last query sees everything.
    Causal,
    /// Booleans (`true` is seen) or numbers to add to the scores, of a shape that broadcasts to
    /// `[B, H, L, S]`.
    Array(&'a Array),
    /// What follows from positions.
    Placed(Placed<'a>),
}

/// Where queries and keys stand, in place of a mask: a query sees what is at its own position or
/// before it. Where [`has_kernels`] is true, what nobody sees costs nothing.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The position of each row's first query: I32 `[B]`, or `[1]` for all rows. The others follow.
    pub offsets: &'a Array,
    /// Only the last so many positions are seen, the query's own included.
    pub window: Option<i32>,
    /// Where the keys are.
    pub slots: KeySlots,
}

/// Which position the key in slot `j` of `S` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySlots {
    /// Position `j`. Slots behind the last query's position may hold anything finite.
    Straight,
    /// The last position congruent to `j` modulo `S`, the queries' own included: a ring.
    Ring,
    /// Position `offset - (S - L) + j`: the `L` new tokens behind those before them.
    Behind,
}

/// What [`attention`] is given beside queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// What scores are multiplied by.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`, before the mask.
    pub soft_cap: Option<f32>,
    /// Who sees whom.
    pub mask: Mask<'a>,
    /// `[H]`: scores of one further token each that is attended to and has no value.
    pub sinks: Option<&'a Array>,
}

/// `softmax(scale · q kᵀ + mask) v`, with F32 softmax.
///
/// `q` is `[B, H, L, D]`, `k` and `v` are `[B, K, S, D]`; `H` is a multiple of `K`, and query head
/// `h` reads head `h · K / H`. The result is `[B, H, L, D of v]`.
///
/// On the CPU a query's result is a function of the keys that it sees and of their positions alone:
/// other rows, other queries and how a prompt was cut into steps do not show, to the bit.
///
/// A query that sees nothing gives a meaningless but finite result; stored NaNs poison every
/// result, seen or not.
///
/// # Errors
/// Shapes or dtypes do not fit.
pub fn attention(q: &Array, k: &Array, v: &Array, options: &Attention<'_>) -> Result<Array> {
    attend(q, k, v, (0, 0), options)
}

/// [`attention`] over keys and values that [`pack`](super::pack) has packed: `k` and `v` are U32
/// `[B, K, S, words]`, of arrays in `q`'s dtype.
///
/// A key or value counts as what its codes, scale and bias give in F32. Where the back end
/// multiplies in BF16 tiles, and elsewhere than on the CPU, it is rounded to `q`'s dtype. On the CPU
/// they are written out a block at a time, never as a whole.
///
/// # Errors
/// The scheme is none that rows are packed in, or as [`attention`].
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
    let (mut layout, mut window) = (0, 0);
    let (seen, told) = match options.mask {
        Mask::None => (0, None),
        Mask::Causal => (1, None),
        Mask::Array(array) => (2, Some(array)),
        Mask::Placed(placed) => {
            placed.check(q, k)?;
            layout = match placed.slots {
                KeySlots::Straight => 0,
                KeySlots::Ring => 1,
                KeySlots::Behind => 2,
            };
            window = placed.window.unwrap_or(0);
            (3, Some(placed.offsets))
        }
    };
    let cap = options.soft_cap.unwrap_or(0.0);
    op!(mlxrs_fast_attention(
        q,
        k,
        v,
        options.scale,
        cap,
        seen,
        layout,
        window,
        bits,
        group_size,
        told,
        options.sinks
    ))
}

/// [`attention`] without a soft cap.
///
/// # Errors
/// As there.
pub fn scaled_dot_product_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    scale: f32,
    mask: Mask<'_>,
    sinks: Option<&Array>,
) -> Result<Array> {
    let options = Attention {
        scale,
        soft_cap: None,
        mask,
        sinks,
    };
    attention(q, k, v, &options)
}

/// Whether the operations of this module are kernels of ours on the current stream: on the CPU, if
/// they are not switched off. Elsewhere they are MLX's.
///
/// # Errors
/// `MLX_CPU_KERNELS` is neither `on` nor `off`.
pub fn has_kernels() -> Result<bool> {
    crate::ffi::has_kernels()
}

impl Placed<'_> {
    fn check(&self, q: &Array, k: &Array) -> Result<()> {
        let ([rows, _, queries, _], [_, _, slots, _]) = (q.dims::<4>()?, k.dims::<4>()?);
        let fault = if self.offsets.dtype() != DType::I32
            || !(self.offsets.size() == 1 || self.offsets.shape() == [rows])
        {
            let (dtype, shape) = (self.offsets.dtype(), self.offsets.shape());
            format!("offsets must be I32 of one number or {rows}, found {dtype} {shape:?}")
        } else if self.window.is_some_and(|window| window < 1) {
            format!("a window must be at least 1, given {:?}", self.window)
        } else if slots < queries {
            format!("{slots} slots cannot hold {queries} queries' own keys")
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Shape,
            format!("attention by positions: {fault}"),
        ))
    }
}

/// What MLX does not check: it divides by the number of heads, and trusts `v` to be as long as `k`.
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
