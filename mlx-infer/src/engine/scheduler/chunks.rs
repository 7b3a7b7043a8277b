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
    /// The next chunk of the prompt of `id`, of at most `most` tokens.
    fn next_chunk(&self, id: Id, records: bool, most: usize) -> Chunk {
        let (start, prompt) = (self.computed, self.prompt);
        let cut = self.cut.filter(|&cut| cut > start);
        let end = cut.unwrap_or(prompt).min(start + self.chunk.min(most));
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
    /// The chunks of prompts to compute in the next pass, in order of arrival: as many as fit into
    /// the tokens of a step, at least one. Rows that decode are part of the step. If there are none,
    /// no row waits for the prompts, and the pass is as long as is efficient.
    pub(crate) fn chunks<R: Scheduled>(&self, requests: &Table<R>) -> Vec<Chunk> {
        let leading = self.leading(requests);
        let mut by_order: Vec<(Id, &RequestProgress)> =
            leading.map(|id| (id, of(requests, id))).collect();
        by_order.sort_by_key(|(_, progress)| progress.arrival);
        if let Some((id, progress)) = by_order.first().filter(|(_, progress)| progress.alone) {
            return vec![progress.next_chunk(*id, self.records, usize::MAX)];
        }
        // Prompts that gather have a pass of their own.
        let beside = match self.gathers && self.limits.step_tokens.is_none() {
            true => 0,
            false => self.running.len(),
        };
        let budget = self.limits.prompt_tokens(beside, by_order.len());
        let (mut chunks, mut left) = (Vec::new(), budget);
        for (id, progress) in by_order.into_iter().filter(|(_, progress)| !progress.alone) {
            let chunk = progress.next_chunk(id, self.records, left);
            left -= chunk.end - chunk.start;
            chunks.push(chunk);
            if left == 0 {
                break;
            }
        }
        chunks
    }
}
