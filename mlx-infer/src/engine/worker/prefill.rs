//! Prefill: short prompts are computed together, long ones a chunk at a time. Then their rows join
//! the batch.

use std::collections::HashMap;

use mlx_core::{Array, eval};
use mlx_nn::ModelCache;

use super::super::rows::row_of;
use super::Worker;
use crate::engine::prompt_cache::Embedding;
use crate::engine::scheduler::{Chunk, Id, Status};
use crate::engine::watchdog::Pass;
use crate::error::Result;
use crate::model::forward;
use crate::request::generation::FinishReason;
use crate::sampling::sample;

impl Worker<'_, '_> {
    /// Looks for stored prefixes of the prompts that start next, and for prompts that are already
    /// being computed for another request.
    pub(super) fn reuse(&mut self) {
        self.follow();
        let fresh: Vec<Id> = self.scheduler.fresh(&self.requests).collect();
        for id in fresh {
            let Some(request) = self.requests.get_mut(&id) else {
                continue;
            };
            if let Some(start) = request.given.take() {
                let len = start.lens()[0];
                request.sequence.set_cached(len);
                request.partial = Some(start);
                request.progress.reuse(len, None);
                continue;
            }
            // A preempted row is computed in the same way as the first time, so that it gets the
            // same bits.
            if self.prefixes.is_off() || request.progress.replays() {
                continue;
            }
            let ids = request.prompt();
            let embedding = Embedding::of(self.model, ids.len());
            let found = self.prefixes.find(ids, embedding);
            request.sequence.set_cached(found.len);
            request.partial = found.cache;
            request.progress.reuse(found.len, found.cut);
        }
    }

    /// Makes requests that start next follow another request with the same prompt.
    fn follow(&mut self) {
        let mut leaders: HashMap<(usize, &[u32]), Id> = HashMap::new();
        let mut behind = Vec::new();
        for id in self.scheduler.leading(&self.requests) {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            let leader = *leaders
                .entry((request.sequence.prefill_chunk(), request.prompt()))
                .or_insert(id);
            // A preempted row is computed in the same way as the first time, so that it gets the
            // same bits.
            let is_free = request.given.is_none() && request.partial.is_none();
            let is_free = is_free && !request.progress.replays();
            if leader != id && is_free {
                behind.push((id, leader));
            }
        }
        for (id, leader) in behind {
            if let Some(request) = self.requests.get_mut(&id) {
                request.progress.follow(leader);
            }
        }
    }

    /// Computes chunks of prompts in one forward pass. Rows whose prompts are complete join the batch.
    pub(super) fn prefill(&mut self, chunks: &[Chunk]) {
        // A failed evaluation poisons all arrays that are not evaluated, so those of the rows are evaluated first.
        self.read_queued();
        if let Err(error) = self.rows.finish() {
            self.step_failed(error);
        }
        let due = |chunk: &&Chunk| {
            let request = self.requests.get(&chunk.id);
            request.is_some_and(|request| request.progress.is_due(chunk))
        };
        let chunks: Vec<Chunk> = chunks.iter().filter(due).copied().collect();
        if chunks.is_empty() {
            return;
        }
        for chunk in &chunks {
            if let Some(request) = self.requests.get_mut(&chunk.id) {
                request.sequence.begin();
            }
        }
        self.forwards += 1;
        let tokens = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        let _pass = self.passes.begin(Pass::Prompts(tokens));
        let result = match chunks[..] {
            [chunk] if !chunk.is_last => self.prefill_part(chunk),
            _ => self.prefill_rest(&chunks),
        };
        if let Err(error) = result {
            self.rows.recover();
            self.prefixes.clear();
            let ids: Vec<Id> = chunks.iter().map(|chunk| chunk.id).collect();
            for id in &ids {
                if let Some(request) = self.requests.get_mut(id) {
                    request.partial = None;
                }
            }
            if let Some(id) = self.scheduler.prefill_failed(&mut self.requests, &ids) {
                self.fail(id, error);
            }
        }
    }

    /// Computes a part of a prompt that is not its last.
    fn prefill_part(&mut self, chunk: Chunk) -> Result<()> {
        let mut cache = self.partial_cache(chunk)?;
        let ids = &self.requests[&chunk.id].sequence.history().ids()[chunk.start..chunk.end];
        forward::prefill(self.model.model(), &mut cache, ids)?;
        if chunk.is_recorded {
            cache.record(0)?;
            eval(cache.arrays())?;
        }
        if chunk.is_cut {
            self.keep_prefix(chunk.id, chunk.end, &cache, 0);
        }
        if let Some(request) = self.requests.get_mut(&chunk.id) {
            request.partial = Some(cache);
            request.progress.prefilled(chunk.end);
        }
        Ok(())
    }

