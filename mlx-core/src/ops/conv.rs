//! Convolutions. Channels come last: input `[n, …spatial, in]`, weight `[out, …kernel, in / groups]`,
//! result `[n, …spatial, out]`.
//!
//! ```
//! use mlx_core::array;
//!
//! # fn main() -> mlx_core::Result<()> {
//! let signal = array![[[1.0f32], [2.0], [3.0]]]; // one row, three steps, one channel
//! let kernel = array![[[1.0f32], [1.0]]];
//! assert_eq!(signal.conv1d(&kernel)?.to_vec::<f32>()?, [3.0, 5.0]);
//! # Ok(())
//! # }
//! ```

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::op;
use crate::ops::require;

/// Settings of a convolution over `N` spatial dimensions.
///
/// ```
/// use mlx_core::{Conv, DType, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones([1, 5, 5, 1], DType::F32)?, ones([2, 3, 3, 1], DType::F32)?);
/// let conv = Conv { stride: [2, 2], ..Default::default() };
/// assert_eq!(x.conv2d_with(&w, conv)?.shape(), [1, 2, 2, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv<const N: usize> {
    /// Steps of the window.
    pub stride: [i32; N],
    /// Zeros on both sides of the input.
    pub padding: [i32; N],
    /// Distance of the kernel's elements.
    pub dilation: [i32; N],
    /// Separate convolutions of equal shares of the channels.
    pub groups: i32,
}

impl<const N: usize> Default for Conv<N> {
    fn default() -> Self {
        Self {
            stride: [1; N],
            padding: [0; N],
            dilation: [1; N],
            groups: 1,
        }
    }
}

/// Settings of a transposed convolution over `N` spatial dimensions.
///
/// ```
/// use mlx_core::{ConvTranspose, DType, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones([1, 2, 2, 1], DType::F32)?, ones([1, 3, 3, 1], DType::F32)?);
/// let conv = ConvTranspose { stride: [2, 2], ..Default::default() };
/// assert_eq!(x.conv_transpose2d_with(&w, conv)?.shape(), [1, 5, 5, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose<const N: usize> {
    /// Steps of the window in the result.
    pub stride: [i32; N],
    /// Elements cut from both sides of the result.
    pub padding: [i32; N],
    /// Distance of the kernel's elements.
    pub dilation: [i32; N],
    /// Elements added at the end of the result.
    pub output_padding: [i32; N],
    /// Separate convolutions of equal shares of the channels.
    pub groups: i32,
}

impl<const N: usize> Default for ConvTranspose<N> {
    fn default() -> Self {
        Self {
            stride: [1; N],
            padding: [0; N],
            dilation: [1; N],
            output_padding: [0; N],
            groups: 1,
        }
    }
}

/// Settings of [`Array::conv_general`]. A list of one element holds for every dimension.
///
/// ```
/// use mlx_core::{ConvGeneral, DType, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones([1, 5, 1], DType::F32)?, ones([1, 3, 1], DType::F32)?);
/// let conv = ConvGeneral { padding_lo: vec![2], ..Default::default() }; // causal
/// assert_eq!(x.conv_general(&w, &conv)?.shape(), [1, 5, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvGeneral {
    /// Steps of the window.
    pub stride: Vec<i32>,
    /// Zeros before the input.
    pub padding_lo: Vec<i32>,
    /// Zeros after the input.
    pub padding_hi: Vec<i32>,
    /// Distance of the kernel's elements.
    pub kernel_dilation: Vec<i32>,
    /// Distance of the input's elements.
    pub input_dilation: Vec<i32>,
    /// Separate convolutions of equal shares of the channels.
    pub groups: i32,
    /// Whether the kernel is flipped: a convolution in the mathematical sense instead of a cross-correlation.
    pub flip: bool,
}

impl Default for ConvGeneral {
    fn default() -> Self {
        Self {
            stride: vec![1],
            padding_lo: vec![0],
            padding_hi: vec![0],
            kernel_dilation: vec![1],
            input_dilation: vec![1],
            groups: 1,
            flip: false,
        }
    }
}

/// Which elements of a discrete convolution [`convolve_with`] gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvolveMode {
    /// All in which the vectors overlap: `[n + m - 1]`.
    #[default]
    Full,
    /// The middle ones, as many as the longer vector has: `[n]`.
    Same,
    /// Those in which the shorter vector lies within the longer one: `[n - m + 1]`.
    Valid,
}

/// The discrete convolution of two vectors, of n and m elements: `[n + m - 1]`.
///
/// ```
/// use mlx_core::{array, convolve};
///
/// # fn main() -> mlx_core::Result<()> {
/// let y = convolve(&array![1.0f32, 2.0, 3.0], &array![0.0f32, 1.0, 0.5])?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 2.5, 4.0, 1.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An array does not have one dimension or has no element, or MLX refuses the dtypes.
pub fn convolve(a: &Array, v: &Array) -> Result<Array> {
    convolve_with(a, v, ConvolveMode::Full)
}

