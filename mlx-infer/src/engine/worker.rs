//! The decode loop: executes the scheduler's plans on the rows.

#[cfg(all(test, feature = "default-model", feature = "grammar"))]
mod isolation;
mod prefill;
#[cfg(test)]
mod schedules;
mod sharing;
mod speculate;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlx_core::Array;
use mlx_core::fast::{self, Form, Op};
use mlx_nn::{ModelCache, PageUse};
use rayon::prelude::*;

use super::handle::Queue;
use super::prefixes::{PrefixCounts, Prefixes};
use super::ranks::agree;
use super::rows::{Queued, Rows};
use super::state::{RequestState, Requests, Sink};
use super::watchdog::{Pass, Passes};
use crate::engine::processor;
use crate::engine::scheduler::{CacheCost, Id, Scheduler, Shortage};
use crate::engine::sequence::Sequence;
use crate::engine::speculate::drafters;
use crate::engine::speculate::drafters::Drafter;
use crate::engine::speculate::{DraftOrigin, Experience};
use crate::error::{Error, ErrorKind, Result};
use crate::grammar::Guide;
use crate::model::LoadedModel;
use crate::model::checked::Checked;
use crate::model::forward;
use crate::model::memory::Pools;
use crate::request::cancel::CancelToken;
use crate::request::generation::{Event, FinishReason};
use crate::request::limits::Limits;
use crate::request::processor::Processor;
use crate::request::sampling::Choice;

/// After this many forward passes MLX frees the buffers that caches left when they grew.
const CLEAR_EVERY: usize = 256;

/// The decode loop, the same for a single generation, a batch and an engine.
///
/// `requests` has the state of each request, of which there is one. The scheduler decides on their
/// progress, in numbers; `rows` has the caches and the step in progress; `prefixes` stores
/// prefixes.
pub(crate) struct Worker<'m, 's> {
    model: &'m LoadedModel,
    scheduler: Scheduler,
    rows: Rows<'m>,
    requests: Requests<'s>,
    prefixes: Prefixes,
    /// Whether prompts are computed in the pass of the rows that decode. A step of these rows alone has
    /// a fixed graph on CUDA, which is launched again and queued ahead.
    has_one_pass: bool,
    submitted: Id,
    forwards: usize,
    preemptions: usize,
    /// The number of grammar masks, and the time for them.
    masks: (usize, Duration),
    /// What steps cost and how often drafts are right. The model keeps it between workers.
    experience: Experience,
    /// The forward passes, for the engine's watchdog.
    passes: Arc<Passes>,
    /// When the last step ended, if nothing but steps followed.
    step_end: Option<Instant>,
    /// The drafter, if the model has one.
    drafter: Option<Box<dyn Drafter + 'm>>,
    /// Whether the cache of the last request that ends is returned, and that cache.
    keeps_last: bool,
    last: Option<(Vec<u32>, ModelCache)>,
}

impl<'m, 's> Worker<'m, 's> {
    #[cfg(test)]
    pub(crate) fn new(model: &'m LoadedModel, limits: Limits) -> Self {
        Self::in_pool(model, limits, None)
    }

    /// A worker whose rows take pages that are reserved, if there are some.
    pub(crate) fn in_pool(model: &'m LoadedModel, limits: Limits, pools: Option<Pools>) -> Self {
        let records = limits.prefix_bytes > 0 && model.is_recurrent();
        Self::with(model, limits, pools, records)
    }

    fn with(model: &'m LoadedModel, limits: Limits, pools: Option<Pools>, records: bool) -> Self {
        let cost = CacheCost::of(model);
        let (own, of_draft) = match pools {
            Some(pools) => (pools.own, pools.draft),
            None => (model.new_cache(0), None),
        };
        let drafter = drafters::of(model, of_draft);
        let mut rows = Rows::new(model, own);
        let prefixes = Prefixes::new(limits.prefix_bytes, rows.new_cache(0));
        let mut scheduler = Scheduler::new(limits, cost, records);
        let is_cuda = fast::form(Op::Attention).is_ok_and(|form| form == Form::Cuda);
        if is_cuda {
            scheduler = scheduler.gathering().rounding();
            rows = rows.padding();
        }
        Self {
            prefixes,
            scheduler,
            has_one_pass: !is_cuda,
            rows,
            requests: Requests::new(),
            submitted: 0,
            forwards: 0,
            preemptions: 0,
            masks: Default::default(),
            experience: Experience::take(model),
            passes: Arc::default(),
            step_end: None,
            drafter,
            keeps_last: false,
            last: None,
            model,
        }
    }

