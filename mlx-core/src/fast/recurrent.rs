//! Operations of recurrent layers: causal convolutions, the gated delta rule, and the scan of Mamba 2.

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::poison;

/// A causal convolution of each channel by its own taps: token `t` of channel `c` is
/// `Σⱼ x[b, t + j, c] · taps[j, c] + bias[c]`, summed in F32, and through `silu` if asked for.
///
/// `x` is `[B, J - 1 + L, C]`: the inputs before the tokens, then those of the tokens. `taps` is `[J, C]`, `bias` is
/// `[C]`, and the result is `[B, L, C]`.
///
/// ```
/// use mlx_core::{DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[1, 2 + 3, 4], DType::F32)?; // two earlier tokens and three new ones
/// let taps = ones(&[3, 4], DType::F32)?;
/// assert_eq!(fast::causal_conv(&x, &taps, None, false)?.to_vec::<f32>()?, [3.0; 12]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Shapes do not fit, or `x` is not F16, BF16 or F32, or `taps` or `bias` are not floating point.
pub fn causal_conv(x: &Array, taps: &Array, bias: Option<&Array>, silu: bool) -> Result<Array> {
    let ([_, inputs, channels], [count, width]) = (x.dims()?, taps.dims()?);
    if count < 1 || inputs < count || channels < 1 || width != channels {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "causal_conv needs taps [J, C] and at least J inputs [B, .., C], found {:?} and {:?}",
                taps.shape(),
                x.shape()
            ),
        ));
    }
    for (name, array) in [("x", x), ("taps", taps)] {
        floats("causal_conv", name, array)?;
    }
    if let Some(bias) = bias {
        shaped("causal_conv", "bias", bias, &[channels])?;
        floats("causal_conv", "bias", bias)?;
    }
    op!(mlxrs_fast_causal_conv(x, taps, bias, silu))
}

/// The inputs of [`gated_delta`].
///
/// Axes: `B` rows, `L` tokens, `K` key heads of size `D`, `H` value heads of size `V`. A key head serves `H / K`
/// consecutive value heads.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta<'a> {
    /// `[B, L, 2·K·D + H·V]`: queries, keys and values, each head by head.
    pub qkv: &'a Array,
    /// `[B, L, H]`: the input of the decay `g`; `[B, L, H·D]` if each channel of a key has its own
    /// decay.
    pub a: &'a Array,
    /// `[B, L, H]`: the input of `β`, the fraction of the difference `v - S k` that is written into
    /// the state.
    pub b: &'a Array,
    /// F32 `[H]`: `exp(A_log)` of checkpoints.
    pub rate: &'a Array,
    /// F32, with as many elements as a token of `a`: `dt_bias` of checkpoints.
    pub bias: &'a Array,
    /// F32 `[B, H, V, D]`: the state before the first token.
    pub state: &'a Array,
    /// I32 `[B]`: how many tokens of a row are real. The others do not change the state, and their output is 0.
    pub widths: &'a Array,
    /// `K`
    pub key_heads: i32,
    /// The largest `β`: 1, or a number up to 2, with which the state can have negative eigenvalues.
    pub most: f32,
    /// A negative number above which `ln g` stays (the safe gate of Kimi Delta Attention).
    pub bound: Option<f32>,
}

/// The gated delta rule (Yang et al., arXiv:2412.06464). Returns the tokens' outputs, `[B, L, H·V]` in the dtype of
/// `qkv`, and the state after each row's last real token.
///
/// For each token and head, in F32, with `q = q / ‖q‖ / √D`, `k = k / ‖k‖` (1e-6 is added to sums of squares), `β =
/// most · sigmoid(b)` and `g = exp(-rate · softplus(a + bias))`: `S ← g S`, then `S ← S + β (v - S k) kᵀ`, and `y = S q`.
/// With a bound, `g = exp(bound · sigmoid(rate · (a + bias)))`.
///
/// If channels decay separately (Kimi Delta Attention, arXiv:2510.26692), `g` is a diagonal matrix on the right of `S`.
///
/// On the CPU tokens are processed one after the other, on rows of the state that stay in registers and L1. So several
/// tokens at once give the same bits as single tokens. The plain form computes chunks of tokens by matrix products.
///
/// # Errors
/// Shapes or dtypes do not fit, an axis is 0, `most` is not in `0 ..= 2`, or `bound` is not negative.
#[doc(alias = "gated_delta_update")]
pub fn gated_delta(of: &GatedDelta<'_>) -> Result<(Array, Array)> {
    op!(pair mlxrs_fast_gated_delta(of))
}

