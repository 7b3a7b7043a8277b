//! Convolutions over one, two or three spatial dimensions. Channels come last.

use mlx_core::ops::create::zeros;
use mlx_core::ops::{Conv, ConvTranspose};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::init;
use crate::layer::layer;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::sizes::{Sizes, check_positive};

/// A convolution (a cross-correlation, as everywhere in deep learning) over `N` spatial dimensions:
/// `[B, ..spatial, in] -> [B, ..spatial', out]`, with `weight [out, ..kernel, in / groups]` and `bias [out]`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::zeros};
/// use mlx_nn::Conv2d;
///
/// # fn main() -> Result<()> {
/// let conv = Conv2d::new(3, 16, (3, 5))?.stride(2).padding((1, 2));
/// let images = zeros(&[1, 32, 32, 3], DType::F32)?;
/// assert_eq!(conv.forward(&images)?.shape(), [1, 16, 16, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ConvNd<const N: usize> {
    weight: Param,
    bias: Option<Param>,
    options: Conv<N>,
}

/// A convolution over one dimension: `[B, L, in] -> [B, L', out]`. See [`ConvNd`].
pub type Conv1d = ConvNd<1>;
/// A convolution over two dimensions: `[B, H, W, in] -> [B, H', W', out]`. See [`ConvNd`].
pub type Conv2d = ConvNd<2>;
/// A convolution over three dimensions: `[B, D, H, W, in] -> [B, D', H', W', out]`. See [`ConvNd`].
pub type Conv3d = ConvNd<3>;

impl<const N: usize> ConvNd<N> {
    /// A convolution from `inputs` to `outputs` channels. The weight is uniform between `±1 / sqrt(in * kernel)`, the
    /// bias zero.
    ///
    /// # Errors
    /// A number of channels or a size of the kernel is below 1.
    pub fn new(inputs: i32, outputs: i32, kernel: impl Into<Sizes<N>>) -> Result<Self> {
        Self::grouped(inputs, outputs, kernel, 1)
    }

    /// `groups` convolutions, each from its share of the inputs to its share of the outputs.
    ///
    /// # Errors
    /// A number of channels, a size of the kernel or `groups` is below 1, or `groups` does not
    /// divide the channels.
    pub fn grouped(
        inputs: i32,
        outputs: i32,
        kernel: impl Into<Sizes<N>>,
        groups: i32,
    ) -> Result<Self> {
        let kernel = kernel.into().0;
        check_positive("convolution", "groups", &[groups])?;
        if inputs % groups != 0 || outputs % groups != 0 {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "convolution: {groups} groups do not divide {inputs} inputs and {outputs} outputs"
                ),
            ));
        }
        let (weight, bias) = drawn(inputs / groups, outputs, kernel)?;
        Ok(Self {
            weight,
            bias: Some(bias),
            options: Conv {
                groups,
                ..Conv::default()
            },
        })
    }

    /// The stride: the distance between windows. Default: 1.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<Sizes<N>>) -> Self {
        self.options.stride = stride.into().0;
        self
    }

    /// The number of zeros on each side of the input. Default: 0.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Sizes<N>>) -> Self {
        self.options.padding = padding.into().0;
        self
    }

    /// The dilation: the distance between the kernel's elements. Default: 1.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<Sizes<N>>) -> Self {
        self.options.dilation = dilation.into().0;
        self
    }

    /// The convolution without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }
}

/// A transposed convolution over `N` spatial dimensions: the gradient of a [`ConvNd`] with respect to its input.
/// `[B, ..spatial, in] -> [B, ..spatial', out]`, with `weight [out, ..kernel, in]` and `bias [out]`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::zeros};
/// use mlx_nn::ConvTranspose2d;
///
/// # fn main() -> Result<()> {
/// let up = ConvTranspose2d::new(16, 3, 2)?.stride(2);
/// let features = zeros(&[1, 8, 8, 16], DType::F32)?;
/// assert_eq!(up.forward(&features)?.shape(), [1, 16, 16, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ConvTransposeNd<const N: usize> {
    weight: Param,
    bias: Option<Param>,
    options: ConvTranspose<N>,
}

