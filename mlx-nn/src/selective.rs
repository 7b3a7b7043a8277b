//! [`SelectiveScan`]: the state-space layer of the first Mamba (Gu and Dao, arXiv:2312.00752).

use std::ops::Range;

use mlx_core::fast::{self, Gate};
use mlx_core::ops::concat;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::Module;
use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::conv::CausalConv;
use crate::init::Initial;
use crate::linear::Linear;
use crate::lines::{Lines, by_line};
use crate::module::{Param, Path, Visit, VisitMut};
use crate::norm::RmsNorm;
use crate::shard::{Cut, Heads, Ranks, Shard};
use crate::step::Step;

/// Sizes and options of a [`SelectiveScan`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Features of the scan. Each has a state, decays and time steps of its own.
    pub inner: i32,
    /// Numbers in the state of a feature.
    pub state: i32,
    /// Features from which time steps are projected.
    pub rank: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// Bias on the input and the output projection.
    pub bias: bool,
    /// Bias on the convolution.
    pub conv_bias: bool,
    /// The activation after the convolution.
    pub activation: Activation,
    /// Norms of what time steps are projected from, of keys and of queries.
    pub norms: Option<SelectiveNorms>,
}

/// Norms of the mean square within a [`SelectiveScan`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveNorms {
    /// Epsilon.
    pub eps: f32,
    /// Whether they have weights.
    pub weights: bool,
}

/// Parts of the layer state.
const CONV: usize = 0;
const SCAN: usize = 1;

/// Tokens of a prompt that are computed together.
const CHUNK: i32 = 16;

impl SelectiveConfig {
    /// The state of a row: the last inputs of the convolution, and `state` numbers in F32 for each
    /// feature.
    pub fn kind(&self) -> LayerKind {
        let shape = RecurrentShape::new(&[
            StatePart::Window {
                name: "conv",
                len: self.taps - 1,
                width: self.inner,
            },
            StatePart::Carry {
                name: "scan",
                shape: [1, self.inner, self.state],
                dtype: DType::F32,
            },
        ]);
        LayerKind::Recurrent(shape.with_slots())
    }
}

/// The layer: a projection to values and gates; a causal convolution of the values; projections of
/// these to time steps, keys and queries; the scan; the gate; and a projection back.
#[derive(Clone, Debug, Module)]
pub struct SelectiveScan {
    in_proj: Linear,
    conv1d: CausalConv,
    x_proj: Linear,
    dt_proj: Linear,
    dt_layernorm: Option<RmsNorm>,
    b_layernorm: Option<RmsNorm>,
    c_layernorm: Option<RmsNorm>,
    #[module(flat)]
    rates: Rates,
    out_proj: Linear,
    #[module(skip)]
    config: SelectiveConfig,
}

