//! Counters of the server in Prometheus' text format, under the names that vLLM has for the same things, so that dashboards for it work.

mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use self::text::{Text, quoted};
use super::state::{App, Shared};
use crate::generate::FinishReason;
use crate::metrics;
use crate::speculate::MOST;

/// Upper bounds, in seconds, of the buckets of times of a whole request.
const LONG: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Of the time to the first token.
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Of the time between two tokens.
const BETWEEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

/// How often times fell into each bucket.
#[derive(Debug, Default)]
struct Histogram {
    /// Counts by bucket. The last one is above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

/// The histograms: name without the prefix, help text, bounds.
const TIMES: [(&str, &str, &[f64]); 6] = [
    (
        "time_to_first_token_seconds",
        "From the request to its first token.",
        FIRST,
    ),
    (
        "inter_token_latency_seconds",
        "Between two tokens of a request.",
        BETWEEN,
    ),
    (
        "e2e_request_latency_seconds",
        "From the request to its last token.",
        LONG,
    ),
    (
        "request_queue_time_seconds",
        "From the request to the begin of its prompt.",
        LONG,
    ),
    (
        "request_prefill_time_seconds",
        "From the begin of the prompt to the first token.",
        LONG,
    ),
    (
        "request_decode_time_seconds",
        "From the first token to the last.",
        LONG,
    ),
];

/// Which of [`TIMES`].
#[derive(Clone, Copy, Debug)]
enum Time {
    First,
    Between,
    Whole,
    Queue,
    Prefill,
    Decode,
}

/// The counters of the server since its start.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    times: [Mutex<Histogram>; TIMES.len()],
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    queried_tokens: AtomicU64,
    hit_tokens: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    accepted_at: [AtomicU64; MOST],
    decode_steps: AtomicU64,
    finished: [AtomicU64; 4],
    disconnects: AtomicU64,
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
}

/// Why rows ended, as vLLM names it.
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

