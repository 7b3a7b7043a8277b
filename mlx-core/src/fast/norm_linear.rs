//! Products with the norm of x, in one operation with the norm and the residual addition before it.

use mlx_c_sys as sys;

use super::{Gate, Matrix};
use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{Arg, op};
use crate::poison;

/// The norm that products read: `rms_norm(sum, weight)`, where the sum is `x`, `residual + x`, or
/// `residual + rms_norm(x, inner)`.
#[derive(Clone, Copy, Debug)]
pub struct NormOf<'a> {
    /// `[.., in]`
    pub x: &'a Array,
    /// `[.., in]`
    pub residual: Option<&'a Array>,
    /// `[in]`. Only with a residual.
    pub inner: Option<&'a Array>,
    /// `[in]`. Without a weight there is no residual.
    pub weight: Option<&'a Array>,
    /// The epsilon of both norms.
    pub eps: f32,
}

impl NormOf<'_> {
    /// Checks that a matrix can be multiplied with the norm.
    fn check_all(&self, operation: &str, matrices: &[Matrix<'_>]) -> Result<()> {
        for w in matrices {
            w.check(operation, self.x)?;
            Arg::check(w)?;
        }
        Ok(())
    }
}

impl Arg for NormOf<'_> {
    type C = sys::mlxrs_norm;
    fn c(&self) -> Self::C {
        sys::mlxrs_norm {
            x: self.x.c(),
            residual: self.residual.c(),
            inner: self.inner.c(),
            weight: self.weight.c(),
            eps: self.eps,
        }
    }
    fn check(&self) -> Result<()> {
        let fault = match (self.residual, self.inner, self.weight) {
            (None, Some(_), _) => "an inner norm needs a residual",
            (Some(_), _, None) => "a sum is normed with a weight",
            _ => {
                let optional = [self.residual, self.inner, self.weight];
                let all = optional.into_iter().flatten().chain([self.x]);
                return all.into_iter().try_for_each(poison::check);
            }
        };
        Err(Error::new(
            ErrorKind::Invalid,
            format!("norm_linear: {fault}"),
        ))
    }
}

/// A norm and the products that read it.
#[derive(Clone, Debug)]
pub struct NormProducts {
    /// The input of the norm: the sum, or `x` without a residual. `[.., in]`
    pub sum: Array,
    /// `[.., in]`
    pub normed: Array,
    /// `[.., out]` of each matrix.
    pub products: Vec<Array>,
}

/// The products of a norm with several matrices, as [`add_norm`](super::add_norm) (or [`rms_norm`](super::rms_norm) without a
/// residual) and [`linear_many`](super::linear_many) compute them, to the bit.
///
/// It is one node under the conditions of [`linear_many`](super::linear_many), also for one matrix. On NVIDIA GPUs, products with one
/// row of at most 2,048 elements compute the norm in their own kernel.
///
/// # Errors
/// As those operations, or an inner norm without a residual, or a residual without a weight.
pub fn norm_linear(of: &NormOf<'_>, matrices: &[Matrix<'_>]) -> Result<NormProducts> {
    of.check_all("norm_linear", matrices)?;
    let matrices: Vec<_> = matrices.iter().map(Arg::c).collect();
    of_parts(op!(vector mlxrs_fast_norm_linear(of, [matrices]))?)
}

/// The sum, the norm, and [`gated_linear`](super::gated_linear) of the norm. One node under the conditions of [`norm_linear`].
///
/// # Errors
/// As [`norm_linear`] and [`gated_linear`](super::gated_linear).
pub fn norm_gated_linear(
    gate: Gate,
    of: &NormOf<'_>,
    [a, b]: [&Matrix<'_>; 2],
) -> Result<NormProducts> {
    of.check_all("norm_gated_linear", &[*a, *b])?;
    of_parts(op!(vector mlxrs_fast_norm_gated_linear(gate.raw(), of, a, b))?)
}

fn of_parts(parts: Vec<Array>) -> Result<NormProducts> {
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next()) {
        (Some(sum), Some(normed)) => Ok(NormProducts {
            sum,
            normed,
            products: parts.collect(),
        }),
        _ => Err(Error::new(ErrorKind::Mlx, "a norm has no result")),
    }
}