impl Arg for GatedDelta<'_> {
    type C = sys::mlxrs_gated_delta;
    fn c(&self) -> Self::C {
        sys::mlxrs_gated_delta {
            qkv: self.qkv.c(),
            a: self.a.c(),
            b: self.b.c(),
            rate: self.rate.c(),
            bias: self.bias.c(),
            state: self.state.c(),
            widths: self.widths.c(),
            key_heads: self.key_heads,
            most: self.most,
            bound: self.bound.unwrap_or(0.0),
        }
    }
    fn check(&self) -> Result<()> {
        check_gates("gated_delta", self.most, self.bound)?;
        let [_, h, _, d] = self.state.dims()?;
        let of_token = match self.a.dims()? {
            [_, _, width] if width == h => h,
            _ => h.saturating_mul(d),
        };
        check(
            "gated_delta",
            ("qkv", self.qkv, self.key_heads),
            (self.state, self.widths),
            &[("a", self.a, of_token), ("b", self.b, h)],
            &[("rate", self.rate, h), ("bias", self.bias, of_token)],
        )
    }
}

/// The inputs of [`scan`].
///
/// Axes: `B` rows, `L` tokens, `H` heads of size `P`, `G` groups with a key and a query of size `N`. A group serves `H
/// / G` consecutive heads.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// `[B, L, H·P + 2·G·N]`: values, keys and queries (`x`, `B` and `C` of the paper), each head by head.
    pub x: &'a Array,
    /// `[B, L, H]`: time steps.
    pub dt: &'a Array,
    /// F32 `[H]`: `exp(A_log)` of checkpoints.
    pub rate: &'a Array,
    /// F32 `[H]`: `dt_bias` of checkpoints.
    pub bias: &'a Array,
    /// F32 `[H]`: `D` of checkpoints.
    pub skip: &'a Array,
    /// F32 `[B, H, P, N]`: the state before the first token.
    pub state: &'a Array,
    /// I32 `[B]`: how many tokens of a row are real. The others do not change the state, and their output is 0.
    pub widths: &'a Array,
    /// `G`
    pub groups: i32,
    /// The bounds of a time step.
    pub limits: (f32, f32),
}

/// The scan of Mamba 2 (Dao and Gu, arXiv:2405.21060). Returns the tokens' outputs, `[B, L, H·P]` in the dtype of `x`,
/// and the state after each row's last real token.
///
/// For each token and head, in F32, with `δ = softplus(dt + bias)` clamped to the limits: `S ← exp(-rate · δ) S + δ x
/// kᵀ`, and `y = S q + skip · x`.
///
/// If both limits are 1, it is a linear attention whose heads decay at fixed rates.
///
/// # Errors
/// Shapes or dtypes do not fit, or an axis is 0.
pub fn scan(of: &Scan<'_>) -> Result<(Array, Array)> {
    op!(pair mlxrs_fast_scan(of))
}

impl Arg for Scan<'_> {
    type C = sys::mlxrs_scan;
    fn c(&self) -> Self::C {
        sys::mlxrs_scan {
            x: self.x.c(),
            dt: self.dt.c(),
            rate: self.rate.c(),
            bias: self.bias.c(),
            skip: self.skip.c(),
            state: self.state.c(),
            widths: self.widths.c(),
            groups: self.groups,
            least: self.limits.0,
            most: self.limits.1,
        }
    }
    fn check(&self) -> Result<()> {
        check_limits("scan", self.limits)?;
        let [_, h, _, _] = self.state.dims()?;
        check(
            "scan",
            ("x", self.x, self.groups),
            (self.state, self.widths),
            &[("dt", self.dt, h)],
            &[
                ("rate", self.rate, h),
                ("bias", self.bias, h),
                ("skip", self.skip, h),
            ],
        )
    }
}

