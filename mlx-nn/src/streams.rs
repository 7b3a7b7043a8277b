//! Several residual streams (hyper-connections, arXiv:2409.19606; with a doubly stochastic mix, arXiv:2512.24880): a
//! block reads a weighted sum of the streams, and its output is added to each of them by another weight.
//!
//! The streams of a token are one vector `[n E]`, one stream after the other. Weights are F32.

use mlx_core::{Array, DType, Result, fast, ops::concat};

use crate::module::Param;

mod gated;

pub use gated::GatedStreams;

/// Sizes and options of a [`StreamMixer`] and a [`StreamsHead`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamsConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Streams, n.
    pub streams: i32,
    /// Epsilon of the norm over the features of all streams.
    pub norm_eps: f32,
    /// A number that is added to weights, and to the sums by which weights are divided.
    pub eps: f32,
    /// The factor of the sigmoids by which an output is added to the streams.
    pub magnitude: f32,
    /// Whether `eps` is added to these weights too (Hunyuan 4).
    pub shifted: bool,
    /// How often the columns of the matrix that mixes the streams are normalised (Sinkhorn and Knopp), at least once.
    /// `None`: streams are not mixed.
    pub rounds: Option<u32>,
}

impl StreamsConfig {
    /// Weights of each token: `[1, T, outputs]`, F32.
    fn weights(&self, x: &Array, mix: &Param) -> Result<Array> {
        let wide = x.astype(DType::F32)?;
        let mean = wide.square()?.mean(-1, true)?;
        let normed = wide.multiply(mean.add(self.norm_eps)?.rsqrt()?)?;
        fast::linear(&normed, &mix.get()?.astype(DType::F32)?)
    }

    /// The sum of the streams `[1, T, n E]` by weights `[1, T, n]`: `[1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn sum(&self, x: &Array, weights: &Array) -> Result<Array> {
        let apart = self.apart(x)?.multiply(weights.expand_dims(-1)?)?;
        apart.sum(2, false)?.astype(x.dtype())
    }

    /// `[1, T, n E] -> [1, T, n, E]`
    fn apart(&self, x: &Array) -> Result<Array> {
        let [b, t, _] = x.dims()?;
        x.reshape(&[b, t, self.streams, self.hidden])
    }

    /// The mean of the streams: `[1, T, n E] -> [1, T, E]`.
    ///
    /// # Errors
    /// The shape does not fit.
    pub fn mean(&self, x: &Array) -> Result<Array> {
        self.apart(x)?.mean(2, false)
    }

    /// The features of a token in every stream: `[1, T, E] -> [1, T, n E]`.
    ///
    /// # Errors
    /// The shape does not fit.
    pub fn enter(&self, x: &Array) -> Result<Array> {
        concat(&vec![x; self.streams as usize], -1)
    }
}

/// What a block reads of the streams, and how its output is added to them. Parameters are never rounded to 16 bits.
#[derive(Clone, Debug)]
pub struct StreamMixer {
    /// `[outputs, n E]`; the outputs are n weights for reading, n for writing, and n² that mix the streams.
    mix: Param,
    /// `[outputs]`
    base: Param,
    /// A factor for each of the two or three kinds of weights.
    scale: Param,
    config: StreamsConfig,
}

crate::module!(StreamMixer { mix, base, scale } plain { config });

/// The weights by which a block's output is added to the streams.
#[derive(Clone, Debug)]
pub struct StreamWeights {
    /// `[1, T, n]`
    post: Array,
    /// `[1, T, n, n]`: the part of each stream (axis 2) in each new stream (axis 3).
    mixed: Option<Array>,
    config: StreamsConfig,
}

