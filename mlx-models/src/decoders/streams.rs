//! Decoders with several residual streams (hyper-connections): each half of a layer reads a weighted sum of the streams,
//! and its output is added to all of them.

use mlx_core::{Array, Error, ErrorKind, Result};
use mlx_nn::{
    FeedForward, LayerKind, Norm, Normed, Recurrence, Residual, Step, StreamMixer, StreamsConfig,
    StreamsHead, module,
};

use super::pre_norm::attention::SelfAttention;
use crate::config::plan::DecoderConfig;
use crate::decoders::causal_lm::{CausalLm, DecoderLayer, Ends};

/// A layer of a [`StreamsDecoder`].
#[derive(Clone)]
pub(crate) struct StreamsLayer {
    attn_hc: StreamMixer,
    input_layernorm: Norm,
    self_attn: Option<SelfAttention>,
    linear_attn: Option<Recurrence>,
    ffn_hc: StreamMixer,
    post_attention_layernorm: Norm,
    mlp: FeedForward,
}
module!(StreamsLayer {
    attn_hc,
    input_layernorm,
    self_attn,
    linear_attn,
    ffn_hc,
    post_attention_layernorm,
    mlp
});

impl StreamsLayer {
    fn new(c: &DecoderConfig, streams: StreamsConfig, index: usize) -> Result<Self> {
        let (self_attn, linear_attn) = match (c.layers[index], c.recurrence) {
            (LayerKind::Recurrent(_), Some(config)) => (None, Some(Recurrence::empty(config)?)),
            (LayerKind::Recurrent(_), None) => {
                let message = "a recurrent layer in a decoder without a recurrence";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            (kind, _) => {
                let attention = SelfAttention::new(c, kind, c.ropes[index].as_ref())?;
                let attention = match c.shares_index(index) {
                    true => attention.sharing_index(),
                    false => attention,
                };
                (Some(attention), None)
            }
        };
        Ok(Self {
            attn_hc: StreamMixer::empty(streams)?,
            input_layernorm: c.norm()?,
            self_attn,
            linear_attn,
            ffn_hc: StreamMixer::empty(streams)?,
            post_attention_layernorm: c.norm()?,
            mlp: c.mlp(&c.feed_forward[index])?,
        })
    }
}

impl DecoderLayer for StreamsLayer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let (read, weights) = self.attn_hc.read(&x)?;
        let normed = Normed::new(read, &self.input_layernorm);
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&normed, state, step)?,
            (None, Some(recurrence)) => recurrence.forward(normed.array()?, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
        let x = weights.write(&x, &y)?;
        let [x] = step.narrow([&x])?;
        let (read, weights) = self.ffn_hc.read(&x)?;
        let normed = Normed::new(read, &self.post_attention_layernorm);
        let y = self.mlp.forward(&normed)?;
        weights.write(&x, &y).map(Residual::from)
    }
}

/// The streams begin with the embedding of the token, and end as one sum.
#[derive(Clone)]
pub(crate) struct StreamsEnds {
    /// `None`: the mean of the streams.
    hc_head: Option<StreamsHead>,
    config: StreamsConfig,
}
module!(StreamsEnds { hc_head } plain { config });

impl Ends for StreamsEnds {
    fn enter(&self, _tokens: &Array, x: Array) -> Result<Array> {
        self.config.enter(&x)
    }

    fn leave(&self, x: Residual) -> Result<Residual> {
        let x = x.sum()?;
        let sum = match &self.hc_head {
            Some(head) => head.forward(&x)?,
            None => self.config.mean(&x)?,
        };
        Ok(sum.into())
    }
}

/// A decoder-only transformer with several residual streams.
pub(crate) type StreamsDecoder = CausalLm<StreamsLayer, (), StreamsEnds>;

/// The decoder of a config with these streams. Its parameters have no values. Without a `head` the
/// last norm reads the mean of the streams.
pub(crate) fn decoder(
    config: &DecoderConfig,
    streams: StreamsConfig,
    head: bool,
) -> Result<StreamsDecoder> {
    let layers = CausalLm::of(config, |c, index| StreamsLayer::new(c, streams, index))?;
    let hc_head = head.then(|| StreamsHead::empty(streams));
    Ok(layers.with_ends(StreamsEnds {
        hc_head: hc_head.transpose()?,
        config: streams,
    }))
}
