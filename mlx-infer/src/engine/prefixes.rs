//! Prefixes: pages and recurrent states of token lists that were computed before, for prompts with the
//! same first tokens.
//!
//! Three kinds are stored: prompts when they are computed, rows when their request ends, and the common
//! prefix of several prompts as soon as it is found. The last kind is needed because a row whose windows
//! have passed pages cannot be shortened far, so the second prompt is computed in two parts. Recurrent
//! layers cannot be shortened either, except to lengths that they have [recorded](ModelCache::record).
//!
//! Pages that rows hold cost nothing here. The limit is one on the pages that
//! only prefixes hold, and on recurrent states.

use mlx_core::eval;
use mlx_nn::{ModelCache, PAGE, PrefixPage, PrefixStates, WholePages};

use crate::engine::prefix_tree::{FoundPath, NodePage, NodeStates, PrefixTree, Root};
use crate::engine::prompt_cache::{Embedding, PromptState};
use crate::engine::scheduler::TAIL;
use crate::error::Result;
use crate::model::adapters::AdapterKey;

/// Finding and copying a shorter prefix costs more than computing it.
pub(super) const MIN_TOKENS: usize = 16;

impl NodePage for PrefixPage {
    fn covers(&self, other: &Self) -> bool {
        self.covers(other)
    }

    fn adopt(&mut self, other: Self) {
        self.adopt(other);
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }
}

impl NodeStates for PrefixStates {
    fn nbytes(&self) -> usize {
        self.nbytes()
    }
}

/// The store, and counters of its use.
pub(super) struct Prefixes {
    /// The most bytes of pages that no row holds and of recurrent states.
    limit: usize,
    tree: PrefixTree<PrefixPage, PrefixStates>,
    /// A cache without rows in the pool of the rows.
    pool: ModelCache,
    counts: PrefixCounts,
    /// The prefixes that were stored since the last question for them, if they are asked for.
    announced: Option<Vec<Announced>>,
}

/// Counters of stored prefixes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefixCounts {
    /// Prompts that started with a stored prefix.
    pub(crate) hits: usize,
    /// Their tokens that were not computed.
    pub(crate) tokens: usize,
    /// Bytes of pages that only prefixes hold, and of recurrent states.
    pub(crate) bytes: usize,
    /// Pages of tokens that were evicted.
    pub(crate) evicted: usize,
    /// Tokens of preempted rows that were not computed again.
    pub(crate) resumed: usize,
}

/// A prefix that was stored, or one that was to be stored and is there already.
pub(super) struct Announced {
    pub(super) ids: Vec<u32>,
    pub(super) embedding: Embedding,
    /// Its states, if it is new.
    pub(super) state: Option<PromptState>,
}

