//! [`NormByHead`].

use std::ops::Range;

use mlx_core::ops::stack;
use mlx_core::{Array, Result, fast};

use crate::init::Initial;
use crate::module::{Module, Param, Path, Visit, VisitMut};
use crate::shard::Cut;

/// A norm over the features of each head, in which each head has a weight of its own: a layer norm without a bias, or an
/// RMS norm.
#[derive(Clone, Debug)]
pub struct NormByHead {
    /// One weight `[H, D]` (`weight`), or one weight `[D]` for each head (`norms.0.weight`).
    weights: Vec<Param>,
    split: bool,
    /// Whether the mean is subtracted, as in a layer norm.
    centred: bool,
    /// The heads that are normed here, of those with a tensor of their own.
    held: Range<usize>,
    eps: f32,
    /// `[H, 1, D]`, computed once and not for each token.
    scale: Array,
}

impl NormByHead {
    /// A layer norm of `heads` heads of `head_dim` features, without values. `split`: whether files have
    /// one tensor for each head.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn empty(heads: i32, head_dim: i32, eps: f32, split: bool) -> Result<Self> {
        let weight = |shape: &[i32]| Param::starting(shape, Initial::Constant(1.0));
        let weights = match split {
            true => (0..heads).map(|_| weight(&[head_dim])).collect(),
            false => weight(&[heads, head_dim]).map(|weight| vec![weight]),
        }?;
        Ok(Self {
            held: 0..weights.len(),
            weights,
            split,
            centred: true,
            eps,
            scale: Array::scalar(0.0f32)?,
        })
    }

    /// An RMS norm of `heads` heads of `head_dim` features with one weight `[H, D]`, without values.
    ///
    /// # Errors
    /// No memory for a handle.
    pub fn rms(heads: i32, head_dim: i32, eps: f32) -> Result<Self> {
        Ok(Self {
            centred: false,
            ..Self::empty(heads, head_dim, eps, false)?
        })
    }

    /// `[1, H, T, D] -> [1, H, T, D]`
    ///
    /// # Errors
    /// The shapes do not fit.
    pub fn forward(&self, x: &Array) -> Result<Array> {
        for weight in &self.weights {
            weight.get()?;
        }
        let normed = match self.centred {
            true => fast::layer_norm(x, None, None, self.eps)?,
            false => fast::rms_norm(x, None, self.eps)?,
        };
        normed.multiply(&self.scale)
    }

    /// Leaves the norms of these heads.
    pub(crate) fn keep(&mut self, heads: Range<i32>) -> Result<()> {
        if self.split {
            // The tensors of the other heads are read, and not used.
            self.held = heads.start as usize..heads.end as usize;
            return Ok(());
        }
        let weight = &mut self.weights[0];
        let cut = Cut::new(weight.shape(), 0, vec![heads])?;
        weight.cut(cut)
    }

    /// The path of a head's norm, at which a visitor gets its weight; `None` for the common weight.
    fn place(&self, head: usize) -> Option<String> {
        self.split.then(|| format!("norms.{head}"))
    }

    fn derive(&mut self) -> Result<()> {
        if !self.weights.iter().all(Param::is_filled) {
            return Ok(());
        }
        let weights: Vec<Array> = self.weights.iter().map(|w| w.value().clone()).collect();
        let scale = match self.split {
            true => stack(&weights[self.held.clone()], 0)?,
            false => weights[0].clone(),
        };
        self.scale = scale.expand_dims(1)?;
        Ok(())
    }
}

impl Module for NormByHead {
    fn visit(&self, path: &mut Path, v: &mut dyn Visit) -> Result<()> {
        for (head, weight) in self.weights.iter().enumerate() {
            let mut visit = |path: &mut Path| path.scoped("weight", |path| weight.visit(path, v));
            match self.place(head) {
                Some(place) => path.scoped(&place, visit)?,
                None => visit(path)?,
            }
        }
        v.derived(&self.scale)
    }

    fn visit_mut(&mut self, path: &mut Path, v: &mut dyn VisitMut) -> Result<()> {
        v.module(path, self)?;
        for head in 0..self.weights.len() {
            let place = self.place(head);
            let weight = &mut self.weights[head];
            let mut visit =
                |path: &mut Path| path.scoped("weight", |path| weight.visit_mut(path, v));
            match place {
                Some(place) => path.scoped(&place, visit)?,
                None => visit(path)?,
            }
        }
        self.derive()
    }

    crate::known_type!();
}
