//! Discrete Fourier transforms.
//!
//! A transform of one axis runs along the last one, those of several axes (`fftn`) over all, and `fft2` over the last two.
//! The forms `NAME_with` take sizes, axes and the place of the factor. Sizes: `None` takes the array's; a smaller size cuts,
//! a larger size pads with zeros. Transforms run on the current stream; with CUDA they run on the CPU.
//!
//! ```
//! use mlx_core::{Array, fft};
//!
//! # fn main() -> mlx_core::Result<()> {
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
//! let back = fft::ifft(&fft::fft(&x)?)?.real()?;
//! assert!(back.allclose(&x)?.item::<bool>()?);
//! # Ok(())
//! # }
//! ```

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::Result;
use crate::ffi::{Arg, op};
use crate::linalg::on_cpu;
use crate::memory::check_shape;
use crate::ops::{Axes, require};

/// Where the factor `1 / n` of a transform and its inverse is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// To the inverse.
    #[default]
    Backward,
    /// `1 / sqrt(n)` to both.
    Ortho,
    /// To the forward transform.
    Forward,
}

impl Arg for Norm {
    type C = sys::mlx_fft_norm;
    fn c(&self) -> Self::C {
        match self {
            Norm::Backward => sys::MLX_FFT_NORM_BACKWARD,
            Norm::Ortho => sys::MLX_FFT_NORM_ORTHO,
            Norm::Forward => sys::MLX_FFT_NORM_FORWARD,
        }
    }
}

