//! [`Mamba`]: the state-space layer of Mamba 2 (Dao and Gu, arXiv:2405.21060).

use std::cell::OnceCell;
use std::ops::Range;

use mlx_core::fast::{self, Gate, RaggedScan};
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::conv::CausalConv;
use crate::decay::Decay;
use crate::init::Initial;
use crate::linear::Linear;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::norm::RmsNorm;
use crate::shard::{Cut, Heads, Ranks, Shard, Spread};
use crate::step::Step;

/// Sizes and options of a [`Mamba`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Heads.
    pub heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Groups of heads that share a key and a query (`B` and `C`). A group has consecutive heads.
    pub groups: i32,
    /// Features of a key.
    pub state: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// Bias on the input projection.
    pub in_bias: bool,
    /// Bias on the output projection.
    pub out_bias: bool,
    /// Bias on the convolution.
    pub conv_bias: bool,
    /// The activation after the convolution.
    pub activation: Activation,
    /// The norm of the scan's output.
    pub norm: Option<MambaNorm>,
    /// The lower and the upper bound of a time step.
    pub limits: (f32, f32),
    /// The factors of the gate, the values, the keys, the queries and the time steps.
    pub multipliers: Option<[f32; 5]>,
}

/// A norm over each group of features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaNorm {
    /// Epsilon.
    pub eps: f32,
    /// Whether the norm comes before the gate, and not after it.
    pub before_gate: bool,
}

/// Parts of the layer state.
const CONV: usize = 0;
const SCAN: usize = 1;

impl MambaConfig {
    fn values(&self) -> i32 {
        self.heads * self.head_dim
    }

    fn keys(&self) -> i32 {
        self.groups * self.state
    }

    /// Channels of the convolution: values, keys and queries.
    pub fn channels(&self) -> i32 {
        self.values() + 2 * self.keys()
    }

    /// The state of a row: the last inputs of the convolution, and an F32 matrix for each head.
    pub fn kind(&self) -> LayerKind {
        let shape = RecurrentShape::new(&[
            StatePart::Window {
                name: "conv",
                len: self.taps - 1,
                width: self.channels(),
            },
            StatePart::Carry {
                name: "scan",
                shape: [self.heads, self.head_dim, self.state],
                dtype: DType::F32,
            },
        ]);
        LayerKind::Recurrent(shape.with_slots())
    }
}

/// The layer: a projection to gates, values, keys, queries and time steps; a causal convolution of values, keys and
/// queries; the scan; a gate and a norm; and a projection back.
#[derive(Clone, Debug)]
pub struct Mamba {
    in_proj: Linear,
    conv1d: CausalConv,
    decay: Decay,
    /// The factor with which values add to the scan's output.
    d: Param,
    norm: Option<RmsNorm>,
    out_proj: Linear,
    /// Derived from `d`: F32.
    skip: Array,
    /// The multipliers of the projection's features, in the dtype of the first activations.
    factors: OnceCell<Array>,
    config: MambaConfig,
}

