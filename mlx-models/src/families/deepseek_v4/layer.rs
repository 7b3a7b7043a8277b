//! The layers of DeepSeek V4, and what is before and after them.

use mlx_core::{Array, DType, Error, ErrorKind, Result};
use mlx_nn::{
    CompressedAttention, ExpertsMlp, Module, Norm, Normed, Path, Residual, Step, StreamMixer,
    StreamsConfig, StreamsHead, Visit, VisitMut, known_type, module,
};

use crate::decoders::causal_lm::{DecoderLayer, Ends};
use crate::decoders::token_bytes::{apart, enter, together, tokens};

/// A layer. Its states are those of its attention.
#[derive(Clone)]
pub(crate) struct V4Layer {
    pub attn_hc: StreamMixer,
    pub input_layernorm: Norm,
    pub self_attn: CompressedAttention,
    pub ffn_hc: StreamMixer,
    pub post_attention_layernorm: Norm,
    pub mlp: V4Mlp,
    /// Features of all streams.
    pub width: i32,
    /// Whether a later layer reads the bytes of tokens.
    pub passes_bytes: bool,
}
module!(V4Layer { attn_hc, input_layernorm, self_attn, ffn_hc, post_attention_layernorm, mlp } plain { width, passes_bytes });

/// Experts that the router chooses, or that tokens choose by their numbers.
#[derive(Clone)]
pub(crate) struct V4Mlp {
    pub experts: ExpertsMlp,
    pub table: Option<ExpertTable>,
}
module!(V4Mlp {} flat { experts, table });

/// The experts of each token: `[V, k]`, of integers.
#[derive(Clone)]
pub(crate) struct ExpertTable {
    tid2eid: Array,
    n_experts: i32,
}

impl ExpertTable {
    /// A table in which tokens have successive experts, until a file gives another.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(vocab: i32, top_k: i32, n_experts: i32) -> Result<Self> {
        let experts = (0..vocab).flat_map(|token| {
            let expert = move |at: i32| (i64::from(token) + i64::from(at)) % i64::from(n_experts);
            (0..top_k).map(expert)
        });
        let experts: Vec<i64> = experts.collect();
        Ok(Self {
            tid2eid: Array::from_slice(&experts, &[vocab, top_k])?,
            n_experts,
        })
    }

    /// The experts I32 `[T, k]` of the tokens with these bytes, `[1, T, 3]`.
    fn of(&self, bytes: &Array) -> Result<Array> {
        let experts = self.tid2eid.take(&tokens(bytes)?.squeeze(0)?, 0)?;
        experts.astype(DType::I32)
    }

    /// Refuses a file's table that names experts that do not exist.
    fn check(&self, path: &Path) -> Result<()> {
        let fault = |message: String| {
            let message = format!("{}.tid2eid: {message}", path.as_str());
            Err(Error::new(ErrorKind::Format, message))
        };
        let dtype = self.tid2eid.dtype();
        if !matches!(dtype, DType::I64 | DType::I32) {
            return fault(format!("experts must be I64 or I32, found {dtype}"));
        }
        let all = self.tid2eid.astype(DType::I64)?;
        let (least, most) = (
            all.min(.., false)?.item::<i64>()?,
            all.max(.., false)?.item::<i64>()?,
        );
        match least < 0 || most >= i64::from(self.n_experts) {
            true => fault(format!(
                "experts {least} to {most}, of {} experts",
                self.n_experts
            )),
            false => Ok(()),
        }
    }
}

impl Module for ExpertTable {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("tid2eid", |path| v.state(path, &self.tid2eid))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        path.scoped("tid2eid", |path| v.state(path, &mut self.tid2eid))?;
        self.check(path)
    }

    known_type!();
}

impl DecoderLayer for V4Layer {
    fn forward(&self, x: Residual, state: usize, step: &mut Step<'_>) -> Result<Residual> {
        let (x, bytes) = apart(x.sum()?, self.width)?;
        let (read, weights) = self.attn_hc.read(&x)?;
        let normed = Normed::new(read, &self.input_layernorm);
        let y = self.self_attn.forward(&normed, state, step)?;
        let [x] = step.narrow([&weights.write(&x, &y)?])?;
        let (read, weights) = self.ffn_hc.read(&x)?;
        let normed = Normed::new(read, &self.post_attention_layernorm);
        let y = match (&self.mlp.table, &bytes) {
            (Some(table), Some(bytes)) => {
                let [bytes] = step.narrow([bytes])?;
                self.mlp.experts.forward_to(&normed, &table.of(&bytes)?)?
            }
            _ => self.mlp.experts.forward(&normed)?,
        };
        let x = weights.write(&x, &y)?;
        Ok(together(x, bytes.filter(|_| self.passes_bytes))?.into())
    }
}

/// The streams begin with the embedding of the token, and end as one sum.
#[derive(Clone)]
pub(crate) struct V4Ends {
    pub hc_head: StreamsHead,
    pub config: StreamsConfig,
    /// Whether a layer reads the bytes of tokens, which then follow the streams.
    pub bytes: bool,
}
module!(V4Ends { hc_head } plain { config, bytes });

impl Ends for V4Ends {
    fn enter(&self, tokens: &Array, x: Array) -> Result<Array> {
        enter(&self.config, &x, tokens, self.bytes)
    }

    fn leave(&self, x: Residual) -> Result<Residual> {
        Ok(self.hc_head.forward(&x.sum()?)?.into())
    }
}