macro_rules! one {
    ($($(#[$doc:meta])* $name:ident, $with:ident = $c:ident($default:expr);)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The array has no axis, or the last one is empty.
        pub fn $name(a: &Array) -> Result<Array> {
            $with(a, None, -1, Norm::Backward)
        }

        #[doc = concat!("As [`", stringify!($name), "`], of size `n` along `axis`.")]
        ///
        /// # Errors
        /// There is no such axis, or `n` is not positive.
        pub fn $with(a: &Array, n: Option<i32>, axis: i32, norm: Norm) -> Result<Array> {
            let size = a.dim(axis)?;
            let default: fn(i32) -> i32 = $default;
            let n = n.unwrap_or(default(size));
            require(n > 0, stringify!($name), "n", "positive", n)?;
            check_shape(&[n], a.dtype())?;
            transform(|| op!($c(a, n, axis, norm)))
        }
    )* };
}

one! {
    /// Transform along the last axis: `[…, n]` → C64 `[…, n]`.
    fft, fft_with = mlx_fft_fft(|size| size);
    /// Inverse of [`fft`].
    ifft, ifft_with = mlx_fft_ifft(|size| size);
    /// Transform of real numbers: `[…, n]` → C64 `[…, n / 2 + 1]`, the half that is not redundant.
    rfft, rfft_with = mlx_fft_rfft(|size| size);
    /// Inverse of [`rfft`]: `[…, m]` → F32 `[…, 2 (m - 1)]`.
    irfft, irfft_with = mlx_fft_irfft(|size| (size - 1).saturating_mul(2));
}

macro_rules! many {
    ($($(#[$doc:meta])* $name:ident, $two:ident, $with:ident = $c:ident($last:expr);)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// The array has no axis, or an empty one.
        pub fn $name(a: &Array) -> Result<Array> {
            $with(a, None, .., Norm::Backward)
        }

        #[doc = concat!("As [`", stringify!($name), "`], over the last two axes.")]
        ///
        /// # Errors
        /// The array has fewer than two axes, or one of them is empty.
        pub fn $two(a: &Array) -> Result<Array> {
            $with(a, None, [-2, -1], Norm::Backward)
        }

        #[doc = concat!("As [`", stringify!($name), "`], of sizes `n` over `axes`.")]
        ///
        /// # Errors
        /// There are no such axes, one is given twice, there are none, or a size is not positive.
        pub fn $with(a: &Array, n: Option<&[i32]>, axes: impl Axes, norm: Norm) -> Result<Array> {
            let axes = axes.axes(a.ndim());
            let last: fn(i32) -> i32 = $last;
            let n = sizes(stringify!($name), a, n, &axes, last)?;
            transform(|| op!($c(a, [n], [axes], norm)))
        }
    )* };
}

many! {
    /// Transform along each axis.
    fftn, fft2, fftn_with = mlx_fft_fftn(|size| size);
    /// Inverse of [`fftn`].
    ifftn, ifft2, ifftn_with = mlx_fft_ifftn(|size| size);
    /// Transform of real numbers, of which the last axis keeps `n / 2 + 1` elements.
    rfftn, rfft2, rfftn_with = mlx_fft_rfftn(|size| size);
    /// Inverse of [`rfftn`].
    irfftn, irfft2, irfftn_with = mlx_fft_irfftn(|size| (size - 1).saturating_mul(2));
}

fn sizes(
    op: &str,
    a: &Array,
    n: Option<&[i32]>,
    axes: &[i32],
    last: fn(i32) -> i32,
) -> Result<Vec<i32>> {
    require(!axes.is_empty(), op, "axes", "at least one", axes)?;
    let mut own = axes
        .iter()
        .map(|&axis| a.dim(axis))
        .collect::<Result<Vec<i32>>>()?;
    if let Some(size) = own.last_mut() {
        *size = last(*size);
    }
    let n = n.map_or(own, <[i32]>::to_vec);
    require(n.len() == axes.len(), op, "n", "one size for each axis", &n)?;
    require(n.iter().all(|&n| n > 0), op, "n", "positive", &n)?;
    check_shape(&n, a.dtype())?;
    Ok(n)
}

/// Moves the zero frequency to the middle of each axis; the shape stays.
///
/// # Errors
/// None that is known.
pub fn fftshift(a: &Array) -> Result<Array> {
    fftshift_with(a, ..)
}

/// Moves the zero frequency to the middle of each of `axes`; the shape stays.
///
/// # Errors
/// There are no such axes.
pub fn fftshift_with(a: &Array, axes: impl Axes) -> Result<Array> {
    let axes = axes.axes(a.ndim());
    op!(mlx_fft_fftshift(a, [axes]))
}

/// Inverse of [`fftshift`].
///
/// # Errors
/// None that is known.
pub fn ifftshift(a: &Array) -> Result<Array> {
    ifftshift_with(a, ..)
}

/// Inverse of [`fftshift_with`].
///
/// # Errors
/// There are no such axes.
pub fn ifftshift_with(a: &Array, axes: impl Axes) -> Result<Array> {
    let axes = axes.axes(a.ndim());
    op!(mlx_fft_ifftshift(a, [axes]))
}

/// The frequencies of [`fft`]'s elements for samples 1 apart: `[n]`.
///
/// # Errors
/// `n` is not positive.
pub fn fftfreq(n: i32) -> Result<Array> {
    fftfreq_with(n, 1.0)
}

/// The frequencies of [`fft`]'s elements for samples `d` apart: `[n]`.
///
/// # Errors
/// `n` is not positive.
pub fn fftfreq_with(n: i32, d: f64) -> Result<Array> {
    require(n > 0, "fftfreq", "n", "positive", n)?;
    op!(mlx_fft_fftfreq(n, d))
}

/// The frequencies of [`rfft`]'s elements for samples 1 apart: `[n / 2 + 1]`.
///
/// # Errors
/// `n` is not positive.
pub fn rfftfreq(n: i32) -> Result<Array> {
    rfftfreq_with(n, 1.0)
}

/// The frequencies of [`rfft`]'s elements for samples `d` apart: `[n / 2 + 1]`.
///
/// # Errors
/// `n` is not positive.
pub fn rfftfreq_with(n: i32, d: f64) -> Result<Array> {
    require(n > 0, "rfftfreq", "n", "positive", n)?;
    op!(mlx_fft_rfftfreq(n, d))
}

/// Runs a transform on a stream that has kernels: only the CPU and Metal do.
fn transform(f: impl FnOnce() -> Result<Array>) -> Result<Array> {
    if cfg!(target_os = "macos") {
        f()
    } else {
        on_cpu(f)
    }
}
