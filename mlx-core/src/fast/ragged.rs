//! Operations of recurrent layers over ragged rows, whose states are in a pool of slots.

use mlx_c_sys as sys;

use super::recurrent::{check_gates, check_limits, check_tokens, fits, floats, shaped, typed};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::poison;

/// Rows of several lengths, whose tokens are one axis of `T` tokens.
///
/// Row b has the tokens `starts[b] .. starts[b + 1]`, or none. Tokens from `starts[B]` on belong to no row: they change
/// nothing, and their outputs are 0.
#[derive(Clone, Copy, Debug)]
pub struct RaggedRows<'a> {
    /// I32 `[B + 1]`: ascending, the first is 0, the last at most `T`.
    pub starts: &'a Array,
    /// A number of tokens, from 1 to `T`, that no row exceeds. The plain form gives each row so many places. For a
    /// longer row the evaluation fails in this crate's CPU kernels, and the plain form computes NaN.
    pub longest: i32,
}

/// Where the states of rows are read and written. A slot of -1 is none: a row without a slot in `from` begins with
/// zeros, and a state without a slot in `to` is not stored.
///
/// A slot may occur once in `to`. It may be in `from` of its own row, whose state is then updated, but not of another
/// row. In this crate's CPU kernels the evaluation fails if slots break these rules.
#[derive(Debug)]
pub struct StateSlots<'a> {
    /// The states of all slots.
    pub pool: StatePool<'a>,
    /// I32 `[B]`: the slot with the state before the row's tokens.
    pub from: &'a Array,
    /// The slots of the states after tokens.
    pub to: SlotsAfter<'a>,
}

/// The states of all slots, `[slots, ..]`.
#[derive(Debug)]
pub enum StatePool<'a> {
    /// A pool that is written in place, on the conditions of [`inplace`](crate::inplace). The plain form copies it.
    Own(Array),
    /// A pool that is copied, because something else still reads it.
    Shared(&'a Array),
}

/// Which states are stored, and where.
#[derive(Clone, Copy, Debug)]
pub enum SlotsAfter<'a> {
    /// I32 `[B]`: the slot of the state after the row's last token. It is not used for a row without tokens.
    Rows(&'a Array),
    /// I32 `[T]`: the slot of the state after each token. The plain form computes one token after the other.
    Tokens(&'a Array),
}

/// [`causal_conv`](super::causal_conv) of ragged rows: `x [1, T, C]`, `taps [J, C]`, `bias [C]`, and a result
/// `[1, T, C]`, with the pool after the step if there are `states`.
///
/// The inputs before a row's first token are its state. A slot of the pool, `[slots, J - 1, C]` in the dtype of `x`, has
/// the last `J - 1` inputs of a row.
///
/// ```
/// use mlx_core::fast::{self, RaggedRows, SlotsAfter, StatePool, StateSlots};
/// use mlx_core::{Array, DType, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, taps) = (ones(&[1, 3, 4], DType::F32)?, ones(&[3, 4], DType::F32)?);
/// // A row with two tokens goes on from slot 1, a row with one token begins in slot 0.
/// let starts = Array::from_slice(&[0i32, 2, 3], &[3])?;
/// let slots = Array::from_slice(&[1i32, 0], &[2])?;
/// let states = StateSlots {
///     pool: StatePool::Own(ones(&[2, 2, 4], DType::F32)?),
///     from: &Array::from_slice(&[1i32, -1], &[2])?,
///     to: SlotsAfter::Rows(&slots),
/// };
/// let rows = RaggedRows { starts: &starts, longest: 2 };
/// let (y, pool) = fast::ragged_conv(&x, &taps, None, false, &rows, Some(states))?;
/// assert_eq!(y.slice_axis(2, 0, 1)?.to_vec::<f32>()?, [3.0, 3.0, 1.0]);
/// assert_eq!(pool.unwrap().slice_axis(2, 0, 1)?.to_vec::<f32>()?, [0.0, 1.0, 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes do not fit. When it is evaluated: rows or slots break their rules.
pub fn ragged_conv(
    x: &Array,
    taps: &Array,
    bias: Option<&Array>,
    silu: bool,
    rows: &RaggedRows<'_>,
    states: Option<StateSlots<'_>>,
) -> Result<(Array, Option<Array>)> {
    const NAME: &str = "ragged_conv";
    let ([one, tokens, channels], [count, width]) = (x.dims()?, taps.dims()?);
    let least = if states.is_some() { 2 } else { 1 };
    if one != 1 || tokens < 1 || channels < 1 || count < least || width != channels {
        let message = format!(
            "{NAME} needs x [1, T, C] and taps [J, C] with J at least {least}, found {:?} and {:?}",
            x.shape(),
            taps.shape()
        );
        return Err(Error::new(ErrorKind::Shape, message));
    }
    for (name, array) in [("x", x), ("taps", taps)] {
        floats(NAME, name, array)?;
    }
    if let Some(bias) = bias {
        shaped(NAME, "bias", bias, &[channels])?;
        floats(NAME, "bias", bias)?;
    }
    let step = Step { rows, states };
    step.check(NAME, tokens, x.dtype(), &[count - 1, channels])?;
    results(op!(vector mlxrs_fast_ragged_conv(x, taps, bias, silu, step))?)
}

/// The inputs of [`ragged_delta`]. Axes are those of [`GatedDelta`](super::GatedDelta), with `T` tokens.
#[derive(Clone, Copy, Debug)]
pub struct RaggedDelta<'a> {
    /// `[1, T, 2·K·D + H·V]`: queries, keys and values, each head by head.
    pub qkv: &'a Array,
    /// `[1, T, H]`: the input of the decay; `[1, T, H·D]` if each channel of a key has its own decay.
    pub a: &'a Array,
    /// `[1, T, H]`: the input of `β`.
    pub b: &'a Array,
    /// F32 `[H]`
    pub rate: &'a Array,
    /// F32, with as many elements as a token of `a`.
    pub bias: &'a Array,
    /// `K`
    pub key_heads: i32,
    /// `D`
    pub key_dim: i32,
    /// The largest `β`.
    pub most: f32,
    /// A negative number above which the logarithm of the decay stays.
    pub bound: Option<f32>,
}