/// Checks the largest beta of a delta rule.
pub(super) fn check_gates(operation: &str, most: f32, bound: Option<f32>) -> Result<()> {
    let invalid = |what| {
        Err(Error::new(
            ErrorKind::Invalid,
            format!("{operation}: {what}"),
        ))
    };
    if !(0.0..=2.0).contains(&most) {
        return invalid(format!("the largest beta must be in 0 ..= 2, given {most}"));
    }
    match bound {
        Some(bound) if !(bound < 0.0 && bound.is_finite()) => invalid(format!(
            "the bound of ln g must be a negative number, given {bound}"
        )),
        _ => Ok(()),
    }
}

pub(super) fn check_limits(operation: &str, (least, most): (f32, f32)) -> Result<()> {
    if least >= 0.0 && least <= most {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{operation}: time steps in {least} ..= {most}, expected 0 <= least <= most"),
    ))
}

/// Checks the inputs of a recurrence: tokens `[B, L, 2·K·D + H·V]` of K key heads, the state `[B, H, V, D]`, the
/// widths, arrays with these numbers of floats for each token, and F32 vectors of these lengths.
fn check(
    operation: &str,
    (name, x, key_heads): (&str, &Array, i32),
    (state, widths): (&Array, &Array),
    gates: &[(&str, &Array, i32)],
    numbers: &[(&str, &Array, i32)],
) -> Result<()> {
    for array in [state, widths] {
        poison::check(array)?;
    }
    let [b, _, _] = x.dims()?;
    let [_, h, v, d] = state.dims()?;
    if !fits(x, key_heads, [h, v, d])? {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "{operation} of {key_heads} key heads needs {name} [B, L, 2 K D + H V] and a state [B, H, V, D], found {:?} and {:?}",
                x.shape(),
                state.shape()
            ),
        ));
    }
    check_tokens(operation, (name, x), gates, numbers)?;
    shaped(operation, "state", state, &[b, h, v, d])?;
    typed(operation, "state", state, DType::F32)?;
    shaped(operation, "widths", widths, &[b])?;
    typed(operation, "widths", widths, DType::I32)
}

/// Whether `x` is `[B, L, 2·K·D + H·V]` for K key heads and states `[H, V, D]`, and no axis is 0.
pub(super) fn fits(x: &Array, key_heads: i32, [h, v, d]: [i32; 3]) -> Result<bool> {
    let ([b, l, width], k) = (x.dims()?, key_heads);
    let wide = 2 * i64::from(k) * i64::from(d) + i64::from(h) * i64::from(v);
    let some = [b, l, k, h, v, d].iter().all(|&n| n >= 1);
    Ok(some && h % k == 0 && wide == i64::from(width))
}

/// Checks tokens `[B, L, ..]`, arrays with these numbers of floats for each token, and F32 vectors of these lengths.
pub(super) fn check_tokens(
    operation: &str,
    (name, x): (&str, &Array),
    gates: &[(&str, &Array, i32)],
    numbers: &[(&str, &Array, i32)],
) -> Result<()> {
    poison::check(x)?;
    let [b, l, _] = x.dims()?;
    for &(name, array, n) in gates {
        poison::check(array)?;
        shaped(operation, name, array, &[b, l, n])?;
        floats(operation, name, array)?;
    }
    for &(name, array, n) in numbers {
        poison::check(array)?;
        shaped(operation, name, array, &[n])?;
        typed(operation, name, array, DType::F32)?;
    }
    floats(operation, name, x)
}

pub(super) fn shaped(operation: &str, name: &str, array: &Array, wanted: &[i32]) -> Result<()> {
    if array.shape() == wanted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Shape,
        format!(
            "{operation}: {name} is {:?}, expected {wanted:?}",
            array.shape()
        ),
    ))
}

pub(super) fn typed(operation: &str, name: &str, array: &Array, wanted: DType) -> Result<()> {
    if array.dtype() == wanted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::DType,
        format!(
            "{operation}: {name} is {}, expected {wanted}",
            array.dtype()
        ),
    ))
}

pub(super) fn floats(operation: &str, name: &str, array: &Array) -> Result<()> {
    if array.dtype().is_float() && array.dtype() != DType::F64 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::DType,
        format!(
            "{operation}: {name} is {}, expected F16, BF16 or F32",
            array.dtype()
        ),
    ))
}
