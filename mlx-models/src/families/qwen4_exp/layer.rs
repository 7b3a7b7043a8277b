//! The layers of Qwen 4, and what is before and after them.

use mlx_core::{Array, Result};
use mlx_nn::{
    Attention, FeedForward, GatedStreams, Recurrence, Residual, Step, StreamsConfig, module,
};

use crate::decoders::causal_lm::{DecoderLayer, Ends};
use crate::decoders::ngrams::NgramFeatures;
use crate::decoders::token_bytes::{apart, enter, together};

/// A layer. Its first state is that of its mixer. The second is that of the indexer, or the first of
/// those of features of n-grams.
#[derive(Clone)]
pub(crate) struct Qwen4Layer {
    pub ple: Option<NgramFeatures>,
    pub attn_hyper_connection: GatedStreams,
    pub self_attn: Option<Attention>,
    pub linear_attn: Option<Recurrence>,
    pub mlp_hyper_connection: GatedStreams,
    pub mlp: FeedForward,
    /// Features of all streams.
    pub width: i32,
    /// Whether a later layer reads the bytes of tokens.
    pub passes_bytes: bool,
}
module!(Qwen4Layer { ple, attn_hyper_connection, self_attn, linear_attn, mlp_hyper_connection, mlp } plain { width, passes_bytes });

impl DecoderLayer for Qwen4Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let x = x.sum()?;
        let (mut x, bytes) = apart(x, self.width)?;
        if let (Some(ple), Some(bytes)) = (&self.ple, &bytes) {
            x = x.add(ple.forward(&x, bytes, state + 1, step)?)?;
        }
        let (read, weights) = self.attn_hyper_connection.read(&x)?;
        let y = match (&self.self_attn, &self.linear_attn) {
            (Some(attention), _) => attention.forward(&read, state, step)?,
            (None, Some(recurrence)) => recurrence.forward(&read, state, step)?,
            (None, None) => unreachable!("a layer has one of them"),
        };
        let weights = weights.expect("outputs are added");
        let [x] = step.narrow([&weights.write(&x, &y)?])?;
        let (read, weights) = self.mlp_hyper_connection.read(&x)?;
        let y = self.mlp.forward(&read)?;
        let x = weights.expect("outputs are added").write(&x, &y)?;
        Ok(together(x, bytes.filter(|_| self.passes_bytes))?.into())
    }
}

/// The streams begin with the embedding of the token, and end as one sum, which no norm reads.
#[derive(Clone)]
pub(crate) struct Qwen4Ends {
    pub hyper_connection_mixer: GatedStreams,
    pub config: StreamsConfig,
    /// Whether a layer reads the bytes of tokens, which then follow the streams.
    pub bytes: bool,
}
module!(Qwen4Ends { hyper_connection_mixer } plain { config, bytes });

impl Ends for Qwen4Ends {
    fn enter(&self, tokens: &Array, x: Array) -> Result<Array> {
        enter(&self.config, &x, tokens, self.bytes)
    }

    fn leave(&self, x: Residual) -> Result<Residual> {
        let (read, _) = self.hyper_connection_mixer.read(&x.sum()?)?;
        Ok(read.into())
    }
}