/// As [`convolve`], of some elements.
///
/// # Errors
/// Those of [`convolve`].
pub fn convolve_with(a: &Array, v: &Array, mode: ConvolveMode) -> Result<Array> {
    for array in [a, v] {
        let fits = array.ndim() == 1 && array.size() > 0;
        require(
            fits,
            "convolve",
            "an array",
            "a vector with elements",
            array,
        )?;
    }
    let (long, short) = if a.size() < v.size() { (v, a) } else { (a, v) };
    let m = short.dim(0)?;
    let padding = match mode {
        ConvolveMode::Full => [m - 1, m - 1],
        ConvolveMode::Same => [m / 2, m - 1 - m / 2],
        ConvolveMode::Valid => [0, 0],
    };
    let settings = ConvGeneral {
        padding_lo: vec![padding[0]],
        padding_hi: vec![padding[1]],
        flip: true,
        ..ConvGeneral::default()
    };
    let (input, weight) = (long.reshape((1, -1, 1))?, short.reshape((1, -1, 1))?);
    input.conv_general(&weight, &settings)?.flatten()
}

/// Checks groups and channels, because MLX divides by them before it checks them.
fn check(op: &str, input: &Array, weight: &Array, groups: i32) -> Result<()> {
    require(groups > 0, op, "groups", "positive", groups)?;
    require(
        input.shape().last().is_some_and(|&n| n > 0),
        op,
        "input",
        "of at least one channel",
        input,
    )?;
    require(
        weight.size() > 0,
        op,
        "weight",
        "of at least one element",
        weight,
    )
}

/// The settings of one spatial dimension, as MLX's general convolution takes them.
#[derive(Clone, Copy)]
struct Axis {
    padding: [i32; 2],
    kernel_dilation: i32,
    input_dilation: i32,
}

impl Axis {
    fn plain(padding: i32, dilation: i32) -> Self {
        Self {
            padding: [padding; 2],
            kernel_dilation: dilation,
            input_dilation: 1,
        }
    }
}

