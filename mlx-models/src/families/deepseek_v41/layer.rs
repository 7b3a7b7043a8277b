//! The layers of DeepSeek V4.1, and what is before and after them.

use mlx_core::ops::{concat, create::zeros};
use mlx_core::{Array, DType, Result};
use mlx_nn::{
    CompressedAttention, ExpertsMlp, Norm, Normed, Residual, Step, StreamMixer, StreamsConfig,
    module,
};

use crate::decoders::causal_lm::{DecoderLayer, Ends};
use crate::decoders::engram::Engram;
use crate::decoders::token_bytes;

/// A layer. Its states are those of its attention, and that of features of n-grams if it has some.
/// Each of its two blocks reads the streams by weights that the block before has computed. They
/// follow the streams.
#[derive(Clone)]
pub(crate) struct V41Layer {
    pub engram: Option<Engram>,
    pub attn_hc: StreamMixer,
    pub input_layernorm: Norm,
    pub self_attn: CompressedAttention,
    pub ffn_hc: StreamMixer,
    pub post_attention_layernorm: Norm,
    pub mlp: ExpertsMlp,
    pub streams: StreamsConfig,
    /// The states of the attention.
    pub states: usize,
    /// Whether a later layer reads the bytes of tokens.
    pub passes_bytes: bool,
}
module!(V41Layer { engram, attn_hc, input_layernorm, self_attn, ffn_hc, post_attention_layernorm, mlp } plain { streams, states, passes_bytes });

/// F32 numbers are carried as this many numbers of 16 bits, whose sum they are.
const PARTS: i32 = 3;

/// Features of all streams and of the weights behind them.
fn width(c: &StreamsConfig) -> i32 {
    c.streams * (c.hidden + PARTS)
}

/// The streams `x [1, T, n E]` and behind them the weights `pre`, F32 `[1, T, n]`, in parts of the streams' dtype.
fn with_weights(x: Array, pre: &Array) -> Result<Array> {
    let mut all = vec![x];
    let mut rest = pre.clone();
    for _ in 0..PARTS {
        let part = rest.astype(all[0].dtype())?;
        rest = rest.subtract(part.astype(DType::F32)?)?;
        all.push(part);
    }
    concat(&all, -1)
}

/// The reverse of [`with_weights`].
fn apart(x: &Array, c: &StreamsConfig) -> Result<(Array, Array)> {
    let width = c.streams * c.hidden;
    let mut pre: Option<Array> = None;
    for part in (0..PARTS).rev() {
        let begin = width + part * c.streams;
        let own = x.slice_axis(-1, begin, begin + c.streams)?;
        let own = own.astype(DType::F32)?;
        pre = Some(match pre {
            Some(rest) => own.add(rest)?,
            None => own,
        });
    }
    let pre = pre.expect("there are parts");
    Ok((x.slice_axis(-1, 0, width)?, pre))
}

impl DecoderLayer for V41Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let (x, bytes) = token_bytes::apart(x.sum()?, width(&self.streams))?;
        let (mut x, pre) = apart(&x, &self.streams)?;
        if let (Some(engram), Some(bytes)) = (&self.engram, &bytes) {
            x = engram.forward(&x, bytes, state + self.states, step)?;
        }
        let (next, weights) = self.attn_hc.weights(&x)?;
        let normed = Normed::new(self.streams.sum(&x, &pre)?, &self.input_layernorm);
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x, pre] = step.narrow([&weights.write(&x, &y)?, &next])?;
        let (next, weights) = self.ffn_hc.weights(&x)?;
        let normed = Normed::new(self.streams.sum(&x, &pre)?, &self.post_attention_layernorm);
        let y = self.mlp.forward(&normed)?;
        let x = with_weights(weights.write(&x, &y)?, &next)?;
        Ok(token_bytes::together(x, bytes.filter(|_| self.passes_bytes))?.into())
    }
}

/// The streams begin with the embedding of the token, of which the first block reads the first, and end as the sum that a
/// block after the last would read.
#[derive(Clone)]
pub(crate) struct V41Ends {
    pub streams: StreamsConfig,
    /// Whether a layer reads the bytes of tokens, which then follow the weights.
    pub bytes: bool,
}
module!(V41Ends {} plain { streams, bytes });

impl Ends for V41Ends {
    fn enter(&self, tokens: &Array, x: Array) -> Result<Array> {
        let [b, t, _] = x.dims()?;
        let others = zeros(&[b, t, self.streams.streams - 1], DType::F32)?;
        let first = zeros(&[b, t, 1], DType::F32)?.add(1.0)?;
        let x = with_weights(self.streams.enter(&x)?, &concat(&[first, others], -1)?)?;
        match self.bytes {
            true => token_bytes::with_tokens(&x, tokens),
            false => Ok(x),
        }
    }

    fn leave(&self, x: Residual) -> Result<Residual> {
        let (x, pre) = apart(&x.sum()?, &self.streams)?;
        Ok(self.streams.sum(&x, &pre)?.into())
    }
}
