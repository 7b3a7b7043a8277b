//! Counters of the server in Prometheus' text format, under vLLM's names for the same quantities,
//! so that dashboards for vLLM work.

mod table;
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use self::table::Sources;
use self::text::{Text, quoted};
use crate::request::generation::FinishReason;
use crate::request::metrics;
use crate::request::speculative::MOST;
use crate::serve::state::{App, Shared};

/// Upper bounds, in seconds, of the buckets of times of a whole request.
const LONG: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// The same for the time to the first token.
const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// The same for the time between two tokens.
const BETWEEN: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

/// A histogram of times: how many fell into each bucket.
#[derive(Debug, Default)]
struct Histogram {
    /// Counts by bucket. The last bucket is above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

/// The quantity of a histogram.
#[derive(Clone, Copy, Debug)]
enum Time {
    First,
    Between,
    Whole,
    Queue,
    Prefill,
    Decode,
}

impl Time {
    const COUNT: usize = Self::Decode as usize + 1;

    /// The upper bounds of the buckets, in seconds.
    fn bounds(self) -> &'static [f64] {
        match self {
            Self::First => FIRST,
            Self::Between => BETWEEN,
            Self::Whole | Self::Queue | Self::Prefill | Self::Decode => LONG,
        }
    }
}

/// The counters of the server since its start.
#[derive(Debug, Default)]
pub(crate) struct ServerMetrics {
    times: [Mutex<Histogram>; Time::COUNT],
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    queried_tokens: AtomicU64,
    hit_tokens: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    accepted_at: [AtomicU64; MOST],
    decode_steps: AtomicU64,
    finished: [AtomicU64; 5],
    disconnects: AtomicU64,
    /// Responses by status.
    responses: Mutex<BTreeMap<u16, u64>>,
}

/// The reasons why rows end, in vLLM's words.
const REASONS: [&str; 5] = ["stop", "length", "abort", "error", "repetition"];

impl ServerMetrics {
    /// Counts a row that has ended.
    pub(crate) fn finished(&self, reason: FinishReason, row: &metrics::Metrics) {
        let index = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Cancelled => 2,
            FinishReason::Repetition => 4,
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
    pub(crate) fn failed(&self) {
        self.finished[3].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts rows that ended because their client disconnected.
    pub(crate) fn aborted(&self, rows: usize) {
        self.finished[2].fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Observes the time between two tokens of a row.
    pub(crate) fn between_tokens(&self, time: Duration) {
        self.observe(Time::Between, time);
    }

    /// Counts a client that disconnected before its answer was complete.
    pub(crate) fn disconnected(&self) {
        self.disconnects.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a response.
    pub(crate) fn responded(&self, status: u16) {
        *lock(&self.responses).entry(status).or_default() += 1;
    }

    fn observe(&self, time: Time, value: Duration) {
        let bounds = time.bounds();
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
        let load = loaded.map(|loaded| loaded.engine.load());
        let sources = Sources {
            counters: self,
            load: load.unwrap_or_default(),
            limits: loaded.map_or(&app.settings.engine.limits, |loaded| loaded.engine.limits()),
        };
        table::write(&mut out, &sources);
        out.text
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Shared>) -> Response {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], app.metrics.text(&app)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineLoad;
    use crate::request::limits::Limits;

    #[test]
    fn every_metric_is_written_once_and_read_from_its_counter() {
        let metrics = ServerMetrics::default();
        metrics.disconnected();
        metrics.failed();
        for status in [200, 200, 404] {
            metrics.responded(status);
        }
        metrics.between_tokens(Duration::from_secs(1));
        let limits = Limits {
            rows: 4,
            cache_bytes: None,
            ..Limits::default()
        };
        let load = EngineLoad {
            decoding: 1,
            prefilling: 2,
            waiting: 5,
            ..EngineLoad::default()
        };
        let mut out = Text {
            text: String::new(),
            labels: "m=\"x\"".to_owned(),
        };
        let counters = &metrics;
        table::write(
            &mut out,
            &Sources {
                counters,
                load,
                limits: &limits,
            },
        );
        let lines: Vec<&str> = out.text.lines().collect();
        let named = |start: &str| {
            let names = lines
                .iter()
                .filter_map(|line| line.strip_prefix(start)?.split(' ').next());
            let mut names: Vec<&str> = names.collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "a name is there twice");
            names
        };
        assert_eq!(named("# TYPE "), named("# HELP "));
        for line in [
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{m=\"x\"} 3",
            "vllm:num_requests_waiting{m=\"x\"} 5",
            "vllm:kv_cache_usage_perc{m=\"x\"} 0.75",
            "# TYPE mlx_disconnects_total counter",
            "mlx_disconnects_total{m=\"x\"} 1",
            "vllm:request_success_total{m=\"x\",finished_reason=\"error\"} 1",
            "mlx_responses_total{m=\"x\",code=\"200\"} 2",
            "mlx_responses_total{m=\"x\",code=\"404\"} 1",
            "vllm:inter_token_latency_seconds_count{m=\"x\"} 1",
            "vllm:e2e_request_latency_seconds_count{m=\"x\"} 0",
        ] {
            assert!(lines.contains(&line), "{line}\n{}", out.text);
        }
    }

    #[test]
    fn buckets_add_up() {
        let metrics = ServerMetrics::default();
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
