//! Counts, times and memory of a generation.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::request::speculative::MOST;

/// Counts, times and memory of one generation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were not computed, because a stored prefix or a prompt cache had them.
    pub cached_tokens: usize,
    /// Generated tokens, including one that ends the text.
    pub decode_tokens: usize,
    /// Tokens that were drafted by speculation.
    pub drafted_tokens: usize,
    /// The number of drafted tokens that became tokens of the answer.
    pub accepted_draft_tokens: usize,
    /// The number of steps that gave tokens. Each gives one token besides the accepted draft.
    pub decode_steps: usize,
    /// For each position of a draft: how often a token was drafted there.
    pub drafted_at: [u32; MOST],
    /// For each position of a draft: how often the token was accepted.
    pub accepted_at: [u32; MOST],
    /// The time that loading the model took, before any request.
    pub load: Duration,
    /// From the request to the start of its prompt's computation: the time in the queue.
    pub queued: Duration,
    /// From the start of the prompt's computation to the first token: that computation, and the
    /// choice of the token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// From the request to the first token, tokenisation included.
    pub time_to_first_token: Duration,
    /// From the request to the end.
    pub total: Duration,
    /// The most bytes that MLX's arrays took at a time since the request, including the weights.
    pub peak_memory_bytes: usize,
    /// Bytes that MLX's arrays take at the end.
    pub active_memory_bytes: usize,
}

impl Metrics {
    /// Prompt tokens that were computed for each second of [`prefill`](Self::prefill); 0 if that
    /// time is too short to tell.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        rate(self.prompt_tokens - self.cached_tokens, self.prefill)
    }

    /// Tokens for each step that gave tokens; 0 if no step did.
    pub fn tokens_per_step(&self) -> f64 {
        match self.decode_steps {
            0 => 0.0,
            steps => self.decode_tokens as f64 / steps as f64,
        }
    }

    /// The accepted tokens of each position of a draft, up to the last position that was drafted.
    pub fn accepted_by_position(&self) -> &[u32] {
        let drafted = self.drafted_at.iter().take_while(|&&n| n > 0).count();
        &self.accepted_at[..drafted]
    }

    /// Tokens for each second of [`decode`](Self::decode), which begins with the first token; 0 if there
    /// are fewer than two.
    pub fn decode_tokens_per_s(&self) -> f64 {
        rate(self.decode_tokens.saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        n as f64 / time.as_secs_f64()
    }
}

/// The numbers of a request's tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) decoded: usize,
    pub(crate) steps: usize,
    pub(crate) drafted: [u32; MOST],
    pub(crate) accepted: [u32; MOST],
}

/// The clock of one generation.
#[derive(Debug)]
pub(crate) struct Watch {
    load: Duration,
    requested: Instant,
    began: Option<Instant>,
    first: Option<Instant>,
    last: Instant,
}

impl Watch {
    /// Starts at the time `requested`, for a model whose loading took `load`.
    pub(crate) fn start(load: Duration, requested: Instant) -> Result<Self> {
        mlx_core::memory::reset_peak()?;
        let now = Instant::now();
        Ok(Self {
            load,
            requested,
            began: None,
            first: None,
            last: now,
        })
    }

    /// Marks the start of the prompt's computation. A second call, after a preemption, has no effect.
    pub(crate) fn begin(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// Records that a token has arrived.
    pub(crate) fn token(&mut self) {
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
    }

    /// The metrics. The caller gives the numbers of tokens.
    pub(crate) fn metrics(&self, counts: Counts) -> Result<Metrics> {
        let first = self.first.unwrap_or(self.last);
        let began = self.began.unwrap_or(first);
        Ok(Metrics {
            prompt_tokens: counts.prompt,
            cached_tokens: counts.cached,
            decode_tokens: counts.decoded,
            drafted_tokens: counts.drafted.iter().sum::<u32>() as usize,
            accepted_draft_tokens: counts.accepted.iter().sum::<u32>() as usize,
            decode_steps: counts.steps,
            drafted_at: counts.drafted,
            accepted_at: counts.accepted,
            load: self.load,
            queued: began - self.requested,
            prefill: first - began,
            decode: self.last - first,
            time_to_first_token: first - self.requested,
            total: self.requested.elapsed(),
            peak_memory_bytes: mlx_core::memory::peak()?,
            active_memory_bytes: mlx_core::memory::active()?,
        })
    }
}
