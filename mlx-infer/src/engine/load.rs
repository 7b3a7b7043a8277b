//! Counters of an engine, which any thread can read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests that are waiting for a row.
    pub waiting: usize,
    /// Requests in prefill.
    pub prefilling: usize,
    /// Requests that decode.
    pub decoding: usize,
    /// Forward passes since the start, for prompts or for a step of rows.
    pub forwards: usize,
    /// Rows that were preempted since the start because memory was short.
    pub preemptions: usize,
    /// Pieces of other work since the start ([`Engine::run_in_pieces`](super::Engine::run_in_pieces)): passes over
    /// texts that are embedded, ranked, classified or scored. A pass may have texts of several requests.
    pub pieces: usize,
    /// Grammar masks that were computed since the start.
    pub masks: usize,
    /// How long the engine's thread has computed masks or waited for them. Forward passes run meanwhile.
    pub mask_time: Duration,
    /// Prompts since the start that began with a stored prefix.
    pub prefix_hits: usize,
    /// Prompt tokens since the start that came from stored prefixes and were not computed.
    pub prefix_tokens: usize,
    /// Tokens of preempted rows since the start that were still in memory when the row came back.
    pub resumed_tokens: usize,
    /// Bytes of stored prefixes, without the pages that rows hold too.
    pub prefix_bytes: usize,
    /// Prefixes in files ([`Limits::prefix_dir`](crate::Limits::prefix_dir)).
    pub prefix_dir: PrefixDirLoad,
    /// Prefixes in the memory of the host ([`Limits::prefix_host_bytes`](crate::Limits::prefix_host_bytes)).
    pub prefix_host: PrefixDirLoad,
    /// Bytes of the caches of all rows. A page that several rows hold counts once.
    pub cache_bytes: usize,
    /// Bytes of the memory of pages, held or not: what was reserved, or what rows have needed so far.
    pub pool_bytes: usize,
    /// How often that memory was made or replaced by a larger one since the start.
    pub pool_moves: usize,
    /// Pages of keys and values.
    pub pages: PageLoad,
    /// The time since the engine's thread last finished a part of its work.
    pub since_step: Duration,
}

/// Pages of keys and values. A page has 64 positions of a row, in all layers that keep the same positions:
/// a model with windows has pages of two kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageLoad {
    /// Pages that rows hold.
    pub by_rows: usize,
    /// Those of them that several rows hold. They count once.
    pub shared: usize,
    /// Pages that only stored prefixes hold.
    pub by_prefixes: usize,
    /// Pages of tokens of stored prefixes that were dropped since the start to free memory.
    pub evicted: usize,
}

impl PageLoad {
    fn plus(self, other: Self) -> Self {
        Self {
            by_rows: self.by_rows + other.by_rows,
            shared: self.shared + other.shared,
            by_prefixes: self.by_prefixes + other.by_prefixes,
            evicted: self.evicted + other.evicted,
        }
    }
}

/// Counters of the prefixes in files, or in the memory of the host. A segment there is the bytes of
/// such a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixDirLoad {
    /// Prompts since the start that began with a prefix from there.
    pub hits: usize,
    /// Prompt tokens since the start that came from there and were not computed.
    pub tokens: usize,
    /// Files of the engine's models.
    pub files: usize,
    /// Bytes of those files.
    pub bytes: usize,
    /// Files since the start that could not be used, and failures to write, of which the first
    /// turns the folder off.
    pub errors: usize,
}

impl PrefixDirLoad {
    fn plus(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            tokens: self.tokens + other.tokens,
            files: self.files + other.files,
            bytes: self.bytes + other.bytes,
            errors: self.errors + other.errors,
        }
    }
}

impl EngineLoad {
    /// The sum of the counters of two parts of an engine.
    fn plus(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            prefilling: self.prefilling + other.prefilling,
            decoding: self.decoding + other.decoding,
            forwards: self.forwards + other.forwards,
            preemptions: self.preemptions + other.preemptions,
            pieces: self.pieces + other.pieces,
            masks: self.masks + other.masks,
            mask_time: self.mask_time + other.mask_time,
            prefix_hits: self.prefix_hits + other.prefix_hits,
            prefix_tokens: self.prefix_tokens + other.prefix_tokens,
            resumed_tokens: self.resumed_tokens + other.resumed_tokens,
            prefix_bytes: self.prefix_bytes + other.prefix_bytes,
            prefix_dir: self.prefix_dir.plus(other.prefix_dir),
            prefix_host: self.prefix_host.plus(other.prefix_host),
            cache_bytes: self.cache_bytes + other.cache_bytes,
            pool_bytes: self.pool_bytes + other.pool_bytes,
            pool_moves: self.pool_moves + other.pool_moves,
            pages: self.pages.plus(other.pages),
            since_step: Duration::ZERO,
        }
    }
}