/// Refuses a kernel that is longer than the padded input. MLX rounds the negative quotient of its steps up to 0, and so
/// computes one element from memory outside the input.
fn check_kernel(
    op: &str,
    input: &Array,
    weight: &Array,
    axis: impl Fn(usize) -> Axis,
) -> Result<()> {
    let spatial = input.ndim().saturating_sub(2);
    if weight.ndim() != input.ndim() {
        // MLX refuses that by its own message.
        return Ok(());
    }
    for i in 0..spatial {
        let Axis {
            padding: [before, after],
            kernel_dilation,
            input_dilation,
        } = axis(i);
        let (size, kernel) = (
            i64::from(input.shape()[1 + i]),
            i64::from(weight.shape()[1 + i]),
        );
        let spread = |n: i64, by: i32| match n {
            0 => 0,
            n => (n - 1) * i64::from(by) + 1,
        };
        let padded = spread(size, input_dilation) + i64::from(before) + i64::from(after);
        let reach = spread(kernel, kernel_dilation);
        // MLX gives an empty axis that is dilated a negative length.
        let fits = reach <= padded && (size > 0 || input_dilation == 1);
        if !fits || padded > i64::from(i32::MAX) {
            let message = format!(
                "{op}: a kernel that reaches over {reach} elements must fit into the padded input, which has {padded} \
                 in spatial dimension {i} (input {:?}, weight {:?})",
                input.shape(),
                weight.shape()
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
    }
    Ok(())
}

/// As [`check_kernel`], for a transposed convolution, which MLX computes as one with a dilated input.
fn check_transposed<const N: usize>(
    op: &str,
    input: &Array,
    weight: &Array,
    conv: &ConvTranspose<N>,
) -> Result<()> {
    check(op, input, weight, conv.groups)?;
    if input.ndim() != N + 2 || weight.ndim() != N + 2 {
        return Ok(());
    }
    let kernel = |i: usize| {
        let reach = i64::from(weight.shape()[1 + i] - 1) * i64::from(conv.dilation[i]);
        i32::try_from(reach - i64::from(conv.padding[i])).map_err(|_| {
            let message =
                format!("{op}: padding and dilation of spatial dimension {i} are too large");
            Error::new(ErrorKind::Invalid, message)
        })
    };
    let before: Vec<i32> = (0..N).map(kernel).collect::<Result<_>>()?;
    check_kernel(op, input, weight, |i| Axis {
        padding: [before[i], before[i].saturating_add(conv.output_padding[i])],
        kernel_dilation: conv.dilation[i],
        input_dilation: conv.stride[i],
    })
}

/// As [`check_kernel`], for a plain convolution.
fn check_plain<const N: usize>(
    op: &str,
    input: &Array,
    weight: &Array,
    conv: &Conv<N>,
) -> Result<()> {
    check(op, input, weight, conv.groups)?;
    if input.ndim() != N + 2 {
        return Ok(());
    }
    check_kernel(op, input, weight, |i| {
        Axis::plain(conv.padding[i], conv.dilation[i])
    })
}

/// # Convolutions
///
/// Channels come last.
///
/// ```
/// use mlx_core::{DType, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let (x, w) = (ones([1, 4, 4, 1], DType::F32)?, ones([2, 3, 3, 1], DType::F32)?);
/// assert_eq!(x.conv2d(&w)?.shape(), [1, 2, 2, 2]);
/// # Ok(())
/// # }
/// ```
impl Array {
    /// Convolution over one dimension: `[n, l, in]`, `[out, k, in / groups]` → `[n, l', out]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the kernel is longer than the padded input.
    pub fn conv1d(&self, weight: &Array) -> Result<Array> {
        self.conv1d_with(weight, Conv::default())
    }

    /// As [`conv1d`](Self::conv1d), with settings.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv1d_with(&self, weight: &Array, conv: Conv<1>) -> Result<Array> {
        check_plain("conv1d", self, weight, &conv)?;
        let Conv {
            stride: [s],
            padding: [p],
            dilation: [d],
            groups,
        } = conv;
        op!(mlx_conv1d(self, weight, s, p, d, groups))
    }

    /// Convolution over two dimensions: `[n, h, w, in]`, `[out, kh, kw, in / groups]` → `[n, h', w', out]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the kernel is longer than the padded input.
    pub fn conv2d(&self, weight: &Array) -> Result<Array> {
        self.conv2d_with(weight, Conv::default())
    }

    /// As [`conv2d`](Self::conv2d), with settings.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv2d_with(&self, weight: &Array, conv: Conv<2>) -> Result<Array> {
        check_plain("conv2d", self, weight, &conv)?;
        let Conv {
            stride: [s0, s1],
            padding: [p0, p1],
            dilation: [d0, d1],
            groups,
        } = conv;
        op!(mlx_conv2d(self, weight, s0, s1, p0, p1, d0, d1, groups))
    }

    /// Convolution over three dimensions: `[n, d, h, w, in]`, `[out, kd, kh, kw, in / groups]` →
    /// `[n, d', h', w', out]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the kernel is longer than the padded input.
    pub fn conv3d(&self, weight: &Array) -> Result<Array> {
        self.conv3d_with(weight, Conv::default())
    }

    /// As [`conv3d`](Self::conv3d), with settings.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv3d_with(&self, weight: &Array, conv: Conv<3>) -> Result<Array> {
        check_plain("conv3d", self, weight, &conv)?;
        let Conv {
            stride: [s0, s1, s2],
            padding: [p0, p1, p2],
            dilation: [d0, d1, d2],
            groups,
        } = conv;
        op!(mlx_conv3d(
            self, weight, s0, s1, s2, p0, p1, p2, d0, d1, d2, groups
        ))
    }

    /// Convolution over one to three dimensions with every setting.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv_general(&self, weight: &Array, conv: &ConvGeneral) -> Result<Array> {
        check("conv_general", self, weight, conv.groups)?;
        let spatial = self.ndim().saturating_sub(2);
        let lists = [
            &conv.padding_lo,
            &conv.padding_hi,
            &conv.kernel_dilation,
            &conv.input_dilation,
        ];
        // MLX refuses lists of other lengths.
        if lists.iter().all(|list| [1, spatial].contains(&list.len())) {
            let at = |list: &Vec<i32>, i: usize| list[i.min(list.len() - 1)];
            check_kernel("conv_general", self, weight, |i| Axis {
                padding: [at(&conv.padding_lo, i), at(&conv.padding_hi, i)],
                kernel_dilation: at(&conv.kernel_dilation, i),
                input_dilation: at(&conv.input_dilation, i),
            })?;
        }
        op!(mlx_conv_general(
            self,
            weight,
            [conv.stride],
            [conv.padding_lo],
            [conv.padding_hi],
            [conv.kernel_dilation],
            [conv.input_dilation],
            conv.groups,
            conv.flip
        ))
    }

    /// Transposed convolution over one dimension: `[n, l, in]`, `[out, k, in / groups]` → `[n, l', out]`.
    ///
    /// # Errors
    /// The shapes do not fit, or the kernel is longer than the padded input.
    pub fn conv_transpose1d(&self, weight: &Array) -> Result<Array> {
        self.conv_transpose1d_with(weight, ConvTranspose::default())
    }

    /// As [`conv_transpose1d`](Self::conv_transpose1d), with settings.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv_transpose1d_with(&self, weight: &Array, conv: ConvTranspose<1>) -> Result<Array> {
        check_transposed("conv_transpose1d", self, weight, &conv)?;
        let ConvTranspose {
            stride: [s],
            padding: [p],
            dilation: [d],
            output_padding: [o],
            groups,
        } = conv;
        op!(mlx_conv_transpose1d(self, weight, s, p, d, o, groups))
    }

    /// Transposed convolution over two dimensions, as [`conv_transpose1d`](Self::conv_transpose1d).
    ///
    /// # Errors
    /// The shapes do not fit, or the kernel is longer than the padded input.
    pub fn conv_transpose2d(&self, weight: &Array) -> Result<Array> {
        self.conv_transpose2d_with(weight, ConvTranspose::default())
    }

    /// As [`conv_transpose2d`](Self::conv_transpose2d), with settings.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv_transpose2d_with(&self, weight: &Array, conv: ConvTranspose<2>) -> Result<Array> {
        check_transposed("conv_transpose2d", self, weight, &conv)?;
        let ConvTranspose {
            stride: [s0, s1],
            padding: [p0, p1],
            dilation: [d0, d1],
            output_padding: [o0, o1],
            groups,
        } = conv;
        op!(mlx_conv_transpose2d(
            self, weight, s0, s1, p0, p1, d0, d1, o0, o1, groups
        ))
    }

    /// Transposed convolution over three dimensions, as [`conv_transpose1d`](Self::conv_transpose1d).
    ///
    /// # Errors
    /// The shapes do not fit, or the kernel is longer than the padded input.
    pub fn conv_transpose3d(&self, weight: &Array) -> Result<Array> {
        self.conv_transpose3d_with(weight, ConvTranspose::default())
    }

    /// As [`conv_transpose3d`](Self::conv_transpose3d), with settings.
    ///
    /// # Errors
    /// The shapes or settings do not fit, or the kernel is longer than the padded input.
    pub fn conv_transpose3d_with(&self, weight: &Array, conv: ConvTranspose<3>) -> Result<Array> {
        check_transposed("conv_transpose3d", self, weight, &conv)?;
        let ConvTranspose {
            stride: [s0, s1, s2],
            padding: [p0, p1, p2],
            dilation: [d0, d1, d2],
            output_padding: [o0, o1, o2],
            groups,
        } = conv;
        op!(mlx_conv_transpose3d(
            self, weight, s0, s1, s2, p0, p1, p2, d0, d1, d2, o0, o1, o2, groups
        ))
    }
}