    /// The same worker with the passes of a worker on CUDA: prompts have their own.
    #[cfg(test)]
    pub(super) fn splitting(mut self) -> Self {
        self.has_one_pass = false;
        self.scheduler = self.scheduler.clone().gathering();
        self.padding()
    }

    /// The same worker, whose steps with drafts have a fixed shape, as on CUDA.
    #[cfg(test)]
    pub(super) fn padding(mut self) -> Self {
        let rows = Rows::new(self.model, self.model.new_cache(0));
        self.rows = std::mem::replace(&mut self.rows, rows).padding();
        self
    }

    /// A worker for one request, whose cache is available when the request has ended
    /// ([`into_cache`](Self::into_cache)).
    pub(crate) fn of_one(model: &'m LoadedModel) -> Self {
        let limits = Limits {
            rows: 1,
            prefix_bytes: 0,
            ..Limits::default()
        };
        let mut worker = Self::with(model, limits, None, model.is_recurrent());
        worker.keeps_last = true;
        worker
    }

    /// The tokens of that request, and its cache, with the states of the tokens that were computed.
    pub(crate) fn into_cache(mut self, id: Id) -> Option<(Vec<u32>, ModelCache)> {
        self.read_queued();
        self.store_last(id);
        self.last.take()
    }

    fn store_last(&mut self, id: Id) {
        let taken = self.rows.take(id);
        self.place_rows();
        if let Some(request) = self.requests.get_mut(&id)
            && let Some(cache) = taken.or_else(|| request.partial.take())
        {
            self.last = Some((request.sequence.history().ids().to_vec(), cache));
        }
    }

    /// Its forward passes, which another thread may watch.
    pub(crate) fn passes(&self) -> &Arc<Passes> {
        &self.passes
    }

