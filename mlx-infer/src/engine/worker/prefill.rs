//! Prefill: short prompts together, long ones a chunk at a time, until their rows join the batch.

use std::collections::HashMap;

use mlx_core::{Array, eval};
use mlx_nn::ModelCache;

use super::super::rows::row_of;
use super::Worker;
use crate::engine::prompt_cache::Embedding;
use crate::engine::scheduler::{Id, Piece};
use crate::engine::watchdog::Pass;
use crate::error::Result;
use crate::model::forward;
use crate::request::generation::FinishReason;
use crate::sampling::sample;

impl Worker<'_, '_> {
    /// Looks for kept prefixes of the prompts that start next, and for prompts that are already computed for another
    /// request.
    pub(super) fn reuse(&mut self) {
        self.follow();
        let fresh: Vec<Id> = self.scheduler.fresh().collect();
        for id in fresh {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            if let Some(start) = task.given.take() {
                let len = start.lens()[0];
                task.sequence.set_cached(len);
                task.partial = Some(start);
                self.scheduler.reuse(id, len, None);
                continue;
            }
            // A row that was preempted is computed as it was the first time, with the same bits.
            if self.prefixes.is_off() || task.replay() > 0 {
                continue;
            }
            let ids = &task.sequence.history().ids()[..task.base];
            let found = self
                .prefixes
                .find(ids, Embedding::of(self.model, task.base));
            task.sequence.set_cached(found.len);
            task.partial = found.cache;
            self.scheduler.reuse(id, found.len, found.cut);
        }
    }

    /// Lets requests that start next follow another request with the same prompt.
    fn follow(&mut self) {
        let mut leaders: HashMap<(usize, &[u32]), Id> = HashMap::new();
        let mut behind = Vec::new();
        for id in self.scheduler.leading() {
            let Some(task) = self.tasks.get(&id) else {
                continue;
            };
            let prompt = &task.sequence.history().ids()[..task.base];
            let leader = *leaders
                .entry((task.sequence.prefill_chunk(), prompt))
                .or_insert(id);
            // A row that was preempted is computed as it was the first time, with the same bits.
            let is_free = task.given.is_none() && task.partial.is_none() && task.replay() == 0;
            if leader != id && is_free {
                behind.push((id, leader));
            }
        }
        for (id, leader) in behind {
            self.scheduler.follow(id, leader);
        }
    }

