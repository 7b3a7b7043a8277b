//! Prefill: chunks of prompts are computed together, without padding. Rows whose prompts are complete
//! join the batch.

use std::collections::HashMap;

use mlx_core::{Array, async_eval, eval};
use mlx_nn::ModelCache;
use mlx_nn::lora::{RowAdapter, TokenAdapters};

use super::super::prefixes::PrefixKind;
use super::super::rows::{PromptChunks, row_of};
use super::Worker;
use crate::engine::prompt_cache::Embedding;
use crate::engine::scheduler::{Chunk, Id, Status};
use crate::engine::sequence::Sequence;
use crate::engine::watchdog::Pass;
use crate::error::Result;
use crate::model::LoadedModel;
use crate::model::adapters::{AdapterKey, HeldAdapter};
use crate::model::forward;
use crate::request::generation::FinishReason;
use crate::request::sampling::Choice;
use crate::sampling::{Sampled, sample};

/// A pass over chunks of prompts that is queued.
pub(super) struct Prefill {
    cache: ModelCache,
    first: Option<FirstTokens>,
}

/// The first tokens of requests, whose choice is queued.
struct FirstTokens {
    /// [`Worker::entering`]
    entering: Vec<(usize, Id)>,
    /// `[entering, V]`
    logits: Array,
    sampled: Sampled,
}