/// A transposed convolution over one dimension. See [`ConvTransposeNd`].
pub type ConvTranspose1d = ConvTransposeNd<1>;
/// A transposed convolution over two dimensions. See [`ConvTransposeNd`].
pub type ConvTranspose2d = ConvTransposeNd<2>;
/// A transposed convolution over three dimensions. See [`ConvTransposeNd`].
pub type ConvTranspose3d = ConvTransposeNd<3>;

impl<const N: usize> ConvTransposeNd<N> {
    /// A transposed convolution from `inputs` to `outputs` channels, with the initial values of [`ConvNd::new`].
    ///
    /// # Errors
    /// A number of channels or a size of the kernel is below 1.
    pub fn new(inputs: i32, outputs: i32, kernel: impl Into<Sizes<N>>) -> Result<Self> {
        let (weight, bias) = drawn(inputs, outputs, kernel.into().0)?;
        Ok(Self {
            weight,
            bias: Some(bias),
            options: ConvTranspose::default(),
        })
    }

    /// The stride: the distance between windows in the output. Default: 1.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<Sizes<N>>) -> Self {
        self.options.stride = stride.into().0;
        self
    }

    /// The number of elements cut from each side of the output. Default: 0.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Sizes<N>>) -> Self {
        self.options.padding = padding.into().0;
        self
    }

    /// The dilation: the distance between the kernel's elements. Default: 1.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<Sizes<N>>) -> Self {
        self.options.dilation = dilation.into().0;
        self
    }

    /// The number of elements added at the end of the output. Default: 0.
    #[must_use]
    pub fn output_padding(mut self, padding: impl Into<Sizes<N>>) -> Self {
        self.options.output_padding = padding.into().0;
        self
    }

    /// The convolution without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }
}

/// A weight `[out, ..kernel, in]` and a bias `[out]` with initial values.
fn drawn<const N: usize>(inputs: i32, outputs: i32, kernel: [i32; N]) -> Result<(Param, Param)> {
    check_positive("convolution", "channels", &[inputs, outputs])?;
    check_positive("convolution", "sizes of the kernel", &kernel)?;
    let products: f64 = kernel.iter().map(|&size| f64::from(size)).product();
    let limit = (1.0 / (f64::from(inputs) * products)).sqrt();
    let shape = [&[outputs], &kernel[..], &[inputs]].concat();
    let weight = init::drawn_uniform(&shape, limit)?;
    Ok((weight, Param::new(zeros(&[outputs], DType::F32)?)))
}

/// `y + bias`
fn biased(y: Array, bias: &Option<Param>) -> Result<Array> {
    match bias {
        Some(bias) => y.add(bias.value()),
        None => Ok(y),
    }
}

macro_rules! convolutions {
    ($($n:literal: $conv:ident, $transposed:ident;)*) => {$(
        impl ConvNd<$n> {
            /// `[B, ..spatial, in] -> [B, ..spatial', out]`
            ///
            /// # Errors
            /// The input has another number of dimensions or channels, or is smaller than the
            /// kernel.
            pub fn forward(&self, x: &Array) -> Result<Array> {
                biased(x.$conv(self.weight.value(), self.options)?, &self.bias)
            }
        }

        impl ConvTransposeNd<$n> {
            /// `[B, ..spatial, in] -> [B, ..spatial', out]`
            ///
            /// # Errors
            /// The input has another number of dimensions or channels.
            pub fn forward(&self, x: &Array) -> Result<Array> {
                biased(x.$transposed(self.weight.value(), self.options)?, &self.bias)
            }
        }

        layer! { ConvNd<$n>; ConvTransposeNd<$n>; }
    )*};
}

convolutions! {
    1: conv1d_with, conv_transpose1d_with;
    2: conv2d_with, conv_transpose2d_with;
    3: conv3d_with, conv_transpose3d_with;
}

macro_rules! weight_and_bias {
    ($($ty:ident)*) => {$(
        impl<const N: usize> Module for $ty<N> {
            fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
                path.scoped("weight", |path| self.weight.visit(path, v))?;
                path.scoped("bias", |path| self.bias.visit(path, v))
            }

            fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
                v.module(path, self)?;
                path.scoped("weight", |path| self.weight.visit_mut(path, v))?;
                path.scoped("bias", |path| self.bias.visit_mut(path, v))
            }

            $crate::known_type!();
        }
    )*};
}

weight_and_bias!(ConvNd ConvTransposeNd);
