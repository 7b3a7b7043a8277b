//! The losses of one batch, with their gradients, their means over a step, and evaluations.

use std::time::Instant;

use mlx_core::Array;

use super::{Event, Trainer};
use crate::batch::Batch;
use crate::error::Result;
use crate::evaluate::{nothing, sums};
use crate::grad::{Gradients, value_and_grad};
use crate::loss::{Ahead, sum_loss, sum_losses};
use crate::ranks;
use crate::recompute::sum_loss_and_grads;

impl Trainer<'_> {
    /// The model's loss, the loss of the head if it is trained, and the gradients of both.
    pub(super) fn gradients(
        &mut self,
        batch: &Batch,
        ahead: Option<&Ahead>,
    ) -> mlx_core::Result<(Vec<Array>, Gradients)> {
        let chunk = self.config.ce_chunk;
        if self.config.recompute {
            return sum_loss_and_grads(self.model, batch, ahead, chunk);
        }
        let (mut values, grads) = value_and_grad(&mut *self.model, |model| match ahead {
            None => Ok(vec![sum_loss(model, batch, chunk)?]),
            Some(ahead) => sum_losses(model, batch, ahead, chunk),
        })?;
        if ahead.is_some() {
            values.remove(0);
        }
        Ok((values, grads))
    }

    pub(super) fn evaluate(&mut self) -> Result<Event> {
        let started = Instant::now();
        let batches = self.config.eval_batches;
        let (rows, chunk) = (self.config.batch_size, self.config.ce_chunk);
        // Each rank evaluates some of the batches.
        let found = sums(self.model, self.valid, rows, batches, chunk, self.ranks)?;
        let [loss, weight] = ranks::sums(self.ranks, [found.loss, found.weight])?;
        if weight == 0.0 {
            return Err(nothing());
        }
        let loss = loss / weight;
        let step = self.progress.step;
        // A loss that is NaN or infinite never counts as the best: no later loss would be lower
        // than NaN.
        let best = loss.is_finite() && self.progress.best.is_none_or(|(best, _)| loss < best);
        if best {
            self.progress.best = Some((loss, step));
            self.progress.since_best = 0;
            if let Some(output) = self.output.as_ref().filter(|_| self.writes()) {
                output.write_best(self.model)?;
            }
        } else {
            self.progress.since_best = self.progress.since_best.saturating_add(1);
            let patience = self.config.patience;
            self.progress.stopped = patience.is_some_and(|most| self.progress.since_best >= most);
        }
        Ok(Event::Evaluated {
            step,
            loss,
            best,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// A sum of losses, and the sum of their weights.
#[derive(Default)]
pub(super) struct Ratio(pub(super) f64, f64);

impl Ratio {
    pub(super) fn add(&mut self, sum: f64, weight: f64) {
        self.0 += sum;
        self.1 += weight;
    }

    /// The mean; 0 without weights.
    pub(super) fn value(&self) -> f64 {
        if self.1 > 0.0 { self.0 / self.1 } else { 0.0 }
    }
}