/// The number of tokens of chunks.
fn tokens_of_all(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.end - chunk.start).sum()
}

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
            if self.prefixes.is_off() {
                continue;
            }
            let (ids, asked) = (request.prompt(), request.progress.asked());
            let kind = prefix_kind(self.model, asked, &request.sequence);
            // The pages that a preempted row has left behind, as far as they were not evicted. What is
            // missing is computed in the same way as the first time, so that it gets the same bits.
            if request.progress.resumes() {
                let known = request.sequence.history().ids();
                if let Some((cache, len)) = self.prefixes.find_preempted(known, asked, kind) {
                    request.partial = Some(cache);
                    request.progress.resume(len);
                }
                continue;
            }
            let found = self.prefixes.find(ids, kind);
            request.sequence.set_cached(found.len);
            request.partial = found.cache;
            request.progress.reuse(found.len, found.cut);
        }
    }

    /// Makes requests that start next follow another request with the same prompt.
    fn follow(&mut self) {
        let mut leaders: HashMap<(usize, Option<AdapterKey>, &[u32]), Id> = HashMap::new();
        let mut behind = Vec::new();
        for id in self.scheduler.leading(&self.requests) {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            // A preempted row has tokens after its prompt, which its row may already have.
            if request.progress.resumes() {
                continue;
            }
            let leader = *leaders
                .entry((
                    request.sequence.prefill_chunk(),
                    request.sequence.adapter().map(HeldAdapter::key),
                    request.prompt(),
                ))
                .or_insert(id);
            let is_free = request.given.is_none() && request.partial.is_none();
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
        if chunks.is_empty() {
            return;
        }
        let chunks = self.due(chunks);
        if chunks.is_empty() {
            return;
        }
        self.forwards += 1;
        let _pass = self.passes.begin(Pass::Prompts(tokens_of_all(&chunks)));
        let started = self.start_prefill(&chunks);
        self.end_prefill(&chunks, started);
    }

    /// Queues a step of the rows that decode, and chunks of prompts behind it. While the device
    /// computes the step, the host builds the graph of the prompts.
    pub(super) fn prefill_behind_step(&mut self, chunks: &[Chunk]) {
        self.decode();
        // A step that has failed has taken the prompts with it.
        let chunks = self.begin_due(chunks);
        if chunks.is_empty() {
            return;
        }
        self.forwards += 1;
        let _pass = self.passes.begin(Pass::Prompts(tokens_of_all(&chunks)));
        let started = self.start_prefill(&chunks);
        self.read_queued();
        if chunks.iter().all(|chunk| self.is_next(chunk)) {
            self.end_prefill(&chunks, started);
        }
    }

    /// Ends a pass over chunks: their rows join the batch, or all of them start again.
    fn end_prefill(&mut self, chunks: &[Chunk], started: Result<Prefill>) {
        let ended = started.and_then(|prefill| self.finish_prefill(chunks, prefill));
        let Err(error) = ended else { return };
        self.prefixes.clear();
        let ids: Vec<Id> = chunks.iter().map(|chunk| chunk.id).collect();
        for id in &ids {
            if let Some(request) = self.requests.get_mut(id) {
                request.partial = None;
            }
        }
        let to_blame = self.scheduler.prefill_failed(&mut self.requests, &ids);
        self.recover();
        if let Some(id) = to_blame {
            self.fail(id, error);
        }
    }

    /// Those of the chunks that are still the next ones of their prompts, when the step in progress
    /// is read. Their requests begin.
    pub(super) fn due(&mut self, chunks: &[Chunk]) -> Vec<Chunk> {
        self.read_queued();
        if let Err(error) = self.rows.finish() {
            self.step_failed(error);
        }
        self.begin_due(chunks)
    }

    /// Whether a chunk is the next one of its prompt.
    fn is_next(&self, chunk: &Chunk) -> bool {
        let request = self.requests.get(&chunk.id);
        request.is_some_and(|request| request.progress.is_due(chunk))
    }

    /// Those of the chunks that are the next ones of their prompts. Their requests begin.
    fn begin_due(&mut self, chunks: &[Chunk]) -> Vec<Chunk> {
        let due = chunks.iter().filter(|chunk| self.is_next(chunk));
        let chunks: Vec<Chunk> = due.copied().collect();
        for chunk in &chunks {
            if let Some(request) = self.requests.get_mut(&chunk.id) {
                request.sequence.begin();
            }
        }
        chunks
    }

    /// Queues a pass over chunks, and the choice of the first tokens of prompts that end with it.
    fn start_prefill(&mut self, chunks: &[Chunk]) -> Result<Prefill> {
        let mut cache = self.cache_of(chunks)?;
        let rows: Vec<&[u32]> = chunks.iter().map(|chunk| self.tokens_of(chunk)).collect();
        let adapters: Vec<_> = chunks
            .iter()
            .map(|chunk| self.adapter_of(chunk.id))
            .collect();
        let hidden = forward::last_hidden_with(self.model.model(), &mut cache, &rows, &adapters)?;
        let first = self.start_first_tokens(chunks, &adapters, &hidden)?;
        async_eval(cache.arrays())?;
        Ok(Prefill { cache, first })
    }

    /// Queues the choice of the first token of each prompt that ends with its chunk, and of the
    /// requests that follow it. `adapters` and `hidden` are those of each chunk, with the features of
    /// its last token. `None` if no prompt ends.
    fn start_first_tokens(
        &mut self,
        chunks: &[Chunk],
        adapters: &[Option<RowAdapter>],
        hidden: &Array,
    ) -> Result<Option<FirstTokens>> {
        let take = |features: &Array, rows: Vec<i32>| -> Result<Array> {
            let is_all = rows.iter().copied().eq(0..features.dim(0)?);
            Ok(match is_all {
                true => features.clone(),
                false => features.take(&Array::from_slice(&rows, &[rows.len() as i32])?, 0)?,
            })
        };
        let rows = (0..chunks.len()).filter(|&row| chunks[row].is_last);
        let rows: Vec<usize> = rows.collect();
        if rows.is_empty() {
            return Ok(None);
        }
        let last = take(hidden, rows.iter().map(|&row| row as i32).collect())?;
        let of_ends: Vec<_> = rows.iter().map(|&row| adapters[row]).collect();
        let logits = match of_ends.iter().any(Option::is_some) {
            true => TokenAdapters::of(&of_ends)?.scope(|| self.model.logits(&last))?,
            false => self.model.logits(&last)?,
        };
        let ends: Vec<Chunk> = rows.into_iter().map(|row| chunks[row]).collect();
        let entering = self.entering(&ends);
        // Requests with the same prompt have the same logits.
        let logits = take(
            &logits,
            entering.iter().map(|&(row, _)| row as i32).collect(),
        )?;
        let ids: Vec<Id> = entering.iter().map(|&(_, id)| id).collect();
        self.prepare_masks(&ids);
        let settings: Vec<_> = ids
            .iter()
            .map(|id| self.requests[id].sequence.row())
            .collect();
        let sampled = sample(&logits, &settings, None)?;
        sampled.start()?;
        Ok(Some(FirstTokens {
            entering,
            logits,
            sampled,
        }))
    }

    /// Waits for a pass over chunks. Rows whose prompts are complete join the batch.
    fn finish_prefill(&mut self, chunks: &[Chunk], prefill: Prefill) -> Result<()> {
        let Prefill { cache, first } = prefill;
        let first = match first {
            None => None,
            Some(first) => Some((first.sampled.read_any()?, first)),
        };
        eval(cache.arrays())?;
        if !chunks.iter().all(|chunk| chunk.is_last) {
            forward::free_buffers()?;
        }
        let Some((_, cache)) = self.keep_parts(chunks, cache)? else {
            return Ok(());
        };
        match first {
            None => Ok(()),
            Some((choices, first)) => self.entered(first.entering, cache, choices, &first.logits),
        }
    }

    /// A cache with the parts of prompts before these chunks.
    pub(super) fn cache_of(&mut self, chunks: &[Chunk]) -> Result<ModelCache> {
        if let [chunk] = *chunks {
            return self.partial_cache(chunk);
        }
        let mut cache = self.rows.new_cache(0);
        for &chunk in chunks {
            cache.join(&self.partial_cache(chunk)?)?;
        }
        Ok(cache)
    }

    /// The adapter of a request.
    fn adapter_of(&self, id: Id) -> Option<RowAdapter> {
        self.requests.get(&id)?.sequence.row_adapter()
    }

    /// The tokens of a chunk.
    pub(super) fn tokens_of(&self, chunk: &Chunk) -> &[u32] {
        &self.requests[&chunk.id].sequence.history().ids()[chunk.start..chunk.end]
    }

    /// After a pass over chunks, keeps the caches of prompts that are not complete. Returns the
    /// numbers of the others and their cache, if there are some.
    pub(super) fn keep_parts(
        &mut self,
        chunks: &[Chunk],
        mut cache: ModelCache,
    ) -> Result<Option<(Vec<usize>, ModelCache)>> {
        let is_last = |&row: &usize| chunks[row].is_last;
        let (ends, parts): (Vec<usize>, Vec<usize>) = (0..chunks.len()).partition(is_last);
        for &row in &parts {
            let mut own = cache.clone();
            own.select(&[row])?;
            self.prefilled(chunks[row], own)?;
        }
        if !parts.is_empty() && !ends.is_empty() {
            cache.select(&ends)?;
        }
        Ok((!ends.is_empty()).then_some((ends, cache)))
    }

    /// Keeps the cache of a prompt of which a part is computed that is not its last.
    fn prefilled(&mut self, chunk: Chunk, mut cache: ModelCache) -> Result<()> {
        if chunk.is_recorded {
            cache.record(0)?;
        }
        // A recurrent state of a row is a copy, which a later pass must not compute.
        eval(cache.arrays())?;
        if chunk.is_cut {
            self.keep_prefix(chunk.id, chunk.end, &cache, 0);
        }
        if let Some(request) = self.requests.get_mut(&chunk.id) {
            request.partial = Some(cache);
            request.progress.prefilled(chunk.end);
        }
        Ok(())
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

    /// The requests that get a row when these last chunks of prompts are computed, each with the
    /// number of its chunk: those of the chunks, and those that follow them.
    pub(super) fn entering(&mut self, chunks: &[Chunk]) -> Vec<(usize, Id)> {
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
        entering
    }

    /// Gives each entering request its first token, and puts the rows into the batch. `logits` has a
    /// row for each of them.
    pub(super) fn entered(
        &mut self,
        mut entering: Vec<(usize, Id)>,
        mut cache: ModelCache,
        choices: Vec<Option<Choice>>,
        logits: &Array,
    ) -> Result<()> {
        let mut kept: Vec<(usize, Vec<u32>, PrefixKind)> = Vec::new();
        for (at, (&(row, id), choice)) in entering.iter().zip(choices).enumerate() {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            // A row that comes back with tokens after its prompt has left them there.
            if !self.prefixes.is_off() && request.progress.prompt() == request.progress.asked() {
                let ids = request.prompt().to_vec();
                let kind = prefix_kind(self.model, request.progress.asked(), &request.sequence);
                kept.push((row, ids, kind));
            }
            let has_processor = request.processor.is_some();
            let is_known = request.progress.replays();
            match has_processor {
                // Tokens that are known are replayed.
                _ if is_known => {}
                true => {
                    self.stepped(id);
                    self.choose_on_host(id, &row_of(logits, at)?);
                }
                false => {
                    self.stepped(id);
                    self.accept_any(id, choice);
                }
            }
        }
        // The prefixes are copied after all first tokens were sent.
        for (row, ids, kind) in kept {
            self.prefixes.keep(&ids, &cache, row, kind);
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
        for &(_, id) in &entering {
            if let Some(adapter) = self.adapter_of(id) {
                self.rows.set_adapter(id, adapter);
            }
        }
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
            let kind = prefix_kind(self.model, request.progress.asked(), &request.sequence);
            if cache.can_shorten(slot, len) {
                self.prefixes.keep(&ids[..len], cache, slot, kind);
            }
        }
    }

    /// Stores what the row of a request has computed before it is preempted, so that less is computed
    /// again when it comes back.
    pub(super) fn keep_preempted(&mut self, id: Id) {
        if self.prefixes.is_off() {
            return;
        }
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let kind = prefix_kind(self.model, request.progress.asked(), &request.sequence);
        let ids = request.sequence.history().ids();
        let (cache, row) = match (request.progress.slot, &request.partial) {
            (Some(slot), _) => match self.rows.whole_cache() {
                Ok(cache) => (cache, slot),
                // The next step of the rows reports it.
                Err(_) => return,
            },
            (None, Some(cache)) => (cache, 0),
            (None, None) => return,
        };
        let len = cache.lens()[row].min(ids.len());
        if cache.can_shorten(row, len) {
            self.prefixes.keep_preempted(&ids[..len], cache, row, kind);
        }
    }

    /// Stores the first `len` tokens of a request, whose cache is row `row` of `cache`, as a prefix
    /// for other requests.
    fn keep_prefix(&mut self, id: Id, len: usize, cache: &ModelCache, row: usize) {
        if let Some(request) = self.requests.get(&id) {
            let ids = &request.sequence.history().ids()[..len];
            let kind = prefix_kind(self.model, request.progress.asked(), &request.sequence);
            self.prefixes.keep(ids, cache, row, kind);
        }
    }
}

/// What the layer states of a row depend on, besides its tokens, if `tokens` of them are its prompt.
pub(super) fn prefix_kind(model: &LoadedModel, tokens: usize, sequence: &Sequence) -> PrefixKind {
    PrefixKind {
        embedding: Embedding::of(model, tokens),
        adapter: sequence.adapter().map(HeldAdapter::key),
    }
}

/// Steps in which rows decode and prompts are computed.
impl Worker<'_, '_> {
    /// Whether chunks of prompts and a step of the rows that decode are one pass: not on CUDA. Rows that
    /// draft have steps of their own, and a prompt that has failed beside others is computed alone.
    pub(super) fn mixes(&self, chunks: &[Chunk]) -> bool {
        let mut running = self.scheduler.running();
        self.has_one_pass && self.is_plain(chunks) && !running.any(|id| self.is_at_switch(id))
    }

    /// Whether chunks of prompts are queued behind a step of the rows that decode: on CUDA. Rows that
    /// draft are read before their next step.
    pub(super) fn overlaps(&self, chunks: &[Chunk]) -> bool {
        !self.has_one_pass && self.is_plain(chunks)
    }

    /// Whether there are chunks and rows that decode, no row drafts, and no prompt has failed beside
    /// others.
    fn is_plain(&self, chunks: &[Chunk]) -> bool {
        let is_alone = |chunk: &Chunk| {
            let request = self.requests.get(&chunk.id);
            request.is_none_or(|request| request.progress.is_alone())
        };
        let drafts = |id: Id| {
            let request = self.requests.get(&id);
            request.is_some_and(|request| request.sequence.speculation().is_some())
        };
        let mut running = self.scheduler.running().peekable();
        !chunks.is_empty()
            && running.peek().is_some()
            && self.drafter.is_none()
            && !chunks.iter().any(is_alone)
            && !running.any(drafts)
    }

    /// Computes chunks of prompts and a step of the rows that decode in one pass.
    pub(super) fn step_with(&mut self, chunks: &[Chunk]) {
        let chunks = self.due(chunks);
        let running: Vec<Id> = self.scheduler.running().collect();
        if chunks.is_empty() || running.iter().any(|&id| self.is_at_switch(id)) {
            // Requests have ended with the step that was read, or a row has come to the length at
            // which its rope changes.
            self.prefill(&chunks);
            self.decode();
            return;
        }
        self.forwards += 1;
        let tokens: usize = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        let _pass = self.passes.begin(Pass::Prompts(tokens + running.len()));
        if let Err(error) = self.compute_with(&chunks) {
            tracing::debug!("a step with prompts has failed: {error}");
            self.prefixes.clear();
            let ids: Vec<Id> = chunks.iter().map(|chunk| chunk.id).collect();
            self.scheduler.mixed_failed(&mut self.requests, &ids);
            self.recover();
        }
    }

    fn compute_with(&mut self, chunks: &[Chunk]) -> Result<()> {
        let prompts = self.cache_of(chunks)?;
        let parts = chunks.iter().map(|chunk| self.tokens_of(chunk).to_vec());
        let parts: Vec<Vec<u32>> = parts.collect();
        let parts: Vec<&[u32]> = parts.iter().map(Vec::as_slice).collect();
        let is_last: Vec<bool> = chunks.iter().map(|chunk| chunk.is_last).collect();
        let adapters: Vec<_> = chunks
            .iter()
            .map(|chunk| self.adapter_of(chunk.id))
            .collect();
        let chunks_of = PromptChunks {
            cache: prompts,
            tokens: &parts,
            is_last: &is_last,
            adapters: &adapters,
        };
        let computed = self.rows.step_beside(&self.requests, chunks_of)?;
        for id in &computed.ids {
            if let Some(request) = self.requests.get_mut(id) {
                request.progress.stepped(1);
            }
        }
        let ends: Vec<Chunk> = chunks
            .iter()
            .filter(|chunk| chunk.is_last)
            .copied()
            .collect();
        let entering = self.entering(&ends);
        let mut ids = computed.chosen.clone();
        ids.extend(entering.iter().map(|&(_, id)| id));
        let decoding = computed.chosen.len();
        let (mut choices, mut logits) = (Vec::new(), None);
        if let Some(all) = &computed.logits {
            // Requests with the same prompt have the same logits.
            let of_entering = entering.iter().map(|&(row, _)| (decoding + row) as i32);
            let rows: Vec<i32> = (0..decoding as i32).chain(of_entering).collect();
            let all = match entering.len() == ends.len() {
                true => all.clone(),
                false => all.take(&Array::from_slice(&rows, &[rows.len() as i32])?, 0)?,
            };
            self.prepare_masks(&ids);
            let settings: Vec<_> = ids
                .iter()
                .map(|id| self.requests[id].sequence.row())
                .collect();
            choices = sample(&all, &settings, None)?.read_any()?;
            logits = Some(all);
        }
        eval(self.rows.row_arrays())?;
        eval(computed.prompts.arrays())?;
        let first = choices.split_off(decoding.min(choices.len()));
        for (at, (id, choice)) in computed.chosen.into_iter().zip(choices).enumerate() {
            self.stepped(id);
            let has_processor = self
                .requests
                .get(&id)
                .is_some_and(|request| request.processor.is_some());
            match &logits {
                Some(logits) if has_processor => {
                    self.choose_on_host(id, &row_of(logits, at)?);
                }
                _ => self.accept_any(id, choice),
            }
        }
        let Some((_, cache)) = self.keep_parts(chunks, computed.prompts)? else {
            return Ok(());
        };
        let Some(logits) = logits else { return Ok(()) };
        let n = entering.len() as i32;
        let own = logits.slice_axis(0, decoding as i32, decoding as i32 + n)?;
        self.entered(entering, cache, first, &own)
    }
}