#[derive(Debug)]
pub(super) struct LoadCounters {
    counts: [AtomicUsize; 3],
    forwards: AtomicUsize,
    preemptions: AtomicUsize,
    pieces: AtomicUsize,
    masks: AtomicUsize,
    mask_micros: AtomicU64,
    prefixes: [AtomicUsize; 4],
    /// Those in files, then those in the memory of the host.
    prefix_tiers: [[AtomicUsize; 5]; 2],
    cache_bytes: AtomicUsize,
    pool: [AtomicUsize; 2],
    pages: [AtomicUsize; 4],
    started: Instant,
    /// Milliseconds from `started` to the end of the last part of the work.
    stepped: AtomicU64,
}

impl LoadCounters {
    pub(super) fn new() -> Self {
        Self {
            counts: Default::default(),
            forwards: AtomicUsize::new(0),
            preemptions: AtomicUsize::new(0),
            pieces: AtomicUsize::new(0),
            masks: AtomicUsize::new(0),
            mask_micros: AtomicU64::new(0),
            prefixes: Default::default(),
            prefix_tiers: Default::default(),
            cache_bytes: AtomicUsize::new(0),
            pool: Default::default(),
            pages: Default::default(),
            started: Instant::now(),
            stepped: AtomicU64::new(0),
        }
    }

    /// Publishes the sum of these counters, and the number of pieces of jobs.
    pub(super) fn set(&self, loads: impl Iterator<Item = EngineLoad>, pieces: usize) {
        let sum = loads.fold(EngineLoad::default(), EngineLoad::plus);
        let now = self.started.elapsed().as_millis() as u64;
        self.stepped.store(now, Ordering::Release);
        // The numbers of requests are stored last, so that a reader who sees no request in progress sees the final
        // values of the other counters.
        let set = |shown: &AtomicUsize, count| shown.store(count, Ordering::Release);
        set(&self.cache_bytes, sum.cache_bytes);
        set(&self.pool[0], sum.pool_bytes);
        set(&self.pool[1], sum.pool_moves);
        let pages = sum.pages;
        let pages = [
            pages.by_rows,
            pages.shared,
            pages.by_prefixes,
            pages.evicted,
        ];
        for (shown, count) in self.pages.iter().zip(pages) {
            set(shown, count);
        }
        set(&self.forwards, sum.forwards);
        set(&self.preemptions, sum.preemptions);
        set(&self.pieces, pieces);
        set(&self.masks, sum.masks);
        let micros = sum.mask_time.as_micros() as u64;
        self.mask_micros.store(micros, Ordering::Release);
        for (shown, load) in self
            .prefix_tiers
            .iter()
            .zip([sum.prefix_dir, sum.prefix_host])
        {
            let counts = [load.hits, load.tokens, load.files, load.bytes, load.errors];
            for (shown, count) in shown.iter().zip(counts) {
                set(shown, count);
            }
        }
        let prefixes = [
            sum.prefix_hits,
            sum.prefix_tokens,
            sum.prefix_bytes,
            sum.resumed_tokens,
        ];
        let requests = [sum.waiting, sum.prefilling, sum.decoding];
        let shown = self.prefixes.iter().chain(&self.counts);
        for (shown, count) in shown.zip(prefixes.into_iter().chain(requests)) {
            set(shown, count);
        }
    }

    pub(super) fn read(&self) -> EngineLoad {
        let read = |count: &AtomicUsize| count.load(Ordering::Acquire);
        let [waiting, prefilling, decoding] = self.counts.each_ref().map(read);
        let prefixes = self.prefixes.each_ref().map(read);
        let [prefix_hits, prefix_tokens, prefix_bytes, resumed_tokens] = prefixes;
        let [prefix_dir, prefix_host] = self.prefix_tiers.each_ref().map(|shown| {
            let [hits, tokens, files, bytes, errors] = shown.each_ref().map(read);
            PrefixDirLoad {
                hits,
                tokens,
                files,
                bytes,
                errors,
            }
        });
        let [by_rows, shared, by_prefixes, evicted] = self.pages.each_ref().map(read);
        let stepped = Duration::from_millis(self.stepped.load(Ordering::Acquire));
        EngineLoad {
            waiting,
            prefilling,
            decoding,
            forwards: read(&self.forwards),
            preemptions: read(&self.preemptions),
            pieces: read(&self.pieces),
            masks: read(&self.masks),
            mask_time: Duration::from_micros(self.mask_micros.load(Ordering::Acquire)),
            prefix_hits,
            prefix_tokens,
            prefix_bytes,
            resumed_tokens,
            prefix_dir,
            prefix_host,
            cache_bytes: read(&self.cache_bytes),
            pool_bytes: read(&self.pool[0]),
            pool_moves: read(&self.pool[1]),
            pages: PageLoad {
                by_rows,
                shared,
                by_prefixes,
                evicted,
            },
            since_step: self.started.elapsed().saturating_sub(stepped),
        }
    }
}
