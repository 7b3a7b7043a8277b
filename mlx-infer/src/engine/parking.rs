//! Readers that are behind: their rows pause, and give way where others wait.

use super::worker::Worker;
use crate::scheduler::Id;

impl Worker<'_, '_> {
    /// Whether there is nothing to compute until somebody reads, cancels or asks.
    pub(crate) fn is_stalled(&self) -> bool {
        let paused = |id: &Id| self.tasks.get(id).is_none_or(|task| task.is_paused());
        self.queued.is_none()
            && self.scheduler.counts()[..2] == [0, 0]
            && self.scheduler.running().all(|id| paused(&id))
            && self.parked.iter().all(paused)
    }

    /// Requests whose events were read come back, behind those that came meanwhile.
    pub(super) fn unpark(&mut self) {
        for id in std::mem::take(&mut self.parked) {
            match self.tasks.get(&id) {
                Some(task) if task.is_paused() => drop(self.parked.insert(id)),
                Some(task) => self.scheduler.submit(task.job(id)),
                None => {}
            }
        }
    }

    /// Where somebody waits for a row or for memory, rows that pause are given up. What they have said is
    /// replayed when they come back, so that their tokens do not change.
    pub(super) fn park(&mut self) {
        let [waiting, ..] = self.scheduler.counts();
        let is_paused = |id: &Id| self.tasks[id].is_paused();
        if waiting == 0 || !self.scheduler.running().any(|id| is_paused(&id)) {
            return;
        }
        self.settle();
        let running: Vec<Id> = self.scheduler.running().collect();
        for id in running {
            if self.tasks[&id].is_paused() {
                self.rows.free(id);
                self.scheduler.remove(id);
                self.parked.insert(id);
            }
        }
    }
}
