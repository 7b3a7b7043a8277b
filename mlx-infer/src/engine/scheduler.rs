//! Decides what is computed next. It works on plain numbers and has no arrays.
//!
//! Requests wait in the order of their arrival. Before each step [`Scheduler::plan`] names the rows to preempt and admits
//! requests, [`Scheduler::pieces`] names the prompts or parts of prompts to compute, and [`Scheduler::running`] the
//! rows that decode. The worker computes these and reports back. Three rules make it fair and ensure that every request
//! ends:
//!
//! - Requests enter in order; a request that does not fit yet blocks those behind it.
//! - The youngest row is preempted first. The oldest is never preempted while there is another, so it will end.
//! - A long prompt is computed in chunks, beside a group of short ones and a decode step.

mod cost;
mod entry;
mod pieces;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use self::entry::Entry;

pub(crate) use self::cost::CacheCost;
pub(crate) use self::pieces::{TAIL, next_end};
pub(crate) use self::plan::{Id, Job, Piece, Plan};
pub use crate::request::limits::Limits;

/// The queue of requests, and the progress of each.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    cost: CacheCost,
    /// Whether the model's layers have to record the lengths from which prompts can continue ([`next_end`]).
    records: bool,
    waiting: VecDeque<Entry>,
    prefilling: Vec<Entry>,
    running: Vec<Entry>,
    /// Requests whose rows are preempted because their callers do not read events.
    parked: Vec<Entry>,
    /// Rows of the batch's cache, in use or not.
    slots: usize,
    /// Whether the number of slots is rounded up.
    rounds: bool,
    /// Whether requests wait for others, to be computed with them.
    gathers: bool,
    /// The number of plans for which the request in front has waited for others.
    gathered: usize,
    /// The most rows at present. It is lowered after a step that failed.
    rows: usize,
    arrivals: u64,
}

/// The number of free positions that a row needs to enter beside others. With fewer it would soon be preempted.
const HEADROOM: usize = 32;

/// Requests wait until one in this number of rows is free.
const GATHERED_ROWS: usize = 8;
/// The most steps for which they wait.
const GATHERED_STEPS: usize = 16;

impl Scheduler {
    /// A scheduler without requests. `records`: whether lengths of prompts have to be recorded
    /// ([`Piece::is_recorded`]).
    pub(crate) fn new(limits: Limits, cost: CacheCost, records: bool) -> Self {
        Self {
            rows: limits.rows,
            limits,
            cost,
            records,
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            running: Vec::new(),
            parked: Vec::new(),
            slots: 0,
            rounds: false,
            gathers: false,
            gathered: 0,
            arrivals: 0,
        }
    }

    /// Adds a request to the queue.
    pub(crate) fn submit(&mut self, job: Job) {
        self.arrivals += 1;
        self.waiting.push_back(Entry {
            job,
            order: self.arrivals,
            done: 0,
            reused: 0,
            cut: None,
            len: 0,
            alone: false,
            follows: None,
        });
    }

    /// The bytes of a row with this number of positions, if they exceed the limit.
    pub(crate) fn exceeds(&self, positions: usize) -> Option<usize> {
        let bytes = self.cost.bytes(1, positions);
        self.limits
            .cache_bytes
            .is_some_and(|limit| bytes > limit)
            .then_some(bytes)
    }

