//! [`Bilinear`]: a product of two inputs.

use mlx_core::{Array, Error, ErrorKind, Result};

use crate::init;
use crate::module::Param;
use crate::sizes::check_positive;

/// `y[o] = sum_ij x2[i] * weight[o, i, j] * x1[j] + bias[o]`, with `weight [out, in2, in1]`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::Bilinear;
///
/// # fn main() -> Result<()> {
/// let layer = Bilinear::new(3, 4, 5)?;
/// let (a, b) = (ones(&[2, 3], DType::F32)?, ones(&[2, 4], DType::F32)?);
/// assert_eq!(layer.forward(&a, &b)?.shape(), [2, 5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Bilinear {
    weight: Param,
    bias: Option<Param>,
}

crate::module!(Bilinear { weight, bias });

impl Bilinear {
    /// A layer from `in1` and `in2` to `outputs` features. Weight and bias are uniform between `±1 / sqrt(in1)`.
    ///
    /// # Errors
    /// A number of features is below 1.
    pub fn new(in1: i32, in2: i32, outputs: i32) -> Result<Self> {
        check_positive("bilinear", "features", &[in1, in2, outputs])?;
        let limit = (1.0 / f64::from(in1)).sqrt();
        Ok(Self {
            weight: init::drawn_uniform(&[outputs, in2, in1], limit)?,
            bias: Some(init::drawn_uniform(&[outputs], limit)?),
        })
    }

    /// The layer without its bias.
    #[must_use]
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// `x1 [.., in1], x2 [.., in2] -> [.., out]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x1: &Array, x2: &Array) -> Result<Array> {
        let [outputs, in2, in1] = self.weight.value().dims::<3>()?;
        let leading = |x: &Array| x.shape().split_last().map(|(_, rest)| rest.to_vec());
        let sizes = [x1, x2].map(|x| x.shape().last().copied());
        let Some(mut shape) = leading(x1)
            .filter(|shape| leading(x2).as_ref() == Some(shape) && sizes == [Some(in1), Some(in2)])
        else {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "bilinear: expected inputs [.., {in1}] and [.., {in2}], found {:?} and {:?}",
                    x1.shape(),
                    x2.shape()
                ),
            ));
        };
        shape.push(outputs);
        let x1 = x1.reshape(&[-1, in1])?;
        let x2 = x2.reshape(&[-1, 1, in2])?;
        let matrix = self.weight.value().reshape(&[-1, in1])?;
        let y = x1.matmul(&matrix.t()?)?;
        let y = y.reshape(&[-1, outputs, in2])?.swapaxes(-2, -1)?;
        let y = x2.matmul(&y)?.reshape(&shape)?;
        match &self.bias {
            Some(bias) => y.add(bias.value()),
            None => Ok(y),
        }
    }
}
