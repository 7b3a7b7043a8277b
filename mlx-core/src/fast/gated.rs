//! Gates of MLPs, and soft caps.

use mlx_c_sys as sys;

use super::Matrix;
use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;

/// The gate between the halves of a gated MLP. Source: Shazeer 2020, "GLU Variants Improve Transformer".
///
/// ```
/// use mlx_core::{DType, fast::{self, Gate}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[2], DType::F32)?;
/// let y = fast::gated(Gate::Silu, &x, &x)?;
/// assert!((y.to_vec::<f32>()?[0] - 0.7311).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
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

/// `gate · sigmoid(gate) · up`: [`Gate::Silu`]. The shapes broadcast.
///
/// ```
/// use mlx_core::{DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (gate, up) = (ones(&[2], DType::F32)?, ones(&[2], DType::F32)?.multiply(2.0)?);
/// let y = fast::swiglu(&gate, &up)?;
/// assert!((y.to_vec::<f32>()?[0] - 1.4621).abs() < 1e-4);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
pub fn swiglu(gate: &Array, up: &Array) -> Result<Array> {
    gated(Gate::Silu, gate, up)
}

/// `gelu(gate) · up`: [`Gate::GeluTanh`]. The shapes broadcast.
///
/// ```
/// use mlx_core::{DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[2], DType::F32)?;
/// assert!((fast::geglu(&x, &x)?.to_vec::<f32>()?[0] - 0.8412).abs() < 1e-3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
pub fn geglu(gate: &Array, up: &Array) -> Result<Array> {
    gated(Gate::GeluTanh, gate, up)
}

/// The product of `up` and the activation of `gate`, elementwise, as `kind` defines it. The shapes
/// broadcast.
///
/// ```
/// use mlx_core::{DType, fast::{self, Gate}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[2], DType::F32)?;
/// let same = fast::gated(Gate::GeluTanh, &x, &x)?.array_equal(&fast::geglu(&x, &x)?)?;
/// assert!(same.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not broadcast.
pub fn gated(kind: Gate, gate: &Array, up: &Array) -> Result<Array> {
    op!(mlxrs_fast_gated(kind.raw(), gate, up))
}

/// [`gated`] of the products `x gateᵀ` and `x upᵀ`: `x` is `[.., in]`, both matrices `[out, in]`,
/// the result `[.., out]`.
///
/// On the CPU it is one node if `x` has 16-bit elements and the matrices have one coding (as for
/// [`linear_many`](super::linear_many)); then neither product is ever complete in memory. The result has the same bits
/// as that of the separate operations.
///
/// ```
/// use mlx_core::{DType, fast::{self, Gate, Matrix}, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones(&[1, 4], DType::F32)?, ones(&[2, 4], DType::F32)?);
/// let y = fast::gated_linear(Gate::Silu, &x, &Matrix::Dense(&w), &Matrix::Dense(&w))?;
/// assert_eq!(y.shape(), [1, 2]);
/// # Ok(())
/// # }
/// ```
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
/// ```
/// use mlx_core::{Array, fast};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = Array::from_slice(&[0.0f32, 1e6], &[2])?;
/// assert_eq!(fast::soft_cap(&x, 30.0)?.to_vec::<f32>()?, [0.0, 30.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `x` is not floating point.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    op!(mlxrs_fast_soft_cap(x, cap))
}
