//! Calls that wait at the same time, whose texts share forward passes.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pack::{BatchLimit, BatchSize};
use crate::engine::Texts;
use crate::engine::ranks::agreed;
use crate::error::{Error, ErrorKind, Result};
use crate::model::LoadedModel;

/// Gets the result of each text of a call, or the reason why there are none. It is not called if
/// the engine ends before.
pub(crate) type OnTexts<T> = Box<dyn FnOnce(Result<Vec<Result<T>>>) + Send>;

/// The work of a call on texts, in pieces. A piece is one forward pass.
pub(crate) trait TextRun: Sized + 'static {
    /// The result of a text.
    type Found;

    /// What decides whether this run can be one run with others; `None` if it cannot.
    fn shape(&self) -> Option<RunShape>;

    /// Whether texts of both runs are computed in the same way.
    fn is_like(&self, other: &Self) -> bool;

    /// One run over the texts of these runs, of which none has computed a text and each is
    /// [like](Self::is_like) the first; and for each of its indices the place of a run and the index
    /// in it. It has no text that a run has [reported](Self::report_faults), and it reads no cancel
    /// token: the engine ends jobs for which no caller waits.
    fn together(runs: &[&Self], model: &LoadedModel) -> (Self, Vec<(usize, usize)>);

    /// Computes the next piece, and calls `on_done` with the index and result of each text that it
    /// finishes. Returns whether there are more pieces.
    fn advance(
        &mut self,
        model: &LoadedModel,
        on_done: &mut impl FnMut(usize, Result<Self::Found>),
    ) -> bool;

    /// Calls `on_done` with the texts that cannot be computed, and with all if the call was
    /// cancelled. They are not reported again.
    fn report_faults(&mut self, on_done: &mut impl FnMut(usize, Result<Self::Found>));

    /// Whether a forward pass has failed.
    fn has_failed(&self) -> bool;
}

/// The sizes of a run, or of several that become one.
pub(crate) struct RunShape {
    pub(super) size: BatchSize,
    pub(super) limit: BatchLimit,
    /// The first text, if a prefix of the texts may be computed once.
    pub(super) first: Vec<u32>,
    /// The number of tokens with which all texts begin.
    pub(super) agree: usize,
    /// The longest prefix that one of the runs computes once.
    pub(super) prefix: usize,
}

impl RunShape {
    /// The shape of runs that compute no prefix once.
    pub(super) fn without_prefix(size: BatchSize, limit: BatchLimit) -> Self {
        Self {
            size,
            limit,
            first: Vec::new(),
            agree: 0,
            prefix: 0,
        }
    }

    /// The shape of one run of both. `None` if its texts are more than a batch, or if the prefix that
    /// one of them computes once would be shorter.
    fn joined(&self, other: &Self, beside_rows: bool) -> Option<Self> {
        let limit = self.limit.least(other.limit);
        let size = self.size.plus(other.size);
        let most = self.agree.min(other.agree);
        let agree = agreeing(&self.first, &other.first, most);
        let prefix = self.prefix.max(other.prefix);
        let fits = limit.of_calls(beside_rows).holds(size);
        (fits && prefix <= agree).then(|| Self {
            size,
            limit,
            first: self.first.clone(),
            agree,
            prefix,
        })
    }
}

/// The number of tokens with which both begin, at most `most`.
pub(super) fn agreeing(a: &[u32], b: &[u32], most: usize) -> usize {
    let pairs = a.iter().zip(b).take(most);
    pairs.take_while(|(a, b)| a == b).count()
}

/// Copies of the items of several runs with new numbers from 0, which `number` holds; and for each of
/// them the place of its run and its number there.
pub(super) fn renumbered<'a, T: Clone + 'a, I: Iterator<Item = &'a T>>(
    runs: impl Iterator<Item = I>,
    number: impl Fn(&mut T) -> &mut usize,
) -> (Vec<T>, Vec<(usize, usize)>) {
    let (mut all, mut from) = (Vec::new(), Vec::new());
    for (place, items) in runs.enumerate() {
        for item in items {
            let mut item = item.clone();
            let own = std::mem::replace(number(&mut item), all.len());
            from.push((place, own));
            all.push(item);
        }
    }
    (all, from)
}

/// A call in progress.
struct Call<R: TextRun> {
    run: Result<R>,
    found: Vec<Option<Result<R::Found>>>,
    on_end: OnTexts<R::Found>,
}

impl<R: TextRun> Call<R> {
    /// Computes the next piece. Returns whether there are more.
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

/// One call, or several whose texts are one batch.
pub(crate) struct SharedRuns<R: TextRun> {
    calls: Vec<Call<R>>,
    /// That of all calls; `None` if there is one that cannot be computed together with others.
    shape: Option<RunShape>,
    /// The run over the texts of all calls, and for each of its indices the call and the index in it.
    together: Option<(R, Vec<(usize, usize)>)>,
    /// Whether each call is computed alone, because a pass over all has failed.
    is_apart: bool,
}

impl<R: TextRun> SharedRuns<R> {
    /// One call of `n` texts.
    pub(crate) fn new(run: Result<R>, n: usize, on_end: OnTexts<R::Found>) -> Self {
        Self {
            shape: run.as_ref().ok().and_then(R::shape),
            calls: vec![Call {
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
        let is_like = own.run.as_ref().ok()?.is_like(others.run.as_ref().ok()?);
        is_like.then_some(shape)
    }

    /// Computes the next piece of the texts of all calls. Returns whether there are more, or `None`
    /// if a pass has failed.
    fn advance_together(&mut self, model: &LoadedModel) -> Option<bool> {
        let calls = &mut self.calls;
        let (run, indices) = self.together.get_or_insert_with(|| {
            let mut runs: Vec<&R> = Vec::new();
            for Call { run, found, .. } in calls.iter_mut() {
                let run = run.as_mut().expect("only runs that have begun are joined");
                run.report_faults(&mut |index, result| found[index] = Some(result));
                runs.push(run);
            }
            R::together(&runs, model)
        });
        let goes_on = run.advance(model, &mut |index, result| {
            let (call, index) = indices[index];
            calls[call].found[index] = Some(result);
        });
        (!run.has_failed()).then_some(goes_on)
    }

    fn end(&mut self) -> ControlFlow<()> {
        self.calls.drain(..).for_each(Call::end);
        ControlFlow::Break(())
    }
}

impl<R: TextRun> Texts<LoadedModel> for SharedRuns<R> {
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
            return match call.advance(model) {
                true => ControlFlow::Continue(()),
                false => self.end(),
            };
        }
        if self.is_apart {
            // A call that panics has results that are errors.
            let first = AssertUnwindSafe(|| self.calls[0].advance(model));
            let goes_on = catch_unwind(first).unwrap_or_else(|_| {
                tracing::warn!("the engine has panicked while it computed texts");
                false
            });
            if !goes_on {
                self.calls.remove(0).end();
            }
            return ControlFlow::Continue(());
        }
        let together = catch_unwind(AssertUnwindSafe(|| self.advance_together(model)));
        // All ranks of a model go on in the same way.
        match agreed(model.options().ranks, together.unwrap_or(None)) {
            Ok(Some(true)) => ControlFlow::Continue(()),
            Ok(Some(false)) => self.end(),
            Ok(None) | Err(_) => {
                let n = self.calls.len();
                tracing::warn!(
                    "a pass over the texts of {n} requests has failed; each is computed alone"
                );
                self.together = None;
                self.is_apart = true;
                ControlFlow::Continue(())
            }
        }
    }
}
