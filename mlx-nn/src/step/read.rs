//! What a step computes of its features, and when. Positions whose features are not read after the step need no more than
//! keys, values and states.

use mlx_core::{Array, Result, async_eval};

use super::Step;
use crate::residual::Residual;

impl Step<'_> {
    /// Only the features of each row's last token are read after the step. A model then returns `[B, 1, E]`.
    pub fn read_last(&mut self) {
        self.reads_last = true;
    }

    /// Starts the computation of layers while the graph of later layers is built. For many tokens on a GPU, which would wait
    /// for the whole graph otherwise. Nothing of the step may be differentiated or compiled.
    pub fn start_early(&mut self) {
        self.starts_early = true;
    }

    /// After [`start_early`](Self::start_early), starts the computation of `x`, the residual stream after a layer, for every
    /// fourth layer. `left`: the number of layers behind it. The features after the last layer stay lazy, because they may
    /// not be read.
    ///
    /// # Errors
    /// As [`async_eval`].
    pub fn start(&self, x: &Residual, left: usize) -> Result<()> {
        match self.starts_early && left > 0 && left.is_multiple_of(4) {
            true => async_eval(x.arrays()),
            false => Ok(()),
        }
    }

    /// Runs the last layer. Returns those of its features that are read: `[B, L, S]`, or `[B, 1, S]` after
    /// [`read_last`](Self::read_last).
    ///
    /// # Errors
    /// Those of `run`, and features of another shape.
    pub fn last_layer(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<Residual>,
    ) -> Result<Residual> {
        self.narrows = self.reads_last;
        let result = run(self);
        self.narrows = false;
        result?.map(|features| self.read(features))
    }

    /// The features `[B, L, ..]` that the rest of a layer has to compute. A layer calls it when its tokens are mixed. In the
    /// [last layer](Self::last_layer) they are those that are read; in the others all.
    ///
    /// # Errors
    /// Features of another shape.
    pub fn narrow<const N: usize>(&self, features: [&Array; N]) -> Result<[Array; N]> {
        let mut narrowed = features.map(Array::clone);
        if self.narrows {
            for features in &mut narrowed {
                *features = self.read(features)?;
            }
        }
        Ok(narrowed)
    }

    /// Those of the features `[B, L, ..]` that are read: all, or `[B, 1, ..]` after [`read_last`](Self::read_last).
    /// `[B, 1, ..]` stays as it is.
    ///
    /// # Errors
    /// Features of another shape.
    pub fn read(&self, features: &Array) -> Result<Array> {
        match self.reads_last && features.dim(1)? > 1 {
            true => last_features(features, &self.widths),
            false => Ok(features.clone()),
        }
    }
}

/// The features of the last of the first `widths[b]` positions of each row: `[B, L, ..] -> [B, 1, ..]`. Of a row without
/// any they are those of the first position.
///
/// # Errors
/// The array has no two axes, or not a row for each width.
pub fn last_features(features: &Array, widths: &[usize]) -> Result<Array> {
    let l = features.dim(1)?;
    if widths.iter().all(|&width| width as i32 == l) {
        return features.slice_axis(1, l - 1, l);
    }
    let last = widths.iter().map(|&width| width.saturating_sub(1) as i32);
    let last: Vec<i32> = last.collect();
    let mut shape = vec![1; features.ndim()];
    shape[0] = widths.len() as i32;
    let last = Array::from_slice(&last, &shape)?;
    shape[1..].copy_from_slice(&features.shape()[1..]);
    shape[1] = 1;
    features.take_along_axis(&last.broadcast_to(&shape)?, 1)
}
