//! Steps that repeat the step before. They are launched without building their graph.

use super::{Input, Queued, Rows, unused};
use crate::engine::scheduler::Id;
use crate::engine::task::Tasks;
use crate::error::Result;
use crate::sampling::Row;

impl Rows<'_> {
    /// Queues the step that follows `previous`, if it repeats that step: every row has the token of `previous` as its input, or none as
    /// before, and the sampler's settings differ in numbers only. Returns whether it did; if not, nothing has changed.
    pub(super) fn again(
        &mut self,
        tasks: &Tasks<'_>,
        previous: Option<&Queued>,
        inputs: &[Input],
        widths: &[usize],
    ) -> Result<bool> {
        let (Some(previous), Some(replay)) = (previous, &mut self.replay) else {
            return Ok(false);
        };
        let is_known = |input: &Input| matches!(input, Input::Known { .. });
        if !previous.is_replayed || !replay.repeats() || inputs.iter().any(is_known) {
            return Ok(false);
        }
        let slots = inputs.iter().zip(&self.slots);
        let owners: Vec<Option<Id>> = slots
            .map(|(&input, &id)| id.filter(|_| input == Input::Unread))
            .collect();
        let needs_host = |id: &Id| tasks[id].processor.is_some() || tasks[id].sequence.is_guided();
        if owners.iter().flatten().any(needs_host) {
            return Ok(false);
        }
        let row = |id: &Option<Id>| match id {
            Some(id) => tasks[id].sequence.row(),
            None => unused(),
        };
        let rows: Vec<Row<'_>> = owners.iter().map(row).collect();
        let Some(step) = self.cache.begin_again(widths)? else {
            return Ok(false);
        };
        let small = [previous.sampled.ids().clone(), step.offsets().clone()];
        let Some(sampled) = previous.sampled.start_again(&rows, replay, &small)? else {
            return Ok(false);
        };
        step.commit();
        self.queued = Some(Queued {
            sampled,
            owners,
            on_host: Vec::new(),
            is_replayed: true,
        });
        Ok(true)
    }
}
