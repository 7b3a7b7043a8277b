//! Beginnings of texts that were computed before, kept for those that begin the same.
//!
//! Kept are prompts when they are done, rows when they end, and what several prompts have in common once
//! that shows, as a full ring cannot be cut: the second prompt is then computed in two parts.

use mlx_core::eval;
use mlx_nn::ModelCache;

use super::worker::Worker;
use crate::error::Error;
use crate::generate::FinishReason;
use crate::prefix::PrefixStore;
use crate::prompt_cache::{PromptState, is_beyond};
use crate::scheduler::Id;

/// A shorter beginning costs more to find and copy than to compute.
const MIN_TOKENS: usize = 16;

/// The store, and what it was good for.
pub(crate) struct Prefixes {
    store: PrefixStore<PromptState>,
    hits: usize,
    tokens: usize,
}

impl Prefixes {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            store: PrefixStore::new(limit),
            hits: 0,
            tokens: 0,
        }
    }

    /// Prompts that began with what was kept, their tokens that were not computed, and the bytes that are
    /// kept.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [self.hits, self.tokens, self.store.bytes()]
    }

    pub(crate) fn clear(&mut self) {
        self.store.clear();
    }

    /// Keeps the first tokens `ids` of row `row` of `cache`, if they are worth it.
    fn keep(&mut self, ids: &[u32], cache: &ModelCache, row: usize, is_beyond: bool) {
        if self.store.is_off() || ids.len() < MIN_TOKENS {
            return;
        }
        // Also for the same prompt again, whose last token is computed in any case.
        let serves = |state: &PromptState, len: usize| {
            state.serves(len, is_beyond) && state.serves(len - 1, is_beyond)
        };
        if self.store.covers(ids, serves) {
            return;
        }
        match PromptState::copy(cache, row, ids.len(), is_beyond) {
            Ok(state) => {
                let bytes = state.nbytes();
                self.store.insert(ids, state, bytes, serves);
            }
            // No memory for a copy: what is kept is the first that can go.
            Err(_) => self.store.clear(),
        }
    }
}

impl Worker<'_, '_> {
    /// Looks for what was computed before of prompts that are about to begin.
    pub(super) fn reuse(&mut self) {
        if self.prefixes.store.is_off() {
            return;
        }
        let fresh: Vec<Id> = self.scheduler.fresh().collect();
        for id in fresh {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            if task.replay() > 0 {
                // A row that was given up is computed as it was the first time, to the bit.
                continue;
            }
            let (base, is_beyond) = (task.base, is_beyond(self.model, task.base));
            let ids = &task.sequence.history().ids()[..base];
            // The last token is computed in any case: somebody has to tell what follows it.
            let found = self.prefixes.store.find(ids, base - 1, |state, len| {
                len >= MIN_TOKENS && state.serves(len, is_beyond)
            });
            let start = found.best.map(|(state, len)| {
                // Evaluated, so that a step that fails before the prompt is computed does not poison it.
                let cache = state.start(len, base);
                let cache = cache
                    .and_then(|cache| eval(cache.arrays()).map(|()| cache).map_err(Error::from));
                (cache, len)
            });
            let (partial, len) = match start {
                Some((Ok(cache), len)) => (Some(cache), len),
                Some((Err(_), _)) | None => (None, 0),
            };
            let cut = (found.common >= len + MIN_TOKENS).then_some(found.common);
            if partial.is_some() {
                self.prefixes.hits += 1;
                self.prefixes.tokens += len;
            }
            task.sequence.set_cached(len);
            task.partial = partial;
            self.scheduler.reuse(id, len, cut);
        }
    }

    /// Keeps the first `len` tokens of a request, whose cache is row `row` of `cache`.
    pub(super) fn keep_prompt(&mut self, id: Id, len: usize, cache: &ModelCache, row: usize) {
        if let Some(task) = self.tasks.get(&id) {
            let ids = &task.sequence.history().ids()[..len];
            let is_beyond = is_beyond(self.model, task.base);
            self.prefixes.keep(ids, cache, row, is_beyond);
        }
    }

    /// Keeps the row of a request that has ended well, as the next turn of a conversation begins with it.
    pub(super) fn keep_row(&mut self, id: Id, reason: FinishReason) {
        if reason == FinishReason::Cancelled {
            return;
        }
        if let (Some((cache, slot)), Some(task)) = (self.rows.row(id), self.tasks.get(&id)) {
            let ids = task.sequence.history().ids();
            let len = cache.lens()[slot].min(ids.len());
            let is_beyond = is_beyond(self.model, task.base);
            if cache.can_shorten(slot, len) {
                self.prefixes.keep(&ids[..len], cache, slot, is_beyond);
            }
        }
    }
}
