//! Convolutions. Channels come last: input `[n, …spatial, in]`, weight `[out, …kernel, in / groups]`,
//! result `[n, …spatial, out]`.

use crate::array::Array;
use crate::error::Result;
use crate::ffi::op;
use crate::ops::require;

/// Settings of a convolution over `N` spatial dimensions.
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

/// MLX divides by the groups, and by channels, before it looks at them.
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

impl Array {
    /// Convolution over one dimension: `[n, l, in]`, `[out, k, in / groups]` → `[n, l', out]`.
    ///
    /// # Errors
    /// The shapes or settings do not fit.
    pub fn conv1d(&self, weight: &Array, conv: Conv<1>) -> Result<Array> {
        check("conv1d", self, weight, conv.groups)?;
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
    /// The shapes or settings do not fit.
    pub fn conv2d(&self, weight: &Array, conv: Conv<2>) -> Result<Array> {
        check("conv2d", self, weight, conv.groups)?;
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
    /// The shapes or settings do not fit.
    pub fn conv3d(&self, weight: &Array, conv: Conv<3>) -> Result<Array> {
        check("conv3d", self, weight, conv.groups)?;
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
    /// The shapes or settings do not fit.
    pub fn conv_general(&self, weight: &Array, conv: &ConvGeneral) -> Result<Array> {
        check("conv_general", self, weight, conv.groups)?;
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
    /// The shapes or settings do not fit.
    pub fn conv_transpose1d(&self, weight: &Array, conv: ConvTranspose<1>) -> Result<Array> {
        check("conv_transpose1d", self, weight, conv.groups)?;
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
    /// The shapes or settings do not fit.
    pub fn conv_transpose2d(&self, weight: &Array, conv: ConvTranspose<2>) -> Result<Array> {
        check("conv_transpose2d", self, weight, conv.groups)?;
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
    /// The shapes or settings do not fit.
    pub fn conv_transpose3d(&self, weight: &Array, conv: ConvTranspose<3>) -> Result<Array> {
        check("conv_transpose3d", self, weight, conv.groups)?;
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
