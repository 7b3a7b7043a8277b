//! Calls that wait at the same time, whose texts are classified together.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ClassifyResult;
use super::run::{Run, RunShape};
use crate::engine::Texts;
use crate::engine::ranks::agreed;
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;

/// Gets the result of each text of a call. It is not called if the engine ends before.
pub(crate) type OnClassified = Box<dyn FnOnce(Vec<Result<ClassifyResult>>) + Send>;

/// A call in progress.
struct ClassifyCall {
    run: Run,
    found: Vec<Option<Result<ClassifyResult>>>,
    on_end: OnClassified,
}

impl ClassifyCall {
    /// Computes the next piece. Returns whether there are more.
    fn advance(&mut self, model: &LoadedModel) -> bool {
        let found = &mut self.found;
        let mut on_done = |index: usize, result| found[index] = Some(result);
        self.run.advance(model, &mut on_done)
    }

    fn end(self) {
        let lost = || Err(Error::new(ErrorKind::Compute, "a text was not computed"));
        let found = self.found.into_iter();
        (self.on_end)(found.map(|found| found.unwrap_or_else(lost)).collect());
    }
}

/// One call that classifies texts, or several whose texts are one batch.
pub(crate) struct SharedRuns {
    calls: Vec<ClassifyCall>,
    /// That of all calls; `None` if there is one that cannot be computed together with others.
    shape: Option<RunShape>,
    /// The run over the texts of all calls, and for each of its indices the call and the index in it.
    together: Option<(Run, Vec<(usize, usize)>)>,
    /// Whether each call is computed alone, because a pass over all has failed.
    is_apart: bool,
}

impl SharedRuns {
    /// One call of `n` texts.
    pub(crate) fn new(run: Run, n: usize, on_end: OnClassified) -> Self {
        Self {
            shape: run.shape(),
            calls: vec![ClassifyCall {
                run,
                found: (0..n).map(|_| None).collect(),
                on_end,
            }],
            together: None,
            is_apart: false,
        }
    }

    /// The shape of both, if their texts can be one batch.
    fn shared_shape(&self, other: &Self, beside_rows: bool) -> Option<RunShape> {
        let (own, others) = (self.shape.as_ref()?, other.shape.as_ref()?);
        let shape = own.joined(others, beside_rows)?;
        let (own, others) = (self.calls.first()?, other.calls.first()?);
        own.run.is_like(&others.run).then_some(shape)
    }

    /// Computes the next piece of the texts of all calls. Returns whether there are more, or `None`
    /// if a pass has failed.
    fn advance_together(&mut self, model: &LoadedModel) -> Option<bool> {
        let calls = &mut self.calls;
        let (run, indices) = self.together.get_or_insert_with(|| {
            let runs: Vec<&Run> = calls.iter().map(|call| &call.run).collect();
            Run::together(&runs, model)
        });
        let goes_on = run.advance(model, &mut |index: usize, result| {
            let (call, index) = indices[index];
            calls[call].found[index] = Some(result);
        });
        (!run.has_failed()).then_some(goes_on)
    }

    /// Ends calls whose texts with errors are all that is left.
    fn end(&mut self) {
        for mut call in self.calls.drain(..) {
            call.run.report_faults(&mut |index: usize, result| {
                call.found[index] = Some(result);
            });
            call.end();
        }
    }
}

impl Texts<LoadedModel> for SharedRuns {
    fn join(
        &mut self,
        other: Box<dyn Texts<LoadedModel>>,
        beside_rows: bool,
    ) -> Option<Box<dyn Texts<LoadedModel>>> {
        let known = (&*other as &dyn Any).downcast_ref::<Self>();
        let Some(shape) = known.and_then(|other| self.shared_shape(other, beside_rows)) else {
            return Some(other);
        };
        if let Ok(other) = (other as Box<dyn Any>).downcast::<Self>() {
            self.shape = Some(shape);
            self.calls.extend(other.calls);
        }
        None
    }

    fn advance(&mut self, model: &LoadedModel) -> ControlFlow<()> {
        if let [call] = &mut self.calls[..] {
            if call.advance(model) {
                return ControlFlow::Continue(());
            }
            self.calls.drain(..).for_each(ClassifyCall::end);
            return ControlFlow::Break(());
        }
        if !self.is_apart {
            let together = catch_unwind(AssertUnwindSafe(|| self.advance_together(model)));
            // All ranks of a model go on in the same way.
            match agreed(model.options().ranks, together.unwrap_or(None)) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => {
                    self.end();
                    return ControlFlow::Break(());
                }
                Ok(None) | Err(_) => {
                    let n = self.calls.len();
                    tracing::warn!(
                        "a pass over the texts of {n} requests has failed; each is computed alone"
                    );
                    self.together = None;
                    self.is_apart = true;
                }
            }
            return ControlFlow::Continue(());
        }
        // A call that panics has results that are errors.
        let mut call = self.calls.remove(0);
        let goes_on = catch_unwind(AssertUnwindSafe(|| call.advance(model)));
        match goes_on {
            Ok(true) => self.calls.insert(0, call),
            Ok(false) => call.end(),
            Err(_) => {
                tracing::warn!("the engine has panicked while it computed texts");
                call.end();
            }
        }
        ControlFlow::Continue(())
    }
}
