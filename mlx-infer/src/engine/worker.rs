//! What the engine's thread does: carries out the scheduler's plans on the rows.

use std::time::Instant;

use mlx_core::{Array, eval, memory};
use mlx_nn::ModelCache;

use super::rows::{Queued, Rows, process};
use super::task::{Sink, Task, Tasks};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::generate::{Event, FinishReason, Sequence};
use crate::model::LoadedModel;
use crate::request::Request;
use crate::sampler::{Choice, sample};
use crate::scheduler::{CacheCost, Id, Job, Limits, Piece, Scheduler};

/// Requests, their rows, and who comes next.
pub(crate) struct Worker<'m, 's> {
    model: &'m LoadedModel,
    scheduler: Scheduler,
    rows: Rows<'m>,
    tasks: Tasks<'s>,
    /// The step whose tokens have not been read.
    queued: Option<Queued>,
    submitted: Id,
    evictions: usize,
}

impl<'m, 's> Worker<'m, 's> {
    pub(crate) fn new(model: &'m LoadedModel, limits: Limits) -> Self {
        let info = model.info();
        let position_bytes =
            2 * info.kv_heads as usize * info.head_dim as usize * info.dtype.size();
        let cost = CacheCost::new(&info.layers, &model.cache_options(), position_bytes);
        Self {
            scheduler: Scheduler::new(limits, cost),
            rows: Rows::new(model),
            tasks: Tasks::new(),
            queued: None,
            submitted: 0,
            evictions: 0,
            model,
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Requests under way.
    pub(crate) fn counts(&self) -> [usize; 3] {
        self.scheduler.counts()
    }

    /// Rows that were given up for want of memory.
    pub(crate) fn evictions(&self) -> usize {
        self.evictions
    }

    /// Takes a request in. What is wrong with it is told to its sink.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        requested: Instant,
        dropped: CancelToken,
        mut sink: Sink<'s>,
    ) {
        let checked = self
            .model
            .prompt_ids(request.prompt)
            .and_then(|ids| Sequence::new(self.model, ids, &request.options, requested))
            .and_then(|sequence| {
                match self.scheduler.exceeds(sequence.history().prompt_len() + 1) {
                    None => Ok(sequence),
                    Some(bytes) => Err(out_of_memory(bytes)),
                }
            });
        let sequence = match checked {
            Ok(sequence) => sequence,
            Err(error) => {
                let _ = sink(Err(error));
                return;
            }
        };
        self.submitted += 1;
        let prompt = sequence.history().prompt_len();
        self.scheduler.submit(Job {
            id: self.submitted,
            prompt,
            replay: 0,
            most: prompt.saturating_add(sequence.remaining()),
            chunk: request.options.prefill_chunk,
        });
        let task = Task {
            base: prompt,
            sequence,
            partial: None,
            processor: request.processor,
            sink,
            dropped,
            abandoned: false,
        };
        self.tasks.insert(self.submitted, task);
    }

    /// Ends every request now, as cancelled.
    pub(crate) fn cancel_all(&mut self) {
        self.queued = None;
        for id in self.ids() {
            self.finish(id, FinishReason::Cancelled);
        }
        self.rows.reset();
        self.scheduler.set_slots(0);
    }

    /// Ends every request with an error, after something unforeseen.
    pub(crate) fn fail_all(&mut self, message: &str) {
        self.queued = None;
        for id in self.ids() {
            self.fail(id, Error::new(ErrorKind::Compute, message));
        }
        self.rows.reset();
        self.scheduler.set_slots(0);
    }

    /// Does a part of the work: at most one chunk of a long prompt, one group of short ones, and one step.
    pub(crate) fn tick(&mut self) {
        for id in self.ids() {
            if self.tasks[&id].is_cancelled() {
                self.finish(id, FinishReason::Cancelled);
            }
        }
        let plan = self.scheduler.plan();
        if plan.compact || !plan.evict.is_empty() || !plan.refuse.is_empty() {
            self.settle();
        }
        for (id, bytes) in plan.refuse {
            self.fail(id, out_of_memory(bytes));
        }
        if plan.compact || !plan.evict.is_empty() {
            self.evictions += plan.evict.len();
            for &id in &plan.evict {
                self.restart(id, None);
            }
            if let Err(error) = self.rows.compact() {
                self.step_failed(error);
            }
            self.scheduler.set_slots(self.rows.slots());
        }
        for pieces in plan.prefill {
            self.prefill(&pieces);
        }
        self.decode();
        if self.is_idle() {
            self.queued = None;
            self.rows.reset();
            self.scheduler.set_slots(0);
        }
    }

    /// Computes pieces of prompts in one forward pass, and lets in the rows whose prompts are done.
    fn prefill(&mut self, pieces: &[Piece]) {
        // A failure before them may have ended some, or sent them back.
        let pieces: Vec<Piece> = pieces
            .iter()
            .filter(|piece| self.tasks.contains_key(&piece.id))
            .copied()
            .collect();
        if pieces.is_empty() {
            return;
        }
        let ids: Vec<Id> = pieces.iter().map(|piece| piece.id).collect();
        let result = match pieces[..] {
            [piece] if !(piece.start == 0 && piece.is_last) => self.prefill_chunk(piece),
            _ => self.prefill_whole(&pieces),
        };
        if let Err(error) = result {
            for id in &ids {
                if let Some(task) = self.tasks.get_mut(id) {
                    task.partial = None;
                }
                self.scheduler.prefilled(*id, 0);
            }
            if let Some(id) = self.scheduler.prefill_failed(&ids) {
                self.fail(id, error);
            }
        }
    }

    fn prefill_chunk(&mut self, piece: Piece) -> Result<()> {
        let model = self.model.model();
        let task = self.tasks.get_mut(&piece.id).expect("it was checked");
        let mut cache = match task.partial.take() {
            Some(cache) => cache,
            None => {
                let mut cache = ModelCache::new(model.layers(), 1, self.model.cache_options());
                cache.expect(0, task.base);
                cache
            }
        };
        let ids = &task.sequence.history().ids()[piece.start..piece.end];
        let width = ids.len() as i32;
        let tokens = Array::from_slice(ids, &[1, width])?;
        let mut step = cache.begin(&[ids.len()])?;
        let hidden = model.hidden(&tokens, &mut step)?;
        step.commit_all()?;
        if piece.is_last {
            let logits = model.logits(&hidden.slice_axis(1, width - 1, width)?)?;
            return self.enter(&[piece.id], &cache, logits.squeeze(1)?);
        }
        eval(cache.arrays())?;
        memory::clear_cache()?;
        task.partial = Some(cache);
        self.scheduler.prefilled(piece.id, piece.end);
        Ok(())
    }

    /// Computes whole prompts together, padded on the right.
    fn prefill_whole(&mut self, pieces: &[Piece]) -> Result<()> {
        let model = self.model.model();
        let widths: Vec<usize> = pieces.iter().map(|piece| piece.end).collect();
        let width = widths.iter().max().copied().unwrap_or(0);
        let mut tokens = Vec::with_capacity(pieces.len() * width);
        let mut cache = ModelCache::new(model.layers(), pieces.len(), self.model.cache_options());
        for (row, piece) in pieces.iter().enumerate() {
            let ids = &self.tasks[&piece.id].sequence.history().ids()[..piece.end];
            tokens.extend_from_slice(ids);
            tokens.extend(std::iter::repeat_n(0, width - ids.len()));
            cache.expect(row, piece.end);
        }
        let b = pieces.len() as i32;
        let tokens = Array::from_slice(&tokens, &[b, width as i32])?;
        let mut step = cache.begin(&widths)?;
        let hidden = model.hidden(&tokens, &mut step)?;
        step.commit_all()?;
        let last = last_of_each(&hidden, &widths)?;
        let logits = model.logits(&last)?;
        let ids: Vec<Id> = pieces.iter().map(|piece| piece.id).collect();
        self.enter(&ids, &cache, logits)
    }

    /// Chooses the first tokens of rows whose prompts are done, and lets the rows in.
    fn enter(&mut self, ids: &[Id], cache: &ModelCache, mut logits: Array) -> Result<()> {
        let mut failed = Vec::new();
        for (row, id) in ids.iter().enumerate() {
            let task = self.tasks.get_mut(id).expect("it was checked");
            if task.replay() == 0 {
                match process(task, &logits, row) {
                    Ok(Some(changed)) => logits = changed,
                    Ok(None) => {}
                    Err(error) => failed.push((*id, error)),
                }
            }
        }
        let rows: Vec<_> = ids.iter().map(|id| self.tasks[id].sequence.row()).collect();
        let sampled = sample(&logits, &rows, None)?;
        let choices = sampled.read()?;
        eval(cache.arrays())?;
        for (id, error) in failed {
            self.fail(id, error);
        }
        for (&id, choice) in ids.iter().zip(choices) {
            // Where tokens are known already, this one is.
            if self.tasks.get(&id).is_some_and(|task| task.replay() == 0) {
                self.accept(id, choice);
            }
        }
        self.settle();
        let entering: Vec<(usize, Id)> = ids
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, id)| self.tasks.contains_key(id))
            .collect();
        if let Err(error) = self.rows.join(cache, &entering) {
            for &(_, id) in &entering {
                self.scheduler.joined(id, self.rows.slots());
            }
            self.step_failed(error);
            return Ok(());
        }
        for (_, id) in entering {
            self.scheduler.joined(id, self.rows.slots());
        }
        Ok(())
    }

    /// Queues a step of all rows, then reads the one before it.
    fn decode(&mut self) {
        let running: Vec<Id> = self.scheduler.running().collect();
        if running.is_empty() {
            return;
        }
        if running
            .iter()
            .any(|id| self.rows.is_at_switch(*id) || self.tasks[id].processor.is_some())
        {
            // The host has to see all tokens first.
            self.settle();
        }
        for id in running {
            if self.tasks.contains_key(&id) && self.rows.is_at_switch(id) {
                let all = self.tasks[&id].sequence.history().ids().len();
                self.restart(id, Some(all));
            }
        }
        let previous = self.queued.take();
        match self.rows.step(&mut self.tasks, previous.as_ref()) {
            Ok(stepped) => {
                for &id in &stepped.ids {
                    self.scheduler.stepped(id);
                }
                self.queued = stepped.queued;
                for (id, error) in stepped.failed {
                    self.fail(id, error);
                }
                self.read(previous);
            }
            Err(error) => self.step_failed(error),
        }
    }

    /// Reads the step under way, so that rows may come and go.
    fn settle(&mut self) {
        let queued = self.queued.take();
        self.read(queued);
    }

    fn read(&mut self, queued: Option<Queued>) {
        let Some(queued) = queued else { return };
        match self.rows.read(&queued) {
            Ok(choices) => {
                for (id, choice) in choices {
                    self.accept(id, choice);
                }
            }
            Err(error) => self.step_failed(error),
        }
    }

    /// Takes a token of a request.
    fn accept(&mut self, id: Id, choice: Result<Choice>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        match choice.and_then(|choice| task.sequence.accept(choice)) {
            Ok((event, ends)) => {
                task.tell(Ok(event));
                if let Some(reason) = ends {
                    self.finish(id, reason);
                }
            }
            Err(error) => self.fail(id, error),
        }
    }

    fn finish(&mut self, id: Id, reason: FinishReason) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let event = task.sequence.finish(reason);
        if let Ok(Event::Finish { metrics, .. }) = &event {
            self.model.set_metrics(*metrics);
        }
        task.tell(event);
        self.scheduler.recovered();
        self.forget(id);
    }

    /// Ends a request with an error.
    fn fail(&mut self, id: Id, error: Error) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.tell(Err(error));
        }
        self.forget(id);
    }

    fn forget(&mut self, id: Id) {
        self.tasks.remove(&id);
        self.rows.free(id);
        self.scheduler.remove(id);
    }

    /// Gives up the row of a request, which waits again; with `base` its prompt is so many tokens now.
    fn restart(&mut self, id: Id, base: Option<usize>) {
        self.rows.free(id);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.partial = None;
            task.base = base.unwrap_or(task.base);
            self.scheduler.restart(id, task.base, task.replay());
        }
    }

    /// A step failed as a whole: its rows start again, fewer at a time; one that was alone fails.
    fn step_failed(&mut self, error: Error) {
        self.queued = None;
        self.rows.reset();
        self.scheduler.set_slots(0);
        let to_blame = self.scheduler.step_failed();
        for id in self.ids() {
            let task = self.tasks.get_mut(&id).expect("it is there");
            if task.partial.is_none() {
                self.scheduler.restart(id, task.base, task.replay());
            }
        }
        if let Some(id) = to_blame {
            self.fail(id, error);
        }
    }

    fn ids(&self) -> Vec<Id> {
        self.tasks.keys().copied().collect()
    }
}

/// The last real token of each row of `hidden` `[B, L, E]`: `[B, E]`.
pub(crate) fn last_of_each(hidden: &Array, widths: &[usize]) -> Result<Array> {
    let [b, _, e] = hidden.dims()?;
    let last: Vec<i32> = widths.iter().map(|&width| width as i32 - 1).collect();
    let last = Array::from_slice(&last, &[b, 1, 1])?.broadcast_to(&[b, 1, e])?;
    Ok(hidden.take_along_axis(&last, 1)?.squeeze(1)?)
}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(
        ErrorKind::Memory,
        format!("the request's caches need {bytes} bytes, more than the engine may take"),
    )
}