    /// Plans the next step.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        self.make_room(&mut plan);
        self.admit(&mut plan);
        let spare = self.slots - self.running.len();
        let wanted = self.slots_for(self.running.len());
        let idle = self.waiting.is_empty() && self.prefilling.is_empty();
        // An empty slot costs a step as much as a row. Compacting only when a quarter is empty keeps copies rare.
        if plan.compact.is_none() && wanted < self.slots && idle && spare * 4 >= self.slots {
            plan.compact = Some(wanted);
        }
        plan
    }

    /// Evicts the youngest rows until the next step fits into memory.
    fn make_room(&mut self, plan: &mut Plan) {
        let Some(limit) = self.limits.cache_bytes else {
            return;
        };
        while self.bytes(self.slots, None) > limit {
            if self.slots > self.running.len() {
                self.slots = self.running.len();
                plan.compact = Some(self.slots);
                continue;
            }
            let Some(youngest) = self.youngest() else {
                return;
            };
            if self.running.len() + self.prefilling.len() == 1 {
                let entry = self.take(youngest).expect("it is there");
                plan.refuse
                    .push((youngest, self.cost.bytes(1, entry.next_len())));
                return;
            }
            self.preempt(youngest);
            plan.compact = Some(self.running.len());
            plan.preempt.push(youngest);
        }
    }

    /// Admits requests in order.
    fn admit(&mut self, plan: &mut Plan) {
        if self.should_gather() {
            self.gathered += 1;
            return;
        }
        self.gathered = 0;
        while let Some(&head) = self.waiting.front() {
            let active = self.running.len() + self.prefilling.len();
            if active >= self.rows {
                return;
            }
            let fits = match self.limits.cache_bytes {
                None => true,
                Some(limit) => {
                    let headroom = if active == 0 { 0 } else { HEADROOM };
                    let longest = (head.next_len() + headroom).min(head.job.most.max(1));
                    let longest = longest.max(head.next_len());
                    self.bytes(self.slots, Some(longest)) <= limit
                }
            };
            if fits {
                self.waiting.pop_front();
                self.prefilling.push(head);
            } else if active == 0 && self.slots == 0 {
                self.waiting.pop_front();
                plan.refuse
                    .push((head.job.id, self.cost.bytes(1, head.next_len())));
            } else {
                // Compacting removes slots without rows before the next plan.
                if self.slots > self.running.len() {
                    plan.compact = Some(self.running.len());
                }
                return;
            }
        }
    }

    /// The bytes of the caches when every admitted request has a row and the next step is computed, with another row of
    /// `newcomer` positions if given.
    fn bytes(&self, slots: usize, newcomer: Option<usize>) -> usize {
        let active = self.running.iter().chain(&self.prefilling);
        let longest = active.map(Entry::next_len).chain(newcomer).max();
        let rows = self.running.len() + self.prefilling.len() + usize::from(newcomer.is_some());
        self.cost.bytes(rows.max(slots), longest.unwrap_or(0))
    }

    /// Bytes of the rows' caches.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.bytes(self.slots, None)
    }

    /// Records that the first `done` tokens of the prompt of `id`, which has not started, come from a kept prefix. A
    /// piece of the prompt ends at `cut`, so that this prefix can be kept for others.
    pub(crate) fn reuse(&mut self, id: Id, done: usize, cut: Option<usize>) {
        if let Some(entry) = find(&mut self.prefilling, id) {
            (entry.done, entry.reused, entry.cut) = (done, done, cut);
        }
    }

    /// Whether `piece` is still the next piece of its prompt. After a failure its request may have ended, or wait
    /// again.
    pub(crate) fn is_due(&self, piece: &Piece) -> bool {
        let entry = self.prefilling.iter().find(|e| e.job.id == piece.id);
        entry.is_some_and(|entry| entry.done == piece.start)
    }

    /// Records that a piece of `id`'s prompt was computed, up to `end`.
    pub(crate) fn prefilled(&mut self, id: Id, end: usize) {
        if let Some(entry) = find(&mut self.prefilling, id) {
            entry.done = end;
        }
    }

    /// Records that the row of `id` has joined the batch, which now has `slots` slots.
    pub(crate) fn joined(&mut self, id: Id, slots: usize) {
        self.slots = slots;
        if let Some(at) = position(&self.prefilling, id) {
            let mut entry = self.prefilling.remove(at);
            entry.len = entry.job.prompt;
            self.running.push(entry);
        }
    }

    /// Records that the batch now has `slots` slots.
    pub(crate) fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
    }

    /// Records that the row of `id` grew by this number of positions.
    pub(crate) fn stepped(&mut self, id: Id, positions: usize) {
        if let Some(entry) = find(&mut self.running, id) {
            entry.len += positions;
        }
    }

    /// Whether the longest row may grow by this many positions more in the next step than without drafts.
    pub(crate) fn has_room(&self, positions: usize) -> bool {
        let longest = self.running.iter().map(Entry::next_len).max();
        let rows = self.running.len() + self.prefilling.len();
        let bytes = self
            .cost
            .bytes(rows.max(self.slots), longest.unwrap_or(0) + positions);
        self.limits.cache_bytes.is_none_or(|limit| bytes <= limit)
    }

    /// Records that the row of `id` is preempted. Its request waits at its old place in the queue, with `prompt` tokens
    /// to be computed as a prompt and `replay` to be replayed.
    pub(crate) fn requeue(&mut self, id: Id, prompt: usize, replay: usize) {
        let Some(mut entry) = self.take(id) else {
            return;
        };
        (entry.job.prompt, entry.job.replay) = (prompt, replay);
        self.wait(entry);
    }

    /// Records that the row of `id` is preempted until its caller has read enough events.
    pub(crate) fn park(&mut self, id: Id) {
        if let Some(entry) = self.take(id) {
            self.parked.push(entry);
        }
    }

    /// Requests whose rows are preempted because their callers do not read events.
    pub(crate) fn parked(&self) -> impl Iterator<Item = Id> + '_ {
        self.parked.iter().map(|entry| entry.job.id)
    }

    /// Removes a request that has ended.
    pub(crate) fn remove(&mut self, id: Id) {
        self.take(id);
        self.parked.retain(|entry| entry.job.id != id);
    }

    /// Records that a step of all rows failed. All rows are preempted, and fewer are computed together from now on. If
    /// the step had only one row, its request is returned, because it is the cause.
    pub(crate) fn step_failed(&mut self) -> Option<Id> {
        let ids: Vec<Id> = self.running.iter().map(|entry| entry.job.id).collect();
        self.rows = (ids.len() / 2).max(1);
        for &id in &ids {
            self.preempt(id);
        }
        match ids[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// Records that the prompts of these requests failed together. Each is computed alone from now on. If there was
    /// only one, it is returned, because it is the cause.
    pub(crate) fn prefill_failed(&mut self, ids: &[Id]) -> Option<Id> {
        if let &[id] = ids {
            return Some(id);
        }
        for entry in &mut self.prefilling {
            if ids.contains(&entry.job.id) {
                (entry.done, entry.reused, entry.cut) = (0, 0, None);
                entry.alone = true;
            }
        }
        None
    }

    /// Records that a request has ended without an error. One more row may be computed at a time, up to the limits.
    pub(crate) fn recovered(&mut self) {
        self.rows = (self.rows + 1).min(self.limits.rows);
    }

    /// Requests whose rows decode, oldest first.
    pub(crate) fn running(&self) -> impl Iterator<Item = Id> + '_ {
        self.running.iter().map(|entry| entry.job.id)
    }

    /// The numbers of requests that wait, are in prefill, and decode.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [
            self.waiting.len(),
            self.prefilling.len(),
            self.running.len(),
        ]
    }

    fn youngest(&self) -> Option<Id> {
        let active = self.running.iter().chain(&self.prefilling);
        active.max_by_key(|entry| entry.order).map(|e| e.job.id)
    }

    fn preempt(&mut self, id: Id) {
        let Some(mut entry) = self.take(id) else {
            return;
        };
        entry.job.replay = entry
            .job
            .replay
            .max(entry.len.saturating_sub(entry.job.prompt));
        self.wait(entry);
    }

    fn wait(&mut self, mut entry: Entry) {
        (entry.done, entry.reused, entry.cut, entry.len) = (0, 0, None, 0);
        entry.follows = None;
        let at = self.waiting.partition_point(|e| e.order < entry.order);
        self.waiting.insert(at, entry);
    }

    fn take(&mut self, id: Id) -> Option<Entry> {
        if let Some(at) = position(&self.running, id) {
            return Some(self.running.remove(at));
        }
        if let Some(at) = position(&self.prefilling, id) {
            return Some(self.prefilling.remove(at));
        }
        let at = self.waiting.iter().position(|entry| entry.job.id == id)?;
        self.waiting.remove(at)
    }

    /// Requests in prefill whose prompts are computed, in order: those that do not follow another.
    pub(crate) fn leading(&self) -> impl Iterator<Item = Id> + '_ {
        let leading = self
            .prefilling
            .iter()
            .filter(|entry| !self.is_behind(entry));
        leading.map(|entry| entry.job.id)
    }

    /// Those of them whose prompts have not started.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = Id> + '_ {
        let fresh = self.prefilling.iter().filter(|entry| entry.done == 0);
        let fresh = fresh.filter(|entry| !self.is_behind(entry));
        fresh.map(|entry| entry.job.id)
    }

    /// Lets `id`, whose prompt has not started and is the same, follow `leader`. Its prompt is not computed as long as
    /// `leader` is in prefill.
    pub(crate) fn follow(&mut self, id: Id, leader: Id) {
        if let Some(entry) = find(&mut self.prefilling, id) {
            entry.follows = Some(leader);
        }
    }

    /// The requests that follow `leader`, in order. Their rows join the batch together with its row.
    pub(crate) fn followers(&self, leader: Id) -> impl Iterator<Item = Id> + '_ {
        let followers = self.prefilling.iter();
        let followers = followers.filter(move |entry| entry.follows == Some(leader));
        followers.map(|entry| entry.job.id)
    }

    /// Whether the request is in prefill.
    pub(crate) fn is_prefilling(&self, id: Id) -> bool {
        self.prefilling.iter().any(|entry| entry.job.id == id)
    }

    /// Whether the entry follows a request that is in prefill.
    fn is_behind(&self, entry: &Entry) -> bool {
        entry
            .follows
            .is_some_and(|leader| self.is_prefilling(leader))
    }

    /// Rounds the number of slots up, for devices on which another number of slots costs more than an empty slot does.
    pub(crate) fn rounding(mut self) -> Self {
        self.rounds = true;
        self
    }

    /// The number of slots of a batch of `rows` rows: with [`rounding`](Self::rounding) a power of two up to 8 and then a multiple of
    /// 8, as far as rows and memory are limited.
    pub(crate) fn slots_for(&self, rows: usize) -> usize {
        if !self.rounds {
            return rows;
        }
        let slots = match rows {
            ..=8 => rows.next_power_of_two(),
            _ => rows.next_multiple_of(8),
        };
        let slots = slots.min(self.limits.rows).max(rows);
        match self.limits.cache_bytes {
            Some(limit) if self.bytes(slots, None) > limit => rows,
            _ => slots,
        }
    }

    /// Lets requests wait until several rows are free, for devices on which one short prompt takes as long as several.
    pub(crate) fn gathering(mut self) -> Self {
        self.gathers = true;
        self
    }

    /// Whether the requests that wait should wait for more free rows.
    fn should_gather(&self) -> bool {
        let free = self
            .rows
            .saturating_sub(self.running.len() + self.prefilling.len());
        let enough = (self.rows / GATHERED_ROWS).min(self.waiting.len());
        let is_early = self.gathered < GATHERED_STEPS && !self.running.is_empty();
        self.gathers && 0 < free && free < enough && is_early
    }
}

fn position(entries: &[Entry], id: Id) -> Option<usize> {
    entries.iter().position(|entry| entry.job.id == id)
}

fn find(entries: &mut [Entry], id: Id) -> Option<&mut Entry> {
    entries.iter_mut().find(|entry| entry.job.id == id)
}
