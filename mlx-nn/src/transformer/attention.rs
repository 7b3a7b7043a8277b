//! [`MultiHeadAttention`].

use mlx_core::fast::{self, Mask};
use mlx_core::ops::create::tri;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::linear::Linear;
use crate::sizes::check_positive;

/// Sizes of a [`MultiHeadAttention`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiHeadConfig {
    /// Features of queries and keys, of all heads.
    pub dims: i32,
    /// Heads.
    pub heads: i32,
    /// Features of the input of queries.
    pub query_inputs: i32,
    /// Features of the input of keys.
    pub key_inputs: i32,
    /// Features of the input of values.
    pub value_inputs: i32,
    /// Features of values, of all heads.
    pub value_dims: i32,
    /// Features of the output.
    pub outputs: i32,
    /// Whether the projections have biases.
    pub bias: bool,
}

impl MultiHeadConfig {
    /// All sizes are `dims`, and there are no biases.
    pub fn new(dims: i32, heads: i32) -> Self {
        Self {
            dims,
            heads,
            query_inputs: dims,
            key_inputs: dims,
            value_inputs: dims,
            value_dims: dims,
            outputs: dims,
            bias: false,
        }
    }
}

/// Attention of several heads between projections: `out_proj(softmax(q kᵀ / sqrt(D)) v)`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::MultiHeadAttention;
///
/// # fn main() -> Result<()> {
/// let attention = MultiHeadAttention::new(16, 4)?;
/// let x = ones(&[2, 5, 16], DType::F32)?;
/// assert_eq!(attention.forward(&x, &x, &x, None)?.shape(), [2, 5, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    query_proj: Linear,
    key_proj: Linear,
    value_proj: Linear,
    out_proj: Linear,
    heads: i32,
}

crate::module!(MultiHeadAttention { query_proj, key_proj, value_proj, out_proj } plain { heads });

impl MultiHeadAttention {
    /// Attention from and to `dims` features, without biases.
    ///
    /// # Errors
    /// `dims` or `heads` is below 1, or `heads` does not divide `dims`.
    pub fn new(dims: i32, heads: i32) -> Result<Self> {
        Self::with_config(&MultiHeadConfig::new(dims, heads))
    }

    /// Attention of these sizes.
    ///
    /// # Errors
    /// A size is below 1, or `heads` does not divide the features of queries or values.
    pub fn with_config(config: &MultiHeadConfig) -> Result<Self> {
        let MultiHeadConfig {
            dims,
            heads,
            query_inputs,
            key_inputs,
            value_inputs,
            value_dims,
            outputs,
            bias,
        } = *config;
        let sizes = [
            dims,
            query_inputs,
            key_inputs,
            value_inputs,
            value_dims,
            outputs,
        ];
        check_positive("attention", "heads", &[heads])?;
        check_positive("attention", "features", &sizes)?;
        if dims % heads != 0 || value_dims % heads != 0 {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "attention: {heads} heads do not divide {dims} features of queries and {value_dims} of values"
                ),
            ));
        }
        Ok(Self {
            query_proj: Linear::new(query_inputs, dims, bias)?,
            key_proj: Linear::new(key_inputs, dims, bias)?,
            value_proj: Linear::new(value_inputs, value_dims, bias)?,
            out_proj: Linear::new(value_dims, outputs, bias)?,
            heads,
        })
    }

    /// `queries [B, L, _], keys [B, S, _], values [B, S, _] -> [B, L, out]`.
    ///
    /// The mask broadcasts to `[B, H, L, S]`. It is either boolean, and true where a query sees a
    /// key, or added to the scores.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(
        &self,
        queries: &Array,
        keys: &Array,
        values: &Array,
        mask: Option<&Array>,
    ) -> Result<Array> {
        let q = self.split(&self.query_proj.forward(queries)?)?;
        let k = self.split(&self.key_proj.forward(keys)?)?;
        let v = self.split(&self.value_proj.forward(values)?)?;
        let scale = (1.0 / f64::from(q.dim(-1)?)).sqrt() as f32;
        let mask = mask.map_or(Mask::None, |mask| Mask::Array(mask.clone()));
        let y = fast::scaled_dot_product_attention(&q, &k, &v, scale, mask, None)?;
        let [batch, heads, length, size] = y.dims::<4>()?;
        let y = y
            .transpose(&[0, 2, 1, 3])?
            .reshape(&[batch, length, heads * size])?;
        self.out_proj.forward(&y)
    }

    /// `[B, L, H * D] -> [B, H, L, D]`
    fn split(&self, x: &Array) -> Result<Array> {
        let [batch, length, features] = x.dims::<3>()?;
        x.reshape(&[batch, length, self.heads, features / self.heads])?
            .transpose(&[0, 2, 1, 3])
    }

    /// A mask to add to scores, with which position `i` sees the positions up to `i`: `[n, n]`, of
    /// 0 and the lowest finite number of `dtype`.
    ///
    /// # Errors
    /// `n` is negative, or `dtype` is not floating point.
    #[doc(alias = "create_additive_causal_mask")]
    pub fn causal_mask(n: i32, dtype: DType) -> Result<Array> {
        let least = match dtype {
            DType::F32 => f64::from(f32::MIN),
            DType::BF16 => -3.389_531_389_251_535e38,
            DType::F16 => -65504.0,
            DType::F64 => f64::MIN,
            _ => {
                return Err(Error::new(
                    ErrorKind::DType,
                    format!("a mask to add to scores must be floating point, not {dtype}"),
                ));
            }
        };
        let hidden = tri(n, dtype)?.equal(0.0)?;
        let zero = Array::scalar(0.0f32)?.astype(dtype)?;
        let least = mlx_core::ops::create::full(&[1], least, dtype)?;
        hidden.select(&least, &zero)
    }
}
