//! The masks of rows with a grammar.

use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::Worker;
use crate::grammar::Guide;
use crate::scheduler::Id;

impl Worker<'_, '_> {
    /// Chooses the tokens of a step whose rows had to be read before, because some have a grammar.
    pub(super) fn choose(&mut self) {
        self.prepare_masks(&self.rows.undecided());
        if let Err(error) = self.rows.choose(&self.tasks) {
            self.step_failed(error);
        }
    }

    /// Computes the masks of the next tokens of these requests, those of several at once on other threads. Meanwhile the device computes what
    /// was queued.
    pub(super) fn prepare_masks(&mut self, ids: &[Id]) {
        let tasks = self.tasks.iter_mut();
        let due = tasks.filter(|(id, _)| ids.contains(id));
        let mut guides: Vec<&mut Guide> = due
            .filter_map(|(_, task)| task.sequence.guide_mut())
            .collect();
        guides.retain(|guide| !guide.is_prepared());
        let start = Instant::now();
        match &mut guides[..] {
            [] => return,
            [guide] => guide.prepare(),
            guides => guides.par_iter_mut().for_each(|guide| guide.prepare()),
        }
        self.masks.0 += guides.len();
        self.masks.1 += start.elapsed();
    }

    /// Masks that were computed, and how long this thread has computed them or waited for them.
    pub(crate) fn masks(&self) -> (usize, Duration) {
        self.masks
    }
}
