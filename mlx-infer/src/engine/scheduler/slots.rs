//! The number of slots of a batch.

use super::Scheduler;

impl Scheduler {
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
}