    /// A request in progress.
    pub(crate) fn task_mut(&mut self, id: Id) -> Option<&mut RequestState<'s>> {
        self.requests.get_mut(&id)
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// The numbers of requests in progress: waiting, in prefill, and decoding.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let [waiting, prefilling, decoding] = self.scheduler.counts();
        [
            waiting + self.scheduler.parked().count(),
            prefilling,
            decoding,
        ]
    }

    /// The number of forward passes.
    pub(crate) fn forwards(&self) -> usize {
        self.forwards
    }

    /// The number of rows that were preempted because memory was short.
    pub(crate) fn preemptions(&self) -> usize {
        self.preemptions
    }

    /// Counters of the stored prefixes.
    pub(crate) fn prefix_counts(&self) -> PrefixCounts {
        self.prefixes.counts()
    }

    /// The stored prefixes.
    pub(super) fn prefixes(&mut self) -> &mut Prefixes {
        &mut self.prefixes
    }

    /// The pages of keys and values in use, for each group of layers.
    pub(crate) fn page_use(&self) -> Vec<PageUse> {
        self.rows.page_use()
    }

    /// Bytes of the memory of pages, held or not, and how often it was replaced since the start. Those of a
    /// draft model count.
    pub(crate) fn pool(&self) -> (usize, u64) {
        let drafter = self.drafter.as_ref().and_then(|drafter| drafter.cache());
        let caches = [Some(self.rows.held()), drafter].into_iter().flatten();
        caches.fold((0, 0), |(bytes, moves), cache| {
            (bytes + cache.pool_bytes(), moves + cache.moves())
        })
    }

    /// Bytes of the caches of all rows. A page that several rows hold counts once.
    pub(crate) fn cache_bytes(&self) -> usize {
        let pages = self.page_use().into_iter();
        let pages = pages.map(|group| group.by_rows * group.page_bytes);
        let beside = self.scheduler.beside_pool(&self.requests);
        pages.sum::<usize>() + beside + self.rows.spare_bytes()
    }

    /// Does one part of the work, like [`tick`](Self::tick). A panic ends the requests in progress, each with an error,
    /// and the worker continues with later requests.
    pub(crate) fn advance(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.tick())).is_err() {
            self.fail_all("the engine has panicked while it computed this request");
        }
    }

    /// Cancels every request now.
    pub(crate) fn cancel_all(&mut self) {
        for id in self.ids() {
            self.finish(id, FinishReason::Cancelled);
        }
        self.reset_rows();
    }

    /// Ends every request with an error.
    pub(crate) fn fail_all(&mut self, message: &str) {
        self.prefixes.clear();
        // A panic may have left the rows in any state.
        self.reset_rows();
        for id in self.ids() {
            self.fail(id, Error::new(ErrorKind::Compute, message));
        }
    }

    /// Empties the batch.
    fn reset_rows(&mut self) {
        self.step_end = None;
        self.rows.reset();
        self.place_rows();
        self.scheduler.set_slots(0);
        if let Some(drafter) = &mut self.drafter {
            drafter.reset();
        }
    }

    /// Does one part of the work: one pass over chunks of prompts and a token of each row that decodes.
    fn tick(&mut self) {
        if let Err(error) = agree(self.model.options().ranks, &mut self.requests) {
            return self.fail_all(&error.to_string());
        }
        for id in self.ids() {
            if self.requests[&id].is_cancelled() {
                self.finish(id, FinishReason::Cancelled);
            }
        }
        self.unpark();
        let (shared, whole) = match self.scheduler.is_tight(&self.requests) {
            true => sharing::shared_pages(&self.scheduler, &self.rows, &self.requests),
            false => Default::default(),
        };
        self.scheduler.share(shared);
        self.scheduler.set_spare(self.rows.spare_bytes());
        let (prefixes, model) = (&self.prefixes, self.model);
        let in_rows =
            |request: &RequestState<'s>| sharing::in_rows(prefixes, model, &whole, request);
        let plan = self.scheduler.plan(&mut self.requests, in_rows);
        if plan.compact.is_some() || !plan.refuse.is_empty() {
            self.read_queued();
        }
        for (id, shortage) in plan.refuse {
            self.fail(id, out_of_memory(shortage));
        }
        if plan.narrow
            && let Err(error) = self.rows.narrow()
        {
            self.step_failed(error);
        }
        if let Some(slots) = plan.compact {
            self.step_end = None;
            self.preemptions += plan.preempt.len();
            for &id in &plan.preempt {
                self.keep_preempted(id);
                self.preempt(id, None);
            }
            self.prefixes.trim();
            let compacted = self.rows.compact(slots);
            self.place_rows();
            if let Err(error) = compacted.and_then(|()| self.follow_rows()) {
                self.step_failed(error);
            }
            self.scheduler.set_slots(self.rows.slots());
        }
        self.reuse();
        let chunks = self.scheduler.chunks(&self.requests);
        if !chunks.is_empty() {
            self.step_end = None;
        }
        if self.mixes(&chunks) {
            self.step_with(&chunks);
        } else if self.overlaps(&chunks) {
            self.prefill_behind_step(&chunks);
        } else {
            self.prefill(&chunks);
            self.decode();
        }
        self.park();
        self.prefixes.trim();
        if self.is_idle() {
            self.reset_rows();
            self.rows.release();
        }
    }

    /// Queues a step of all rows, then reads the previous one.
    fn decode(&mut self) {
        let running: Vec<Id> = self.scheduler.running().collect();
        if running.is_empty() {
            return;
        }
        let _pass = self.passes.begin(Pass::Rows(running.len()));
        if running.iter().any(|&id| self.is_at_switch(id)) {
            // The host has to read all tokens first.
            self.read_queued();
        }
        for id in running {
            if self.is_at_switch(id) {
                let all = self.requests[&id].known();
                self.preempt(id, Some(all));
            }
        }
        if self.speculate() {
            return;
        }
        let start = self.step_end.take().unwrap_or_else(Instant::now);
        match self.rows.step(&self.requests) {
            Ok(stepped) => {
                for id in &stepped.ids {
                    if let Some(request) = self.requests.get_mut(id) {
                        request.progress.stepped(1);
                    }
                }
                let (rows, is_steady) = (self.rows.slots(), stepped.previous.is_some());
                self.read(stepped.previous);
                self.choose();
                // The time from queueing one step to reading the previous one is that of a step.
                if is_steady && !stepped.ids.is_empty() {
                    self.measured(start, rows, 1, DraftOrigin::Text);
                }
                self.ran(!stepped.ids.is_empty());
            }
            Err(error) => self.step_failed(error),
        }
    }

    /// Records the time of a step of `rows` rows, the widest of `width` tokens, that ends now.
    fn measured(&mut self, start: Instant, rows: usize, width: usize, origin: DraftOrigin) {
        let now = Instant::now();
        let seconds = (now - start).as_secs_f64();
        // Ranks measure different times, and would draft different numbers of tokens.
        if self.model.options().ranks.size() == 1 {
            self.experience.costs.learn(rows, width, origin, seconds);
        }
        self.step_end = Some(now);
    }

    /// Counts a step.
    fn ran(&mut self, has_rows: bool) {
        self.forwards += usize::from(has_rows);
        if self.forwards.is_multiple_of(CLEAR_EVERY)
            && let Err(error) = forward::free_buffers()
        {
            self.step_failed(error);
        }
    }

    /// Reads the step in progress. Rows can join and leave only when no step is queued.
    fn read_queued(&mut self) {
        let queued = self.rows.take_queued();
        if queued.is_some() {
            self.step_end = None;
        }
        self.read(queued);
    }

    fn read(&mut self, queued: Option<Queued>) {
        let Some(queued) = queued else { return };
        match self.rows.read(&queued) {
            Ok(choices) => {
                for (id, choice) in choices {
                    self.stepped(id);
                    self.accept_any(id, choice);
                }
                for (id, logits) in self.rows.on_host(queued) {
                    self.stepped(id);
                    self.choose_on_host(id, &logits);
                }
            }
            Err(error) => self.step_failed(error),
        }
    }

    fn finish(&mut self, id: Id, reason: FinishReason) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let event = request.sequence.finish(reason);
        if let Ok(Event::Finish { metrics, .. }) = &event {
            self.model.set_metrics(*metrics);
        }
        request.send(event);
        // The caller does not wait for the copy.
        self.keep_row(id, reason);
        if self.keeps_last {
            self.store_last(id);
        }
        self.scheduler.recovered();
        self.remove(id);
    }

    /// Ends a request with an error.
    fn fail(&mut self, id: Id, error: Error) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.send(Err(error));
        }
        self.remove(id);
    }

    fn remove(&mut self, id: Id) {
        self.free_row(id);
        self.scheduler.remove(&mut self.requests, id);
        self.requests.remove(&id);
    }

    /// The row of a request in the batch.
    fn slot(&self, id: Id) -> Option<usize> {
        self.requests.get(&id)?.progress.slot
    }

    /// Frees the row of a request.
    fn free_row(&mut self, id: Id) {
        let request = self.requests.get_mut(&id);
        if let Some(slot) = request.and_then(|request| request.progress.slot.take()) {
            self.rows.free(slot);
        }
    }

    /// Records each request's row of the batch, after rows have joined or moved.
    fn place_rows(&mut self) {
        for request in self.requests.values_mut() {
            request.progress.slot = None;
        }
        for (slot, owner) in self.rows.owners().iter().enumerate() {
            if let Some(request) = owner.and_then(|id| self.requests.get_mut(&id)) {
                request.progress.slot = Some(slot);
            }
        }
    }

    /// Whether at the next position of a request's row the model would embed all its positions
    /// differently.
    fn is_at_switch(&self, id: Id) -> bool {
        let switches = self.model.model().switches_after().is_some();
        let slot = if switches { self.slot(id) } else { None };
        slot.is_some_and(|slot| self.rows.is_at_switch(slot))
    }

    /// Preempts the row of a request, which then waits again. If `prompt` is given, this number of
    /// its tokens counts as the prompt from now on.
    fn preempt(&mut self, id: Id, prompt: Option<usize>) {
        self.free_row(id);
        if let Some(request) = self.requests.get_mut(&id) {
            request.partial = None;
        }
        self.requeue(id, prompt);
    }

    /// Makes a request wait again, with the tokens that are known now. `prompt` is that of
    /// [`preempt`](Self::preempt).
    fn requeue(&mut self, id: Id, prompt: Option<usize>) {
        if let Some(request) = self.requests.get(&id) {
            let (known, before) = (request.known(), request.progress.asked());
            let prompt = prompt.unwrap_or(before);
            (self.scheduler).requeue(&mut self.requests, id, prompt, known);
        }
    }

    /// Handles the failure of a whole step. Its rows start again, fewer at a time; if there was
    /// only one, its request fails.
    fn step_failed(&mut self, error: Error) {
        // The stored prefixes are dropped first, because memory may be short.
        self.prefixes.clear();
        let to_blame = self.scheduler.step_failed(&mut self.requests);
        self.recover();
        if let Some(id) = to_blame {
            self.fail(id, error);
        }
    }

    /// Drops what a failed evaluation has left in the pool. It may have taken any pages with it, so
    /// all requests are computed again.
    fn recover(&mut self) {
        self.rows.recover();
        if let Some(drafter) = &mut self.drafter {
            drafter.recover();
        }
        self.reset_rows();
        for id in self.ids() {
            if let Some(request) = self.requests.get_mut(&id) {
                request.partial = None;
            }
            self.requeue(id, None);
        }
    }

    fn ids(&self) -> Vec<Id> {
        self.requests.keys().copied().collect()
    }

    /// Chooses the tokens of a step whose choice had to wait for the tokens of the previous step,
    /// because some rows have a grammar.
    fn choose(&mut self) {
        self.prepare_masks(&self.rows.undecided());
        if let Err(error) = self.rows.choose(&self.requests) {
            self.step_failed(error);
        }
    }

    /// Computes the masks of the next tokens of these requests, several at once on other threads. The device computes
    /// the queued work meanwhile.
    fn prepare_masks(&mut self, ids: &[Id]) {
        let wanted: Vec<(Id, &[u32])> = ids.iter().map(|&id| (id, &[][..])).collect();
        foresee(&mut self.requests, &wanted, &mut self.masks);
    }

    /// The number of computed masks, and how long this thread has computed them or waited for them.
    pub(crate) fn masks(&self) -> (usize, Duration) {
        self.masks
    }

    /// Counts a step that gives tokens to a request.
    fn stepped(&mut self, id: Id) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.sequence.stepped();
        }
    }

    /// Chooses the next token of a request from its `logits` `[1, V]`, with its processor.
    fn choose_on_host(&mut self, id: Id, logits: &Array) {
        self.prepare_masks(&[id]);
        if let Some(request) = self.requests.get_mut(&id)
            && let Some(processor) = &mut request.processor
        {
            let choice = processor::choose(self.model, processor, logits, request.sequence.row());
            self.accept(id, choice);
        }
    }

    /// Gives a token to a request. `None` means that its logits are not finite.
    fn accept_any(&mut self, id: Id, choice: Option<Choice>) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let choice = choice.ok_or_else(|| {
            let blocked = request.sequence.blocked();
            blocked.unwrap_or_else(|| self.model.not_finite(request.sequence.history().ids()))
        });
        self.accept(id, choice);
    }

    /// Gives a token to a request.
    fn accept(&mut self, id: Id, choice: Result<Choice>) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let accepted = choice.and_then(|choice| {
            let accept = || request.sequence.accept(choice);
            // If this panics, the tokens of the other rows of the step must still be sent.
            catch_unwind(AssertUnwindSafe(accept)).unwrap_or_else(|_| {
                let message = "the engine has panicked while it read a token of this request";
                Err(Error::new(ErrorKind::Compute, message))
            })
        });
        match accepted {
            Ok((event, ends)) => {
                request.send(Ok(event));
                if let Some(reason) = ends {
                    self.finish(id, reason);
                }
            }
            Err(error) => self.fail(id, error),
        }
    }

    /// Adds a request. If there is no memory for it, its sink gets an error.
    pub(crate) fn submit(
        &mut self,
        checked: Checked,
        requested: Instant,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        mut sink: Sink<'s>,
    ) {
        let added = match self.scheduler.exceeds(checked.ids().len() + 1) {
            None => self.sequence(checked, requested),
            Some(shortage) => Err(out_of_memory(shortage)),
        };
        match added {
            Ok((sequence, processor)) => {
                let id = self.enqueue(sequence, dropped, backlog, sink);
                if let Some(request) = self.requests.get_mut(&id) {
                    request.processor = processor;
                }
            }
            Err(error) => {
                let _ = sink(Err(error));
            }
        }
    }

    /// The state of a request before its first token, and its processor.
    fn sequence(
        &self,
        mut checked: Checked,
        requested: Instant,
    ) -> Result<(Sequence, Option<Processor>)> {
        let (model, processor) = (self.model, checked.processor.take());
        let sequence = || Sequence::new(model.frontend(), model.load_time(), checked, requested);
        // A request's grammar is copied here, which runs code of the grammar crate.
        let sequence = catch_unwind(AssertUnwindSafe(sequence)).unwrap_or_else(|_| {
            let message = "the request made the engine panic";
            Err(Error::new(ErrorKind::Compute, message))
        });
        Ok((sequence?, processor))
    }

    /// Adds a request that was checked.
    pub(crate) fn enqueue(
        &mut self,
        mut sequence: Sequence,
        dropped: CancelToken,
        backlog: Option<Arc<Queue>>,
        sink: Sink<'s>,
    ) -> Id {
        self.submitted += 1;
        if let Some(row) = sequence.speculation_mut() {
            // The rates move towards the initial ones each time, so that a drafter that failed on
            // some texts is tried on others.
            self.experience.usual.fade();
            row.expect(self.experience.usual);
        }
        let request = RequestState::new(sequence, dropped, backlog, sink);
        self.requests.insert(self.submitted, request);
        (self.scheduler).submit(&mut self.requests, self.submitted);
        self.submitted
    }

    /// Whether there is nothing to compute until a caller reads events or cancels, or a request
    /// arrives.
    pub(crate) fn is_stalled(&self) -> bool {
        let is_paused = |id: Id| self.requests.get(&id).is_none_or(RequestState::is_paused);
        !self.rows.is_busy()
            && self.scheduler.counts()[..2] == [0, 0]
            && self.scheduler.running().all(is_paused)
            && self.scheduler.parked().all(is_paused)
    }

    /// Queues parked requests again if their callers have read their events. They come after
    /// requests that arrived meanwhile.
    fn unpark(&mut self) {
        let parked: Vec<Id> = self.scheduler.parked().collect();
        for id in parked {
            if let Some(request) = self.requests.get(&id)
                && !request.is_paused()
            {
                let known = request.known();
                self.scheduler.unpark(&mut self.requests, id, known);
            }
        }
    }

    /// Preempts paused rows while another request waits for a row or for memory. Their tokens are replayed when they
    /// return, so that they do not change.
    fn park(&mut self) {
        let [waiting, ..] = self.scheduler.counts();
        let paused = |worker: &Self| -> Vec<Id> {
            let is_paused = |id: &Id| worker.requests.get(id).is_some_and(RequestState::is_paused);
            worker.scheduler.running().filter(is_paused).collect()
        };
        if waiting == 0 || paused(self).is_empty() {
            return;
        }
        self.read_queued();
        for id in paused(self) {
            self.keep_preempted(id);
            self.free_row(id);
            self.scheduler.park(&mut self.requests, id);
        }
    }
}

