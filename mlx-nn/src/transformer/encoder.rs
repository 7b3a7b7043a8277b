//! [`TransformerEncoder`]: layers of self-attention.

use mlx_core::{Array, Result};

use super::{Masks, MultiHeadAttention, TransformerConfig};
use crate::activation::Activation;
use crate::dropout::Dropout;
use crate::linear::Linear;
use crate::norm::LayerNorm;
use crate::recompute::recomputed;

/// Self-attention and two linears, each with a norm and added to its input.
#[derive(Clone, Debug)]
pub struct TransformerEncoderLayer {
    attention: MultiHeadAttention,
    ln1: LayerNorm,
    ln2: LayerNorm,
    linear1: Linear,
    linear2: Linear,
    dropout1: Dropout,
    dropout2: Dropout,
    activation: Activation,
    norm_first: bool,
}

crate::module!(TransformerEncoderLayer { attention, ln1, ln2, linear1, linear2, dropout1, dropout2 } plain { activation, norm_first });

impl TransformerEncoderLayer {
    /// A layer of this many features and heads, with the defaults of [`TransformerConfig::new`].
    ///
    /// # Errors
    /// The errors of [`with_config`](Self::with_config).
    pub fn new(dims: i32, heads: i32) -> Result<Self> {
        Self::with_config(&TransformerConfig::new(dims, heads))
    }

    /// A layer of these sizes.
    ///
    /// # Errors
    /// A size is below 1, `heads` does not divide `dims`, or `dropout` is not in [0, 1).
    pub fn with_config(config: &TransformerConfig) -> Result<Self> {
        let TransformerConfig { dims, mlp_dims, .. } = *config;
        Ok(Self {
            attention: MultiHeadAttention::new(dims, config.heads)?,
            ln1: LayerNorm::new(dims)?,
            ln2: LayerNorm::new(dims)?,
            linear1: Linear::new(dims, mlp_dims, true)?,
            linear2: Linear::new(mlp_dims, dims, true)?,
            dropout1: Dropout::new(config.dropout)?,
            dropout2: Dropout::new(config.dropout)?,
            activation: config.activation,
            norm_first: config.norm_first,
        })
    }

    /// `[B, L, E] -> [B, L, E]`, with a mask of [`MultiHeadAttention::forward`].
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, mask: Option<&Array>) -> Result<Array> {
        let attend = |x: &Array| {
            let y = self.attention.forward(x, x, x, mask)?;
            self.dropout1.forward(&y)
        };
        let mix = |x: &Array| {
            let y = self.activation.forward(&self.linear1.forward(x)?)?;
            self.linear2.forward(&self.dropout2.forward(&y)?)
        };
        if self.norm_first {
            let x = x.add(attend(&self.ln1.forward(x)?)?)?;
            x.add(mix(&self.ln2.forward(&x)?)?)
        } else {
            let x = self.ln1.forward(&x.add(attend(x)?)?)?;
            self.ln2.forward(&x.add(mix(&x)?)?)
        }
    }
}

/// Layers of self-attention, and a norm of their output.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::TransformerEncoder;
///
/// # fn main() -> Result<()> {
/// let encoder = TransformerEncoder::new(2, 16, 4)?;
/// assert_eq!(encoder.forward(&ones(&[1, 5, 16], DType::F32)?, None)?.shape(), [1, 5, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransformerEncoder {
    layers: Vec<TransformerEncoderLayer>,
    ln: LayerNorm,
    checkpoint: bool,
}

crate::module!(TransformerEncoder { layers, ln } plain { checkpoint });

impl TransformerEncoder {
    /// `layers` layers of this many features and heads, with the defaults of [`TransformerConfig::new`].
    ///
    /// # Errors
    /// The errors of [`with_config`](Self::with_config).
    pub fn new(layers: usize, dims: i32, heads: i32) -> Result<Self> {
        Self::with_config(layers, &TransformerConfig::new(dims, heads))
    }

    /// `layers` layers of these sizes.
    ///
    /// # Errors
    /// The errors of [`TransformerEncoderLayer::with_config`].
    pub fn with_config(layers: usize, config: &TransformerConfig) -> Result<Self> {
        let layers = (0..layers).map(|_| TransformerEncoderLayer::with_config(config));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            ln: LayerNorm::new(config.dims)?,
            checkpoint: config.checkpoint,
        })
    }

    /// `[B, L, E] -> [B, L, E]`, with a mask of [`MultiHeadAttention::forward`].
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, mask: Option<&Array>) -> Result<Array> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = if self.checkpoint {
                let masks = Masks([mask.cloned()]);
                let inputs = masks.with(&[&x]);
                let inputs: Vec<&Array> = inputs.iter().collect();
                recomputed(layer, &inputs, move |layer, inputs| {
                    let [mask] = masks.of(&inputs[1..]);
                    layer.forward(&inputs[0], mask)
                })?
            } else {
                layer.forward(&x, mask)?
            };
        }
        self.ln.forward(&x)
    }
}
