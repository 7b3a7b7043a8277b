//! [`Linear`]: one type for dense and quantised layers, with or without bias and LoRA.

use std::ops::Range;

use mlx_core::fast::{self, Gate};
use mlx_core::{Array, DType, Result};

use crate::init::{Initial, drawn};
use crate::lora::{Adaptable, AdaptableLayer, AdapterSlot, Layout, Lora};
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::normed::Input;
use crate::observe;
use crate::shard::{Cut, RankJoin, Ranks};
use crate::weight::Weight;

/// `y = x @ weight.T + scale * (x @ a) @ b + bias`
#[derive(Clone, Debug)]
pub struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Param>,
    /// Whether inputs are rounded to 8 bits.
    pub(crate) rounds: bool,
    pub(crate) joint: RankJoin,
    // Boxed, because most layers have none.
    pub(crate) lora: Option<Box<Lora>>,
    /// Adapters by row.
    pub(crate) by_row: AdapterSlot,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features. Weight and bias are F32, uniform in
    /// ±inputs^-1/2, as MLX's Python draws them, with the thread's keys
    /// ([`random::seed`](mlx_core::random::seed)).
    ///
    /// ```
    /// use mlx_core::{Array, Result, random};
    /// use mlx_nn::{Linear, Module};
    ///
    /// # fn main() -> Result<()> {
    /// random::seed(0);
    /// let layer = Linear::new(2, 3, true)?;
    /// let y = layer.forward(&Array::from_slice(&[1.0f32, -1.0], &[1, 2])?)?;
    /// assert_eq!(y.shape(), [1, 3]);
    /// assert_eq!(layer.trainable_parameters().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A size is not positive, or no memory.
    pub fn new(inputs: i32, outputs: i32, bias: bool) -> Result<Self> {
        drawn(Self::empty(inputs, outputs, bias)?)
    }

    /// A layer from `inputs` to `outputs` features, without values; a checkpoint sets them.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(inputs: i32, outputs: i32, bias: bool) -> Result<Self> {
        let bias = bias.then(|| Param::starting(&[outputs], Initial::Bias { inputs }));
        Ok(Self {
            weight: Weight::empty(&[outputs, inputs])?,
            bias: bias.transpose()?.map(|bias| bias.called("bias")),
            rounds: false,
            joint: RankJoin::Alone,
            lora: None,
            by_row: AdapterSlot::default(),
        })
    }

    /// `[.., in] -> [.., out]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward<'a>(&self, x: impl Into<Input<'a>>) -> Result<Array> {
        match x.into() {
            x if self.rounds => {
                let x = x.array()?;
                self.finish(x.into(), self.weight.project(&self.rounded(x)?)?)
            }
            Input::Array(x) => self.finish(x.into(), self.weight.project(x)?),
            x if self.weight.has_steps(x.dtype()) => {
                self.finish(x, self.weight.project(x.array()?)?)
            }
            x => self.finish(x, x.products(&[self.weight.matrix()?])?.remove(0)),
        }
    }

    /// [`forward`](Self::forward) of several layers on one `x`. Their products are computed together
    /// ([`fast::linear_many`]).
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward_all<'a, const N: usize>(
        layers: [&Self; N],
        x: impl Into<Input<'a>>,
    ) -> Result<[Array; N]> {
        let x = x.into();
        let is_apart = |layer: &&Self| {
            layer.rounds != layers[0].rounds
                || layer.weight.has_steps(x.dtype())
                || layer.rounds && layer.joint != RankJoin::Alone
        };
        if layers.iter().any(is_apart) {
            let ys = layers.iter().map(|layer| layer.forward(x));
            let ys = ys.collect::<Result<Vec<_>>>()?;
            return Ok(ys.try_into().expect("one for each layer"));
        }
        for layer in layers {
            layer.weight.check()?;
        }
        let matrices = layers.map(|layer| layer.weight.parts());
        let products = match layers[0].rounds {
            true => fast::linear_many(&layers[0].rounded(x.array()?)?, &matrices)?,
            false => x.products(&matrices)?,
        };
        let ys = layers
            .iter()
            .zip(products)
            .map(|(layer, y)| layer.finish(x, y));
        let ys = ys.collect::<Result<Vec<_>>>()?;
        Ok(ys.try_into().expect("one for each layer"))
    }

    /// `gate(self(x)) * up(x)`, in one operation ([`fast::gated_linear`]) if neither layer has a
    /// bias or an adapter.
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn gated<'a>(&self, up: &Self, gate: Gate, x: impl Into<Input<'a>>) -> Result<Array> {
        let x = x.into();
        let is_product = |layer: &Self| {
            let is_alone = layer.joint == RankJoin::Alone && !layer.rounds;
            let is_bare = layer.lora.is_none() && layer.bias.is_none() && is_alone;
            let is_bare = is_bare && layer.by_row.active().is_none();
            is_bare && !layer.weight.has_steps(x.dtype())
        };
        if is_product(self) && is_product(up) && !observe::is_active() {
            return x.gated(gate, [&self.weight.matrix()?, &up.weight.matrix()?]);
        }
        let [gated, up] = Self::forward_all([self, up], x)?;
        fast::gated(gate, &gated, &up)
    }

    /// Adds adapter and bias to `y`, the product of `x` with the matrix, and joins it with those of the other ranks.
    fn finish(&self, x: Input<'_>, mut y: Array) -> Result<Array> {
        if observe::is_active() {
            observe::see(&self.weight, x.array()?)?;
        }
        if let Some(lora) = &self.lora {
            y = lora.forward(x.array()?, &y, &self.weight)?;
        }
        if let Some(adapters) = self.by_row.active() {
            y = adapters.add_to(x.array()?, &y)?;
        }
        if let RankJoin::Inputs(ranks) = self.joint {
            y = ranks.sum(&y)?;
        }
        let y = match &self.bias {
            Some(bias) => y.add(bias.get()?)?,
            None => y,
        };
        match self.joint {
            RankJoin::Outputs(ranks) => ranks.gather(&y),
            _ => Ok(y),
        }
    }

    /// Leaves the outputs of these ranges.
    pub(crate) fn keep_outputs(&mut self, ranges: &[Range<i32>]) -> Result<()> {
        let cut = Cut::new(&self.weight.shape(), 0, ranges.to_vec())?;
        self.weight.cut(&cut)?;
        match &mut self.bias {
            Some(bias) => bias.cut(cut),
            None => Ok(()),
        }
    }

    /// Leaves the inputs of these ranges. The outputs are summed over the ranks before the bias is added.
    pub(crate) fn keep_inputs(&mut self, ranges: &[Range<i32>], ranks: Ranks) -> Result<()> {
        let cut = Cut::new(&self.weight.shape(), 1, ranges.to_vec())?;
        self.weight.cut(&cut)?;
        self.joint = RankJoin::Inputs(ranks);
        Ok(())
    }

    /// Leaves this rank's share of the outputs, all of which every rank still returns. A number of outputs that does
    /// not divide stays whole.
    pub(crate) fn shard_vocabulary(&mut self, ranks: Ranks) -> Result<()> {
        let outputs = self.weight.shape()[0];
        if outputs % ranks.size() as i32 != 0 {
            return Ok(());
        }
        self.joint = RankJoin::Outputs(ranks);
        self.keep_outputs(&[ranks.share(outputs)])
    }

    /// Inputs `[.., in]`, rounded as in BitNet b1.58 (arXiv:2402.17764): the numbers of a token become
    /// multiples of `m / 127`, where `m` is the largest of their absolute values, also of those on other
    /// ranks. Derivatives are those of the identity.
    fn rounded(&self, x: &Array) -> Result<Array> {
        let wide = x.astype(DType::F32)?;
        let mut largest = wide.abs()?.max(-1, true)?;
        if let RankJoin::Inputs(ranks) = self.joint {
            largest = ranks.largest(&largest)?;
        }
        let scale = Array::scalar(127.0f32)?.divide(&largest.maximum(1e-5)?)?;
        let steps = wide.multiply(&scale)?.round()?;
        let step = steps.divide(&scale)?.subtract(&wide)?.stop_gradient()?;
        wide.add(step)?.astype(x.dtype())
    }

    /// The dense matrix with the adapter's correction, if there is an adapter, in the weight's
    /// dtype: `[out, in]`.
    ///
    /// # Errors
    /// The arrays do not fit each other.
    pub(crate) fn whole(&self) -> Result<Array> {
        let dense = self.weight.dense(None)?;
        match &self.lora {
            Some(lora) => lora.fused(&self.weight)?.astype(dense.dtype()),
            None => Ok(dense),
        }
    }

    /// Walks the parameters. `by_row` is the place of adapters by row, `None` if the layer's owner uses the matrix in
    /// another form.
    pub(crate) fn walk(
        &self,
        path: &mut Path,
        v: &mut dyn Visit,
        by_row: Option<&AdapterSlot>,
    ) -> Result<()> {
        let layer = AdaptableLayer {
            layout: Layout::Linear,
            weight: &self.weight,
            lora: self.lora.as_deref(),
            by_row,
        };
        v.adaptable(path, layer)?;
        self.weight.visit(path, v)?;
        path.scoped("bias", |path| self.bias.visit(path, v))?;
        self.lora.visit(path, v)
    }

    /// Whether the matrix has values.
    pub(crate) fn is_filled(&self) -> bool {
        self.weight.is_filled()
    }

    /// The matrix, `[out, in]`.
    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    /// The bias, `[out]`, if there is one.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    /// The matrix, for quantising it or fusing an adapter into it.
    pub fn weight_mut(&mut self) -> &mut Weight {
        &mut self.weight
    }

    /// The adapter, if one is attached.
    pub fn lora(&self) -> Option<&Lora> {
        self.lora.as_deref()
    }

    /// The adapter, for setting its dropout key.
    pub fn lora_mut(&mut self) -> Option<&mut Lora> {
        self.lora.as_deref_mut()
    }

    /// Attaches, replaces or (with `None`) detaches the adapter; returns the previous one.
    pub fn set_lora(&mut self, lora: Option<Lora>) -> Option<Lora> {
        std::mem::replace(&mut self.lora, lora.map(Box::new)).map(|lora| *lora)
    }
}

impl Module for Linear {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        self.walk(path, v, Some(&self.by_row))
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        let layer = Adaptable {
            layout: Layout::Linear,
            weight: &mut self.weight,
            lora: &mut self.lora,
            rounds: Some(&mut self.rounds),
        };
        v.adaptable(path, layer)?;
        self.weight.visit_mut(path, v)?;
        path.scoped("bias", |path| self.bias.visit_mut(path, v))?;
        self.lora.visit_mut(path, v)
    }

    crate::known_type!();
}