    /// Computes pieces of prompts in one forward pass. Rows whose prompts are complete join the batch.
    pub(super) fn prefill(&mut self, pieces: &[Piece]) {
        // A failed evaluation poisons all arrays that are not evaluated, so those of the rows are evaluated first.
        self.read_queued();
        if let Err(error) = self.rows.finish() {
            self.step_failed(error);
        }
        let due = |piece: &&Piece| self.scheduler.is_due(piece);
        let pieces: Vec<Piece> = pieces.iter().filter(due).copied().collect();
        if pieces.is_empty() {
            return;
        }
        for piece in &pieces {
            if let Some(task) = self.tasks.get_mut(&piece.id) {
                task.sequence.begin();
            }
        }
        self.forwards += 1;
        let tokens = pieces.iter().map(|piece| piece.end - piece.start).sum();
        let _pass = self.passes.begin(Pass::Prompts, tokens);
        let result = match pieces[..] {
            [piece] if !piece.is_last => self.prefill_part(piece),
            _ => self.prefill_rest(&pieces),
        };
        if let Err(error) = result {
            self.prefixes.clear();
            let ids: Vec<Id> = pieces.iter().map(|piece| piece.id).collect();
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

    /// Computes a part of a prompt that is not its last.
    fn prefill_part(&mut self, piece: Piece) -> Result<()> {
        let mut cache = self.begun(piece)?;
        let ids = &self.tasks[&piece.id].sequence.history().ids()[piece.start..piece.end];
        forward::prefill(self.model.model(), &mut cache, ids)?;
        if piece.is_recorded {
            cache.record(0)?;
            eval(cache.arrays())?;
        }
        if piece.is_cut {
            self.keep_prefix(piece.id, piece.end, &cache, 0);
        }
        if let Some(task) = self.tasks.get_mut(&piece.id) {
            task.partial = Some(cache);
        }
        self.scheduler.prefilled(piece.id, piece.end);
        Ok(())
    }

    /// Computes the last parts of prompts, padded on the right. Their rows join the batch.
    fn prefill_rest(&mut self, pieces: &[Piece]) -> Result<()> {
        let mut cache = match *pieces {
            [piece] => self.begun(piece)?,
            _ => {
                let mut cache = self.model.new_cache(pieces.len());
                for (row, &piece) in pieces.iter().enumerate() {
                    let task = self.tasks.get_mut(&piece.id);
                    if let Some(partial) = task.and_then(|task| task.partial.take()) {
                        cache.put(row, &partial, 0)?;
                    }
                    cache.expect(row, piece.end);
                }
                cache
            }
        };
        let ids =
            |piece: &Piece| &self.tasks[&piece.id].sequence.history().ids()[piece.start..piece.end];
        let rows: Vec<&[u32]> = pieces.iter().map(ids).collect();
        let last = forward::last_hidden(self.model.model(), &mut cache, &rows)?;
        let logits = self.model.logits(&last)?;
        self.enter(pieces, cache, &logits)
    }

    /// The cache of one row with the part of a prompt before `piece`.
    fn begun(&mut self, piece: Piece) -> Result<ModelCache> {
        let task = self.tasks.get_mut(&piece.id);
        if let Some(cache) = task.and_then(|task| task.partial.take()) {
            return Ok(cache);
        }
        let mut cache = self.model.new_cache(1);
        let base = self
            .tasks
            .get(&piece.id)
            .map_or(piece.end, |task| task.base);
        cache.expect(0, base);
        Ok(cache)
    }

    /// Chooses the first token of each request whose prompt ends with its piece, and of the requests that follow it,
    /// and puts their rows into the batch. Row i of `cache` and of `logits` belongs to piece i.
    fn enter(&mut self, pieces: &[Piece], mut cache: ModelCache, logits: &Array) -> Result<()> {
        let mut entering: Vec<(usize, Id)> = Vec::with_capacity(pieces.len());
        for (row, piece) in pieces.iter().enumerate() {
            entering.push((row, piece.id));
            for id in self.scheduler.followers(piece.id) {
                entering.push((row, id));
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.sequence.begin();
                    task.sequence.set_cached(task.base);
                }
            }
        }
        let ids: Vec<Id> = entering.iter().map(|&(_, id)| id).collect();
        let logits = match entering.len() == pieces.len() {
            true => logits.clone(),
            false => {
                let rows: Vec<i32> = entering.iter().map(|&(row, _)| row as i32).collect();
                logits.take(&Array::from_slice(&rows, &[rows.len() as i32])?, 0)?
            }
        };
        self.prepare_masks(&ids);
        let rows: Vec<_> = ids.iter().map(|id| self.tasks[id].sequence.row()).collect();
        let choices = sample(&logits, &rows, None)?.read_any()?;
        eval(cache.arrays())?;
        let mut kept: Vec<(usize, Vec<u32>)> = Vec::new();
        for (at, (&(row, id), choice)) in entering.iter().zip(choices).enumerate() {
            let Some(task) = self.tasks.get(&id) else {
                continue;
            };
            if !self.prefixes.is_off() {
                kept.push((row, task.sequence.history().ids()[..task.base].to_vec()));
            }
            let has_processor = task.processor.is_some();
            let is_known = task.replay() > 0;
            match has_processor {
                // Tokens that are known are replayed.
                _ if is_known => {}
                true => {
                    self.stepped(id);
                    self.choose_on_host(id, &row_of(&logits, at)?);
                }
                false => {
                    self.stepped(id);
                    self.accept_any(id, choice);
                }
            }
        }
        // Copied when all first tokens are sent.
        for (row, ids) in kept {
            let embedding = Embedding::of(self.model, ids.len());
            self.prefixes.keep(&ids, &cache, row, embedding);
        }
        if !self.keeps_last {
            // The kept prefixes hold these states.
            cache.clear_recorded();
        }
        // A request may have ended with its first token.
        entering.retain(|&(_, id)| self.scheduler.is_prefilling(id));
        let slots = self.scheduler.slots_for(self.rows.used() + entering.len());
        let joined = self.rows.join(cache, &entering, slots);
        for (_, id) in entering {
            self.scheduler.joined(id, self.rows.slots());
        }
        if let Err(error) = joined {
            self.step_failed(error);
        }
        Ok(())
    }

    /// Keeps the row of a request that ended without an error as a prefix, because the next turn of a conversation
    /// starts with it.
    pub(super) fn keep_row(&mut self, id: Id, reason: FinishReason) {
        if reason == FinishReason::Cancelled || self.prefixes.is_off() {
            return;
        }
        if let (Some((cache, slot)), Some(task)) = (self.rows.row(id), self.tasks.get(&id)) {
            let ids = task.sequence.history().ids();
            let len = cache.lens()[slot].min(ids.len());
            let embedding = Embedding::of(self.model, task.base);
            if cache.can_shorten(slot, len) {
                self.prefixes.keep(&ids[..len], cache, slot, embedding);
            }
        }
    }

    /// Keeps the first `len` tokens of a request, whose cache is row `row` of `cache`, as a prefix for others.
    fn keep_prefix(&mut self, id: Id, len: usize, cache: &ModelCache, row: usize) {
        if let Some(task) = self.tasks.get(&id) {
            let ids = &task.sequence.history().ids()[..len];
            let embedding = Embedding::of(self.model, task.base);
            self.prefixes.keep(ids, cache, row, embedding);
        }
    }
}
