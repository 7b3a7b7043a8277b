//! Per-layer inputs (Gemma 3n and 4): features of each token for each layer, from a table and from
//! the token's embedding. They are appended to the residual stream, the next layer's input first.

use mlx_core::{Array, Result, fast, ops::concat};
use mlx_nn::{Activation, Embedding, Linear, RmsNorm, module};

use crate::decoders::causal_lm::Ends;

/// Sizes of [`LayerInputs`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerInputSizes {
    /// Rows of the table.
    pub vocab: i32,
    /// Features of a token's embedding.
    pub hidden: i32,
    /// Layers.
    pub layers: i32,
    /// Features of a token's input for each layer.
    pub width: i32,
    /// Epsilon of the norm.
    pub eps: f32,
    /// Whether tokens beyond the table have the row of token 0.
    pub cut: bool,
}

/// The parameters that make the inputs of all layers.
#[derive(Clone)]
pub(crate) struct LayerInputs {
    embed_tokens_per_layer: Embedding,
    per_layer_model_projection: Linear,
    per_layer_projection_norm: RmsNorm,
    sizes: LayerInputSizes,
}
module!(LayerInputs { embed_tokens_per_layer, per_layer_model_projection, per_layer_projection_norm } plain { sizes });

impl LayerInputs {
    pub(crate) fn new(sizes: LayerInputSizes) -> Result<Self> {
        let all = sizes.layers * sizes.width;
        Ok(Self {
            embed_tokens_per_layer: Embedding::empty(sizes.vocab, all)?,
            per_layer_model_projection: Linear::empty(sizes.hidden, all, false)?,
            per_layer_projection_norm: RmsNorm::empty(sizes.width, sizes.eps)?,
            sizes,
        })
    }

    /// Makes the inputs of all layers from `tokens [1, T]` and their embeddings `[1, T, E]`: `[1, T, layers * P]`, one
    /// layer after the other.
    pub(crate) fn forward(&self, tokens: &Array, x: &Array) -> Result<Array> {
        let LayerInputSizes {
            vocab,
            hidden,
            layers,
            width,
            cut,
            ..
        } = self.sizes;
        let rows = match cut {
            true => {
                let known = tokens.less(vocab)?;
                let first = tokens.multiply(0)?;
                self.embed_tokens_per_layer
                    .forward(&known.select(tokens, &first)?)?
            }
            false => self.embed_tokens_per_layer.forward(tokens)?,
        };
        let rows = rows.astype(x.dtype())?.multiply((width as f32).sqrt())?;
        let [b, l, _] = x.dims()?;
        let projected = self.per_layer_model_projection.forward(x)?;
        let projected = projected.multiply((hidden as f32).powf(-0.5))?;
        let projected = projected.reshape(&[b, l, layers, width])?;
        let projected = self.per_layer_projection_norm.forward(&projected)?;
        let projected = projected.reshape(&[b, l, layers * width])?;
        fast::add(&projected, &rows)?.multiply(std::f32::consts::FRAC_1_SQRT_2)
    }
}

impl Ends for Option<LayerInputs> {
    fn enter(&self, tokens: &Array, x: Array) -> Result<Array> {
        match self {
            Some(inputs) => concat(&[&x, &inputs.forward(tokens, &x)?], -1),
            None => Ok(x),
        }
    }
}

/// The parameters by which a layer adds its input to the residual.
#[derive(Clone)]
pub(crate) struct LayerInput {
    per_layer_input_gate: Linear,
    per_layer_projection: Linear,
    post_per_layer_input_norm: RmsNorm,
    activation: Activation,
}
module!(LayerInput { per_layer_input_gate, per_layer_projection, post_per_layer_input_norm } plain { activation });

impl LayerInput {
    /// Builds the parameters for this number of features of a token and of its input.
    pub(crate) fn new(hidden: i32, width: i32, eps: f32, activation: Activation) -> Result<Self> {
        Ok(Self {
            per_layer_input_gate: Linear::empty(hidden, width, false)?,
            per_layer_projection: Linear::empty(width, hidden, false)?,
            post_per_layer_input_norm: RmsNorm::empty(hidden, eps)?,
            activation,
        })
    }

    /// The layer's addition to the residual, `[1, T, E]`, from features `[1, T, E]` and its input `[1, T, P]`.
    pub(crate) fn forward(&self, x: &Array, input: &Array) -> Result<Array> {
        let gate = self.per_layer_input_gate.forward(x)?;
        let y = self.activation.gated(&gate, input)?;
        let y = self.per_layer_projection.forward(&y)?;
        self.post_per_layer_input_norm.forward(&y)
    }
}
