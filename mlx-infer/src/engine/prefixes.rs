//! Prefixes: caches of token lists that were computed before, stored for prompts with the same
//! first tokens.
//!
//! Three kinds are stored: prompts when they are computed, rows when their request ends, and the
//! common prefix of several prompts as soon as it is found. The last kind is needed because a full
//! ring cannot be shortened, so the second prompt is computed in two parts. Recurrent layers cannot
//! be shortened either, except to lengths that they have [recorded](ModelCache::record).

use mlx_core::eval;
use mlx_nn::ModelCache;

use crate::engine::prefix_cache::PrefixStore;
use crate::engine::prompt_cache::{Embedding, PromptState};
use crate::engine::scheduler::TAIL;

/// Finding and copying a shorter prefix costs more than computing it.
const MIN_TOKENS: usize = 16;

/// The store, and counters of its use.
pub(super) struct Prefixes {
    store: PrefixStore<PromptState>,
    hits: usize,
    tokens: usize,
}

/// The result of a search for a prefix of a prompt.
#[derive(Default)]
pub(super) struct FoundPrefix {
    /// A cache with the layer states of the prompt's first tokens.
    pub(super) cache: Option<ModelCache>,
    /// The number of those tokens.
    pub(super) len: usize,
    /// The number of first tokens that the prompt shares with another one, if that prefix should be
    /// stored.
    pub(super) cut: Option<usize>,
}

impl Prefixes {
    /// An empty store of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            store: PrefixStore::new(limit),
            hits: 0,
            tokens: 0,
        }
    }

    /// Whether no prefixes are stored.
    pub(super) fn is_off(&self) -> bool {
        self.store.is_off()
    }

    /// The number of prompts that started with a stored prefix, the number of their tokens that
    /// were not computed, and the bytes of stored prefixes.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.hits, self.tokens, self.store.bytes()]
    }

    /// Drops all prefixes.
    pub(super) fn clear(&mut self) {
        self.store.clear();
    }

    /// Looks for the longest prefix of a prompt.
    pub(super) fn find(&mut self, ids: &[u32], embedding: Embedding) -> FoundPrefix {
        // The last token is always computed, because its logits are needed.
        let found = self.store.find(ids, ids.len() - 1, |state, most| {
            let len = state.longest(most, embedding);
            if len >= MIN_TOKENS { len } else { 0 }
        });
        let start = found.best.and_then(|(state, len)| {
            // Evaluated now, so that another pass that fails before the prompt is computed does not poison it.
            let cache = state.start(len, ids.len()).ok()?;
            eval(cache.arrays()).ok()?;
            Some((cache, len))
        });
        let len = start.as_ref().map_or(0, |&(_, len)| len);
        if len > 0 {
            self.hits += 1;
            self.tokens += len;
        }
        FoundPrefix {
            cache: start.map(|(cache, _)| cache),
            len,
            cut: (found.common >= len + MIN_TOKENS).then_some(found.common),
        }
    }

    /// Stores the prefix `ids`, whose cache is row `row` of `cache`, unless it is short or an entry
    /// already serves it.
    pub(super) fn keep(
        &mut self,
        ids: &[u32],
        cache: &ModelCache,
        row: usize,
        embedding: Embedding,
    ) {
        if self.store.is_off() || ids.len() < MIN_TOKENS || embedding == Embedding::Own {
            return;
        }
        // Serving includes the same prompt again. Its last token is always computed, and the layers
        // may have recorded it a few tokens before its end.
        let serves = |state: &PromptState, len: usize| {
            let again = state.longest(len - 1, embedding);
            state.longest(len, embedding) == len && again > 0 && again + TAIL >= len
        };
        if self.store.covers(ids, serves) {
            return;
        }
        match PromptState::share(cache, row, ids.len(), embedding) {
            Ok(state) => {
                let bytes = state.nbytes();
                self.store.insert(ids, state, bytes, serves);
            }
            // There is no memory for a copy. Of all uses of memory, the store is the first to be
            // cleared.
            Err(_) => self.store.clear(),
        }
    }
}