impl Drop for Worker<'_, '_> {
    fn drop(&mut self) {
        let experience = std::mem::take(&mut self.experience);
        experience.keep(self.model);
    }
}

fn out_of_memory(shortage: Shortage) -> Error {
    Error::new(ErrorKind::Memory, shortage.to_string())
}

/// Computes the masks of the next tokens of these requests, and the masks after their drafts. Adds
/// their number and the time for them to `masks`.
pub(super) fn foresee(
    requests: &mut Requests<'_>,
    drafts: &[(Id, &[u32])],
    masks: &mut (usize, Duration),
) {
    let draft = |id: Id| drafts.iter().find(|(of, _)| *of == id);
    let mut guides: Vec<(&mut Guide, &[u32])> = (requests.iter_mut())
        .filter_map(|(&id, request)| Some((draft(id)?.1, request)))
        .filter_map(|(draft, request)| Some((request.sequence.guide_mut()?, draft)))
        .collect();
    guides.retain(|(guide, draft)| !guide.is_prepared() || !draft.is_empty());
    let start = Instant::now();
    match &mut guides[..] {
        [] => return,
        [(guide, draft)] => guide.foresee(draft),
        guides => guides
            .par_iter_mut()
            .for_each(|(guide, draft)| guide.foresee(draft)),
    }
    masks.0 += guides
        .iter()
        .map(|(guide, _)| guide.masks().count())
        .sum::<usize>();
    masks.1 += start.elapsed();
}
