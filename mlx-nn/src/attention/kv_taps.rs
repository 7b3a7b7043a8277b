//! Keys and values that are mixed with those of the token before (Baichuan M1).

use std::ops::Range;

use mlx_core::ops::concat;
use mlx_core::{Array, Result};

use crate::cache::{LayerKind, RecurrentShape, StatePart};
use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::shard::Cut;
use crate::step::{Step, Taps};

/// The taps of a head: of the token before, and of its own.
const TAPS: i32 = 2;

/// The second state of a layer whose attention has
/// [taps of keys and values](crate::Attention::with_kv_taps), `width` numbers in all: those of the last token, as they
/// were projected.
pub fn kv_taps_kind(width: i32) -> LayerKind {
    let window = StatePart::Window {
        name: "keys_values",
        len: TAPS - 1,
        width,
    };
    LayerKind::Recurrent(RecurrentShape::new(&[window]).with_slots())
}

/// Two taps for each head of keys, and two for each of values.
#[derive(Clone, Debug)]
pub(super) struct KvTaps {
    /// `[1, 1, K, 1, 2]`
    conv_k: Param,
    /// `[1, 1, K, 1, 2]`
    conv_v: Param,
    /// The same for each feature: `[2, K * D + K * Dv]`.
    taps: Array,
    key_dim: i32,
    value_dim: i32,
}

impl KvTaps {
    pub(super) fn empty(heads: i32, key_dim: i32, value_dim: i32) -> Result<Self> {
        let deviation = (TAPS as f32).powf(-0.5);
        let taps = || Param::starting(&[1, 1, heads, 1, TAPS], Initial::Normal(deviation));
        Ok(Self {
            conv_k: taps()?,
            conv_v: taps()?,
            taps: Array::scalar(0.0f32)?,
            key_dim,
            value_dim,
        })
    }

    /// The kind of the state of the layer's last keys and values.
    pub(super) fn kind(&self) -> LayerKind {
        let heads = self.conv_k.shape()[2];
        kv_taps_kind(heads * (self.key_dim + self.value_dim))
    }

    /// Leaves these heads.
    pub(super) fn keep(&mut self, own: &Range<i32>) -> Result<()> {
        for param in [&mut self.conv_k, &mut self.conv_v] {
            let cut = Cut::new(param.shape(), 2, vec![own.clone()])?;
            param.cut(cut)?;
        }
        Ok(())
    }

    /// Mixes projected keys `[1, T, K * D]` and values `[1, T, K * Dv]` with those of the token before, which are 0 for
    /// the first one. State `state` keeps the last ones.
    pub(super) fn forward(
        &self,
        (k, v): &(Array, Array),
        state: usize,
        step: &mut Step<'_>,
    ) -> Result<(Array, Array)> {
        for param in [&self.conv_k, &self.conv_v] {
            param.get()?;
        }
        let of = Taps {
            taps: &self.taps,
            bias: None,
            activation: None,
        };
        let mixed = step.convolve(state, 0, &concat(&[k, v], -1)?, &of)?;
        let (keys, all) = (k.dim(-1)?, mixed.dim(-1)?);
        Ok((
            mixed.slice_axis(-1, 0, keys)?,
            mixed.slice_axis(-1, keys, all)?,
        ))
    }
}

impl Module for KvTaps {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        path.scoped("conv_k", |path| self.conv_k.visit(path, v))?;
        path.scoped("conv_v", |path| self.conv_v.visit(path, v))?;
        v.derived(&self.taps)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        path.scoped("conv_k", |path| self.conv_k.visit_mut(path, v))?;
        path.scoped("conv_v", |path| self.conv_v.visit_mut(path, v))?;
        if self.conv_k.is_filled() && self.conv_v.is_filled() {
            let of_features = [
                spread(&self.conv_k, self.key_dim)?,
                spread(&self.conv_v, self.value_dim)?,
            ];
            self.taps = concat(&of_features, 1)?;
        }
        Ok(())
    }

    crate::known_type!();
}

/// Taps of heads for each of their `dim` features: `[1, 1, K, 1, 2] -> [2, K * dim]`.
fn spread(taps: &Param, dim: i32) -> Result<Array> {
    let heads = taps.shape()[2];
    let taps = taps.value().reshape(&[heads, TAPS])?.t()?;
    let each = taps.expand_dims(-1)?.broadcast_to(&[TAPS, heads, dim])?;
    each.reshape(&[TAPS, heads * dim])
}
