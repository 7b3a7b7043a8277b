//! Prefixes: caches of token lists that were computed before, kept for prompts that begin with the same tokens.
//!
//! Three kinds are kept: prompts when they are done, rows when their request ends, and what several prompts have in common as soon as that
//! shows. The last is needed because a full ring cannot be cut: the second prompt is then computed in two parts. Recurrent layers cannot be cut
//! either, but have [recorded](ModelCache::record) some lengths of a prompt.

use mlx_core::eval;
use mlx_nn::ModelCache;

use crate::prefix::PrefixStore;
use crate::prompt_cache::PromptState;
use crate::scheduler::TAIL;

/// A shorter prefix costs more to find and copy than to compute.
const MIN_TOKENS: usize = 16;

/// The store, and counters of its use.
pub(super) struct Prefixes {
    store: PrefixStore<PromptState>,
    hits: usize,
    tokens: usize,
}

/// The result of a search for a prompt.
#[derive(Default)]
pub(super) struct Start {
    /// A cache that begins with the prompt's first tokens.
    pub(super) cache: Option<ModelCache>,
    /// How many of them it holds.
    pub(super) len: usize,
    /// How many first tokens the prompt shares with another one, if that prefix is to be kept.
    pub(super) cut: Option<usize>,
}

impl Prefixes {
    /// An empty store of at most so many bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            store: PrefixStore::new(limit),
            hits: 0,
            tokens: 0,
        }
    }

    /// Whether nothing is kept.
    pub(super) fn is_off(&self) -> bool {
        self.store.is_off()
    }

    /// Prompts that began with a kept prefix, their tokens that were not computed, and the bytes that are kept.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.hits, self.tokens, self.store.bytes()]
    }

    /// Drops all prefixes.
    pub(super) fn clear(&mut self) {
        self.store.clear();
    }

    /// Looks for the longest prefix of a prompt.
    pub(super) fn find(&mut self, ids: &[u32], is_beyond: bool) -> Start {
        // The last token is computed in any case: its logits are needed.
        let found = self.store.find(ids, ids.len() - 1, |state, most| {
            let len = state.longest(most, is_beyond);
            if len >= MIN_TOKENS { len } else { 0 }
        });
        let start = found.best.and_then(|(state, len)| {
            // Evaluated, so that another pass that fails before the prompt is computed does not poison it.
            let cache = state.start(len, ids.len()).ok()?;
            eval(cache.arrays()).ok()?;
            Some((cache, len))
        });
        let len = start.as_ref().map_or(0, |&(_, len)| len);
        if len > 0 {
            self.hits += 1;
            self.tokens += len;
        }
        Start {
            cache: start.map(|(cache, _)| cache),
            len,
            cut: (found.common >= len + MIN_TOKENS).then_some(found.common),
        }
    }

    /// Keeps the prefix `ids`, whose cache is row `row` of `cache`, unless it is short or an entry serves it already.
    pub(super) fn keep(&mut self, ids: &[u32], cache: &ModelCache, row: usize, is_beyond: bool) {
        if self.store.is_off() || ids.len() < MIN_TOKENS {
            return;
        }
        // Also for the same prompt again, whose last token is computed in any case; the layers may have recorded it a little before its end.
        let serves = |state: &PromptState, len: usize| {
            let again = state.longest(len - 1, is_beyond);
            state.longest(len, is_beyond) == len && again > 0 && again + TAIL >= len
        };
        if self.store.covers(ids, serves) {
            return;
        }
        match PromptState::copy(cache, row, ids.len(), is_beyond) {
            Ok(state) => {
                let bytes = state.nbytes();
                self.store.insert(ids, state, bytes, serves);
            }
            // There is no memory for a copy. The store is the first to give memory back.
            Err(_) => self.store.clear(),
        }
    }
}
