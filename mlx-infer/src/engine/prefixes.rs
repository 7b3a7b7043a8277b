//! Prefixes: caches of token lists that were computed before, stored for prompts with the same
//! first tokens.
//!
//! Three kinds are stored: prompts when they are computed, rows when their request ends, and the
//! common prefix of several prompts as soon as it is found. The last kind is needed because a row
//! whose windows have passed pages cannot be shortened far, so the second prompt is computed in two
//! parts. Recurrent layers cannot be shortened either, except to lengths that they have
//! [recorded](ModelCache::record).

use std::borrow::Cow;

use mlx_core::eval;
use mlx_nn::{LayerKind, ModelCache};

use crate::engine::prefix_cache::PrefixStore;
use crate::engine::prompt_cache::{Embedding, PromptState};
use crate::engine::scheduler::TAIL;
use crate::model::adapters::AdapterKey;

/// Finding and copying a shorter prefix costs more than computing it.
pub(super) const MIN_TOKENS: usize = 16;

/// The store, and counters of its use.
pub(super) struct Prefixes {
    store: PrefixStore<PromptState>,
    hits: usize,
    tokens: usize,
    /// The prefixes that were stored since the last question for them, if they are asked for.
    announced: Option<Vec<Announced>>,
}

/// A prefix that was stored, or one that was to be stored and is there already.
pub(super) struct Announced {
    pub(super) ids: Vec<u32>,
    pub(super) embedding: Embedding,
    /// Its states, if it is new.
    pub(super) state: Option<PromptState>,
}

/// Everything of a row on which its layer states depend, besides its tokens.
#[derive(Clone, Copy)]
pub(super) struct PrefixKind {
    pub(super) embedding: Embedding,
    /// The row's adapter. Its key stands before the tokens in the store.
    pub(super) adapter: Option<AdapterKey>,
}

impl PrefixKind {
    /// The numbers under which a prefix is stored.
    fn stored<'i>(&self, ids: &'i [u32]) -> Cow<'i, [u32]> {
        match &self.adapter {
            Some(key) => [&key[..], ids].concat().into(),
            None => ids.into(),
        }
    }

    /// How many of these numbers are no tokens.
    fn before(&self) -> usize {
        self.adapter.map_or(0, |key| key.len())
    }
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
            announced: None,
        }
    }

    /// Keeps a list of the prefixes that are stored from now on.
    pub(super) fn announce(&mut self) {
        self.announced = Some(Vec::new());
    }

    /// The prefixes that were stored or used since the last call.
    pub(super) fn announced(&mut self) -> Vec<Announced> {
        self.announced
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// The number of first tokens of a prompt that a stored prefix has.
    pub(super) fn longest(&mut self, ids: &[u32], embedding: Embedding) -> usize {
        let usable = |state: &PromptState, most| state.longest(most, embedding);
        let most = ids.len().saturating_sub(1);
        let best = self.store.find(ids, most, usable).best;
        best.map_or(0, |(_, len)| len)
    }

    /// Stores a prefix that was computed before.
    pub(super) fn put(&mut self, ids: &[u32], state: PromptState) {
        let (bytes, embedding) = (state.nbytes(), state.embedding());
        self.store.insert(ids, state, bytes, serves(embedding, 0));
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
    pub(super) fn find(&mut self, ids: &[u32], kind: PrefixKind) -> FoundPrefix {
        let (embedding, before) = (kind.embedding, kind.before());
        let stored = kind.stored(ids);
        // The last token is always computed, because its logits are needed.
        let found = self.store.find(&stored, stored.len() - 1, |state, most| {
            let len = state.longest(most.saturating_sub(before), embedding);
            if len >= MIN_TOKENS { before + len } else { 0 }
        });
        let common = found.common.saturating_sub(before);
        let start = found.best.and_then(|(state, len)| {
            let len = len - before;
            // Evaluated now, so that another pass that fails before the prompt is computed does not poison it.
            let cache = state.start(len, ids.len()).ok()?;
            eval(cache.arrays()).ok()?;
            Some((cache, len, len < state.cache().lens()[0]))
        });
        let len = start.as_ref().map_or(0, |&(_, len, _)| len);
        if let Some((cache, _, true)) = &start {
            self.tell_shortened(&ids[..len], kind, cache);
        }
        if len > 0 {
            self.hits += 1;
            self.tokens += len;
        }
        FoundPrefix {
            cache: start.map(|(cache, ..)| cache),
            len,
            cut: (common >= len + MIN_TOKENS).then_some(common),
        }
    }

    /// Stores the prefix `ids`, whose cache is row `row` of `cache`, unless it is short or an entry
    /// already serves it.
    pub(super) fn keep(&mut self, ids: &[u32], cache: &ModelCache, row: usize, kind: PrefixKind) {
        let embedding = kind.embedding;
        if self.store.is_off() || ids.len() < MIN_TOKENS || embedding == Embedding::Own {
            return;
        }
        let (stored, serves) = (kind.stored(ids), serves(embedding, kind.before()));
        if self.store.covers(&stored, &serves) {
            self.tell(ids, kind, None);
            return;
        }
        match PromptState::share(cache, row, ids.len(), embedding) {
            Ok(state) => {
                let bytes = state.nbytes();
                self.tell(ids, kind, Some(&state));
                self.store.insert(&stored, state, bytes, serves);
            }
            // There is no memory for a copy. Of all uses of memory, the store is the first to be
            // cleared.
            Err(_) => self.store.clear(),
        }
    }

    /// Announces a stored prefix that was shortened to `ids`, whose states are in `cache`, if it has
    /// windows: pages can be shortened, and a file of the longer prefix cannot.
    fn tell_shortened(&mut self, ids: &[u32], kind: PrefixKind, cache: &ModelCache) {
        let is_window = |kind: &LayerKind| matches!(kind, LayerKind::Window(_));
        if self.announced.is_some()
            && cache.kinds().iter().any(is_window)
            && let Ok(state) = PromptState::share(cache, 0, ids.len(), kind.embedding)
        {
            self.tell(ids, kind, Some(&state));
        }
    }

    /// Adds a prefix to the list of those that are announced. Prefixes of adapters are in memory only.
    fn tell(&mut self, ids: &[u32], kind: PrefixKind, state: Option<&PromptState>) {
        if let (Some(announced), None) = (&mut self.announced, kind.adapter) {
            announced.push(Announced {
                ids: ids.to_vec(),
                embedding: kind.embedding,
                state: state.cloned(),
            });
        }
    }
}

/// Whether a state serves a prefix of this length, of which the first `before` numbers are no
/// tokens. That includes the same prompt again: its last token is always computed, and the layers
/// may have recorded it a few tokens before its end.
fn serves(embedding: Embedding, before: usize) -> impl Fn(&PromptState, usize) -> bool {
    move |state, len| {
        let Some(len @ 1..) = len.checked_sub(before) else {
            return false;
        };
        let again = state.longest(len - 1, embedding);
        state.longest(len, embedding) == len && again > 0 && again + TAIL >= len
    }
}