macro_rules! functions {
    ($($name:ident, $with:ident, $n:literal;)*) => { $(
        #[doc = concat!("[`Array::", stringify!($with), "`] with its settings in Python's order.")]
        ///
        /// # Errors
        /// The shapes or settings do not fit, or the kernel is longer than the padded input.
        pub fn $name(
            input: &Array,
            weight: &Array,
            stride: impl Into<Sizes<$n>>,
            padding: impl Into<Sizes<$n>>,
            dilation: impl Into<Sizes<$n>>,
            groups: i32,
        ) -> Result<Array> {
            let conv = Conv {
                stride: stride.into().0,
                padding: padding.into().0,
                dilation: dilation.into().0,
                groups,
            };
            input.$with(weight, conv)
        }
    )* };
}

functions! {
    conv1d, conv1d_with, 1;
    conv2d, conv2d_with, 2;
    conv3d, conv3d_with, 3;
}

/// A number for each of `N` spatial dimensions: of a window, a stride, a padding. It is made from one number, which
/// holds for all dimensions, an array or a tuple.
///
/// ```
/// use mlx_core::{DType::F32, Sizes, conv2d, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// assert_eq!(Sizes::<2>::from(3), Sizes::from((3, 3)));
/// assert_eq!(Sizes::from([1, 2, 3]).0, [1, 2, 3]);
/// let (x, w) = (ones([1, 4, 4, 1], F32)?, ones([2, 3, 3, 1], F32)?);
/// assert_eq!(conv2d(&x, &w, 1, (1, 0), 1, 1)?.shape(), [1, 4, 2, 2]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes<const N: usize>(pub [i32; N]);

impl<const N: usize> From<i32> for Sizes<N> {
    fn from(size: i32) -> Self {
        Self([size; N])
    }
}

impl<const N: usize> From<[i32; N]> for Sizes<N> {
    fn from(sizes: [i32; N]) -> Self {
        Self(sizes)
    }
}

impl From<(i32, i32)> for Sizes<2> {
    fn from((a, b): (i32, i32)) -> Self {
        Self([a, b])
    }
}

impl From<(i32, i32, i32)> for Sizes<3> {
    fn from((a, b, c): (i32, i32, i32)) -> Self {
        Self([a, b, c])
    }
}
