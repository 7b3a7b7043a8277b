//! [`ProjectedScan`]: the scan of Mamba 2 with time steps, keys and queries that are projected from its values (PLaMo 2).

use mlx_core::fast::{self, Gate, RaggedScan};
use mlx_core::ops::concat;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use crate::Module;
use crate::activation::Activation;
use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::conv::CausalConv;
use crate::decay::Decay;
use crate::init::Initial;
use crate::linear::Linear;
use crate::module::{Param, Path, Visit, VisitMut};
use crate::norm::RmsNorm;
use crate::shard::{Cut, Heads, Ranks, Shard};
use crate::step::Step;

/// Sizes of a [`ProjectedScan`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectedScanConfig {
    /// Features of a token.
    pub hidden: i32,
    /// Heads.
    pub heads: i32,
    /// Features of a head.
    pub head_dim: i32,
    /// Features of the key and the query, which all heads share.
    pub state: i32,
    /// Features from which time steps are projected.
    pub rank: i32,
    /// Taps of the convolution, at least 2.
    pub taps: i32,
    /// Epsilon of the norms of keys, of queries and of what time steps are projected from.
    pub norm_eps: f32,
    /// The lower and the upper bound of a time step.
    pub limits: (f32, f32),
}

/// Parts of the layer state.
const CONV: usize = 0;
const SCAN: usize = 1;

impl ProjectedScanConfig {
    fn values(&self) -> i32 {
        self.heads * self.head_dim
    }

    /// The state of a row: the last inputs of the convolution, and an F32 matrix for each head.
    pub fn kind(&self) -> LayerKind {
        let shape = RecurrentShape::new(&[
            StatePart::Window {
                name: "conv",
                len: self.taps - 1,
                width: self.values(),
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

/// The layer: projections to gates and values; a causal convolution of the values; a projection of these to keys, queries
/// and time steps, each normed; the scan; the gate; and a projection back.
#[derive(Clone, Debug, Module)]
pub struct ProjectedScan {
    z_proj: Linear,
    x_proj: Linear,
    conv1d: CausalConv,
    bcdt_proj: Linear,
    b_norm: RmsNorm,
    c_norm: RmsNorm,
    dt_norm: RmsNorm,
    dt_proj: Linear,
    #[module(flat)]
    decay: Decay,
    #[module(flat)]
    skip: Skip,
    out_proj: Linear,
    #[module(skip)]
    config: ProjectedScanConfig,
}

impl ProjectedScan {
    /// A layer without values.
    ///
    /// # Errors
    /// There are fewer than 2 taps, or a size is less than 1.
    pub fn empty(config: ProjectedScanConfig) -> Result<Self> {
        let ProjectedScanConfig {
            hidden,
            heads,
            state,
            rank,
            taps,
            norm_eps,
            ..
        } = config;
        if taps < 2 || [heads, config.head_dim, state, rank].iter().any(|&n| n < 1) {
            let message = format!(
                "a scan of {heads} heads of {} with {state} numbers each, rank {rank} and {taps} taps: sizes must be at \
                 least 1, and taps at least 2",
                config.head_dim
            );
            return Err(Error::new(ErrorKind::Shape, message));
        }
        let values = config.values();
        let linear = |inputs, outputs| Linear::empty(inputs, outputs, false);
        Ok(Self {
            z_proj: linear(hidden, values)?,
            x_proj: linear(hidden, values)?,
            conv1d: CausalConv::empty(values, taps, false, Some(Activation::Silu))?,
            bcdt_proj: linear(values, 2 * state + rank)?,
            b_norm: RmsNorm::empty(state, norm_eps)?,
            c_norm: RmsNorm::empty(state, norm_eps)?,
            dt_norm: RmsNorm::empty(rank, norm_eps)?,
            dt_proj: linear(rank, heads)?,
            decay: Decay::empty(&[heads], heads)?,
            skip: Skip::empty(heads)?,
            out_proj: linear(values, hidden)?,
            config,
        })
    }

    /// `x: [1, T, E] -> [1, T, E]`, reading and writing layer `layer` of the step's cache.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array, layer: usize, step: &mut Step<'_>) -> Result<Array> {
        let ProjectedScanConfig { state, rank, .. } = self.config;
        let [z, values] = Linear::forward_all([&self.z_proj, &self.x_proj], x)?;
        let values = self.conv1d.forward(&values, layer, CONV, step)?;
        let projected = self.bcdt_proj.forward(&values)?;
        // The norms' weights may be F32 in a model of 16 bits.
        let part = |norm: &RmsNorm, from: i32, size: i32| {
            let part = projected.slice_axis(-1, from, from + size)?;
            norm.forward(&part)?.astype(x.dtype())
        };
        let keys = part(&self.b_norm, 0, state)?;
        let queries = part(&self.c_norm, state, state)?;
        let dt = part(&self.dt_norm, 2 * state, rank)?;
        let y = step.scan(
            layer,
            SCAN,
            &RaggedScan {
                x: &concat(&[values, keys, queries], -1)?,
                dt: &self.dt_proj.forward(&dt)?,
                rate: self.decay.rate(),
                bias: self.decay.bias(),
                skip: &self.skip.wide,
                groups: 1,
                key_dim: state,
                limits: self.config.limits,
            },
        )?;
        self.out_proj.forward(&fast::gated(Gate::Silu, &z, &y)?)
    }
}

/// The factor `D`, `[H]`, with which values add to the scan's output.
#[derive(Clone, Debug)]
struct Skip {
    d: Param,
    /// `d` in F32.
    wide: Array,
}

impl Skip {
    fn empty(heads: i32) -> Result<Self> {
        let d = Param::starting(&[heads], Initial::Constant(1.0))?;
        Ok(Self {
            wide: d.value().clone(),
            d,
        })
    }
}

/// The name of the parameter is a capital, so it is not a field name.
impl Module for Skip {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("D", |path| self.d.visit(path, v))?;
        v.derived(&self.wide)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        path.scoped("D", |path| self.d.visit_mut(path, v))?;
        self.wide = self.d.value().astype(DType::F32)?;
        Ok(())
    }
}

impl Shard for ProjectedScan {
    fn heads(&self) -> Option<Heads> {
        Some(Heads {
            many: self.config.heads,
            few: 1,
            copies: true,
        })
    }

    fn state(&self) -> Option<LayerKind> {
        Some(self.config.kind())
    }

    fn shard(&mut self, ranks: Ranks, _unit: i32) -> Result<()> {
        let own = ranks.share(self.config.heads);
        let dim = self.config.head_dim;
        let values = own.start * dim..own.end * dim;
        let features = std::slice::from_ref(&values);
        self.z_proj.keep_outputs(features)?;
        self.x_proj.keep_outputs(features)?;
        self.conv1d.keep(features)?;
        self.bcdt_proj.keep_inputs(features, ranks)?;
        self.dt_proj.keep_outputs(std::slice::from_ref(&own))?;
        self.decay.keep(&own)?;
        let cut = Cut::new(self.skip.d.shape(), 0, vec![own.clone()])?;
        self.skip.d.cut(cut)?;
        self.out_proj.keep_inputs(features, ranks)?;
        self.config.heads = own.end - own.start;
        Ok(())
    }
}
