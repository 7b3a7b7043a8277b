//! Steps with drafts.

use std::collections::BTreeMap;
use std::time::Instant;

use super::super::rows::{Drafts, Verified};
use super::Worker;
use crate::scheduler::Id;
use crate::speculate::Offer;

impl Worker<'_, '_> {
    /// Takes a step with drafts, if rows have some that should pay. Whether it did.
    pub(super) fn speculate(&mut self) -> bool {
        let due: Vec<Id> = self.scheduler.running().collect();
        let due: Vec<Id> = due.into_iter().filter(|&id| self.is_due(id)).collect();
        if due.is_empty() {
            return false;
        }
        // Drafts follow the last token, so it has to be read. That may end requests.
        self.settle();
        let start = Instant::now();
        let head = self.model.model().drafts();
        let (mut drafts, mut wanted) = (Drafts::new(), BTreeMap::new());
        for id in due {
            let room = self.rows.room(id);
            if let Some(task) = self.tasks.get_mut(&id) {
                let (draft, most) = task.sequence.draft(room, head);
                let most = (0..=most).rev().find(|&most| self.scheduler.has_room(most));
                if !draft.is_empty() {
                    drafts.insert(id, draft);
                } else if let Some(most) = most.filter(|&most| most > 0) {
                    wanted.insert(id, most);
                }
            }
        }
        if !wanted.is_empty() {
            match self.rows.draft(&self.tasks, &wanted) {
                Ok(more) => drafts.extend(more),
                Err(error) => {
                    self.step_failed(error);
                    return true;
                }
            }
        }
        self.shorten(&mut drafts);
        !drafts.is_empty() && self.verify(&drafts, start)
    }

    /// Whether a draft may be made for the row of `id` now. Asked once a step.
    fn is_due(&mut self, id: Id) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else {
            return false;
        };
        let is_plain = task.processor.is_none() && !task.sequence.is_guided();
        let is_free = is_plain && !task.is_paused();
        let drafter = task.sequence.drafter_mut().filter(|_| is_free);
        drafter.is_some_and(|drafter| drafter.is_due())
    }

    /// Cuts drafts to the length that should pay, and takes those out that should not.
    fn shorten(&mut self, drafts: &mut Drafts) {
        let most = self.worth(drafts);
        drafts.retain(|id, draft| {
            let task = self.tasks.get_mut(id);
            let Some(drafter) = task.and_then(|task| task.sequence.drafter_mut()) else {
                return false;
            };
            if !drafter.is_fixed() {
                draft.truncate(most);
                if draft.is_empty() {
                    drafter.declined();
                }
            }
            !draft.is_empty()
        });
        // A step must not take more memory than one without drafts may.
        while let Some(longest) = drafts.values().map(Vec::len).max()
            && !self.scheduler.has_room(longest)
        {
            drafts.retain(|_, draft| {
                draft.truncate(longest - 1);
                !draft.is_empty()
            });
        }
    }

    /// The longest draft that should pay in the step that comes.
    fn worth(&self, drafts: &Drafts) -> usize {
        let offer = |id: Id| {
            let drafter = self.tasks.get(&id)?.sequence.drafter();
            let drafted = drafts.get(&id).map_or(0, Vec::len);
            Some(Offer {
                drafted,
                rate: drafter?.rate(),
            })
        };
        let running = self.scheduler.running();
        let offers: Vec<Offer> = running.map(|id| offer(id).unwrap_or_default()).collect();
        self.costs.best(self.rows.slots(), &offers)
    }

    /// Takes the step with `drafts`, which began at `start`.
    fn verify(&mut self, drafts: &Drafts, start: Instant) -> bool {
        self.prepare_masks(&self.rows.ids());
        let rows = match self.rows.verify(&self.tasks, drafts) {
            Ok(rows) => rows,
            Err(error) => {
                self.step_failed(error);
                return true;
            }
        };
        let width = 1 + drafts.values().map(Vec::len).max().unwrap_or(0);
        self.costs
            .learn(self.rows.slots(), width, start.elapsed().as_secs_f64());
        self.ran(!rows.is_empty());
        for row in rows {
            let drafted = drafts.get(&row.id).map_or(0, Vec::len);
            self.take(row, drafted);
        }
        true
    }

    /// Takes the tokens of one row.
    fn take(&mut self, row: Verified, drafted: usize) {
        let Verified {
            id,
            computed,
            choices,
            on_host,
        } = row;
        self.scheduler.stepped(id, computed);
        if let Some(task) = self.tasks.get_mut(&id)
            && let Some(drafter) = task.sequence.drafter_mut()
            && drafted > 0
        {
            drafter.learn(drafted, computed - 1);
        }
        for choice in choices {
            // An end token or a stop string ends the request before the last of its tokens.
            if self.tasks.contains_key(&id) {
                self.accept_any(id, choice);
            }
        }
        if let Some(logits) = on_host {
            self.choose_on_host(id, &logits);
        }
    }
}
