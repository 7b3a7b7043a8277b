//! Calls that wait at the same time, whose texts share forward passes.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::TextEmbedding;
use super::run::EmbedRun;
use crate::engine::Texts;
use crate::engine::ranks::agreed;
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;
use crate::tasks::classify::pack::{BatchLimit, BatchSize};

/// Gets the result of each text of a call, or the reason why there are none. It is not called if
/// the engine ends before.
pub(crate) type OnEmbedded = Box<dyn FnOnce(Result<Vec<Result<TextEmbedding>>>) + Send>;

/// A call in progress.
struct EmbedCall {
    run: Result<EmbedRun>,
    found: Vec<Option<Result<TextEmbedding>>>,
    on_end: OnEmbedded,
}

impl EmbedCall {
    /// Computes the next batch. Returns whether there are more.
    fn advance(&mut self, model: &LoadedModel) -> bool {
        let found = &mut self.found;
        match &mut self.run {
            Ok(run) => run.advance(model, &mut |index, result| found[index] = Some(result)),
            Err(_) => false,
        }
    }

    fn end(self) {
        let found = self.run.map(|_| {
            let lost = || Err(Error::new(ErrorKind::Compute, "a text was not computed"));
            let found = self.found.into_iter();
            found.map(|found| found.unwrap_or_else(lost)).collect()
        });
        (self.on_end)(found);
    }
}

/// One call that embeds texts or scores pairs, or several whose texts are one batch.
pub(crate) struct SharedEmbeds {
    calls: Vec<EmbedCall>,
    size: BatchSize,
    /// What may be in a batch of each call.
    limit: Option<BatchLimit>,
    /// Whether each call is computed alone, because a pass over all has failed.
    is_apart: bool,
}

impl SharedEmbeds {
    /// One call of `n` texts.
    pub(crate) fn new(run: Result<EmbedRun>, n: usize, on_end: OnEmbedded) -> Self {
        let begun = run.as_ref().ok();
        Self {
            size: begun.map(EmbedRun::size).unwrap_or_default(),
            limit: begun.map(EmbedRun::limit),
            calls: vec![EmbedCall {
                run,
                found: (0..n).map(|_| None).collect(),
                on_end,
            }],
            is_apart: false,
        }
    }

    /// The first run, unless it could not begin.
    fn first(&self) -> Option<&EmbedRun> {
        self.calls.first()?.run.as_ref().ok()
    }

    /// The limit of both, if their texts can be one batch.
    fn shared_limit(&self, other: &Self, beside_rows: bool) -> Option<BatchLimit> {
        let limit = self.limit?.least(other.limit?);
        let shares = self.first()?.shares_passes(other.first()?);
        let size = self.size.plus(other.size);
        (shares && limit.of_calls(beside_rows).holds(size)).then_some(limit)
    }

    /// Computes the texts of all calls in one pass.
    fn advance_together(&mut self, model: &LoadedModel) -> Result<()> {
        let mut runs = Vec::new();
        let mut found = Vec::new();
        for call in &mut self.calls {
            if let Ok(run) = &mut call.run {
                runs.push(run);
                found.push(&mut call.found);
            }
        }
        EmbedRun::advance_together(&mut runs, model, |call, index, result| {
            found[call][index] = Some(result);
        })
    }
}

impl Texts<LoadedModel> for SharedEmbeds {
    fn join(
        &mut self,
        other: Box<dyn Texts<LoadedModel>>,
        beside_rows: bool,
    ) -> Option<Box<dyn Texts<LoadedModel>>> {
        let known = (&*other as &dyn Any).downcast_ref::<Self>();
        let Some(limit) = known.and_then(|other| self.shared_limit(other, beside_rows)) else {
            return Some(other);
        };
        if let Ok(other) = (other as Box<dyn Any>).downcast::<Self>() {
            self.limit = Some(limit);
            self.size = self.size.plus(other.size);
            self.calls.extend(other.calls);
        }
        None
    }

    fn advance(&mut self, model: &LoadedModel) -> ControlFlow<()> {
        if let [call] = &mut self.calls[..] {
            if call.advance(model) {
                return ControlFlow::Continue(());
            }
            self.calls.drain(..).for_each(EmbedCall::end);
            return ControlFlow::Break(());
        }
        if !self.is_apart {
            let together = catch_unwind(AssertUnwindSafe(|| self.advance_together(model)));
            let has_failed = !matches!(together, Ok(Ok(())));
            // All ranks of a model go on in the same way.
            if let Ok(false) = agreed(model.options().ranks, has_failed) {
                self.calls.drain(..).for_each(EmbedCall::end);
                return ControlFlow::Break(());
            }
            let n = self.calls.len();
            tracing::warn!(
                "a pass over the texts of {n} requests has failed; each is computed alone"
            );
            self.is_apart = true;
            return ControlFlow::Continue(());
        }
        // The texts of each call are one batch. A call that panics has results that are errors.
        let mut call = self.calls.remove(0);
        if catch_unwind(AssertUnwindSafe(|| call.advance(model))).is_err() {
            tracing::warn!("the engine has panicked while it computed texts");
        }
        call.end();
        ControlFlow::Continue(())
    }
}
