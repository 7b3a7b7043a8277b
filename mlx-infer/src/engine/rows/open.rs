//! The choice of a step's tokens: at once, or after the tokens of the step before were read.

use mlx_core::{Array, Replay, async_eval};

use super::{Input, Queued, Rows, unused};
use crate::engine::scheduler::Id;
use crate::engine::task::Tasks;
use crate::error::Result;
use crate::sampling::{History, Row, Sampled, sample};

/// A step whose logits are under way and whose tokens are not chosen.
pub(super) struct Open {
    pub(super) logits: Array,
    pub(super) inputs: Vec<Input>,
    pub(super) owners: Vec<Option<Id>>,
    pub(super) on_host: Vec<(Id, Array)>,
}

impl Rows<'_> {
    /// The requests whose next tokens are chosen by [`choose`](Self::choose): those of a step with a grammar among its rows, whose masks follow
    /// from the tokens of the step before.
    pub(crate) fn undecided(&self) -> Vec<Id> {
        let Some(open) = &self.open else {
            return Vec::new();
        };
        let owners = open.owners.iter().zip(&self.slots);
        let stays = owners.filter(|(owner, slot)| owner == slot);
        stays.filter_map(|(&owner, _)| owner).collect()
    }

    /// Chooses the tokens of such a step, after the tokens of the step before were read.
    pub(crate) fn choose(&mut self, tasks: &Tasks<'_>) -> Result<()> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        // Requests may have ended with the tokens that were read.
        for (owner, slot) in open.owners.iter_mut().zip(&self.slots) {
            *owner = owner.filter(|id| *slot == Some(*id));
        }
        self.queued = Some(open.choose(tasks, None, None)?);
        Ok(())
    }
}

impl Open {
    /// Queues the choice of the tokens. `last`: each row's last token, if some were not read. `replay`: for a step that may be repeated, and
    /// the small arrays that it has made.
    pub(super) fn choose(
        self,
        tasks: &Tasks<'_>,
        last: Option<&Array>,
        replay: Option<(&mut Replay, &[Array])>,
    ) -> Result<Queued> {
        let sampled = choose(&self.logits, &self.owners, &self.inputs, tasks, last)?;
        let replay = replay.filter(|_| self.on_host.is_empty());
        let is_replayed = replay.is_some();
        match replay {
            Some((replay, inputs)) => sampled.start_with(replay, inputs)?,
            None => sampled.start()?,
        }
        async_eval(self.on_host.iter().map(|(_, logits)| logits))?;
        Ok(Queued {
            sampled,
            owners: self.owners,
            on_host: self.on_host,
            is_replayed,
        })
    }
}

/// Chooses a token for every row. `last`: each row's last token, if some were not read.
fn choose(
    logits: &Array,
    owners: &[Option<Id>],
    inputs: &[Input],
    tasks: &Tasks,
    last: Option<&Array>,
) -> Result<Sampled> {
    // If the last token of some row is not read, the histories of all rows end before their last token.
    let shortened: Vec<Option<History>> = owners
        .iter()
        .zip(inputs)
        .map(|(&id, input)| match (id, input, last) {
            (Some(id), Input::Known { .. }, Some(_)) => {
                Some(tasks[&id].sequence.history().without_last())
            }
            _ => None,
        })
        .collect();
    let rows: Vec<Row<'_>> = owners
        .iter()
        .zip(&shortened)
        .map(|(id, shortened)| match id {
            Some(id) => {
                let row = tasks[id].sequence.row();
                Row {
                    history: shortened.as_ref().unwrap_or(row.history),
                    ..row
                }
            }
            None => unused(),
        })
        .collect();
    sample(logits, &rows, last)
}
