//! The parts of prompts that are computed next.

use super::entry::Entry;
use super::{Piece, Scheduler};

/// A prompt of more than one chunk is recorded this many tokens before its end. The next turn of a
/// conversation may write the last tokens differently (some templates omit the mark that opens an
/// answer); computing them again costs about one step.
pub(crate) const TAIL: usize = 16;
/// A longer prompt is also recorded at up to this many places, at least `CHUNKS` chunks apart: a
/// recurrent state takes as much memory as the keys and values of some thousand tokens.
const PLACES: usize = 4;
const CHUNKS: usize = 8;

/// The end of the part of a prompt that starts at `start` and would end at `end`, and whether recurrent layers record
/// it.
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

impl Entry {
    /// Whether the rest of the prompt is computed in one piece, together with other prompts.
    fn is_short(&self, records: bool) -> bool {
        let cut = self.cut.is_some_and(|cut| cut > self.done);
        let prompt = self.job.prompt;
        let records = records && prompt > self.job.chunk && self.done < prompt.saturating_sub(TAIL);
        prompt - self.reused <= self.job.chunk && !self.alone && !cut && !records
    }

    /// The next piece of a prompt that is not [short](Self::is_short).
    fn next_piece(&self, records: bool) -> Piece {
        let (start, prompt) = (self.done, self.job.prompt);
        let cut = self.cut.filter(|&cut| cut > start);
        let end = cut.unwrap_or(prompt).min(start + self.job.chunk);
        let (end, is_recorded) = match records {
            true => next_end(prompt, self.job.chunk, start, end),
            false => (end, false),
        };
        let is_cut = cut == Some(end);
        Piece {
            id: self.job.id,
            start,
            end,
            is_cut,
            is_recorded: is_recorded || (records && is_cut),
            is_last: end == prompt,
        }
    }
}

impl Scheduler {
    /// The pieces of prompts to compute before the next step. Each inner list is one forward pass.
    pub(crate) fn pieces(&self) -> Vec<Vec<Piece>> {
        let mut groups = Vec::new();
        let is_short = |entry: &&Entry| entry.is_short(self.records);
        let computed = self
            .prefilling
            .iter()
            .filter(|entry| !self.is_behind(entry));
        let mut by_order: Vec<&Entry> = computed.collect();
        by_order.sort_by_key(|entry| entry.order);
        if let Some(entry) = by_order.iter().find(|entry| !is_short(entry)) {
            groups.push(vec![entry.next_piece(self.records)]);
        }
        let (mut group, mut width) = (Vec::new(), 0);
        for entry in by_order.into_iter().filter(is_short) {
            let wider = width.max(entry.job.prompt - entry.done);
            if !group.is_empty() && wider * (group.len() + 1) > self.limits.prefill_tokens {
                break;
            }
            width = wider;
            group.push(Piece {
                id: entry.job.id,
                start: entry.done,
                end: entry.job.prompt,
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