/// What became of a prefix that was to be stored.
enum Hold {
    New,
    /// All of it was stored before.
    Stored,
    /// It is too short or too large, or prefixes are not stored.
    Nothing,
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

/// Everything of a row on which its layer states depend, besides its tokens.
#[derive(Clone, Copy)]
pub(super) struct PrefixKind {
    pub(super) embedding: Embedding,
    pub(super) adapter: Option<AdapterKey>,
}

impl PrefixKind {
    /// The root of such prefixes; none for an embedding that no other text has.
    fn root(self) -> Option<Root> {
        let is_long = match self.embedding {
            Embedding::Short => false,
            Embedding::Long => true,
            Embedding::Own => return None,
        };
        let adapter = self.adapter;
        Some(Root { is_long, adapter })
    }
}

impl Prefixes {
    /// An empty store of at most `limit` bytes, for rows of caches beside `pool`.
    pub(super) fn new(limit: usize, pool: ModelCache) -> Self {
        Self {
            limit,
            tree: PrefixTree::new(PAGE),
            pool,
            counts: PrefixCounts::default(),
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

    /// Whether no prefixes are stored.
    pub(super) fn is_off(&self) -> bool {
        self.limit == 0
    }

    /// Counters.
    pub(super) fn counts(&self) -> PrefixCounts {
        PrefixCounts {
            bytes: self.bytes(),
            ..self.counts
        }
    }

    fn bytes(&self) -> usize {
        let pages = self.pool.page_use().into_iter();
        let pages = pages.map(|group| group.by_prefixes * group.page_bytes);
        pages.sum::<usize>() + self.tree.state_bytes()
    }

    /// Drops all prefixes.
    pub(super) fn clear(&mut self) {
        self.tree.clear();
    }

    /// Drops the least recently used pages until the store is within its limit.
    pub(super) fn trim(&mut self) {
        self.trim_to(self.limit);
    }

    fn trim_to(&mut self, bytes: usize) {
        while self.bytes() > bytes && self.tree.evict() {
            self.counts.evicted += 1;
        }
    }

    fn search(&self, tree: Root, ids: &[u32]) -> FoundPath {
        let usable = |pages: &[&PrefixPage], len| self.pool.serve_prefix(pages, len);
        let needs_states = self.pool.is_recurrent();
        self.tree.find(tree, ids, needs_states, usable)
    }

    /// The number of first tokens of a prompt that a stored prefix has.
    pub(super) fn longest(&self, ids: &[u32], kind: PrefixKind) -> usize {
        let most = ids.len().saturating_sub(1);
        let tree = kind.root();
        tree.map_or(0, |tree| self.search(tree, &ids[..most]).len)
    }

    /// For each group of layers, how many pages of a prompt's stored prefix are among those of rows. A
    /// layer writes the last `rewritten` positions of the prefix again.
    pub(super) fn in_rows(
        &self,
        ids: &[u32],
        kind: PrefixKind,
        rewritten: usize,
        rows: &WholePages,
    ) -> Vec<usize> {
        let Some(tree) = kind.root() else {
            return Vec::new();
        };
        let found = self.search(tree, &ids[..ids.len().saturating_sub(1)]);
        if found.len < MIN_TOKENS {
            return Vec::new();
        }
        let pages = self.tree.pages(&found.path);
        // The row gets a copy of a page that it continues.
        self.pool
            .pages_in_rows(&pages[..(found.len - rewritten) / PAGE], rows)
    }

    /// Looks for the longest prefix of a prompt.
    pub(super) fn find(&mut self, ids: &[u32], kind: PrefixKind) -> FoundPrefix {
        let Some(tree) = kind.root() else {
            return FoundPrefix::default();
        };
        // The last token is always computed, because its logits are needed.
        let found = self.search(tree, &ids[..ids.len() - 1]);
        let cache = match found.len >= MIN_TOKENS {
            true => self.start(&found, ids.len()),
            false => None,
        };
        let len = cache.as_ref().map_or(0, |_| found.len);
        if let Some(cache) = &cache {
            self.tell_shortened(&found, &ids[..len], kind, cache);
            self.tree.touch(&found.path);
            self.counts.hits += 1;
            self.counts.tokens += len;
        }
        FoundPrefix {
            cache,
            len,
            cut: (found.common >= len + MIN_TOKENS).then_some(found.common),
        }
    }

    /// Looks for the positions that a preempted row has left behind, or of the first of them: `ids` are
    /// its tokens, of which the first `prompt` are its prompt. Returns a cache with them, and their number.
    pub(super) fn find_preempted(
        &mut self,
        ids: &[u32],
        prompt: usize,
        kind: PrefixKind,
    ) -> Option<(ModelCache, usize)> {
        let tree = kind.root()?;
        let found = self.search(tree, &ids[..ids.len() - 1]);
        if found.len < MIN_TOKENS {
            return None;
        }
        let cache = self.start(&found, prompt)?;
        self.tree.touch(&found.path);
        self.counts.resumed += found.len;
        Some((cache, found.len))
    }

    /// A cache with a prefix that was found, for a text with a prompt of `positions`.
    fn start(&self, found: &FoundPath, positions: usize) -> Option<ModelCache> {
        let (pages, states) = (
            self.tree.pages(&found.path),
            self.tree.states(&found.path, found.len),
        );
        let mut cache = self.pool.row_of(&pages, &states, found.len).ok()?;
        cache.expect(0, positions);
        // Evaluated now, so that another pass that fails before the prompt is computed does not poison it.
        eval(cache.arrays()).ok()?;
        Some(cache)
    }

    /// Stores the prefix `ids`, whose cache is row `row` of `cache`, unless it is short or stored already.
    pub(super) fn keep(&mut self, ids: &[u32], cache: &ModelCache, row: usize, kind: PrefixKind) {
        match self.hold(ids, cache, row, kind) {
            Hold::Stored => self.tell(ids, kind, None),
            Hold::New if self.announced.is_some() => {
                let state = PromptState::share(cache, row, ids.len(), kind.embedding);
                if let Ok(state) = state {
                    self.tell(ids, kind, Some(state));
                }
            }
            Hold::New | Hold::Nothing => {}
        }
    }

    /// Stores what a preempted row leaves behind, like [`keep`](Self::keep), in memory only: the row
    /// comes back soon or not at all.
    pub(super) fn keep_preempted(
        &mut self,
        ids: &[u32],
        cache: &ModelCache,
        row: usize,
        kind: PrefixKind,
    ) {
        self.hold(ids, cache, row, kind);
    }

    fn hold(&mut self, ids: &[u32], cache: &ModelCache, row: usize, kind: PrefixKind) -> Hold {
        let Some(tree) = kind.root() else {
            return Hold::Nothing;
        };
        if self.is_off() || ids.len() < MIN_TOKENS {
            return Hold::Nothing;
        }
        if let Some(path) = self.stored(tree, ids) {
            self.tree.touch(&path);
            return Hold::Stored;
        }
        match self.insert(tree, ids, cache, row) {
            Ok(true) => Hold::New,
            Ok(false) => Hold::Nothing,
            // There is no memory for a copy. Of all uses of memory, the store is the first to be
            // cleared.
            Err(_) => {
                self.tree.clear();
                Hold::Nothing
            }
        }
    }

    /// The path of a prefix, if all of it is stored. The same prompt again must also start from it: its
    /// last token is always computed, and the layers may have recorded it a few tokens before its end.
    fn stored(&self, tree: Root, ids: &[u32]) -> Option<Vec<usize>> {
        let found = self.search(tree, ids);
        let again = self.search(tree, &ids[..ids.len() - 1]).len;
        let is_stored = found.len == ids.len() && again > 0 && again + TAIL >= ids.len();
        is_stored.then_some(found.path)
    }

    /// Puts the first positions of a row into a tree. Returns `false` if they are more than the store
    /// may hold.
    fn insert(&mut self, tree: Root, ids: &[u32], cache: &ModelCache, row: usize) -> Result<bool> {
        let numbers = 0..ids.len().div_ceil(PAGE);
        let pages = numbers.map(|number| cache.keep_page(row, number));
        let pages = pages.collect::<mlx_core::Result<Vec<_>>>()?;
        let groups = self.pool.page_use();
        if pages.iter().map(|page| page.nbytes(&groups)).sum::<usize>() > self.limit {
            return Ok(false);
        }
        let mut lengths = match self.pool.is_recurrent() {
            true => cache.recorded(row),
            false => Vec::new(),
        };
        lengths.retain(|&len| len < ids.len());
        if self.pool.is_recurrent() {
            lengths.push(ids.len());
        }
        let mut states = Vec::new();
        for len in lengths {
            if let Some(own) = cache.keep_states(row, len)? {
                eval(own.arrays())?;
                states.push((len, own));
            }
        }
        let path = self.tree.insert(tree, ids, pages);
        for (len, own) in states {
            self.tree.set_states(&path, len, own);
        }
        Ok(true)
    }

    /// Stores a prefix that was computed before, in another pool.
    pub(super) fn put(&mut self, ids: &[u32], state: &PromptState) {
        let kind = PrefixKind {
            embedding: state.embedding(),
            adapter: None,
        };
        let Some(tree) = kind.root() else {
            return;
        };
        // The pages that were reserved have room for no more than the limit.
        self.trim_to(self.limit.saturating_sub(state.nbytes()));
        let mut own = self.pool.beside(0);
        let copied = own.join(state.cache()).and_then(|()| eval(own.arrays()));
        let stored = copied
            .map_err(Into::into)
            .and_then(|()| self.insert(tree, ids, &own, 0));
        if stored.is_err() {
            self.tree.clear();
        }
    }

    /// Announces a stored prefix that was shortened to `ids`, whose states are in `cache`, if it has
    /// windows: pages can be shortened, and a file of the longer prefix cannot.
    fn tell_shortened(
        &mut self,
        found: &FoundPath,
        ids: &[u32],
        kind: PrefixKind,
        cache: &ModelCache,
    ) {
        if self.announced.is_some()
            && self.pool.has_windows()
            && !self.tree.ends(&found.path, ids.len())
            && let Ok(state) = PromptState::share(cache, 0, ids.len(), kind.embedding)
        {
            self.tell(ids, kind, Some(state));
        }
    }

    /// Adds a prefix to the list of those that are announced. Prefixes of adapters are in memory only.
    fn tell(&mut self, ids: &[u32], kind: PrefixKind, state: Option<PromptState>) {
        if let (Some(announced), None) = (&mut self.announced, kind.adapter) {
            announced.push(Announced {
                ids: ids.to_vec(),
                embedding: kind.embedding,
                state,
            });
        }
    }
}
