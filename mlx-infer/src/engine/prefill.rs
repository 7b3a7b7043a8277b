//! Prompts: whole short ones together, long ones a chunk at a time, until their rows enter the batch.

use mlx_core::{Array, eval, memory};
use mlx_nn::ModelCache;

use super::rows::row_of;
use super::worker::Worker;
use crate::error::Result;
use crate::sampler::sample;
use crate::scheduler::{Id, Piece};

impl Worker<'_, '_> {
    /// Computes pieces of prompts in one forward pass, and lets in the rows whose prompts are done.
    pub(super) fn prefill(&mut self, pieces: &[Piece]) {
        // A failed evaluation poisons all arrays that are not known to be good: the rows' must be.
        self.settle();
        if let Err(error) = self.rows.finish() {
            self.step_failed(error);
        }
        let due = |piece: &&Piece| self.scheduler.is_due(piece);
        let pieces: Vec<Piece> = pieces.iter().filter(due).copied().collect();
        if pieces.is_empty() {
            return;
        }
        let ids: Vec<Id> = pieces.iter().map(|piece| piece.id).collect();
        self.forwards += 1;
        let result = match pieces[..] {
            [piece] if !(piece.start == 0 && piece.is_last) => self.prefill_chunk(piece),
            _ => self.prefill_whole(&pieces),
        };
        if let Err(error) = result {
            self.prefixes.clear();
            for id in &ids {
                if let Some(task) = self.tasks.get_mut(id) {
                    task.partial = None;
                }
            }
            if let Some(id) = self.scheduler.prefill_failed(&ids) {
                self.fail(id, error);
            }
        }
    }

    fn prefill_chunk(&mut self, piece: Piece) -> Result<()> {
        let model = self.model.model();
        let task = self.tasks.get_mut(&piece.id).expect("it was checked");
        let mut cache = match task.partial.take() {
            Some(cache) => cache,
            None => {
                let mut cache = ModelCache::new(model.layers(), 1, self.model.cache_options());
                cache.expect(0, task.base);
                cache
            }
        };
        let ids = &task.sequence.history().ids()[piece.start..piece.end];
        let width = ids.len() as i32;
        let tokens = Array::from_slice(ids, &[1, width])?;
        let mut step = cache.begin(&[ids.len()])?;
        let hidden = model.hidden(&tokens, &mut step)?;
        step.commit_all()?;
        if piece.is_last {
            let logits = model.logits(&hidden.slice_axis(1, width - 1, width)?)?;
            return self.enter(&[piece], &cache, logits.squeeze(1)?);
        }
        eval(cache.arrays())?;
        memory::clear_cache()?;
        if piece.is_cut {
            self.keep_prompt(piece.id, piece.end, &cache, 0);
        }
        let task = self.tasks.get_mut(&piece.id).expect("it was checked");
        task.partial = Some(cache);
        self.scheduler.prefilled(piece.id, piece.end);
        Ok(())
    }

    /// Computes what is left of prompts together, padded on the right.
    fn prefill_whole(&mut self, pieces: &[Piece]) -> Result<()> {
        let model = self.model.model();
        let widths: Vec<usize> = pieces.iter().map(|p| p.end - p.start).collect();
        let width = widths.iter().max().copied().unwrap_or(0);
        let mut tokens = Vec::with_capacity(pieces.len() * width);
        let mut cache = ModelCache::new(model.layers(), pieces.len(), self.model.cache_options());
        for (row, piece) in pieces.iter().enumerate() {
            let task = self.tasks.get_mut(&piece.id).expect("it was checked");
            if let Some(partial) = task.partial.take() {
                cache.put(row, &partial, 0)?;
            }
            let ids = &task.sequence.history().ids()[piece.start..piece.end];
            tokens.extend_from_slice(ids);
            tokens.extend(std::iter::repeat_n(0, width - ids.len()));
            cache.expect(row, piece.end);
        }
        let b = pieces.len() as i32;
        let tokens = Array::from_slice(&tokens, &[b, width as i32])?;
        let mut step = cache.begin(&widths)?;
        let hidden = model.hidden(&tokens, &mut step)?;
        step.commit_all()?;
        let last = last_of_each(&hidden, &widths)?;
        let logits = model.logits(&last)?;
        self.enter(pieces, &cache, logits)
    }

    /// Chooses the first token of each request whose prompt ends with its piece, and puts its row into the batch. Row i of `cache` and of
    /// `logits` belongs to piece i.
    fn enter(&mut self, pieces: &[Piece], cache: &ModelCache, logits: Array) -> Result<()> {
        let ids: Vec<Id> = pieces.iter().map(|piece| piece.id).collect();
        let rows: Vec<_> = ids.iter().map(|id| self.tasks[id].sequence.row()).collect();
        let choices = sample(&logits, &rows, None)?.read()?;
        eval(cache.arrays())?;
        for (row, (&id, choice)) in ids.iter().zip(choices).enumerate() {
            let task = &self.tasks[&id];
            self.keep_prompt(id, task.base, cache, row);
            let task = &self.tasks[&id];
            // Where tokens are known already, this one is.
            if task.replay() > 0 {
                continue;
            }
            match task.processor {
                Some(_) => self.choose_on_host(id, &row_of(&logits, row)?),
                None => self.accept(id, choice),
            }
        }
        // A request may have ended with its first token.
        let entering: Vec<(usize, Id)> = (pieces.iter().enumerate())
            .filter(|(_, piece)| self.scheduler.is_due(piece))
            .map(|(row, piece)| (row, piece.id))
            .collect();
        if let Err(error) = self.rows.join(cache, &entering) {
            for &(_, id) in &entering {
                self.scheduler.joined(id, self.rows.slots());
            }
            self.step_failed(error);
            return Ok(());
        }
        for (_, id) in entering {
            self.scheduler.joined(id, self.rows.slots());
        }
        Ok(())
    }
}

/// The last real token of each row of `hidden` `[B, L, E]`: `[B, E]`.
pub(crate) fn last_of_each(hidden: &Array, widths: &[usize]) -> Result<Array> {
    let [b, _, e] = hidden.dims()?;
    let last: Vec<i32> = widths.iter().map(|&width| width as i32 - 1).collect();
    let last = Array::from_slice(&last, &[b, 1, 1])?.broadcast_to(&[b, 1, e])?;
    Ok(hidden.take_along_axis(&last, 1)?.squeeze(1)?)
}
