//! Counters of an engine, which any thread can read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Worker;

/// Counters of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests that wait for a row.
    pub waiting: usize,
    /// Requests in prefill.
    pub prefilling: usize,
    /// Requests that decode.
    pub decoding: usize,
    /// Forward passes since the start, over prompts or a step of rows.
    pub forwards: usize,
    /// Rows that were evicted since the start, because memory was short.
    pub evictions: usize,
    /// Masks of grammars that were computed since the start.
    pub masks: usize,
    /// How long the engine's thread has computed them or waited for them; meanwhile forward passes ran.
    pub mask_time: Duration,
    /// Prompts since the start that began with a kept prefix.
    pub prefix_hits: usize,
    /// Prompt tokens since the start that came from kept prefixes and were not computed.
    pub prefix_tokens: usize,
    /// Bytes of kept prefixes.
    pub prefix_bytes: usize,
    /// Bytes of the caches of all rows.
    pub cache_bytes: usize,
    /// The time since the engine's thread last ended a part of its work.
    pub since_step: Duration,
}

#[derive(Debug)]
pub(super) struct Load {
    counts: [AtomicUsize; 3],
    forwards: AtomicUsize,
    evictions: AtomicUsize,
    masks: AtomicUsize,
    mask_micros: AtomicU64,
    prefixes: [AtomicUsize; 3],
    cache_bytes: AtomicUsize,
    started: Instant,
    /// Milliseconds from `started` to the end of the last part of the work.
    stepped: AtomicU64,
}

impl Load {
    pub(super) fn new() -> Self {
        Self {
            counts: Default::default(),
            forwards: AtomicUsize::new(0),
            evictions: AtomicUsize::new(0),
            masks: AtomicUsize::new(0),
            mask_micros: AtomicU64::new(0),
            prefixes: Default::default(),
            cache_bytes: AtomicUsize::new(0),
            started: Instant::now(),
            stepped: AtomicU64::new(0),
        }
    }

    pub(super) fn set<'m, 's>(&self, workers: &[Worker<'m, 's>]) {
        let now = self.started.elapsed().as_millis() as u64;
        self.stepped.store(now, Ordering::Release);
        let sum = |of: fn(&Worker<'m, 's>) -> usize| workers.iter().map(of).sum();
        // The counts of requests are stored last: a reader that sees no request under way sees the final values of the
        // other counters.
        self.cache_bytes
            .store(sum(Worker::cache_bytes), Ordering::Release);
        self.forwards
            .store(sum(Worker::forwards), Ordering::Release);
        self.evictions
            .store(sum(Worker::evictions), Ordering::Release);
        let masks = workers.iter().map(|worker| worker.masks().0).sum();
        self.masks.store(masks, Ordering::Release);
        let time: Duration = workers.iter().map(|worker| worker.masks().1).sum();
        self.mask_micros
            .store(time.as_micros() as u64, Ordering::Release);
        let sums = |of: fn(&Worker<'m, 's>) -> [usize; 3]| {
            let all = workers.iter().map(of);
            all.fold([0; 3], |sums, counts| {
                [0, 1, 2].map(|at| sums[at] + counts[at])
            })
        };
        let counts = sums(Worker::prefix_counts)
            .into_iter()
            .chain(sums(Worker::counts));
        for (shown, count) in self.prefixes.iter().chain(&self.counts).zip(counts) {
            shown.store(count, Ordering::Release);
        }
    }

    pub(super) fn read(&self) -> EngineLoad {
        let read = |count: &AtomicUsize| count.load(Ordering::Acquire);
        let [waiting, prefilling, decoding] = self.counts.each_ref().map(read);
        let [prefix_hits, prefix_tokens, prefix_bytes] = self.prefixes.each_ref().map(read);
        let stepped = Duration::from_millis(self.stepped.load(Ordering::Acquire));
        EngineLoad {
            waiting,
            prefilling,
            decoding,
            forwards: read(&self.forwards),
            evictions: read(&self.evictions),
            masks: read(&self.masks),
            mask_time: Duration::from_micros(self.mask_micros.load(Ordering::Acquire)),
            prefix_hits,
            prefix_tokens,
            prefix_bytes,
            cache_bytes: read(&self.cache_bytes),
            since_step: self.started.elapsed().saturating_sub(stepped),
        }
    }
}