    /// Computes the last parts of prompts. Their rows join the batch.
    fn prefill_rest(&mut self, chunks: &[Chunk]) -> Result<()> {
        let mut cache = match *chunks {
            [chunk] => self.partial_cache(chunk)?,
            _ => {
                let mut cache = self.rows.new_cache(chunks.len());
                for (row, &chunk) in chunks.iter().enumerate() {
                    let request = self.requests.get_mut(&chunk.id);
                    if let Some(partial) = request.and_then(|request| request.partial.take()) {
                        cache.put(row, &partial, 0)?;
                    }
                    cache.expect(row, chunk.end);
                }
                cache
            }
        };
        let ids = |chunk: &Chunk| {
            &self.requests[&chunk.id].sequence.history().ids()[chunk.start..chunk.end]
        };
        let rows: Vec<&[u32]> = chunks.iter().map(ids).collect();
        let last = forward::last_hidden(self.model.model(), &mut cache, &rows)?;
        let logits = self.model.logits(&last)?;
        self.enter(chunks, cache, &logits)
    }

    /// The cache of one row with the part of a prompt before `chunk`.
    fn partial_cache(&mut self, chunk: Chunk) -> Result<ModelCache> {
        let request = self.requests.get_mut(&chunk.id);
        if let Some(cache) = request.and_then(|request| request.partial.take()) {
            return Ok(cache);
        }
        let mut cache = self.rows.new_cache(1);
        let base = self
            .requests
            .get(&chunk.id)
            .map_or(chunk.end, |request| request.progress.prompt());
        cache.expect(0, base);
        Ok(cache)
    }

    /// Chooses the first token of each request whose prompt ends with its chunk, and of the requests that follow it,
    /// and puts their rows into the batch. Row i of `cache` and of `logits` belongs to chunk i.
    fn enter(&mut self, chunks: &[Chunk], mut cache: ModelCache, logits: &Array) -> Result<()> {
        let mut entering: Vec<(usize, Id)> = Vec::with_capacity(chunks.len());
        for (row, chunk) in chunks.iter().enumerate() {
            entering.push((row, chunk.id));
            let followers: Vec<Id> = (self.scheduler)
                .followers(&self.requests, chunk.id)
                .collect();
            for id in followers {
                entering.push((row, id));
                if let Some(request) = self.requests.get_mut(&id) {
                    request.sequence.begin();
                    request.sequence.set_cached(request.progress.prompt());
                }
            }
        }
        let ids: Vec<Id> = entering.iter().map(|&(_, id)| id).collect();
        let logits = match entering.len() == chunks.len() {
            true => logits.clone(),
            false => {
                let rows: Vec<i32> = entering.iter().map(|&(row, _)| row as i32).collect();
                logits.take(&Array::from_slice(&rows, &[rows.len() as i32])?, 0)?
            }
        };
        self.prepare_masks(&ids);
        let rows: Vec<_> = ids
            .iter()
            .map(|id| self.requests[id].sequence.row())
            .collect();
        let choices = sample(&logits, &rows, None)?.read_any()?;
        eval(cache.arrays())?;
        let mut kept: Vec<(usize, Vec<u32>)> = Vec::new();
        for (at, (&(row, id), choice)) in entering.iter().zip(choices).enumerate() {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            if !self.prefixes.is_off() {
                kept.push((row, request.prompt().to_vec()));
            }
            let has_processor = request.processor.is_some();
            let is_known = request.progress.replays();
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
        // The prefixes are copied after all first tokens were sent.
        for (row, ids) in kept {
            let embedding = Embedding::of(self.model, ids.len());
            self.prefixes.keep(&ids, &cache, row, embedding);
        }
        if !self.keeps_last {
            // The stored prefixes have these states.
            cache.clear_recorded();
        }
        // A request may have ended with its first token.
        entering.retain(|(_, id)| {
            let request = self.requests.get(id);
            request.is_some_and(|request| request.progress.status() == Status::Prefilling)
        });
        let rows = self.rows.used() + entering.len();
        let slots = self.scheduler.slots_for(&self.requests, rows);
        let joined = self.rows.join(cache, &entering, slots);
        for (_, id) in entering {
            let slots = self.rows.slots();
            self.scheduler.joined(&mut self.requests, id, slots);
        }
        self.place_rows();
        if let Err(error) = joined {
            self.step_failed(error);
        }
        Ok(())
    }

    /// Stores the row of a request that ended without an error as a prefix, because the next turn
    /// of a conversation starts with it.
    pub(super) fn keep_row(&mut self, id: Id, reason: FinishReason) {
        if reason == FinishReason::Cancelled || self.prefixes.is_off() {
            return;
        }
        if let Some(slot) = self.slot(id)
            && let Ok(cache) = self.rows.whole_cache()
            && let Some(request) = self.requests.get(&id)
        {
            let ids = request.sequence.history().ids();
            let len = cache.lens()[slot].min(ids.len());
            let embedding = Embedding::of(self.model, request.progress.prompt());
            if cache.can_shorten(slot, len) {
                self.prefixes.keep(&ids[..len], cache, slot, embedding);
            }
        }
    }

    /// Stores the first `len` tokens of a request, whose cache is row `row` of `cache`, as a prefix
    /// for other requests.
    fn keep_prefix(&mut self, id: Id, len: usize, cache: &ModelCache, row: usize) {
        if let Some(request) = self.requests.get(&id) {
            let ids = &request.sequence.history().ids()[..len];
            let embedding = Embedding::of(self.model, request.progress.prompt());
            self.prefixes.keep(ids, cache, row, embedding);
        }
    }
}