impl Mamba {
    /// A layer without values.
    ///
    /// # Errors
    /// Heads are not a multiple of groups, or there are fewer than 2 taps.
    pub fn empty(config: MambaConfig) -> Result<Self> {
        let MambaConfig {
            hidden,
            heads,
            groups,
            taps,
            ..
        } = config;
        if groups < 1 || heads % groups != 0 || taps < 2 {
            let message = format!(
                "{heads} heads in {groups} groups and {taps} taps: heads must be a multiple of groups, and taps at least 2"
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let (values, channels) = (config.values(), config.channels());
        let norm = config.norm.map(|norm| RmsNorm::empty(values, norm.eps));
        let d = Param::starting(&[heads], Initial::Constant(1.0))?;
        Ok(Self {
            in_proj: Linear::empty(hidden, values + channels + heads, config.in_bias)?,
            conv1d: CausalConv::empty(channels, taps, config.conv_bias, Some(config.activation))?,
            decay: Decay::empty(&[heads], heads)?,
            skip: d.value().clone(),
            d,
            norm: norm.transpose()?,
            out_proj: Linear::empty(values, hidden, config.out_bias)?,
            factors: OnceCell::new(),
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let MambaConfig {
            heads,
            groups,
            limits,
            ..
        } = self.config;
        let (values, channels) = (self.config.values(), self.config.channels());
        let projected = self.in_proj.forward(x)?;
        let projected = match self.config.multipliers {
            Some(multipliers) => projected.multiply(&self.factors(multipliers, x.dtype())?)?,
            None => projected,
        };
        let part = |from: i32, size: i32| projected.slice_axis(-1, from, from + size);
        let x = (self.conv1d).forward(&part(values, channels)?, layer, CONV, step)?;
        let y = step.scan(
            layer,
            SCAN,
            &RaggedScan {
                x: &x,
                dt: &part(values + channels, heads)?,
                rate: self.decay.rate(),
                bias: self.decay.bias(),
                skip: &self.skip,
                groups,
                key_dim: self.config.state,
                limits,
            },
        )?;
        self.out_proj.forward(&self.gated(&part(0, values)?, y)?)
    }

    /// The scan's output, gated and normed: `[1, T, H P] -> [1, T, H P]`.
    fn gated(&self, gate: &Array, y: Array) -> Result<Array> {
        let open = |y: &Array| fast::gated(Gate::Silu, gate, y);
        let (Some(norm), Some(config)) = (&self.norm, self.config.norm) else {
            return open(&y);
        };
        let normed = match config.before_gate {
            true => norm.by_group(&y, self.config.groups)?,
            false => norm.gated(&y, gate, self.config.groups)?,
        };
        // The norm's weight may be F32 in a 16-bit model.
        let normed = normed.astype(y.dtype())?;
        match config.before_gate {
            true => open(&normed),
            false => Ok(normed),
        }
    }

    /// The factor of each feature of the projection, made once: steps with the same arrays have the same
    /// graph.
    fn factors(&self, [gate, x, k, q, dt]: [f32; 5], dtype: DType) -> Result<Array> {
        if let Some(made) = self.factors.get().filter(|made| made.dtype() == dtype) {
            return Ok(made.clone());
        }
        let (values, keys) = (self.config.values(), self.config.keys());
        let parts = [
            (gate, values),
            (x, values),
            (k, keys),
            (q, keys),
            (dt, self.config.heads),
        ];
        let each = |(factor, n): (f32, i32)| std::iter::repeat_n(factor, n as usize);
        let factors: Vec<f32> = parts.into_iter().flat_map(each).collect();
        let made = Array::from_slice(&factors, &[factors.len() as i32])?.astype(dtype)?;
        let held = self.factors.get_or_init(|| made.clone());
        Ok(if held.dtype() == dtype {
            held.clone()
        } else {
            made
        })
    }
}

impl Module for Mamba {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("in_proj", |path| self.in_proj.visit(path, v))?;
        path.scoped("conv1d", |path| self.conv1d.visit(path, v))?;
        self.decay.visit(path, v)?;
        path.scoped("D", |path| self.d.visit(path, v))?;
        path.scoped("norm", |path| self.norm.visit(path, v))?;
        path.scoped("out_proj", |path| self.out_proj.visit(path, v))?;
        v.derived(&self.skip)
    }

    fn children(&self) -> Vec<(String, &dyn Module)> {
        let mut children = Vec::new();
        self.in_proj.list("in_proj", &mut children);
        self.conv1d.list("conv1d", &mut children);
        self.norm.list("norm", &mut children);
        self.out_proj.list("out_proj", &mut children);
        children
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        path.scoped("in_proj", |path| self.in_proj.visit_mut(path, v))?;
        path.scoped("conv1d", |path| self.conv1d.visit_mut(path, v))?;
        self.decay.visit_mut(path, v)?;
        path.scoped("D", |path| self.d.visit_mut(path, v))?;
        path.scoped("norm", |path| self.norm.visit_mut(path, v))?;
        path.scoped("out_proj", |path| self.out_proj.visit_mut(path, v))?;
        self.skip = self.d.value().astype(DType::F32)?;
        Ok(())
    }

    crate::known_type!();
}

impl Shard for Mamba {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.heads,
            few: self.config.groups,
            // A norm is over the features of a group, and sums over the ranks if there is only one.
            copies: self.norm.is_none() || self.config.groups == 1,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        Some(self.config.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let config = self.config;
        self.factors = OnceCell::new();
        let (own, shared) = (ranks.share(config.heads), ranks.share_of_few(config.groups));
        let from =
            |base: i32, of: &Range<i32>, dim: i32| base + of.start * dim..base + of.end * dim;
        let (values, keys) = (config.values(), config.keys());
        // The channels of the convolution, from `base`.
        let channels = |base: i32| {
            [
                from(base, &own, config.head_dim),
                from(base + values, &shared, config.state),
                from(base + values + keys, &shared, config.state),
            ]
        };
        let features = [from(0, &own, config.head_dim)];
        let times = [from(values + config.channels(), &own, 1)];
        let rows = [&features[..], &channels(values), &times].concat();
        self.in_proj.keep_outputs(&rows)?;
        self.conv1d.keep(&channels(0))?;
        self.decay.keep(&own)?;
        let cut = Cut::new(self.d.shape(), 0, vec![own.clone()])?;
        self.d.cut(cut)?;
        if let Some(norm) = &mut self.norm {
            let spread = Spread {
                ranks,
                whole: values,
                copies: 1,
            };
            norm.keep(features[0].clone(), (config.groups == 1).then_some(spread))?;
        }
        self.out_proj.keep_inputs(&features, ranks)?;
        self.config.heads = own.end - own.start;
        self.config.groups = shared.end - shared.start;
        Ok(())
    }
}