/// [`gated_delta`](super::gated_delta()) of ragged rows: the tokens' outputs `[1, T, H·V]`, and the pool after the step
/// if there are `states`. The pool is F32 `[slots, H, V, D]`. Without states each row begins with zeros.
///
/// ```
/// use mlx_core::fast::{self, RaggedDelta, RaggedRows};
/// use mlx_core::{Array, DType, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (qkv, gate) = (ones(&[1, 4, 3 * 8], DType::F32)?, ones(&[1, 4, 1], DType::F32)?);
/// let (rate, bias) = (ones(&[1], DType::F32)?, zeros(&[1], DType::F32)?);
/// let of = RaggedDelta {
///     qkv: &qkv, a: &gate, b: &gate, rate: &rate, bias: &bias, key_heads: 1, key_dim: 8,
///     most: 1.0, bound: None,
/// };
/// let starts = Array::from_slice(&[0i32, 1, 3], &[3])?; // rows of 1 and 2 tokens; one token is of no row
/// let (y, pool) = fast::ragged_delta(&of, &RaggedRows { starts: &starts, longest: 2 }, None)?;
/// let y = y.to_vec::<f32>()?;
/// assert_eq!((&y[..8], &y[24..], pool.is_none()), (&y[8..16], &[0.0; 8][..], true));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes do not fit, an axis is 0, `most` is not in `0 ..= 2`, or `bound` is not negative. When it is
/// evaluated: rows or slots break their rules.
pub fn ragged_delta(
    of: &RaggedDelta<'_>,
    rows: &RaggedRows<'_>,
    states: Option<StateSlots<'_>>,
) -> Result<(Array, Option<Array>)> {
    const NAME: &str = "ragged_delta";
    check_gates(NAME, of.most, of.bound)?;
    let ([_, _, h], d) = (of.b.dims()?, of.key_dim);
    let of_token = match of.a.dims()? {
        [_, _, width] if width == h => h,
        _ => h.saturating_mul(d),
    };
    let state = state_of(NAME, ("qkv", of.qkv), of.key_heads, h, d)?;
    check_tokens(
        NAME,
        ("qkv", of.qkv),
        &[("a", of.a, of_token), ("b", of.b, h)],
        &[("rate", of.rate, h), ("bias", of.bias, of_token)],
    )?;
    let step = Step { rows, states };
    step.check(NAME, of.qkv.dim(1)?, DType::F32, &state)?;
    results(op!(vector mlxrs_fast_ragged_delta(of, d, step))?)
}

