//! Pooling: the largest element or the mean of each window. Channels come last.

use std::marker::PhantomData;

use mlx_core::{Array, Error, ErrorKind, Result};

use crate::layer::layer;
use crate::module::{Module, Path, Visit, VisitMut};
use crate::sizes::{Sizes, check_least, check_positive, misshapen};

/// The function of a window that a [`Pool`] computes: [`Largest`] or [`Mean`].
pub trait Pooled: private::Sealed + 'static {
    /// The value of the padding.
    #[doc(hidden)]
    const PADDING: f32;
    /// The name of the layer in errors.
    #[doc(hidden)]
    const NAME: &'static str;
    /// One number for each window.
    #[doc(hidden)]
    fn of(windows: &Array, axes: &[i32]) -> Result<Array>;
}

mod private {
    pub trait Sealed {}
}

/// The largest element of a window.
#[derive(Clone, Copy, Debug)]
pub struct Largest;

/// The mean of a window, padding included.
#[derive(Clone, Copy, Debug)]
pub struct Mean;

impl private::Sealed for Largest {}
impl private::Sealed for Mean {}

impl Pooled for Largest {
    const PADDING: f32 = f32::NEG_INFINITY;
    const NAME: &'static str = "max pooling";

    fn of(windows: &Array, axes: &[i32]) -> Result<Array> {
        windows.max(axes, false)
    }
}

impl Pooled for Mean {
    const PADDING: f32 = 0.0;
    const NAME: &'static str = "average pooling";

    fn of(windows: &Array, axes: &[i32]) -> Result<Array> {
        windows.mean(axes, false)
    }
}

/// Pooling over `N` spatial dimensions: `[B, ..spatial, C] -> [B, ..spatial', C]`. Elements at the
/// end that do not fill a window are left out.
///
/// ```
/// use mlx_core::{Array, Result};
/// use mlx_nn::{AvgPool1d, MaxPool1d};
///
/// # fn main() -> Result<()> {
/// let x = Array::from_slice(&[1.0f32, 5.0, 2.0, 4.0], &[1, 4, 1])?;
/// assert_eq!(MaxPool1d::new(2).forward(&x)?.to_vec::<f32>()?, [5.0, 4.0]);
/// assert_eq!(AvgPool1d::new(2).stride(1).forward(&x)?.to_vec::<f32>()?, [3.0, 3.5, 3.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pool<P, const N: usize> {
    window: [i32; N],
    stride: [i32; N],
    padding: [i32; N],
    kind: PhantomData<P>,
}

/// The largest element of each window: `[B, L, C] -> [B, L', C]`. See [`Pool`].
pub type MaxPool1d = Pool<Largest, 1>;
/// The largest element of each window: `[B, H, W, C] -> [B, H', W', C]`. See [`Pool`].
pub type MaxPool2d = Pool<Largest, 2>;
/// The largest element of each window: `[B, D, H, W, C] -> [B, D', H', W', C]`. See [`Pool`].
pub type MaxPool3d = Pool<Largest, 3>;
/// The mean of each window: `[B, L, C] -> [B, L', C]`. See [`Pool`].
pub type AvgPool1d = Pool<Mean, 1>;
/// The mean of each window: `[B, H, W, C] -> [B, H', W', C]`. See [`Pool`].
pub type AvgPool2d = Pool<Mean, 2>;
/// The mean of each window: `[B, D, H, W, C] -> [B, D', H', W', C]`. See [`Pool`].
pub type AvgPool3d = Pool<Mean, 3>;

impl<P: Pooled, const N: usize> Pool<P, N> {
    /// Pooling with windows of this size, which are adjacent and do not overlap.
    pub fn new(window: impl Into<Sizes<N>>) -> Self {
        let window = window.into().0;
        Self {
            window,
            stride: window,
            padding: [0; N],
            kind: PhantomData,
        }
    }

    /// The stride: the distance between windows. Default: the size of a window.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<Sizes<N>>) -> Self {
        self.stride = stride.into().0;
        self
    }

    /// The number of elements that are added on each side: negative infinities for max pooling,
    /// zeros for a mean. By default 0.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Sizes<N>>) -> Self {
        self.padding = padding.into().0;
        self
    }

    /// `[B, ..spatial, C] -> [B, ..spatial', C]`
    ///
    /// # Errors
    /// The input has another number of dimensions, or is smaller than a window; a size is below 1;
    /// the input of max pooling with padding is not floating point.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        check_positive(P::NAME, "sizes of windows", &self.window)?;
        check_positive(P::NAME, "strides", &self.stride)?;
        check_least(P::NAME, "padding", &self.padding, 0)?;
        if x.ndim() != N + 2 {
            let expected = format!("of {} dimensions", N + 2);
            return Err(misshapen(P::NAME, &expected, x.shape()));
        }
        let x = self.padded(x)?;
        let axes: Vec<i32> = (-(N as i32) - 1..-1).collect();
        P::of(&self.windows(&x)?, &axes)
    }

    fn padded(&self, x: &Array) -> Result<Array> {
        let widths: Vec<(i32, i32, i32)> = (1..)
            .zip(self.padding)
            .filter(|&(_, size)| size > 0)
            .map(|(axis, size)| (axis, size, size))
            .collect();
        if widths.is_empty() {
            return Ok(x.clone());
        }
        if P::PADDING != 0.0 && !x.dtype().is_float() {
            return Err(Error::new(
                ErrorKind::DType,
                format!(
                    "{} with padding needs floating-point numbers, found {}",
                    P::NAME,
                    x.dtype()
                ),
            ));
        }
        x.pad(&widths, P::PADDING)
    }

    /// `[B, ..spatial, C] -> [B, ..spatial', ..window, C]`
    fn windows(&self, x: &Array) -> Result<Array> {
        let shape = x.shape();
        let [batch, ref spatial @ .., channels] = *shape else {
            unreachable!("the number of dimensions is checked");
        };
        let all = || spatial.iter().zip(self.window).zip(self.stride);
        if let Some(((size, window), _)) = all().find(|((size, window), _)| **size < *window) {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "{}: a window of {window} does not fit into {size} of {shape:?}",
                    P::NAME
                ),
            ));
        }
        if all().all(|((size, window), stride)| window == stride && size % window == 0) {
            let mut split = vec![batch];
            for ((size, window), _) in all() {
                split.extend([size / window, window]);
            }
            split.push(channels);
            let last = split.len() as i32 - 1;
            let mut order = vec![0];
            order.extend((1..last).step_by(2).chain((2..last).step_by(2)));
            order.push(last);
            return x.reshape(&split)?.transpose(&order);
        }
        // Strides of a row-major array, of which windows are overlapping parts.
        let mut strides = vec![1i64; shape.len()];
        for axis in (0..shape.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * i64::from(shape[axis + 1]);
        }
        let inner = &strides[1..=N];
        let steps = inner.iter().zip(self.stride);
        let steps: Vec<i64> = steps
            .map(|(&one, stride)| one * i64::from(stride))
            .collect();
        let counts: Vec<i32> = all()
            .map(|((size, window), stride)| (size - window) / stride + 1)
            .collect();
        let shape = [&[batch], &counts[..], &self.window[..], &[channels]].concat();
        let strides = [&strides[..1], &steps[..], inner, &[1]].concat();
        x.contiguous()?.as_strided(&shape, &strides)
    }
}

impl<P: Pooled, const N: usize> Module for Pool<P, N> {
    fn visit(&self, _path: &mut Path, _v: &mut dyn Visit) -> Result<()> {
        Ok(())
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)
    }

    crate::known_type!();
}

layer! { [P: Pooled, const N: usize] Pool<P, N> }