impl SelectiveScan {
    /// A layer without values.
    ///
    /// # Errors
    /// There are fewer than 2 taps, or a size is less than 1.
    pub fn empty(config: SelectiveConfig) -> Result<Self> {
        let SelectiveConfig {
            hidden,
            inner,
            state,
            rank,
            taps,
            bias,
            ..
        } = config;
        if taps < 2 || [inner, state, rank].iter().any(|&size| size < 1) {
            let message = format!(
                "a selective scan of {inner} features with {state} numbers each, rank {rank} and {taps} taps: sizes must be \
                 at least 1, and taps at least 2"
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let weighted = config.norms.filter(|norms| norms.weights);
        let norm = |size| {
            let norm = weighted.map(|norms| RmsNorm::empty(size, norms.eps));
            norm.transpose()
        };
        Ok(Self {
            in_proj: Linear::empty(hidden, 2 * inner, bias)?,
            conv1d: CausalConv::empty(inner, taps, config.conv_bias, Some(config.activation))?,
            x_proj: Linear::empty(inner, rank + 2 * state, false)?,
            dt_proj: Linear::empty(rank, inner, true)?,
            dt_layernorm: norm(rank)?,
            b_layernorm: norm(state)?,
            c_layernorm: norm(state)?,
            rates: Rates::empty(inner, state)?,
            out_proj: Linear::empty(inner, hidden, bias)?,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let SelectiveConfig {
            inner, state, rank, ..
        } = self.config;
        let projected = self.in_proj.forward(x)?;
        let part = |of: &Array, from: i32, size: i32| of.slice_axis(-1, from, from + size);
        let inputs = part(&projected, 0, inner)?;
        let values = self.conv1d.forward(&inputs, layer, CONV, step)?;
        let of_values = self.x_proj.forward(&values)?;
        let dt = self.normed(&self.dt_layernorm, part(&of_values, 0, rank)?)?;
        let tokens = [
            values,
            self.dt_proj.forward(&dt)?,
            self.normed(&self.b_layernorm, part(&of_values, rank, state)?)?,
            self.normed(&self.c_layernorm, part(&of_values, rank + state, state)?)?,
        ];
        let fixed = [self.rates.rate.clone(), self.rates.skip.clone()];
        let y = step.recur(layer, SCAN, tokens, move |tokens, rows, states| {
            let state = [1, inner, state];
            by_line(tokens, rows, states, state, |lines| {
                scan(lines, fixed.each_ref())
            })
        })?;
        let y = fast::gated(Gate::Silu, &part(&projected, inner, inner)?, &y)?;
        self.out_proj.forward(&y)
    }

    /// The norm of features, if the layer has norms.
    fn normed(&self, norm: &Option<RmsNorm>, x: Array) -> Result<Array> {
        match (norm, self.config.norms) {
            (Some(norm), _) => norm.forward(&x)?.astype(x.dtype()),
            (None, Some(norms)) => fast::rms_norm(&x, None, norms.eps),
            (None, None) => Ok(x),
        }
    }
}

/// The outputs of the tokens of each line, `[B, L, I]` in the dtype of the values, and the state
/// after them, or `[B, L, I, N]` after each of them.
///
/// For each token and feature, in F32, with `δ = softplus(dt)`: `s ← exp(-rate · δ) s + δ x k` and
/// `y = s · q + skip · x`, where `s`, `rate`, `k` and `q` have N numbers. The lines have the values
/// and `dt`, `[B, L, I]`; keys and queries, `[B, L, N]`; and the state before the tokens, F32
/// `[B, 1, I, N]`. The others are the rates, F32 `[I, N]`, and skip, F32 `[I]`.
fn scan(lines: &Lines<4>, [rate, skip]: [&Array; 2]) -> Result<(Array, Array)> {
    let ([values, dt, keys, queries], state) = (&lines.tokens, &lines.state);
    let ([_, tokens, _], dtype) = (values.dims()?, values.dtype());
    let wide = |array: &Array| array.astype(DType::F32);
    // A time step of 0 keeps the state.
    let delta = lines.masked(&wide(dt)?.logaddexp(0.0f32)?)?;
    let x = lines.masked(&wide(values)?)?;
    let (keys, queries) = (lines.masked(&wide(keys)?)?, wide(queries)?);
    let change = delta.multiply(&x)?;
    let mut state = state.clone(); // [B, 1, I, N]
    let (mut read, mut after) = (Vec::new(), Vec::new());
    for first in (0..tokens).step_by(CHUNK as usize) {
        let end = tokens.min(first + CHUNK);
        let own = |array: &Array| array.slice_axis(1, first, end);
        let [delta, change] = [&delta, &change].map(|array| own(array)?.expand_dims(-1));
        let [keys, queries] = [&keys, &queries].map(|array| own(array)?.expand_dims(2));
        let decay = delta?.multiply(rate)?.negative()?.exp()?; // [B, n, I, N]
        let states = run(decay, change?.multiply(keys?)?, &state, end - first)?;
        state = states.slice_axis(1, end - first - 1, end - first)?;
        read.push(states.multiply(queries?)?.sum(-1, false)?);
        if lines.each {
            after.push(states);
        }
    }
    if lines.each {
        state = joined(after)?;
    }
    let y = joined(read)?.add(x.multiply(skip)?)?.astype(dtype)?;
    Ok((y, state))
}

/// Arrays of consecutive tokens, joined along axis 1.
fn joined(parts: Vec<Array>) -> Result<Array> {
    match <[Array; 1]>::try_from(parts) {
        Ok([part]) => Ok(part),
        Err(parts) => concat(&parts, 1),
    }
}

/// The states after each of `n` tokens, `[B, n, I, N]`, from their decays and changes and the state
/// `[B, 1, I, N]` before the first. Each pass joins the spans of tokens that end at a token with
/// those before them, which doubles their lengths.
fn run(mut decay: Array, mut change: Array, state: &Array, n: i32) -> Result<Array> {
    let mut span = 1;
    while span < n {
        let parts = |of: &Array| -> Result<[Array; 3]> {
            let part = |from, end| of.slice_axis(1, from, end);
            Ok([part(0, span)?, part(span, n)?, part(0, n - span)?])
        };
        let [first, own, before] = parts(&decay)?;
        let [first_change, own_change, change_before] = parts(&change)?;
        let joined = own.multiply(change_before)?.add(own_change)?;
        change = concat(&[first_change, joined], 1)?;
        decay = concat(&[first, own.multiply(before)?], 1)?;
        span *= 2;
    }
    decay.multiply(state)?.add(change)
}

/// The parameters `A_log`, `[I, N]`, and `D`, `[I]`. `A_log` is never narrowed to 16 bits.
#[derive(Clone, Debug)]
struct Rates {
    a_log: Param,
    d: Param,
    /// `exp(a_log)` and `d`, F32.
    rate: Array,
    skip: Array,
}

impl Rates {
    fn empty(inner: i32, state: i32) -> Result<Self> {
        let a_log = Param::starting(&[inner, state], Initial::LogUniform(16.0))?.never_narrowed();
        let d = Param::starting(&[inner], Initial::Constant(1.0))?;
        Ok(Self {
            rate: a_log.value().clone(),
            skip: d.value().clone(),
            a_log,
            d,
        })
    }
}

/// The names of the parameters have capitals, so they are not field names.
impl Module for Rates {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("A_log", |path| self.a_log.visit(path, v))?;
        path.scoped("D", |path| self.d.visit(path, v))?;
        v.derived(&self.rate)?;
        v.derived(&self.skip)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("A_log", |path| self.a_log.visit_mut(path, v))?;
        path.scoped("D", |path| self.d.visit_mut(path, v))?;
        self.rate = self.a_log.value().astype(DType::F32)?.exp()?;
        self.skip = self.d.value().astype(DType::F32)?;
        Ok(())
    }
}

impl Rates {
    /// Leaves the numbers of these features.
    fn keep(&mut self, features: Range<i32>) -> Result<()> {
        let cut = Cut::new(self.a_log.shape(), 0, vec![features.clone()])?;
        self.a_log.cut(cut)?;
        let cut = Cut::new(self.d.shape(), 0, vec![features])?;
        self.d.cut(cut)
    }
}

impl Shard for SelectiveScan {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.inner,
            few: self.config.inner,
            copies: false,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        Some(self.config.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let inner = self.config.inner;
        let own = ranks.share(inner);
        let gates = inner + own.start..inner + own.end;
        let features = std::slice::from_ref(&own);
        self.in_proj.keep_outputs(&[own.clone(), gates])?;
        self.conv1d.keep(features)?;
        self.x_proj.keep_inputs(features, ranks)?;
        self.dt_proj.keep_outputs(features)?;
        self.rates.keep(own.clone())?;
        self.out_proj.keep_inputs(features, ranks)?;
        self.config.inner = own.end - own.start;
        Ok(())
    }
}
