//! Layers whose first projections are one matrix (Phi 3): [`FusedAttention`] and [`FusedMlp`].

use mlx_core::{Array, Result};

use crate::activation::Activation;
use crate::attend::Attend;
use crate::attention::{merge_heads, split_heads};
use crate::linear::Linear;
use crate::normed::Input;
use crate::rope::Rope;
use crate::shard::{Heads, Ranks, Shard};
use crate::step::Step;

/// Grouped attention with one projection of queries, keys and values. The outputs of `qkv_proj` are the query heads, then
/// the heads of keys, then those of values, each of `head_dim` features.
#[derive(Clone, Debug)]
pub struct FusedAttention {
    qkv_proj: Linear,
    o_proj: Linear,
    rope: Rope,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
}

crate::module!(FusedAttention { qkv_proj, o_proj } plain { rope, heads, kv_heads, head_dim });

impl FusedAttention {
    /// Attention over `hidden` features, without values. `heads` are the query heads, and those of keys and values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(
        hidden: i32,
        [heads, kv_heads]: [i32; 2],
        head_dim: i32,
        rope: Rope,
    ) -> Result<Self> {
        Ok(Self {
            qkv_proj: Linear::empty(hidden, (heads + 2 * kv_heads) * head_dim, false)?,
            o_proj: Linear::empty(heads * head_dim, hidden, false)?,
            rope,
            heads,
            kv_heads,
            head_dim,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing state `state` of the step.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(
        &self,
        x: impl Into<Input<'a>>,
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<Array> {
        let (q_end, k_end) = (self.heads, self.heads + self.kv_heads);
        let qkv = split_heads(&self.qkv_proj.forward(x)?, self.head_dim)?;
        let q = self.rope.forward(&qkv.slice_axis(1, 0, q_end)?, step)?;
        let k = self.rope.forward(&qkv.slice_axis(1, q_end, k_end)?, step)?;
        let v = qkv.slice_axis(1, k_end, k_end + self.kv_heads)?;
        let options = Attend {
            scale: (self.head_dim as f32).powf(-0.5),
            softcap: None,
            sinks: None,
            alibi: None,
        };
        let y = step.attend(state, &q, &k, &v, &options)?;
        self.o_proj.forward(&merge_heads(&y)?)
    }
}

impl Shard for FusedAttention {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.heads,
            few: self.kv_heads,
            copies: true,
        })
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let (own, shared) = (ranks.share(self.heads), ranks.share_of_few(self.kv_heads));
        let dim = self.head_dim;
        let rows = |base: i32, start: i32, end: i32| (base + start) * dim..(base + end) * dim;
        let [keys, values] =
            [0, self.kv_heads].map(|base| rows(self.heads + base, shared.start, shared.end));
        let queries = rows(0, own.start, own.end);
        self.qkv_proj
            .keep_outputs(&[queries.clone(), keys, values])?;
        self.o_proj.keep_inputs(&[queries], ranks)?;
        self.heads = own.end - own.start;
        self.kv_heads = shared.end - shared.start;
        Ok(())
    }
}

/// `down(activation(gate) * up)`, where gate and up are the first and the second half of the outputs of `gate_up_proj`.
///
/// ```
/// use mlx_core::{DType, Result, ops::create::zeros};
/// use mlx_nn::init::initialise;
/// use mlx_nn::{Activation, FusedMlp};
///
/// # fn main() -> Result<()> {
/// let mut mlp = FusedMlp::empty(8, 32, Activation::Silu)?;
/// initialise(&mut mlp, 0, 1.0)?;
/// let y = mlp.forward(&zeros(&[1, 3, 8], DType::F32)?)?;
/// assert_eq!(y.shape(), [1, 3, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FusedMlp {
    gate_up_proj: Linear,
    down_proj: Linear,
    intermediate: i32,
    activation: Activation,
}

crate::module!(FusedMlp { gate_up_proj, down_proj } plain { intermediate, activation });

impl FusedMlp {
    /// An MLP over `hidden` features through `intermediate` ones, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(hidden: i32, intermediate: i32, activation: Activation) -> Result<Self> {
        Ok(Self {
            gate_up_proj: Linear::empty(hidden, 2 * intermediate, false)?,
            down_proj: Linear::empty(intermediate, hidden, false)?,
            intermediate,
            activation,
        })
    }

    /// `[.., E] -> [.., E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>) -> Result<Array> {
        let both = self.gate_up_proj.forward(x)?;
        let gate = both.slice_axis(-1, 0, self.intermediate)?;
        let up = both.slice_axis(-1, self.intermediate, 2 * self.intermediate)?;
        self.down_proj.forward(&self.activation.gated(&gate, &up)?)
    }
}

impl Shard for FusedMlp {
    fn heads(&self) -> Option<Heads> {
        None
    }

    fn shard(&mut self, ranks: Ranks, unit: i32) -> Result<()> {
        let whole = self.intermediate;
        let own = ranks.share_of_blocks(whole, unit);
        let up = whole + own.start..whole + own.end;
        self.gate_up_proj.keep_outputs(&[own.clone(), up])?;
        self.down_proj
            .keep_inputs(std::slice::from_ref(&own), ranks)?;
        self.intermediate = own.end - own.start;
        Ok(())
    }
}
