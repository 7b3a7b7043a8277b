//! The masks of rows with a grammar.

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
        match &mut guides[..] {
            [] => {}
            [guide] => guide.prepare(),
            guides => guides.par_iter_mut().for_each(|guide| guide.prepare()),
        }
    }
}
