//! A run that several ranks share.

use std::ops::ControlFlow;

use mlx_core::ops::zeros;
use mlx_core::{Array, DType};
use mlx_nn::trainable::trainable;

use super::losses::Ratio;
use super::{Trainer, both};
use crate::batch::Batch;
use crate::checkpoint::fingerprint;
use crate::error::{Result, format};
use crate::grad::Gradients;
use crate::loss::Ahead;
use crate::ranks;

impl Trainer<'_> {
    /// Whether this process writes the output.
    pub(super) fn writes(&self) -> bool {
        self.ranks.rank() == 0
    }

    /// Rows of examples, as arrays.
    pub(super) fn batch<'r>(&self, rows: impl Iterator<Item = &'r Vec<usize>>) -> Result<Batch> {
        let rows = rows.map(|row| row.iter().map(|&index| &self.train[index]));
        Ok(Batch::new(rows)?)
    }

    /// The rows of `batch` that this rank computes, with what the head learns of them; `None` if there is nothing to
    /// learn in them.
    pub(super) fn own(
        &self,
        rows: &[Vec<usize>],
        batch: &Batch,
        ahead: Option<&Ahead>,
    ) -> Result<Option<(Batch, Option<Ahead>)>> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        // A batch without anything to learn is an error on every rank, as in one process.
        if size == 1 || batch.learnt == 0 {
            return Ok(Some((batch.clone(), ahead.cloned())));
        }
        let own = || rows.iter().skip(rank).step_by(size);
        if own().next().is_none() {
            return Ok(None);
        }
        let own = self.batch(own())?;
        if own.learnt == 0 {
            return Ok(None);
        }
        let ahead = ahead.map(|ahead| Ahead::new(self.model, &own, ahead.factor()));
        let ahead = ahead.transpose()?;
        Ok(Some((own, ahead)))
    }

    /// The sum of the ranks' losses. Also sums those of the head.
    pub(super) fn shared(&self, loss: f64, of_head: &mut Ratio) -> Result<f64> {
        let [loss, head] = ranks::sums(self.ranks, [loss, of_head.0])?;
        of_head.0 = head;
        Ok(loss)
    }

    /// Gradients of 0 for all trained parameters, for a rank that had no row.
    pub(super) fn no_gradients(&self) -> Result<Gradients> {
        let zero = |(name, array): (String, Array)| {
            let array = zeros(array.shape(), DType::F32)?;
            mlx_core::eval([&array])?;
            Ok((name, array))
        };
        trainable(&*self.model)?.into_iter().map(zero).collect()
    }

    /// A break if any rank wants one, so that all end after the same step.
    pub(super) fn agreed(&self, flow: ControlFlow<()>) -> Result<ControlFlow<()>> {
        match ranks::any(self.ranks, flow.is_break())? {
            true => Ok(both(ControlFlow::Break(()), flow)),
            false => Ok(flow),
        }
    }

    /// Checks before the first step that the ranks do the same.
    pub(super) fn check_ranks(&self) -> Result<()> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let config =
            serde_json::to_string(&self.config).map_err(|error| format(error.to_string()))?;
        let parameters = trainable(&*self.model)?;
        ranks::check_same(
            self.ranks,
            &[
                (
                    "the step to go on from (is the output folder the same?)",
                    self.progress.step,
                ),
                ("their settings", ranks::hash(&config)),
                ("their training data", fingerprint(self.train)),
                ("their validation data", fingerprint(self.valid)),
                ("the weights that are not trained", self.frozen.hash),
                ("the weights to train", ranks::digest(&parameters)?),
            ],
        )
    }

    /// Checks that the ranks still have the same parameters.
    pub(super) fn check_parameters(&self) -> Result<()> {
        if self.ranks.size() == 1 {
            return Ok(());
        }
        let step = self.progress.step;
        let what = format!(
            "their parameters after step {step}, because their processors round in different ways: use processors of one type"
        );
        let own = ranks::digest(&trainable(&*self.model)?)?;
        ranks::check_same(self.ranks, &[(&what, own)])
    }
}
