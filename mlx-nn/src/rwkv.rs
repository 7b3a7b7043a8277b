//! [`Rwkv7`]: the two mixes of RWKV 7 (Peng et al., arXiv:2503.14456).

use mlx_core::{Array, DType, Error, ErrorKind, Result, fast};

use crate::Module;
use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::init::Initial;
use crate::linear::Linear;
use crate::mlp::PlainMlp;
use crate::module::Param;
use crate::shard::{Cut, Heads, Ranks, Shard};
use crate::step::{Step, Taps};

mod mixes;
mod scan;

use mixes::Mixes;

/// Sizes and options of a [`Rwkv7`] and of a [`ChannelMix`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rwkv7Config {
    /// Features of a token.
    pub hidden: i32,
    /// Features of a head. They divide `hidden`.
    pub head_dim: i32,
    /// Features inside the projections of decays.
    pub decay_rank: i32,
    /// Features inside the projections of learning rates.
    pub rate_rank: i32,
    /// Features inside the projections of how much of the first layer's values is taken.
    pub value_rank: i32,
    /// Features inside the projections of gates.
    pub gate_rank: i32,
    /// Features inside the channel mix.
    pub intermediate: i32,
    /// The epsilon of the norm of each head's output.
    pub norm_eps: f32,
}

/// Parts of the layer state.
const SHIFT: usize = 0;
const MLP_SHIFT: usize = 1;
const MEMORY: usize = 2;

impl Rwkv7Config {
    /// The state of a row: the last inputs of both mixes, and a matrix `[head_dim, head_dim]` in
    /// F32 for each head.
    pub fn kind(&self) -> LayerKind {
        let heads = self.hidden / self.head_dim;
        self.kind_of(heads)
    }

    fn kind_of(&self, heads: i32) -> LayerKind {
        let shift = |name| StatePart::Window {
            name,
            len: 1,
            width: self.hidden,
        };
        let shape = RecurrentShape::new(&[
            shift("shift"),
            shift("mlp_shift"),
            StatePart::Carry {
                name: "memory",
                shape: [heads, self.head_dim, self.head_dim],
                dtype: DType::F32,
            },
        ]);
        LayerKind::Recurrent(shape.with_slots())
    }
}

/// What is added to each token of `x [1, T, E]` to get the token before it. Before the first token
/// of a text are zeros.
fn to_before(
    x: &Array,
    taps: &Array,
    (layer, part): (usize, usize),
    step: &mut Step<'_>,
) -> Result<Array> {
    let of = Taps {
        taps: &taps.astype(x.dtype())?,
        bias: None,
        activation: None,
    };
    step.convolve(layer, part, x, &of)
}

/// The taps of [`to_before`], F32 `[2, E]`.
fn difference(hidden: i32) -> Result<Array> {
    let taps = Array::from_slice(&[1.0f32, -1.0], &[2, 1])?;
    taps.broadcast_to(&[2, hidden])?.contiguous()
}

/// Two projections with a function between them.
#[derive(Clone, Debug, Module)]
struct LowRank {
    down: Linear,
    up: Linear,
}

impl LowRank {
    fn empty(hidden: i32, rank: i32, bias: bool) -> Result<Self> {
        Ok(Self {
            down: Linear::empty(hidden, rank, false)?,
            up: Linear::empty(rank, hidden, bias)?,
        })
    }

    fn forward(&self, x: &Array, inner: impl Fn(Array) -> Result<Array>) -> Result<Array> {
        self.up.forward(&inner(self.down.forward(x)?)?)
    }
}

/// The weight and the bias of the norms of all heads, `[E]` each.
#[derive(Clone, Debug, Module)]
struct HeadsNorm {
    weight: Param,
    bias: Param,
}

/// The time mix. Each token is mixed with the one before it, in six ways, of which receptances,
/// decays, keys, values, learning rates and gates are projected. Each head has a matrix, of which a
/// token forgets some features, removes what the matrix has at one key, and adds its value at
/// another key; the receptance reads it. From the second layer on values are mixed with those of
/// the first layer.
#[derive(Clone, Debug, Module)]
pub struct Rwkv7 {
    #[module(flat)]
    mixes: Mixes,
    /// `[E]`: the factor of the key at which the matrix is cleared.
    k_k: Param,
    /// `[E]`: how much the learning rate scales the key at which a value is added.
    k_a: Param,
    /// `[heads, head_dim]`: the weight of the token's own value.
    r_k: Param,
    r_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    w_lora: LowRank,
    a_lora: LowRank,
    v_lora: Option<LowRank>,
    g_lora: LowRank,
    g_norm: HeadsNorm,
    #[module(skip)]
    taps: Array,
    #[module(skip)]
    config: Rwkv7Config,
    /// The heads that this rank has.
    #[module(skip)]
    heads: i32,
}

