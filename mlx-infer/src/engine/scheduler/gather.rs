//! Requests that wait for free rows, and then begin together.

use super::Scheduler;

/// Requests wait until one in this number of rows is free.
const ROWS: usize = 8;
/// The most steps for which they wait.
pub(super) const STEPS: usize = 16;

impl Scheduler {
    /// Lets requests wait until several rows are free, for devices on which one short prompt takes as long as several.
    pub(crate) fn gathering(mut self) -> Self {
        self.gathers = true;
        self
    }

    /// Whether the requests that wait should wait for more free rows.
    pub(super) fn should_gather(&self) -> bool {
        let free = self
            .rows
            .saturating_sub(self.running.len() + self.prefilling.len());
        let enough = (self.rows / ROWS).min(self.waiting.len());
        let is_early = self.gathered < STEPS && !self.running.is_empty();
        self.gathers && 0 < free && free < enough && is_early
    }
}
