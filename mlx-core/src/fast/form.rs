//! Which form of an operation runs, and how to select the plain form.

use mlx_c_sys as sys;

use crate::error::Result;
use crate::ffi;

/// The groups of operations that share a form.
///
/// ```
/// use mlx_core::{fast::{self, Form, Op}};
///
/// # fn main() -> mlx_core::Result<()> {
/// println!("attention runs as {:?}", fast::form(Op::Attention)?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`attention`](super::attention()) and [`packed_attention`](super::packed_attention).
    Attention,
    /// [`causal_conv`](super::causal_conv) and [`ragged_conv`](super::ragged_conv).
    Conv,
    /// [`gated_delta`](super::gated_delta()) and [`scan`](super::scan()), also over ragged rows.
    Delta,
    /// [`experts_linear`](super::experts_linear) and its quantised form, [`gated_experts`](super::gated_experts),
    /// [`route`](super::route()), [`weighted_sum`](super::weighted_sum).
    Experts,
    /// [`gated`](super::gated()) and [`soft_cap`](super::soft_cap).
    Gated,
    /// [`linear`](super::linear()), [`linear_many`](super::linear_many), [`gated_linear`](super::gated_linear) and quantised forms.
    Linear,
    /// [`rows`](super::rows) and its quantised form.
    Lookup,
    /// [`cross_entropy`](super::cross_entropy).
    Loss,
    /// [`rms_norm`](super::rms_norm), [`layer_norm_rounded_once`](super::layer_norm_rounded_once),
    /// [`gated_norm`](super::gated_norm), [`add`](super::add), [`norm_add`](super::norm_add), [`add_norm`](super::add_norm).
    Norm,
    /// [`rope`](super::rope()) and [`heads`](super::heads).
    Rope,
    /// [`argmax`](super::argmax), [`top`](super::top), [`nucleus`](super::nucleus), [`logsumexp`](super::logsumexp),
    /// [`draw`](super::draw()), [`allow`](super::allow()).
    Sample,
    /// [`store`](super::store()), [`store_heads`](super::store_heads), [`pack`](super::pack), [`blank`](super::blank).
    Store,
}

/// How an operation is computed.
///
/// ```
/// use mlx_core::{fast::{self, Form, Op}};
///
/// # fn main() -> mlx_core::Result<()> {
/// fast::plainly(|| {
///     assert_eq!(fast::form(Op::Attention)?, Form::Plain);
///     Ok(())
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A graph of MLX's own operations.
    Plain,
    /// A node of this crate, with CPU kernels for each instruction set. Inputs that the kernels do not support take the plain
    /// form.
    Cpu,
    /// A node of this crate, with kernels for NVIDIA GPUs. Inputs that they do not support take the plain form.
    Cuda,
}

/// The form of an operation on the current stream. One table of the shim (`ops/form.cpp`) decides it.
///
/// ```
/// use mlx_core::fast::{self, Form, Op};
///
/// # fn main() -> mlx_core::Result<()> {
/// let plain = fast::plainly(|| fast::form(Op::Attention))?;
/// assert_eq!(plain, Form::Plain);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `MLX_CPU_KERNELS` or `MLX_CUDA_KERNELS` is neither `on` nor `off`.
pub fn form(op: Op) -> Result<Form> {
    let op = match op {
        Op::Attention => sys::MLXRS_OP_ATTENTION,
        Op::Conv => sys::MLXRS_OP_CONV,
        Op::Delta => sys::MLXRS_OP_DELTA,
        Op::Experts => sys::MLXRS_OP_EXPERTS,
        Op::Gated => sys::MLXRS_OP_GATED,
        Op::Linear => sys::MLXRS_OP_LINEAR,
        Op::Lookup => sys::MLXRS_OP_LOOKUP,
        Op::Loss => sys::MLXRS_OP_LOSS,
        Op::Norm => sys::MLXRS_OP_NORM,
        Op::Rope => sys::MLXRS_OP_ROPE,
        Op::Sample => sys::MLXRS_OP_SAMPLE,
        Op::Store => sys::MLXRS_OP_STORE,
    };
    Ok(match ffi::form(op)? {
        sys::MLXRS_FORM_CPU => Form::Cpu,
        sys::MLXRS_FORM_CUDA => Form::Cuda,
        _ => Form::Plain,
    })
}

/// Runs `f`; operations that it builds take the plain form. Tests compare the kernels with it.
///
/// ```
/// use mlx_core::{DType, fast, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let x = ones(&[2], DType::F32)?;
/// let plain = fast::plainly(|| fast::soft_cap(&x, 30.0))?;
/// assert!(plain.allclose(&fast::soft_cap(&x, 30.0)?)?.item::<bool>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of `f`.
pub fn plainly<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            ffi::plainly(false);
        }
    }
    ffi::plainly(true);
    let _end = End;
    f()
}