impl Arg for RaggedDelta<'_> {
    type C = sys::mlxrs_gated_delta;
    fn c(&self) -> Self::C {
        sys::mlxrs_gated_delta {
            qkv: self.qkv.c(),
            a: self.a.c(),
            b: self.b.c(),
            rate: self.rate.c(),
            bias: self.bias.c(),
            state: None::<&Array>.c(),
            widths: None::<&Array>.c(),
            key_heads: self.key_heads,
            most: self.most,
            bound: self.bound.unwrap_or(0.0),
        }
    }
}

/// The inputs of [`ragged_scan`]. Axes are those of [`Scan`](super::Scan), with `T` tokens.
#[derive(Clone, Copy, Debug)]
pub struct RaggedScan<'a> {
    /// `[1, T, H·P + 2·G·N]`: values, keys and queries, each head by head.
    pub x: &'a Array,
    /// `[1, T, H]`: time steps.
    pub dt: &'a Array,
    /// F32 `[H]`
    pub rate: &'a Array,
    /// F32 `[H]`
    pub bias: &'a Array,
    /// F32 `[H]`
    pub skip: &'a Array,
    /// `G`
    pub groups: i32,
    /// `N`
    pub key_dim: i32,
    /// The bounds of a time step.
    pub limits: (f32, f32),
}

/// [`scan`](super::scan()) of ragged rows: the tokens' outputs `[1, T, H·P]`, and the pool after the step if there are
/// `states`. The pool is F32 `[slots, H, P, N]`. Without states each row begins with zeros.
///
/// ```
/// use mlx_core::fast::{self, RaggedRows, RaggedScan, SlotsAfter, StatePool, StateSlots};
/// use mlx_core::{Array, DType, ones, zeros};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, dt) = (ones(&[1, 2, 3 * 8], DType::F32)?, ones(&[1, 2, 1], DType::F32)?);
/// let (one, none) = (ones(&[1], DType::F32)?, zeros(&[1], DType::F32)?);
/// let of = RaggedScan {
///     x: &x, dt: &dt, rate: &one, bias: &none, skip: &none, groups: 1, key_dim: 8, limits: (1.0, 1.0),
/// };
/// // One row that begins, with a slot for the state after each of its tokens.
/// let states = StateSlots {
///     pool: StatePool::Own(zeros(&[2, 1, 8, 8], DType::F32)?),
///     from: &Array::from_slice(&[-1i32], &[1])?,
///     to: SlotsAfter::Tokens(&Array::from_slice(&[1i32, 0], &[2])?),
/// };
/// let starts = Array::from_slice(&[0i32, 2], &[2])?;
/// let (_, pool) = fast::ragged_scan(&of, &RaggedRows { starts: &starts, longest: 2 }, Some(states))?;
/// let pool = pool.unwrap().to_vec::<f32>()?;
/// assert_eq!(pool[64], 1.0);
/// assert!((pool[0] - (1.0 + (-1.0f32).exp())).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes or dtypes do not fit, or an axis is 0. When it is evaluated: rows or slots break their rules.
pub fn ragged_scan(
    of: &RaggedScan<'_>,
    rows: &RaggedRows<'_>,
    states: Option<StateSlots<'_>>,
) -> Result<(Array, Option<Array>)> {
    const NAME: &str = "ragged_scan";
    check_limits(NAME, of.limits)?;
    let ([_, _, h], n) = (of.dt.dims()?, of.key_dim);
    let state = state_of(NAME, ("x", of.x), of.groups, h, n)?;
    let numbers = [
        ("rate", of.rate, h),
        ("bias", of.bias, h),
        ("skip", of.skip, h),
    ];
    check_tokens(NAME, ("x", of.x), &[("dt", of.dt, h)], &numbers)?;
    let step = Step { rows, states };
    step.check(NAME, of.x.dim(1)?, DType::F32, &state)?;
    results(op!(vector mlxrs_fast_ragged_scan(of, n, step))?)
}

impl Arg for RaggedScan<'_> {
    type C = sys::mlxrs_scan;
    fn c(&self) -> Self::C {
        sys::mlxrs_scan {
            x: self.x.c(),
            dt: self.dt.c(),
            rate: self.rate.c(),
            bias: self.bias.c(),
            skip: self.skip.c(),
            state: None::<&Array>.c(),
            widths: None::<&Array>.c(),
            groups: self.groups,
            least: self.limits.0,
            most: self.limits.1,
        }
    }
}

