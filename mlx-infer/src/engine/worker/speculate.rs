//! Steps with drafts.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::super::rows::Verified;
use super::Worker;
use super::foresee;
use crate::engine::scheduler::Id;
use crate::engine::speculate::drafters::{Drafter, Drafts, Lookup};
use crate::engine::speculate::{DraftOrigin, Offer, Speculation};
use crate::error::{Error, ErrorKind, Result};
use crate::request::speculative::MOST;

impl Worker<'_, '_> {
    /// Runs a step with drafts, if some drafts are expected to pay. Returns whether it did.
    pub(super) fn speculate(&mut self) -> bool {
        let due: Vec<Id> = self.scheduler.running().collect();
        let due: Vec<Id> = due.into_iter().filter(|&id| self.is_due(id)).collect();
        // Drafts are compared with plain steps, whose times are measured while steps are queued
        // ahead.
        if due.is_empty()
            || !(self.experience.costs.knows_plain(self.rows.slots()) || self.any_fixed(&due))
        {
            return false;
        }
        // Drafts follow the last token, so it has to be read. That may end requests.
        self.read_queued();
        let start = self.step_end.take();
        let drafts = catch_unwind(AssertUnwindSafe(|| self.draft(&due, start)));
        // If drafting panics, the rows start again, fewer at a time, as after a step that fails.
        let panicked = |_| {
            let message = "the engine has panicked while it drafted for this request";
            Err(Error::new(ErrorKind::Compute, message))
        };
        match drafts.unwrap_or_else(panicked) {
            Ok((drafts, _)) if drafts.is_empty() => false,
            Ok((drafts, start)) => {
                self.verify(&drafts, start);
                true
            }
            Err(error) => {
                self.step_failed(error);
                true
            }
        }
    }

    /// Whether a draft may be made for the row of `id` now. To be called once in each step.
    fn is_due(&mut self, id: Id) -> bool {
        let request = self.requests.get_mut(&id);
        let request =
            request.filter(|request| !request.is_paused() && request.sequence.takes_drafts());
        let row = request.and_then(|request| request.sequence.speculation_mut());
        row.is_some_and(|row| row.is_due())
    }

    /// Whether one of these rows brings drafts of a given length whatever they cost.
    fn any_fixed(&self, due: &[Id]) -> bool {
        due.iter().any(|id| {
            let row = self.requests.get(id);
            row.and_then(|request| request.sequence.speculation())
                .is_some_and(Speculation::is_fixed)
        })
    }

    /// The drafts of the rows `due` that are expected to pay, and the start time of the step with
    /// them: `step_end`, the end of the previous step, or the time when the drafter was ready.
    fn draft(&mut self, due: &[Id], step_end: Option<Instant>) -> Result<(Drafts, Instant)> {
        let start = Instant::now();
        // A step with drafts may not take more memory than one without drafts may.
        let fits = |&most: &usize| self.scheduler.has_room(&self.requests, most);
        let most = (0..=MOST).rev().find(fits).unwrap_or(0);
        let mut rooms = BTreeMap::new();
        for id in due {
            if let Some(request) = self.requests.get(id) {
                // A step yields one token besides the draft.
                let room = request.sequence.remaining().saturating_sub(1);
                let longest = request.progress.slot.map_or(0, |slot| self.rows.room(slot));
                rooms.insert(*id, room.min(longest).min(most));
            }
        }
        let mut drafts = Drafts::default();
        Lookup.draft(&mut self.rows, &mut self.requests, &rooms, &mut drafts)?;
        let offers: Vec<(Id, Offer)> = (self.scheduler.running())
            .map(|id| (id, self.offer(id, rooms.get(&id), &drafts)))
            .collect();
        let rows: Vec<Offer> = offers.iter().map(|&(_, offer)| offer).collect();
        let lens = self.experience.costs.plan(self.rows.slots(), &rows);
        let mut wanted = BTreeMap::new();
        for ((id, offer), len) in offers.into_iter().zip(lens) {
            let row = self.requests.get_mut(&id);
            let row = row.and_then(|request| request.sequence.speculation_mut());
            if let Some(row) = row.filter(|_| rooms.contains_key(&id)) {
                match (offer.most, len) {
                    (0, _) => row.found_none(),
                    (_, 0) => row.declined(),
                    _ => {}
                }
            }
            drafts.shorten(id, len);
            if offer.origin == DraftOrigin::Model && len > 0 {
                wanted.insert(id, len);
            }
        }
        let Some(drafter) = self.drafter.as_mut().filter(|_| !wanted.is_empty()) else {
            return Ok((drafts, step_end.unwrap_or(start)));
        };
        let asked: Vec<Id> = wanted.keys().copied().collect();
        drafter.prepare(&mut self.rows, &self.requests, &mut wanted)?;
        for id in asked.iter().filter(|id| !wanted.contains_key(id)) {
            let request = self.requests.get_mut(id);
            if let Some(row) = request.and_then(|request| request.sequence.speculation_mut()) {
                row.found_none();
            }
        }
        let start = step_end.unwrap_or_else(Instant::now);
        if !wanted.is_empty() {
            let guided: Vec<(Id, &[u32])> = wanted.keys().map(|&id| (id, &[][..])).collect();
            foresee(&mut self.requests, &guided, &mut self.masks);
            drafter.draft(&mut self.rows, &mut self.requests, &wanted, &mut drafts)?;
        }
        Ok((drafts, start))
    }

