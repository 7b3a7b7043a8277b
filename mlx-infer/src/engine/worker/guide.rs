//! The masks of rows with a grammar.

use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::Worker;
use crate::engine::scheduler::Id;
use crate::engine::task::Tasks;
use crate::grammar::Guide;

impl Worker<'_, '_> {
    /// Chooses the tokens of a step whose rows had to be read before it, because some have a grammar.
    pub(super) fn choose(&mut self) {
        self.prepare_masks(&self.rows.undecided());
        if let Err(error) = self.rows.choose(&self.tasks) {
            self.step_failed(error);
        }
    }

    /// Computes the masks of the next tokens of these requests, several at once on other threads. The device computes
    /// the queued work meanwhile.
    pub(super) fn prepare_masks(&mut self, ids: &[Id]) {
        let wanted: Vec<(Id, &[u32])> = ids.iter().map(|&id| (id, &[][..])).collect();
        foresee(&mut self.tasks, &wanted, &mut self.masks);
    }

    /// The number of computed masks, and how long this thread has computed them or waited for them.
    pub(crate) fn masks(&self) -> (usize, Duration) {
        self.masks
    }
}

/// Computes the masks of the next tokens of these requests, and the masks after their drafts. `masks` counts them and
/// their time.
pub(super) fn foresee(
    tasks: &mut Tasks<'_>,
    drafts: &[(Id, &[u32])],
    masks: &mut (usize, Duration),
) {
    let draft = |id: Id| drafts.iter().find(|(of, _)| *of == id);
    let mut guides: Vec<(&mut Guide, &[u32])> = (tasks.iter_mut())
        .filter_map(|(&id, task)| Some((draft(id)?.1, task)))
        .filter_map(|(draft, task)| Some((task.sequence.guide_mut()?, draft)))
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
