//! [`QqLinear`]: a linear layer whose input is quantised too.

use mlx_core::ops::quantize::{dequantize_with, qqmm, quantize_with};
use mlx_core::{Array, Error, ErrorKind, QuantMode, Result, Scheme};

use crate::init;
use crate::layer::layer;
use crate::module::Param;
use crate::sizes::check_positive;
use crate::training::Mode;

/// `y = q(x) @ q(weight).T`: input and weight are quantised in a floating-point mode (nvfp4, mxfp8,
/// mxfp4).
///
/// In training the weight stays dense, so that gradients reach it. For evaluation and for files
/// [`quantize`](Self::quantize) packs it into `weight` and `scales`. The CPU multiplies one row by
/// a packed weight only.
///
/// ```
/// use mlx_core::{DType, QuantMode, Result, Scheme, ops::create::ones};
/// use mlx_nn::{Module, QqLinear};
///
/// # fn main() -> Result<()> {
/// let mut layer = QqLinear::new(32, 8, Scheme::new(16, 4, QuantMode::Nvfp4)?)?;
/// layer.quantize()?;
/// layer.train(false)?;
/// assert_eq!(layer.forward(&ones(&[1, 32], DType::F32)?)?.shape(), [1, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[doc(alias = "QQLinear")]
pub struct QqLinear {
    weight: Param,
    scales: Option<Param>,
    mode: Mode,
    scheme: Scheme,
}

crate::module!(QqLinear { weight, scales, mode } plain { scheme });
layer!(QqLinear;);

impl QqLinear {
    /// A layer from `inputs` to `outputs` features, without bias. The weight is uniform between `±1 / sqrt(inputs)`.
    ///
    /// # Errors
    /// `inputs` or `outputs` is below 1, `inputs` is not a multiple of the scheme's group size, or
    /// the mode of the scheme is affine.
    pub fn new(inputs: i32, outputs: i32, scheme: Scheme) -> Result<Self> {
        check_positive("quantised linear", "features", &[inputs, outputs])?;
        if scheme.mode == QuantMode::Affine || inputs % scheme.group_size != 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "quantised linear: {inputs} inputs cannot be quantised with {scheme}: the mode must be nvfp4, mxfp8 or \
                     mxfp4, and its group divide the inputs"
                ),
            ));
        }
        let limit = (1.0 / f64::from(inputs)).sqrt();
        Ok(Self {
            weight: init::drawn_uniform(&[outputs, inputs], limit)?,
            scales: None,
            mode: Mode::default(),
            scheme,
        })
    }

    /// Packs the weight, if it is not packed.
    ///
    /// # Errors
    /// No memory.
    pub fn quantize(&mut self) -> Result<()> {
        if self.scales.is_none() {
            let packed = quantize_with(self.weight.value(), self.scheme)?;
            self.weight.set(packed.packed);
            self.weight.trainable = false;
            let mut scales = Param::new(packed.scales);
            scales.trainable = false;
            self.scales = Some(scales);
        }
        Ok(())
    }

    /// Makes the weight dense, if it is packed.
    ///
    /// # Errors
    /// No memory.
    pub fn dequantize(&mut self) -> Result<()> {
        if let Some(scales) = self.scales.take() {
            let (packed, scheme) = (self.weight.value(), self.scheme);
            let dense = dequantize_with(packed, scales.value(), None, scheme, None)?;
            self.weight = Param::new(dense);
        }
        Ok(())
    }

    /// `[.., in] -> [.., out]`
    ///
    /// # Errors
    /// The shapes do not fit; on the CPU, `x` has several rows, or the layer is in training mode.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let weight = self.weight.value();
        match &self.scales {
            Some(scales) => qqmm(x, weight, Some(scales.value()), self.scheme),
            None if self.mode.is_training() => qqmm(x, weight, None, self.scheme),
            None => {
                let packed = quantize_with(weight, self.scheme)?;
                qqmm(x, &packed.packed, Some(&packed.scales), self.scheme)
            }
        }
    }
}
