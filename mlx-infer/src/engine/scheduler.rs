//! Decides what is computed next. It works on plain numbers and has no arrays.
//!
//! Requests wait in the order of their arrival. Before each step [`Scheduler::plan`] names the rows to preempt and admits
//! requests, [`Scheduler::chunks`] names the prompts or parts of prompts to compute, and [`Scheduler::running`] the
//! rows that decode. The worker computes these and reports back. Six rules make it fair and ensure that every request
//! ends:
//!
//! - Requests enter in order, those in the background after all others. A request that does not fit yet also delays the
//!   later ones.
//! - Memory is counted in pages, and a page that several rows hold counts once.
//! - The youngest row is preempted first. The oldest is never preempted while there is another, so it will end.
//! - A row in the background counts as younger than all others. It is preempted also if another request waits for a row.
//! - Prompts are computed in chunks, in order of arrival, up to a number of tokens in each pass.
//! - Where a pass with one prompt costs as much as one with several, requests wait for each other, but not long.

mod chunks;
mod plan;
mod progress;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use self::progress::{of, of_mut};

pub(crate) use self::chunks::{TAIL, next_end};
pub(crate) use self::plan::{Chunk, Plan};
pub(crate) use self::progress::{Id, RequestProgress, Scheduled, Status, Table};
pub(crate) use crate::model::cost::{CacheCost, Shortage};
pub use crate::request::limits::Limits;

/// The order of the requests. Their progress is in the engine's table of requests.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    cost: CacheCost,
    /// For admitted requests, how many pages in each group of layers an older one holds too. They count once.
    shared: BTreeMap<Id, Vec<usize>>,
    /// Whether the model's layers have to record the lengths from which prompts can continue ([`next_end`]).
    records: bool,
    /// In the order of arrival.
    waiting: VecDeque<Id>,
    prefilling: Vec<Id>,
    running: Vec<Id>,
    /// Requests whose rows are preempted because their callers do not read events.
    parked: Vec<Id>,
    /// Rows of the batch's cache, in use or not.
    slots: usize,
    /// Bytes of slots for the states after single tokens.
    spare: usize,
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

/// Added to the arrivals of requests in the background: they come after all others.
const BACKGROUND: u64 = 1 << 63;

/// Requests that gather wait until one can enter for this number of rows that decode.
const ROWS_OF_GATHERED: usize = 8;
/// They wait at most a step for this number of rows that decode.
const ROWS_OF_STEP: usize = 4;
/// The most steps for which they wait.
const GATHERED_STEPS: usize = 16;

impl Scheduler {
    /// A scheduler without requests. `records`: whether lengths of prompts have to be recorded
    /// ([`Chunk::is_recorded`]).
    pub(crate) fn new(limits: Limits, cost: CacheCost, records: bool) -> Self {
        Self {
            rows: limits.rows,
            limits,
            cost,
            shared: BTreeMap::new(),
            records,
            waiting: VecDeque::new(),
            prefilling: Vec::new(),
            running: Vec::new(),
            parked: Vec::new(),
            slots: 0,
            spare: 0,
            rounds: false,
            gathers: false,
            gathered: 0,
            arrivals: 0,
        }
    }