    /// Tells the drafter which rows have left or moved.
    pub(super) fn follow_rows(&mut self) -> Result<()> {
        match &mut self.drafter {
            Some(drafter) => drafter.follow(&self.rows, &self.requests),
            None => Ok(()),
        }
    }

    /// The draft that a row may bring to the step, at most `room` tokens.
    fn offer(&self, id: Id, room: Option<&usize>, drafts: &Drafts) -> Offer {
        let row = self.requests.get(&id);
        let row = row.and_then(|request| request.sequence.speculation());
        match (row, room) {
            (Some(row), Some(&room)) => {
                let found = drafts.known(id).map_or(0, <[u32]>::len);
                row.offer(found, room, self.drafter.is_some())
            }
            _ => Offer::default(),
        }
    }

    /// Runs the step with `drafts`, which began at `start`.
    fn verify(&mut self, drafts: &Drafts, start: Instant) {
        let spare_room = self.scheduler.spare_room(&self.requests);
        let masks = &mut self.masks;
        let rows = self.rows.verify(
            &mut self.requests,
            drafts,
            spare_room,
            &mut |requests, drafts| {
                foresee(requests, drafts, masks);
            },
        );
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                self.step_failed(error);
                return;
            }
        };
        let width = 1 + rows.iter().map(|row| row.drafted).max().unwrap_or(0);
        let origin = match drafts.tokens() {
            None => DraftOrigin::Text,
            Some(_) => DraftOrigin::Model,
        };
        let slots = self.rows.slots();
        self.ran(!rows.is_empty());
        for row in rows {
            let is_drawn = drafts.drawn(row.id) > 0;
            self.take(row, is_drawn);
        }
        self.measured(start, slots, width, origin);
    }

    /// Sends the tokens of one row. `is_drawn`: its draft was computed, not found in its text.
    fn take(&mut self, row: Verified, is_drawn: bool) {
        let Verified {
            id,
            drafted,
            computed,
            choices,
        } = row;
        let mut request = self.requests.get_mut(&id);
        if let Some(request) = &mut request {
            request.progress.stepped(computed);
        }
        if let Some(row) = request.and_then(|request| request.sequence.speculation_mut())
            && drafted > 0
        {
            let origin = if is_drawn {
                DraftOrigin::Model
            } else {
                DraftOrigin::Text
            };
            row.learn(origin, drafted, computed - 1);
            if is_drawn {
                self.experience.usual.learn(drafted, computed - 1);
            }
            if is_drawn && let Some(rate) = self.experience.alarm.learn(computed > 1) {
                tracing::warn!(
                    "only {:.0} % of the first drafted tokens are right: the head or the draft model does not fit the model, or is \
                     read in another way than it was trained",
                    100.0 * rate
                );
            }
        }
        if !choices.is_empty() {
            self.stepped(id);
        }
        for choice in choices {
            // An end token or a stop string may end the request before the last of these tokens.
            if !self.requests.contains_key(&id) {
                return;
            }
            match choice {
                Ok(choice) => self.accept_any(id, choice),
                Err(error) => self.accept(id, Err(error)),
            }
        }
    }
}
