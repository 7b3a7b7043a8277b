//! The chunks of prompts that are computed next.

use super::progress::{RequestProgress, Scheduled, Table, of};
use super::{Chunk, Id, Scheduler};

/// A prompt of more than one chunk is recorded this many tokens before its end. The next turn of a
/// conversation may write the last tokens differently (some templates omit the mark that opens an
/// answer); computing them again costs about one step.
pub(crate) const TAIL: usize = 16;
/// A longer prompt is also recorded at up to this many places, at least `CHUNKS` chunks apart: a
/// recurrent state takes as much memory as the keys and values of some thousand tokens.
const PLACES: usize = 4;
const CHUNKS: usize = 8;

/// The end of the chunk that starts at `start` and would end at `end`, and whether recurrent layers
/// record it.
///
/// A recurrent layer cannot be rolled back further, so other prompts can continue only from
/// recorded lengths.
pub(crate) fn next_end(prompt: usize, chunk: usize, start: usize, end: usize) -> (usize, bool) {
    if prompt <= chunk {
        return (end, false);
    }
    let tail = prompt.saturating_sub(TAIL);
    let end = if start < tail { end.min(tail) } else { end };
    let part = prompt.div_ceil(PLACES).max(chunk.saturating_mul(CHUNKS));
    let is_recorded = end == tail || (end < tail && start / part != end / part);
    (end, is_recorded)
}

impl RequestProgress {
    /// Whether the rest of the prompt is computed in one chunk, together with other prompts.
    fn is_short(&self, records: bool) -> bool {
        let cut = self.cut.is_some_and(|cut| cut > self.computed);
        let prompt = self.prompt;
        let records = records && prompt > self.chunk && self.computed < prompt.saturating_sub(TAIL);
        prompt - self.reused <= self.chunk && !self.alone && !cut && !records
    }

    /// The next chunk of the prompt of `id`, which is not [short](Self::is_short).
    fn next_chunk(&self, id: Id, records: bool) -> Chunk {
        let (start, prompt) = (self.computed, self.prompt);
        let cut = self.cut.filter(|&cut| cut > start);
        let end = cut.unwrap_or(prompt).min(start + self.chunk);
        let (end, is_recorded) = match records {
            true => next_end(prompt, self.chunk, start, end),
            false => (end, false),
        };
        let is_cut = cut == Some(end);
        Chunk {
            id,
            start,
            end,
            is_cut,
            is_recorded: is_recorded || (records && is_cut),
            is_last: end == prompt,
        }
    }
}

impl Scheduler {
    /// The chunks of prompts to compute before the next step. Each inner list is one forward pass.
    pub(crate) fn chunks<R: Scheduled>(&self, requests: &Table<R>) -> Vec<Vec<Chunk>> {
        let mut groups = Vec::new();
        let is_short = |(_, progress): &(Id, &RequestProgress)| progress.is_short(self.records);
        let leading = self.leading(requests);
        let mut by_order: Vec<(Id, &RequestProgress)> =
            leading.map(|id| (id, of(requests, id))).collect();
        by_order.sort_by_key(|(_, progress)| progress.arrival);
        if let Some((id, long)) = by_order.iter().find(|found| !is_short(found)) {
            groups.push(vec![long.next_chunk(*id, self.records)]);
        }
        let (mut group, mut width) = (Vec::new(), 0);
        for (id, progress) in by_order.into_iter().filter(is_short) {
            let wider = width.max(progress.prompt - progress.computed);
            if !group.is_empty() && wider * (group.len() + 1) > self.limits.prefill_tokens {
                break;
            }
            width = wider;
            group.push(Chunk {
                id,
                start: progress.computed,
                end: progress.prompt,
                is_cut: false,
                is_recorded: false,
                is_last: true,
            });
        }
        if !group.is_empty() {
            groups.push(group);
        }
        groups
    }
}