/// The shape `[H, V, D]` of a state, where `x` is `[1, T, 2·K·D + H·V]`.
fn state_of(
    operation: &str,
    (name, x): (&str, &Array),
    key_heads: i32,
    h: i32,
    d: i32,
) -> Result<[i32; 3]> {
    let [one, _, width] = x.dims()?;
    let keys = 2i64.saturating_mul(i64::from(key_heads) * i64::from(d));
    let values = i64::from(width).saturating_sub(keys);
    let v = values.checked_div(i64::from(h)).unwrap_or(0);
    let state = [h, i32::try_from(v).unwrap_or(0), d];
    if one == 1 && key_heads > 0 && d > 0 && fits(x, key_heads, state)? {
        return Ok(state);
    }
    let message = format!(
        "{operation} of {key_heads} key heads of {d} features and {h} value heads needs {name} \
         [1, T, 2 K D + H V], found {:?}",
        x.shape()
    );
    Err(Error::new(ErrorKind::Shape, message))
}

/// The rows of a step and their states, which operations have in common.
struct Step<'a> {
    rows: &'a RaggedRows<'a>,
    states: Option<StateSlots<'a>>,
}

impl StatePool<'_> {
    fn array(&self) -> &Array {
        match self {
            Self::Own(pool) => pool,
            Self::Shared(pool) => pool,
        }
    }
}

impl SlotsAfter<'_> {
    fn array(&self) -> &Array {
        match self {
            Self::Rows(to) | Self::Tokens(to) => to,
        }
    }
}

impl Step<'_> {
    /// Checks shapes and dtypes, where a slot of the pool has the shape `state`.
    fn check(&self, operation: &str, tokens: i32, dtype: DType, state: &[i32]) -> Result<()> {
        let RaggedRows { starts, longest } = *self.rows;
        let [ends] = starts.dims()?;
        if ends < 2 {
            let message = format!(
                "{operation}: starts is {:?}, expected [B + 1] for at least one row",
                starts.shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        typed(operation, "starts", starts, DType::I32)?;
        if !(1..=tokens).contains(&longest) {
            let message =
                format!("{operation}: a longest row of {longest} tokens, expected 1 ..= {tokens}");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let Some(StateSlots { pool, from, to }) = &self.states else {
            return Ok(());
        };
        let pool = pool.array();
        match pool.shape().split_first() {
            Some((&slots, of_slot)) if slots >= 1 && of_slot == state => {}
            _ => {
                let message = format!(
                    "{operation}: the pool is {:?}, expected at least one slot of {state:?}",
                    pool.shape()
                );
                return Err(Error::new(ErrorKind::Shape, message));
            }
        }
        typed(operation, "the pool", pool, dtype)?;
        let of_to = match to {
            SlotsAfter::Rows(_) => ends - 1,
            SlotsAfter::Tokens(_) => tokens,
        };
        for (name, array, n) in [("from", *from, ends - 1), ("to", to.array(), of_to)] {
            shaped(operation, name, array, &[n])?;
            typed(operation, name, array, DType::I32)?;
        }
        Ok(())
    }
}

impl Arg for Step<'_> {
    type C = sys::mlxrs_ragged;
    fn c(&self) -> Self::C {
        let states = self.states.as_ref();
        sys::mlxrs_ragged {
            starts: self.rows.starts.c(),
            longest: self.rows.longest,
            pool: states.map(|of| of.pool.array()).c(),
            from: states.map(|of| of.from).c(),
            to: states.map(|of| of.to.array()).c(),
            each: states.is_some_and(|of| matches!(of.to, SlotsAfter::Tokens(_))),
            in_place: states.is_some_and(|of| matches!(of.pool, StatePool::Own(_))),
        }
    }
    fn check(&self) -> Result<()> {
        poison::check(self.rows.starts)?;
        let Some(states) = &self.states else {
            return Ok(());
        };
        for array in [states.pool.array(), states.from, states.to.array()] {
            poison::check(array)?;
        }
        Ok(())
    }
}

/// The outputs, and the pool if there is one.
fn results(all: Vec<Array>) -> Result<(Array, Option<Array>)> {
    let mut all = all.into_iter();
    match (all.next(), all.next()) {
        (Some(y), pool) => Ok((y, pool)),
        _ => Err(Error::new(ErrorKind::Mlx, "an operation has no result")),
    }
}