impl StreamMixer {
    /// A mixer without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: StreamsConfig) -> Result<Self> {
        let n = config.streams;
        let (outputs, kinds) = match config.rounds {
            Some(_) => ((2 + n) * n, 3),
            None => (2 * n, 2),
        };
        let param = |shape: &[i32]| Param::empty(shape).map(Param::never_narrowed);
        Ok(Self {
            mix: param(&[outputs, n * config.hidden])?,
            base: param(&[outputs])?,
            scale: param(&[kinds])?,
            config,
        })
    }

    /// The block's input `[1, T, E]` from the streams `[1, T, n E]`, and the weights of its output.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn read(&self, x: &Array) -> Result<(Array, StreamWeights)> {
        let (pre, weights) = self.weights(x)?;
        Ok((self.config.sum(x, &pre)?, weights))
    }

    /// The weights F32 `[1, T, n]` by which a block reads the streams `[1, T, n E]`, and those of its output.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn weights(&self, x: &Array) -> Result<(Array, StreamWeights)> {
        let c = self.config;
        let n = c.streams;
        let weights = c.weights(x, &self.mix)?;
        let (scale, base) = (self.scale.get()?, self.base.get()?);
        let scaled = |kind: i32, begin: i32, end: i32| {
            let own = weights.slice_axis(-1, begin, end)?;
            let own = own.multiply(scale.slice_axis(0, kind, kind + 1)?)?;
            own.add(base.slice_axis(0, begin, end)?)
        };
        let pre = scaled(0, 0, n)?.sigmoid()?.add(c.eps)?;
        let mut post = scaled(1, n, 2 * n)?.sigmoid()?.multiply(c.magnitude)?;
        if c.shifted {
            post = post.add(c.eps)?;
        }
        let mixed = match c.rounds {
            Some(rounds) => Some(self.stochastic(&scaled(2, 2 * n, (2 + n) * n)?, rounds)?),
            None => None,
        };
        let weights = StreamWeights {
            post,
            mixed,
            config: c,
        };
        Ok((pre, weights))
    }

    /// Matrices `[1, T, n, n]` whose rows and columns sum to about 1, from `[1, T, n n]`.
    fn stochastic(&self, logits: &Array, rounds: u32) -> Result<Array> {
        let (n, eps) = (self.config.streams, self.config.eps);
        let [b, t, _] = logits.dims()?;
        let divided = |x: Array, axis: i32| x.divide(x.sum(axis, true)?.add(eps)?);
        let rows = logits.reshape(&[b, t, n, n])?.softmax(-1)?.add(eps)?;
        let mut matrix = divided(rows, -2)?;
        for _ in 1..rounds {
            matrix = divided(divided(matrix, -1)?, -2)?;
        }
        Ok(matrix)
    }
}

impl StreamWeights {
    /// The streams `[1, T, n E]` after the block: `x` are those before it, and `y` is its output, `[1, T, E]`.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn write(&self, x: &Array, y: &Array) -> Result<Array> {
        let before = self.config.apart(x)?.astype(DType::F32)?;
        let y = y.astype(DType::F32)?.expand_dims(-2)?;
        let mut after = self.post.expand_dims(-1)?.multiply(&y)?;
        match &self.mixed {
            None => after = after.add(&before)?,
            Some(mixed) => {
                for stream in 0..self.config.streams {
                    let part = mixed.slice_axis(2, stream, stream + 1)?;
                    let part = part.squeeze(2)?.expand_dims(-1)?;
                    let own = before.slice_axis(2, stream, stream + 1)?;
                    after = after.add(part.multiply(own)?)?;
                }
            }
        }
        after.reshape(x.shape())?.astype(x.dtype())
    }
}

/// The token's features after the last block: a weighted sum of the streams.
#[derive(Clone, Debug)]
pub struct StreamsHead {
    /// `[n, n E]`
    mix: Param,
    /// `[n]`
    base: Param,
    /// `[1]`
    scale: Param,
    config: StreamsConfig,
}

crate::module!(StreamsHead { mix, base, scale } plain { config });

impl StreamsHead {
    /// A head without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(config: StreamsConfig) -> Result<Self> {
        let n = config.streams;
        let param = |shape: &[i32]| Param::empty(shape).map(Param::never_narrowed);
        Ok(Self {
            mix: param(&[n, n * config.hidden])?,
            base: param(&[n])?,
            scale: param(&[1])?,
            config,
        })
    }

    /// `[1, T, n E] -> [1, T, E]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        let weights = self.config.weights(x, &self.mix)?;
        let weights = weights.multiply(self.scale.get()?)?.add(self.base.get()?)?;
        self.config
            .sum(x, &weights.sigmoid()?.add(self.config.eps)?)
    }
}
