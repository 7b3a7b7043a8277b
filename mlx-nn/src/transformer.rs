//! The transformer of Vaswani et al. (arXiv:1706.03762): [`Transformer`], its encoder and decoder,
//! and [`MultiHeadAttention`].
//!
//! Language models use [`Attention`](crate::Attention) and similar layers, which keep keys and
//! values between steps.

use mlx_core::{Array, Result};

use crate::activation::Activation;

mod attention;
mod decoder;
mod encoder;

pub use attention::{MultiHeadAttention, MultiHeadConfig};
pub use decoder::{TransformerDecoder, TransformerDecoderLayer};
pub use encoder::{TransformerEncoder, TransformerEncoderLayer};

/// Sizes and options of the layers of a transformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerConfig {
    /// Features of a token.
    pub dims: i32,
    /// Heads.
    pub heads: i32,
    /// Features between the linears of a layer.
    pub mlp_dims: i32,
    /// The probability of dropout in training.
    pub dropout: f64,
    /// The function between the linears.
    pub activation: Activation,
    /// Whether norms come before attention and linears, and not after the sums.
    pub norm_first: bool,
    /// Whether layers are computed again in the backward pass, to save memory
    /// ([`recomputed`](crate::recompute::recomputed)).
    pub checkpoint: bool,
}

impl TransformerConfig {
    /// `4 * dims` features between the linears, no dropout, ReLU, norms first, nothing computed
    /// again: the defaults of MLX's Python.
    pub fn new(dims: i32, heads: i32) -> Self {
        Self {
            dims,
            heads,
            mlp_dims: dims.saturating_mul(4),
            dropout: 0.0,
            activation: Activation::Relu,
            norm_first: true,
            checkpoint: false,
        }
    }
}

/// The masks of a layer that is computed again. Those that are added to scores are inputs, because
/// gradients can flow to them.
struct Masks<const N: usize>([Option<Array>; N]);

impl<const N: usize> Masks<N> {
    /// The inputs, followed by the masks that are inputs.
    fn with(&self, inputs: &[&Array]) -> Vec<Array> {
        let masks = self.0.iter().flatten();
        let added = masks.filter(|mask| mask.dtype().is_float());
        inputs.iter().copied().chain(added).cloned().collect()
    }

    /// All masks, including those that are inputs.
    fn of<'a>(&'a self, inputs: &'a [Array]) -> [Option<&'a Array>; N] {
        let mut inputs = inputs.iter();
        self.0.each_ref().map(|mask| match mask {
            Some(mask) if mask.dtype().is_float() => inputs.next(),
            mask => mask.as_ref(),
        })
    }
}

/// An encoder of a source, and a decoder of a target that attends to it.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::ones};
/// use mlx_nn::{MultiHeadAttention, Transformer, TransformerConfig};
///
/// # fn main() -> Result<()> {
/// let config = TransformerConfig { mlp_dims: 32, ..TransformerConfig::new(16, 2) };
/// let transformer = Transformer::new(2, 2, &config)?;
/// let (source, target) = (ones(&[1, 5, 16], DType::F32)?, ones(&[1, 3, 16], DType::F32)?);
/// let causal = MultiHeadAttention::causal_mask(3, DType::F32)?;
/// let y = transformer.forward(&source, &target, None, Some(&causal), None)?;
/// assert_eq!(y.shape(), [1, 3, 16]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Transformer {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
}

crate::module!(Transformer { encoder, decoder });

impl Transformer {
    /// A transformer with these numbers of layers in its encoder and its decoder.
    ///
    /// # Errors
    /// The errors of [`TransformerEncoder::with_config`].
    pub fn new(
        encoder_layers: usize,
        decoder_layers: usize,
        config: &TransformerConfig,
    ) -> Result<Self> {
        Ok(Self {
            encoder: TransformerEncoder::with_config(encoder_layers, config)?,
            decoder: TransformerDecoder::with_config(decoder_layers, config)?,
        })
    }

    /// `source [B, S, E], target [B, L, E] -> [B, L, E]`. Masks have the form of
    /// [`MultiHeadAttention::forward`]: `[S, S]` within the source, `[L, L]` within the target, and
    /// `[L, S]` from the target to the source.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(
        &self,
        source: &Array,
        target: &Array,
        source_mask: Option<&Array>,
        target_mask: Option<&Array>,
        memory_mask: Option<&Array>,
    ) -> Result<Array> {
        let memory = self.encoder.forward(source, source_mask)?;
        self.decoder
            .forward(target, &memory, target_mask, memory_mask)
    }
}
