//! Gates of MLPs, and soft caps.

use mlx_c_sys as sys;

use super::Matrix;
use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;

/// The gate between the halves of a gated MLP. Source: Shazeer 2020, "GLU Variants Improve Transformer".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `gate · sigmoid(gate) · up`
    Silu,
    /// `gelu(gate) · up`, with the tanh approximation of gelu (Hendrycks and Gimpel, arXiv:1606.08415).
    GeluTanh,
}

impl Gate {
    pub(super) fn raw(self) -> sys::mlxrs_gate {
        match self {
            Self::Silu => sys::MLXRS_GATE_SILU,
            Self::GeluTanh => sys::MLXRS_GATE_GELU_TANH,
        }
    }
}

/// `gate · sigmoid(gate) · up`: [`Gate::Silu`].
///
/// # Errors
/// The shapes do not broadcast.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    gated(Gate::Silu, gate, up)
}

/// `gelu(gate) · up`: [`Gate::GeluTanh`].
///
/// # Errors
/// The shapes do not broadcast.
pub fn geglu(gate: &Array, up: &Array) -> Result<Array> {
    gated(Gate::GeluTanh, gate, up)
}

/// The gate of two arrays.
///
/// # Errors
/// The shapes do not broadcast.
pub fn gated(kind: Gate, gate: &Array, up: &Array) -> Result<Array> {
    op!(mlxrs_fast_gated(kind.raw(), gate, up))
}

/// [`gated`] of the products `x gateᵀ` and `x upᵀ`.
///
/// On the CPU it is one node if `x` has 16-bit elements and the matrices have one coding (as for
/// [`linear_many`](super::linear_many)); then neither product is ever complete in memory. The result has the same bits
/// as that of the separate operations.
///
/// # Errors
/// As [`linear_many`](super::linear_many), or the products have different shapes.
pub fn gated_linear(kind: Gate, x: &Array, gate: &Matrix<'_>, up: &Matrix<'_>) -> Result<Array> {
    gate.check("gated_linear", x)?;
    up.check("gated_linear", x)?;
    op!(mlxrs_fast_gated_linear(kind.raw(), x, gate, up))
}

/// [`gated`] of the products of [`experts_linear`](super::experts_linear) with the matrices of two stacks `[experts, out, in]`:
/// `x` is `[…A, 1, in]`, `indices` `[…B]`, the result `[…, 1, out]`.
///
/// On NVIDIA GPUs it is one kernel if both stacks have one coding. The result has the same bits as that of the separate operations.
///
/// # Errors
/// As [`experts_linear`](super::experts_linear), or the products have different shapes.
pub fn gated_experts(
    kind: Gate,
    x: &Array,
    gate: &Matrix<'_>,
    up: &Matrix<'_>,
    indices: &Array,
) -> Result<Array> {
    gate.check("gated_experts", x)?;
    up.check("gated_experts", x)?;
    op!(mlxrs_fast_gated_experts(kind.raw(), x, gate, up, indices))
}

/// `cap · tanh(x / cap)`: keeps numbers within ±`cap` (Gemma 2, arXiv:2408.00118).
///
/// # Errors
/// `x` is not floating point.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    op!(mlxrs_fast_soft_cap(x, cap))
}