impl Metrics {
    /// Counts a row that has ended.
    pub(super) fn finished(&self, reason: FinishReason, row: &metrics::Metrics) {
        let index = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Cancelled => 2,
        };
        self.finished[index].fetch_add(1, Ordering::Relaxed);
        let add = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.prompt_tokens, row.prompt_tokens);
        add(&self.generation_tokens, row.decode_tokens);
        add(&self.queried_tokens, row.prompt_tokens);
        add(&self.hit_tokens, row.cached_tokens);
        add(&self.drafted_tokens, row.drafted_tokens);
        add(&self.accepted_tokens, row.accepted_draft_tokens);
        for (sum, &n) in self.accepted_at.iter().zip(&row.accepted_at) {
            add(sum, n as usize);
        }
        add(&self.decode_steps, row.decode_steps);
        if row.decode_tokens > 0 {
            self.observe(Time::First, row.time_to_first_token);
            self.observe(Time::Whole, row.total);
            self.observe(Time::Queue, row.queued);
            self.observe(Time::Prefill, row.prefill);
            self.observe(Time::Decode, row.decode);
        }
    }

    /// Counts a row that ended with an error.
    pub(super) fn failed(&self) {
        self.finished[3].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rows that ended because their client has left.
    pub(super) fn aborted(&self, rows: usize) {
        self.finished[2].fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Observes the time between two tokens of a row.
    pub(super) fn between_tokens(&self, time: Duration) {
        self.observe(Time::Between, time);
    }

    /// Counts a client that left before its answer was complete.
    pub(super) fn disconnected(&self) {
        self.disconnects.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a response.
    pub(super) fn responded(&self, status: u16) {
        *lock(&self.responses).entry(status).or_default() += 1;
    }

    fn observe(&self, time: Time, value: Duration) {
        let bounds = TIMES[time as usize].2;
        let seconds = value.as_secs_f64();
        let mut histogram = lock(&self.times[time as usize]);
        histogram.counts.resize(bounds.len() + 1, 0);
        histogram.counts[bounds.partition_point(|&bound| bound < seconds)] += 1;
        histogram.sum += seconds;
    }

    /// All counters as text.
    fn text(&self, app: &App) -> String {
        let mut out = Text {
            text: String::new(),
            labels: format!("model_name={},engine=\"0\"", quoted(&app.settings.names[0])),
        };
        let loaded = app.loaded();
        let load = loaded
            .map(|loaded| loaded.engine.load())
            .unwrap_or_default();
        let limits = loaded.map_or(&app.settings.engine.limits, |loaded| loaded.engine.limits());
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let running = load.prefilling + load.decoding;
        let usage = match limits.cache_bytes {
            Some(limit) if limit > 0 => load.cache_bytes as f64 / limit as f64,
            _ => running as f64 / limits.rows as f64,
        };
        let memory = |value: mlx_core::Result<usize>| value.unwrap_or(0) as f64;
        let values = [
            (
                "vllm:num_requests_running",
                "gauge",
                "Requests in prefill or decode.",
                running as f64,
            ),
            (
                "vllm:num_requests_waiting",
                "gauge",
                "Requests that wait for a row.",
                load.waiting as f64,
            ),
            (
                "vllm:kv_cache_usage_perc",
                "gauge",
                "Share of --cache-bytes in use, 0 to 1; without that limit, share of the rows.",
                usage,
            ),
            (
                "vllm:num_preemptions_total",
                "counter",
                "Rows that were evicted because memory was short.",
                load.evictions as f64,
            ),
            (
                "vllm:prefix_cache_queries_total",
                "counter",
                "Prompt tokens that were looked for in the kept prefixes.",
                read(&self.queried_tokens),
            ),
            (
                "vllm:prefix_cache_hits_total",
                "counter",
                "Prompt tokens that came from kept prefixes.",
                read(&self.hit_tokens),
            ),
            (
                "vllm:prompt_tokens_total",
                "counter",
                "Prompt tokens.",
                read(&self.prompt_tokens),
            ),
            (
                "vllm:generation_tokens_total",
                "counter",
                "Generated tokens.",
                read(&self.generation_tokens),
            ),
            (
                "vllm:spec_decode_num_draft_tokens_total",
                "counter",
                "Tokens that were drafted.",
                read(&self.drafted_tokens),
            ),
            (
                "vllm:spec_decode_num_accepted_tokens_total",
                "counter",
                "Drafted tokens that became tokens of an answer.",
                read(&self.accepted_tokens),
            ),
            (
                "mlx_decode_steps_total",
                "counter",
                "Steps of rows that gave tokens; generated tokens over these are the tokens a step.",
                read(&self.decode_steps),
            ),
            (
                "mlx_memory_active_bytes",
                "gauge",
                "Bytes of arrays, the weights included.",
                memory(mlx_core::memory::active()),
            ),
            (
                "mlx_memory_peak_bytes",
                "gauge",
                "Most bytes of arrays since a request began last.",
                memory(mlx_core::memory::peak()),
            ),
            (
                "mlx_row_cache_bytes",
                "gauge",
                "Bytes of the rows' caches.",
                load.cache_bytes as f64,
            ),
            (
                "mlx_prefix_bytes",
                "gauge",
                "Bytes of kept prefixes.",
                load.prefix_bytes as f64,
            ),
            (
                "mlx_forwards_total",
                "counter",
                "Forward passes.",
                load.forwards as f64,
            ),
            (
                "mlx_mask_seconds_total",
                "counter",
                "Time for the masks of grammars, beside forward passes.",
                load.mask_time.as_secs_f64(),
            ),
            (
                "mlx_disconnects_total",
                "counter",
                "Clients that left before their answer was complete.",
                read(&self.disconnects),
            ),
        ];
        for (name, kind, help, value) in values {
            out.one(name, kind, help, value);
        }
        let positions = self.accepted_at.iter().enumerate();
        out.counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "Drafted tokens that became tokens of an answer, by their positions in drafts.",
            "position",
            positions.map(|(position, sum)| (position.to_string(), read(sum))),
        );
        let reasons = REASONS.iter().zip(&self.finished);
        out.counters(
            "vllm:request_success_total",
            "Rows that ended, by reason.",
            "finished_reason",
            reasons.map(|(reason, counter)| ((*reason).to_owned(), read(counter))),
        );
        let responses = lock(&self.responses).clone().into_iter();
        out.counters(
            "mlx_responses_total",
            "Responses by status.",
            "code",
            responses.map(|(status, count)| (status.to_string(), count as f64)),
        );
        for ((name, help, bounds), histogram) in TIMES.iter().zip(&self.times) {
            out.histogram(&format!("vllm:{name}"), help, bounds, &lock(histogram));
        }
        out.text
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `GET /metrics`.
pub(super) async fn metrics(State(app): State<Shared>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], app.metrics.text(&app)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let metrics = Metrics::default();
        for milliseconds in [1, 3, 100_000] {
            metrics.between_tokens(Duration::from_millis(milliseconds));
        }
        let mut out = Text {
            text: String::new(),
            labels: "model_name=\"m\"".to_owned(),
        };
        let histogram = lock(&metrics.times[Time::Between as usize]);
        out.histogram("x", "Help.", BETWEEN, &histogram);
        for line in [
            "# TYPE x histogram",
            "x_bucket{model_name=\"m\",le=\"0.001\"} 1",
            "x_bucket{model_name=\"m\",le=\"0.005\"} 2",
            "x_bucket{model_name=\"m\",le=\"80\"} 2",
            "x_bucket{model_name=\"m\",le=\"+Inf\"} 3",
            "x_count{model_name=\"m\"} 3",
            "x_sum{model_name=\"m\"} 100.004",
        ] {
            assert!(
                out.text.lines().any(|found| found == line),
                "{line}\n{}",
                out.text
            );
        }
    }
}
