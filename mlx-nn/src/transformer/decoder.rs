//! [`TransformerDecoder`]: layers of self-attention and attention to an encoder's output.

use mlx_core::{Array, Result};

use super::{Masks, MultiHeadAttention, TransformerConfig};
use crate::activation::Activation;
use crate::dropout::Dropout;
use crate::linear::Linear;
use crate::norm::LayerNorm;
use crate::recompute::recomputed;

/// Self-attention, attention to the encoder's output and two linears, each with a norm and added to its input.
#[derive(Clone, Debug)]
pub struct TransformerDecoderLayer {
    self_attention: MultiHeadAttention,
    cross_attention: MultiHeadAttention,
    ln1: LayerNorm,
    ln2: LayerNorm,
    ln3: LayerNorm,
    linear1: Linear,
    linear2: Linear,
    dropout1: Dropout,
    dropout2: Dropout,
    dropout3: Dropout,
    activation: Activation,
    norm_first: bool,
}

crate::module!(TransformerDecoderLayer {
    self_attention, cross_attention, ln1, ln2, ln3, linear1, linear2, dropout1, dropout2, dropout3
} plain { activation, norm_first });

impl TransformerDecoderLayer {
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
        let TransformerConfig {
            dims,
            heads,
            mlp_dims,
            dropout,
            ..
        } = *config;
        Ok(Self {
            self_attention: MultiHeadAttention::new(dims, heads)?,
            cross_attention: MultiHeadAttention::new(dims, heads)?,
            ln1: LayerNorm::new(dims)?,
            ln2: LayerNorm::new(dims)?,
            ln3: LayerNorm::new(dims)?,
            linear1: Linear::new(dims, mlp_dims, true)?,
            linear2: Linear::new(mlp_dims, dims, true)?,
            dropout1: Dropout::new(dropout)?,
            dropout2: Dropout::new(dropout)?,
            dropout3: Dropout::new(dropout)?,
            activation: config.activation,
            norm_first: config.norm_first,
        })
    }

    /// `x [B, L, E], memory [B, S, E] -> [B, L, E]`, with masks of [`MultiHeadAttention::forward`] for both attentions.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(
        &self,
        x: &Array,
        memory: &Array,
        mask: Option<&Array>,
        memory_mask: Option<&Array>,
    ) -> Result<Array> {
        let attend = |x: &Array| {
            let y = self.self_attention.forward(x, x, x, mask)?;
            self.dropout1.forward(&y)
        };
        let cross = |x: &Array| {
            let y = self
                .cross_attention
                .forward(x, memory, memory, memory_mask)?;
            self.dropout2.forward(&y)
        };
        let mix = |x: &Array| {
            let y = self.activation.forward(&self.linear1.forward(x)?)?;
            self.linear2.forward(&self.dropout3.forward(&y)?)
        };
        if self.norm_first {
            let x = x.add(attend(&self.ln1.forward(x)?)?)?;
            let x = x.add(cross(&self.ln2.forward(&x)?)?)?;
            x.add(mix(&self.ln3.forward(&x)?)?)
        } else {
            let x = self.ln1.forward(&x.add(attend(x)?)?)?;
            let x = self.ln2.forward(&x.add(cross(&x)?)?)?;
            self.ln3.forward(&x.add(mix(&x)?)?)
        }
    }
}

/// Layers that attend to themselves and to an encoder's output, and a norm of their output.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::{MultiHeadAttention, TransformerDecoder};
///
/// # fn main() -> Result<()> {
/// let decoder = TransformerDecoder::new(2, 16, 4)?;
/// let (x, memory) = (ones(&[1, 3, 16], DType::F32)?, ones(&[1, 5, 16], DType::F32)?);
/// let causal = MultiHeadAttention::causal_mask(3, DType::F32)?;
/// assert_eq!(decoder.forward(&x, &memory, Some(&causal), None)?.shape(), [1, 3, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TransformerDecoder {
    layers: Vec<TransformerDecoderLayer>,
    ln: LayerNorm,
    checkpoint: bool,
}

crate::module!(TransformerDecoder { layers, ln } plain { checkpoint });

impl TransformerDecoder {
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
    /// The errors of [`TransformerDecoderLayer::with_config`].
    pub fn with_config(layers: usize, config: &TransformerConfig) -> Result<Self> {
        let layers = (0..layers).map(|_| TransformerDecoderLayer::with_config(config));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            ln: LayerNorm::new(config.dims)?,
            checkpoint: config.checkpoint,
        })
    }

    /// `x [B, L, E], memory [B, S, E] -> [B, L, E]`, with masks of [`MultiHeadAttention::forward`] for both attentions.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(
        &self,
        x: &Array,
        memory: &Array,
        mask: Option<&Array>,
        memory_mask: Option<&Array>,
    ) -> Result<Array> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = if self.checkpoint {
                let masks = Masks([mask.cloned(), memory_mask.cloned()]);
                let inputs = masks.with(&[&x, memory]);
                let inputs: Vec<&Array> = inputs.iter().collect();
                recomputed(layer, &inputs, move |layer, inputs| {
                    let [mask, memory_mask] = masks.of(&inputs[2..]);
                    layer.forward(&inputs[0], &inputs[1], mask, memory_mask)
                })?
            } else {
                layer.forward(&x, memory, mask, memory_mask)?
            };
        }
        self.ln.forward(&x)
    }
}
