//! What recurrent layers compute: causal convolutions and the gated delta rule.

use mlx_c_sys as sys;

use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::poison;

/// `silu` of a causal convolution of each channel by its own taps: token `t` of channel `c` is
/// `silu(Σⱼ x[b, t + j, c] · taps[j, c])`, summed in F32.
///
/// `x` is `[B, J - 1 + L, C]`, the inputs before the tokens and those of the tokens; `taps` is `[J, C]`; the result is
/// `[B, L, C]`.
///
/// # Errors
/// Shapes do not fit, or `x` is not F16, BF16 or F32, or `taps` is not floating point.
pub fn causal_conv(x: &Array, taps: &Array) -> Result<Array> {
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
    op!(mlxrs_fast_causal_conv(x, taps))
}

/// The inputs of [`gated_delta`].
///
/// Axes: `B` rows, `L` tokens, `K` key heads of size `D`, `H` value heads of size `V`. A key head serves `H / K` value
/// heads, which follow each other.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta<'a> {
    /// `[B, L, 2·K·D + H·V]`: queries, keys and values, each head by head.
    pub qkv: &'a Array,
    /// `[B, L, H]`: how much the state decays.
    pub a: &'a Array,
    /// `[B, L, H]`: how much of the difference between a value and what its key reads is written.
    pub b: &'a Array,
    /// F32 `[H]`: `exp(A_log)` of checkpoints.
    pub rate: &'a Array,
    /// F32 `[H]`: `dt_bias` of checkpoints.
    pub bias: &'a Array,
    /// F32 `[B, H, V, D]`: the state before the first token.
    pub state: &'a Array,
    /// I32 `[B]`: how many tokens of a row are real. The others change nothing and give 0.
    pub widths: &'a Array,
    /// `K`
    pub key_heads: i32,
}

/// The gated delta rule (Yang et al., arXiv:2412.06464): what the tokens read, `[B, L, H·V]` in the dtype of `qkv`, and the
/// state after each row's last real token.
///
/// Of each token and head, in F32, with `q = q / ‖q‖ / √D`, `k = k / ‖k‖` (1e-6 is added to sums of squares), `β = sigmoid(b)` and
/// `g = exp(-rate · softplus(a + bias))`: `S ← g S`, then `S ← S + β (v - S k) kᵀ`, and `y = S q`.
///
/// On the CPU tokens are read one after the other, by rows of the state that stay in registers and L1. So many tokens give what
/// single ones give, to the bit. The plain form computes chunks of 64 tokens by products of matrices.
///
/// # Errors
/// Shapes or dtypes do not fit, or an axis is 0.
pub fn gated_delta(of: &GatedDelta<'_>) -> Result<(Array, Array)> {
    op!(pair mlxrs_fast_gated_delta(of))
}

impl GatedDelta<'_> {
    fn arrays(&self) -> [(&'static str, &Array); 7] {
        [
            ("qkv", self.qkv),
            ("a", self.a),
            ("b", self.b),
            ("rate", self.rate),
            ("bias", self.bias),
            ("state", self.state),
            ("widths", self.widths),
        ]
    }
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
        }
    }
    fn check(&self) -> Result<()> {
        for (_, array) in self.arrays() {
            poison::check(array)?;
        }
        let ([b, l, width], [_, h, v, d]) = (self.qkv.dims()?, self.state.dims()?);
        let k = self.key_heads;
        let wide = 2 * i64::from(k) * i64::from(d) + i64::from(h) * i64::from(v);
        if [b, l, k, h, v, d].iter().any(|&n| n < 1) || h % k != 0 || wide != i64::from(width) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "gated_delta of {k} key heads needs qkv [B, L, 2 K D + H V] and a state [B, H, V, D], found {:?} and {:?}",
                    self.qkv.shape(),
                    self.state.shape()
                ),
            ));
        }
        let gates = [b, l, h];
        let wanted: [&[i32]; 7] = [
            &[b, l, width],
            &gates,
            &gates,
            &[h],
            &[h],
            &[b, h, v, d],
            &[b],
        ];
        for ((name, array), wanted) in self.arrays().into_iter().zip(wanted) {
            if array.shape() != wanted {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "gated_delta: {name} is {:?}, expected {wanted:?}",
                        array.shape()
                    ),
                ));
            }
        }
        for (name, array) in &self.arrays()[..3] {
            floats("gated_delta", name, array)?;
        }
        for (at, (name, array)) in self.arrays()[3..].iter().enumerate() {
            let wanted = if at == 3 { DType::I32 } else { DType::F32 };
            if array.dtype() != wanted {
                return Err(Error::new(
                    ErrorKind::DType,
                    format!(
                        "gated_delta: {name} is {}, expected {wanted}",
                        array.dtype()
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn floats(operation: &str, name: &str, array: &Array) -> Result<()> {
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