    /// Adds a request to the queue.
    pub(crate) fn submit<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id) {
        self.arrivals += 1;
        let progress = of_mut(requests, id);
        let class = if progress.is_background {
            BACKGROUND
        } else {
            0
        };
        (progress.arrival, progress.status) = (self.arrivals + class, Status::Waiting);
        progress.restart();
        progress.alone = false;
        self.queue(requests, id);
    }

    /// Puts a request at its place among those that wait.
    fn queue<R: Scheduled>(&mut self, requests: &Table<R>, id: Id) {
        let arrival = of(requests, id).arrival;
        let is_before = |&id: &Id| of(requests, id).arrival < arrival;
        let at = self.waiting.partition_point(is_before);
        self.waiting.insert(at, id);
    }

    /// Why a row with this number of positions does not fit, if its pages exceed the limit.
    pub(crate) fn exceeds(&self, positions: usize) -> Option<Shortage> {
        let limit = self.limits.cache_bytes?;
        (self.cost.row(positions) > limit).then(|| self.cost.shortage(positions, limit))
    }

    /// Whether the admitted requests and the next one would not fit if they shared no pages. The pages
    /// that they share are then to be [counted](Self::share) before the next plan.
    pub(crate) fn is_tight<R: Scheduled>(&self, requests: &Table<R>) -> bool {
        let next = self.waiting.front().map(|&id| of(requests, id));
        let next = next.map_or(0, |next| self.cost.row(next.next_len() + HEADROOM));
        let active = self.active().map(|id| of(requests, id).next_len());
        let active: usize = active.map(|len| self.cost.row(len)).sum();
        let limit = self.limits.cache_bytes;
        limit.is_some_and(|limit| active + next > limit)
    }

    /// The admitted requests, oldest first.
    pub(crate) fn by_age<R: Scheduled>(&self, requests: &Table<R>) -> Vec<Id> {
        let mut active: Vec<Id> = self.active().collect();
        active.sort_by_key(|&id| of(requests, id).arrival);
        active
    }

    /// Sets how many pages, in each group of layers, admitted requests share with older ones.
    pub(crate) fn share(&mut self, shared: BTreeMap<Id, Vec<usize>>) {
        self.shared = shared;
    }

    /// Plans the next step. `in_rows` returns how many pages, in each group of layers, the row of a
    /// request that waits will share with rows.
    pub(crate) fn plan<R: Scheduled>(
        &mut self,
        requests: &mut Table<R>,
        in_rows: impl Fn(&R) -> Vec<usize>,
    ) -> Plan {
        let mut plan = Plan::default();
        self.make_room(requests, &mut plan);
        self.admit(requests, &mut plan, in_rows);
        let spare = self.slots - self.running.len();
        let wanted = self.slots_for(requests, self.running.len());
        let idle = self.waiting.is_empty() && self.prefilling.is_empty();
        // An empty slot costs a step as much as a row. Compacting only when a quarter is empty keeps copies rare.
        if plan.compact.is_none() && wanted < self.slots && idle && spare * 4 >= self.slots {
            plan.compact = Some(wanted);
        }
        plan
    }

    /// Preempts the youngest rows until the next step fits into memory.
    fn make_room<R: Scheduled>(&mut self, requests: &mut Table<R>, plan: &mut Plan) {
        let Some(limit) = self.limits.cache_bytes else {
            return;
        };
        while self.bytes(requests, self.slots, None) > limit {
            if std::mem::take(&mut self.spare) > 0 {
                plan.narrow = true;
                continue;
            }
            if self.slots > self.running.len() {
                self.slots = self.running.len();
                plan.compact = Some(self.slots);
                continue;
            }
            let Some(youngest) = self.youngest(requests) else {
                return;
            };
            if self.running.len() + self.prefilling.len() == 1 {
                self.remove(requests, youngest);
                let needed = of(requests, youngest).next_len();
                let shortage = self.cost.shortage(needed, limit);
                plan.refuse.push((youngest, shortage));
                return;
            }
            self.preempt(requests, youngest);
            plan.compact = Some(self.running.len());
            plan.preempt.push(youngest);
        }
    }

    /// Admits requests in order.
    fn admit<R: Scheduled>(
        &mut self,
        requests: &mut Table<R>,
        plan: &mut Plan,
        in_rows: impl Fn(&R) -> Vec<usize>,
    ) {
        if self.should_gather() {
            self.gathered += 1;
            return;
        }
        self.gathered = 0;
        while let Some(&id) = self.waiting.front() {
            // It was preempted for another one in this plan.
            if plan.preempt.contains(&id) {
                return;
            }
            let head = of(requests, id);
            let needed = head.next_len();
            let active = self.running.len() + self.prefilling.len();
            let is_background = head.is_background;
            if active >= self.rows {
                if is_background || !self.preempt_background(requests, plan) {
                    return;
                }
                continue;
            }
            let shortage = match self.limits.cache_bytes {
                None => None,
                Some(limit) => {
                    let headroom = if active == 0 { 0 } else { HEADROOM };
                    let longest = (needed + headroom).min(head.most.max(1)).max(needed);
                    let fits = |shared: &[usize]| {
                        self.bytes(requests, self.slots, Some((longest, shared))) <= limit
                    };
                    let mut shared = Vec::new();
                    let mut is_admitted = fits(&shared);
                    if !is_admitted && active > 0 {
                        shared = in_rows(&requests[&id]);
                        is_admitted = !shared.is_empty() && fits(&shared);
                    }
                    if is_admitted && !shared.is_empty() {
                        self.shared.insert(id, shared);
                    }
                    (!is_admitted).then(|| self.cost.shortage(needed, limit))
                }
            };
            let Some(shortage) = shortage else {
                self.waiting.pop_front();
                of_mut(requests, id).status = Status::Prefilling;
                self.prefilling.push(id);
                continue;
            };
            if std::mem::take(&mut self.spare) > 0 {
                plan.narrow = true;
                continue;
            }
            if active == 0 && self.slots == 0 {
                self.remove(requests, id);
                plan.refuse.push((id, shortage));
            } else {
                // Compacting removes slots without rows before the next plan.
                if self.slots > self.running.len() {
                    plan.compact = Some(self.running.len());
                    return;
                }
                if is_background || !self.preempt_background(requests, plan) {
                    return;
                }
            }
        }
    }

    /// Preempts the youngest row in the background. Returns `false` if there is none.
    fn preempt_background<R: Scheduled>(
        &mut self,
        requests: &mut Table<R>,
        plan: &mut Plan,
    ) -> bool {
        let youngest = self.youngest(requests);
        let Some(id) = youngest.filter(|&id| of(requests, id).is_background) else {
            return false;
        };
        self.preempt(requests, id);
        self.slots = self.running.len();
        plan.compact = Some(self.slots);
        plan.preempt.push(id);
        true
    }

    /// Requests that have a row or get one: those whose rows decode, and those in prefill.
    fn active(&self) -> impl Iterator<Item = Id> + '_ {
        self.running.iter().chain(&self.prefilling).copied()
    }

    /// The bytes of the caches when every admitted request has a row and the next step is computed.
    /// `newcomer` has the positions of one more row, if there is one, and the pages that it shares.
    fn bytes<R: Scheduled>(
        &self,
        requests: &Table<R>,
        slots: usize,
        newcomer: Option<(usize, &[usize])>,
    ) -> usize {
        let active = self.active().map(|id| {
            let shared = self.shared.get(&id).map_or(&[][..], Vec::as_slice);
            (of(requests, id).next_len(), shared)
        });
        let rows = self.running.len() + self.prefilling.len() + usize::from(newcomer.is_some());
        let rest = slots.saturating_sub(rows) * self.cost.row(0);
        let rows = active.chain(newcomer);
        let rows = rows.map(|(len, shared)| self.cost.row_beside(len, shared));
        rows.sum::<usize>() + rest + self.spare
    }

    /// Records the bytes of slots for the states after single tokens, which are in use until a
    /// [plan](Plan::narrow) needs them.
    pub(crate) fn set_spare(&mut self, bytes: usize) {
        self.spare = bytes;
    }

    /// The most bytes that such slots may take now.
    pub(crate) fn spare_room<R: Scheduled>(&self, requests: &Table<R>) -> usize {
        let used = self.bytes(requests, self.slots, None) - self.spare;
        let limit = self.limits.cache_bytes;
        limit.map_or(usize::MAX, |limit| limit.saturating_sub(used))
    }

    /// Bytes of the rows' caches beside their pages in the model's pool.
    pub(crate) fn beside_pool<R: Scheduled>(&self, requests: &Table<R>) -> usize {
        let active = self.active().map(|id| of(requests, id).next_len());
        active.map(|len| self.cost.beside_pool(len)).sum()
    }

    /// Records that the row of `id`, which was in prefill, has joined the batch, which now has `slots` slots.
    pub(crate) fn joined<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id, slots: usize) {
        self.slots = slots;
        if drop_id(&mut self.prefilling, id) {
            let progress = of_mut(requests, id);
            (progress.status, progress.computed) = (Status::Running, progress.prompt);
            self.running.push(id);
        }
    }

    /// Records that the batch now has `slots` slots.
    pub(crate) fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
    }

    /// Whether each row may grow by this many positions more in the next step than without drafts.
    pub(crate) fn has_room<R: Scheduled>(&self, requests: &Table<R>, positions: usize) -> bool {
        let more = self.running.iter().map(|&id| {
            let len = of(requests, id).next_len();
            self.cost.row(len + positions) - self.cost.row(len)
        });
        let bytes = self.bytes(requests, self.slots, None) + more.sum::<usize>();
        self.limits.cache_bytes.is_none_or(|limit| bytes <= limit)
    }

    /// Records that a request has no row any more, if it had one, and starts again. It waits at its
    /// old place in the queue. Its first `prompt` tokens will be computed as a prompt, and the rest
    /// of its `known` tokens replayed.
    pub(crate) fn requeue<R: Scheduled>(
        &mut self,
        requests: &mut Table<R>,
        id: Id,
        prompt: usize,
        known: usize,
    ) {
        let progress = of_mut(requests, id);
        (progress.asked, progress.prompt, progress.known) = (prompt, prompt, known);
        self.wait(requests, id);
        self.shared.clear();
    }

    /// Records that the row of `id` is preempted until its caller has read enough events.
    pub(crate) fn park<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id) {
        if self.unlist(id) {
            of_mut(requests, id).status = Status::Preempted;
            self.parked.push(id);
            self.shared.clear();
        }
    }

    /// Queues a parked request again, of which `known` tokens are known. It comes after requests that arrived meanwhile.
    pub(crate) fn unpark<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id, known: usize) {
        if drop_id(&mut self.parked, id) {
            self.submit(requests, id);
            let progress = of_mut(requests, id);
            (progress.status, progress.known) = (Status::Preempted, known);
        }
    }

    /// Requests whose rows are preempted because their callers do not read events.
    pub(crate) fn parked(&self) -> impl Iterator<Item = Id> + '_ {
        self.parked.iter().copied()
    }

    /// Records that a request has ended.
    pub(crate) fn remove<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id) {
        if self.unlist(id) || drop_id(&mut self.parked, id) {
            of_mut(requests, id).status = Status::Finished;
        }
        // Others may have shared pages with its row, which they now hold alone.
        self.shared.clear();
    }

    /// Records that a step of all rows failed. All rows are preempted, and fewer are computed together from now on. If
    /// the step had only one row, its request is returned, because it is the cause.
    pub(crate) fn step_failed<R: Scheduled>(&mut self, requests: &mut Table<R>) -> Option<Id> {
        let ids = self.running.clone();
        self.rows = (ids.len() / 2).max(1);
        for &id in &ids {
            self.preempt(requests, id);
        }
        match ids[..] {
            [id] => Some(id),
            _ => None,
        }
    }

    /// Records that the prompts of these requests failed together. Each is computed alone from now on. If there was
    /// only one, it is returned, because it is the cause.
    pub(crate) fn prefill_failed<R: Scheduled>(
        &mut self,
        requests: &mut Table<R>,
        ids: &[Id],
    ) -> Option<Id> {
        if let &[id] = ids {
            return Some(id);
        }
        for &id in self.prefilling.iter().filter(|id| ids.contains(id)) {
            let progress = of_mut(requests, id);
            progress.reuse(0, None);
            (progress.prompt, progress.alone) = (progress.asked, true);
        }
        None
    }

    /// Records that a step of all rows together with these prompts failed. Each prompt is computed
    /// alone from now on, so that the cause is found.
    pub(crate) fn mixed_failed<R: Scheduled>(&mut self, requests: &mut Table<R>, ids: &[Id]) {
        for &id in self.prefilling.iter().filter(|id| ids.contains(id)) {
            of_mut(requests, id).alone = true;
        }
        self.step_failed(requests);
    }

    /// Records that a request has ended without an error. One more row may be computed at a time, up to the limits.
    pub(crate) fn recovered(&mut self) {
        self.rows = (self.rows + 1).min(self.limits.rows);
    }

    /// Requests whose rows decode, oldest first.
    pub(crate) fn running(&self) -> impl Iterator<Item = Id> + '_ {
        self.running.iter().copied()
    }

    /// The numbers of requests that wait, are in prefill, and decode.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [
            self.waiting.len(),
            self.prefilling.len(),
            self.running.len(),
        ]
    }

    fn youngest<R: Scheduled>(&self, requests: &Table<R>) -> Option<Id> {
        self.active().max_by_key(|&id| of(requests, id).arrival)
    }

    fn preempt<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id) {
        let progress = of_mut(requests, id);
        progress.known = progress.known.max(progress.computed);
        self.wait(requests, id);
    }

    /// Puts a request that is not parked at its place in the queue.
    fn wait<R: Scheduled>(&mut self, requests: &mut Table<R>, id: Id) {
        if !self.unlist(id) {
            return;
        }
        let progress = of_mut(requests, id);
        progress.restart();
        if progress.status != Status::Waiting {
            progress.status = Status::Preempted;
        }
        self.queue(requests, id);
    }

    /// Takes a request that waits, is in prefill or runs from its list. Returns whether it was there.
    fn unlist(&mut self, id: Id) -> bool {
        self.shared.remove(&id);
        if drop_id(&mut self.running, id) || drop_id(&mut self.prefilling, id) {
            return true;
        }
        let at = self.waiting.iter().position(|&other| other == id);
        at.and_then(|at| self.waiting.remove(at)).is_some()
    }

    /// Requests in prefill whose prompts are computed, in order: those that do not follow another.
    pub(crate) fn leading<'a, R: Scheduled>(
        &'a self,
        requests: &'a Table<R>,
    ) -> impl Iterator<Item = Id> + 'a {
        let is_prefilling = |leader: Id| {
            let leader = requests.get(&leader).map(R::progress);
            leader.is_some_and(|leader| leader.status == Status::Prefilling)
        };
        let is_behind = move |id| of(requests, id).follows.is_some_and(is_prefilling);
        let prefilling = self.prefilling.iter().copied();
        prefilling.filter(move |&id| !is_behind(id))
    }

    /// Requests in prefill whose prompts are computed and have not started.
    pub(crate) fn fresh<'a, R: Scheduled>(
        &'a self,
        requests: &'a Table<R>,
    ) -> impl Iterator<Item = Id> + 'a {
        let leading = self.leading(requests);
        leading.filter(|&id| of(requests, id).computed == 0)
    }

    /// The requests that follow `leader`, in order. Their rows join the batch together with its row.
    pub(crate) fn followers<'a, R: Scheduled>(
        &'a self,
        requests: &'a Table<R>,
        leader: Id,
    ) -> impl Iterator<Item = Id> + 'a {
        let prefilling = self.prefilling.iter().copied();
        prefilling.filter(move |&id| of(requests, id).follows == Some(leader))
    }

    /// Rounds the number of slots up, for devices on which another number of slots costs more than an empty slot does.
    pub(crate) fn rounding(mut self) -> Self {
        self.rounds = true;
        self
    }

    /// The number of slots of a batch of `rows` rows. With [`rounding`](Self::rounding) it is a
    /// power of two up to 8 and then a multiple of 8, as far as the limits on rows and memory
    /// allow.
    pub(crate) fn slots_for<R: Scheduled>(&self, requests: &Table<R>, rows: usize) -> usize {
        if !self.rounds {
            return rows;
        }
        let slots = match rows {
            ..=8 => rows.next_power_of_two(),
            _ => rows.next_multiple_of(8),
        };
        let slots = slots.min(self.limits.rows).max(rows);
        match self.limits.cache_bytes {
            Some(limit) if self.bytes(requests, slots, None) > limit => rows,
            _ => slots,
        }
    }

    /// Lets requests wait for each other, for devices on which a pass with one short prompt takes as
    /// long as one with several. With few rows that decode they wait a few steps, because a pass
    /// costs these rows little.
    pub(crate) fn gathering(mut self) -> Self {
        self.gathers = true;
        self
    }

    /// Whether the requests that could enter should wait for others.
    fn should_gather(&self) -> bool {
        let running = self.running.len();
        let ready = self.rows.saturating_sub(running).min(self.waiting.len());
        let is_early = self.gathered < (running / ROWS_OF_STEP).min(GATHERED_STEPS);
        let is_few = 0 < ready && ready < running / ROWS_OF_GATHERED;
        self.gathers && self.prefilling.is_empty() && is_few && is_early
    }
}

/// Removes an id from a list. Returns whether it was there.
fn drop_id(ids: &mut Vec<Id>, id: Id) -> bool {
    let at = ids.iter().position(|&other| other == id);
    at.map(|at| ids.remove(at)).is_some()
}