impl Rwkv7 {
    /// A mix without values. `is_first`: whether it is that of the first layer.
    ///
    /// # Errors
    /// Heads do not divide the features of a token, or a size is less than 1.
    pub fn empty(config: Rwkv7Config, is_first: bool) -> Result<Self> {
        let Rwkv7Config {
            hidden,
            head_dim,
            decay_rank,
            rate_rank,
            value_rank,
            gate_rank,
            ..
        } = config;
        let sizes = [
            hidden, head_dim, decay_rank, rate_rank, value_rank, gate_rank,
        ];
        if sizes.iter().any(|&size| size < 1) || hidden % head_dim != 0 {
            let message = format!(
                "a time mix of {hidden} features in heads of {head_dim}, with ranks {decay_rank}, {rate_rank}, {value_rank} and \
                 {gate_rank}: sizes must be at least 1, and heads must divide the features"
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let heads = hidden / head_dim;
        let square = || Linear::empty(hidden, hidden, false);
        let low = |rank: i32, bias: bool| LowRank::empty(hidden, rank, bias);
        let ones = |shape: &[i32]| Param::starting(shape, Initial::Constant(1.0));
        Ok(Self {
            mixes: Mixes::empty(hidden)?,
            k_k: ones(&[hidden])?,
            k_a: ones(&[hidden])?,
            r_k: Param::empty(&[heads, head_dim])?,
            r_proj: square()?,
            k_proj: square()?,
            v_proj: square()?,
            o_proj: square()?,
            w_lora: low(decay_rank, true)?,
            a_lora: low(rate_rank, true)?,
            v_lora: (!is_first).then(|| low(value_rank, true)).transpose()?,
            g_lora: low(gate_rank, false)?,
            g_norm: HeadsNorm {
                weight: ones(&[hidden])?,
                bias: Param::empty(&[hidden])?,
            },
            taps: difference(hidden)?,
            config,
            heads,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, and the values of the first layer, `[1, T, E]` or a rank's
    /// share. `first` are those values, if this is not the first layer. The mix reads and writes
    /// layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit, or `first` is missing in a layer that is not the first.
    pub fn forward(
        &self,
        x: &Array,
        first: Option<&Array>,
        layer: usize,
        step: &mut Step<'_>,
    ) -> Result<[Array; 2]> {
        let [r, w, k, v, a, g] = self
            .mixes
            .of(x, &to_before(x, &self.taps, (layer, SHIFT), step)?)?;
        let [r, k] = [self.r_proj.forward(&r)?, self.k_proj.forward(&k)?];
        let mut values = self.v_proj.forward(&v)?;
        let wide = |x: &Array| x.astype(DType::F32);
        let w = wide(&self.w_lora.forward(&w, |x| x.tanh())?)?;
        // The logarithm of the decay is -exp(-1/2) sigmoid(w).
        let log_decay = w.sigmoid()?.multiply(-(-0.5f32).exp())?;
        let rate = wide(&self.a_lora.forward(&a, Ok)?)?.sigmoid()?;
        let gate = self.g_lora.forward(&g, |x| x.sigmoid())?;
        let first = match (&self.v_lora, first) {
            (None, _) => values.clone(),
            (Some(share), Some(first)) => {
                let share = share.forward(&v, Ok)?.sigmoid()?;
                values = values.add(first.subtract(&values)?.multiply(share)?)?;
                first.clone()
            }
            (Some(_), None) => {
                let message = "a time mix after the first layer needs the values of the first";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        let key = wide(&k)?;
        let cleared = unit(&self.by_head(&key.multiply(wide(self.k_k.get()?)?)?)?)?;
        let cleared = cleared.reshape(key.shape())?;
        let share = rate.subtract(1.0f32)?.multiply(wide(self.k_a.get()?)?)?;
        let key = key.multiply(share.add(1.0f32)?)?;
        let (heads, dim) = (self.heads, self.config.head_dim);
        let tokens = [
            r.clone(),
            log_decay,
            key.clone(),
            values.clone(),
            cleared,
            rate,
        ];
        let y = step.recur(layer, MEMORY, tokens, move |tokens, rows, states| {
            scan::ragged(tokens, rows, states, (heads, dim))
        })?;
        let y = self.normed(&y)?;
        // The token's own value.
        let own = self.by_head(&wide(&r)?.multiply(&key)?)?;
        let own = own.multiply(wide(self.r_k.get()?)?)?.sum(-1, true)?;
        let own = own.multiply(self.by_head(&wide(&values)?)?)?;
        let y = y.add(own)?.reshape(values.shape())?.astype(x.dtype())?;
        Ok([self.o_proj.forward(&y.multiply(gate)?)?, first])
    }

    /// `[1, T, heads * head_dim] -> [1, T, heads, head_dim]`
    fn by_head(&self, x: &Array) -> Result<Array> {
        let [one, tokens, _] = x.dims()?;
        x.reshape(&[one, tokens, self.heads, self.config.head_dim])
    }

    /// The norm of each head's output, F32 `[1, T, heads, head_dim]`, with a weight and a bias for
    /// each feature.
    fn normed(&self, y: &Array) -> Result<Array> {
        let normed = fast::layer_norm(&self.by_head(y)?, None, None, self.config.norm_eps)?;
        let of_head = |param: &Array| {
            let param = param.astype(DType::F32)?;
            param.reshape(&[self.heads, self.config.head_dim])
        };
        let HeadsNorm { weight, bias } = &self.g_norm;
        normed
            .multiply(of_head(weight.get()?)?)?
            .add(of_head(bias.get()?)?)
    }
}

/// `x / |x|` over the last axis, F32. Zeros stay zeros.
fn unit(x: &Array) -> Result<Array> {
    let squares = x.square()?.sum(-1, true)?;
    x.multiply(squares.maximum(1e-24f32)?.rsqrt()?)
}

/// The channel mix: an MLP without a gate over each token mixed with the one before it, with the
/// activation `max(x, 0)^2`.
#[derive(Clone, Debug, Module)]
pub struct ChannelMix {
    /// `[E]`: how much of the token before is taken.
    x_k: Param,
    #[module(flat)]
    mlp: PlainMlp,
    #[module(skip)]
    taps: Array,
}

impl ChannelMix {
    /// A mix without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: Rwkv7Config) -> Result<Self> {
        let Rwkv7Config {
            hidden,
            intermediate,
            ..
        } = config;
        Ok(Self {
            x_k: Param::empty(&[hidden])?,
            mlp: PlainMlp::empty(hidden, intermediate, false, Activation::ReluSquared)?,
            taps: difference(hidden)?,
        })
    }

    /// Each token of `x [1, T, E]` mixed with the one before it, `[1, T, E]`. Reads and writes
    /// layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn mixed(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let to_before = to_before(x, &self.taps, (layer, MLP_SHIFT), step)?;
        let mixed = x.add(to_before.multiply(self.x_k.get()?)?)?;
        mixed.astype(x.dtype())
    }

    /// The MLP of tokens that are [mixed](Self::mixed): `[1, T, E] -> [1, T, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, mixed: &Array) -> Result<Array> {
        self.mlp.forward(mixed)
    }
}

impl Shard for Rwkv7 {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.heads,
            few: self.heads,
            copies: false,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        Some(self.config.kind_of(self.heads))
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let (own, dim) = (ranks.share(self.heads), self.config.head_dim);
        let features = own.start * dim..own.end * dim;
        let rows = std::slice::from_ref(&features);
        let low = [&mut self.w_lora, &mut self.a_lora, &mut self.g_lora];
        let low = low.into_iter().chain(&mut self.v_lora);
        let square = [&mut self.r_proj, &mut self.k_proj, &mut self.v_proj];
        for linear in low.map(|low| &mut low.up).chain(square) {
            linear.keep_outputs(rows)?;
        }
        let HeadsNorm { weight, bias } = &mut self.g_norm;
        for param in [&mut self.k_k, &mut self.k_a, weight, bias] {
            let cut = Cut::new(param.shape(), 0, rows.to_vec())?;
            param.cut(cut)?;
        }
        let cut = Cut::new(self.r_k.shape(), 0, vec![own.clone()])?;
        self.r_k.cut(cut)?;
        self.o_proj.keep_inputs(rows, ranks)?;
        self.heads = own.end - own.start;
        Ok(())
    }
}
