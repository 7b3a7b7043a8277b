//! The table of all metrics: name, type, help text, and where the value comes from.

use std::sync::atomic::{AtomicU64, Ordering};

use super::text::Text;
use super::{REASONS, ServerMetrics, Time, lock};
use crate::engine::EngineLoad;
use crate::request::limits::Limits;

/// The sources of the values of a model.
pub(super) struct Sources<'a> {
    pub(super) counters: &'a ServerMetrics,
    /// The engine's counters; zeros while the model is not in memory.
    pub(super) load: EngineLoad,
    pub(super) limits: Limits,
    pub(super) is_loaded: bool,
    /// How often the model was loaded.
    pub(super) loads: u64,
}

/// A metric of the server.
struct Metric {
    name: &'static str,
    help: &'static str,
    value: Value,
    /// Whether it counts for the server, and not for each of its models.
    is_of_server: bool,
}

/// The type of a metric, and the function that reads its value.
enum Value {
    Gauge(fn(&Sources<'_>) -> f64),
    Counter(fn(&Sources<'_>) -> f64),
    /// A counter with a line for each value of a label: the label's name; its values with their counts.
    Counters(&'static str, fn(&ServerMetrics) -> Vec<(String, f64)>),
    Histogram(Time),
}

use Value::{Counter, Counters, Gauge, Histogram};

const fn metric(name: &'static str, help: &'static str, value: Value) -> Metric {
    Metric {
        name,
        help,
        value,
        is_of_server: false,
    }
}

const fn of_server(name: &'static str, help: &'static str, value: Value) -> Metric {
    Metric {
        is_of_server: true,
        ..metric(name, help, value)
    }
}

/// All metrics, in the order in which they are written.
static METRICS: [Metric; 44] = [
    metric(
        "vllm:num_requests_running",
        "Requests in prefill or decode.",
        Gauge(|of| of.running() as f64),
    ),
    metric(
        "vllm:num_requests_waiting",
        "Requests that wait for a row.",
        Gauge(|of| of.load.waiting as f64),
    ),
    metric(
        "vllm:kv_cache_usage_perc",
        "Share of --cache-bytes in use, 0 to 1; without that limit, share of the rows.",
        Gauge(|of| of.usage()),
    ),
    metric(
        "vllm:num_preemptions_total",
        "Rows that were preempted because memory was short.",
        Counter(|of| of.load.preemptions as f64),
    ),
    metric(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens that were looked for in the kept prefixes.",
        Counter(|of| read(&of.counters.queried_tokens)),
    ),
    metric(
        "vllm:prefix_cache_hits_total",
        "Prompt tokens that came from kept prefixes.",
        Counter(|of| read(&of.counters.hit_tokens)),
    ),
    metric(
        "vllm:prompt_tokens_total",
        "Prompt tokens.",
        Counter(|of| read(&of.counters.prompt_tokens)),
    ),
    metric(
        "vllm:generation_tokens_total",
        "Generated tokens.",
        Counter(|of| read(&of.counters.generation_tokens)),
    ),
    metric(
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens that were drafted.",
        Counter(|of| read(&of.counters.drafted_tokens)),
    ),
    metric(
        "vllm:spec_decode_num_accepted_tokens_total",
        "Drafted tokens that became tokens of an answer.",
        Counter(|of| read(&of.counters.accepted_tokens)),
    ),
    metric(
        "mlx_decode_steps_total",
        "Steps of rows that gave tokens; generated tokens over these are the tokens a step.",
        Counter(|of| read(&of.counters.decode_steps)),
    ),
    of_server(
        "mlx_memory_active_bytes",
        "Bytes of arrays, the weights included.",
        Gauge(|_| mlx_core::memory::active().unwrap_or(0) as f64),
    ),
    of_server(
        "mlx_memory_peak_bytes",
        "Most bytes of arrays since a request began last.",
        Gauge(|_| mlx_core::memory::peak().unwrap_or(0) as f64),
    ),
    metric(
        "mlx_model_loaded",
        "1 while the model is in memory, else 0.",
        Gauge(|of| f64::from(u8::from(of.is_loaded))),
    ),
    metric(
        "mlx_model_loads_total",
        "How often the model was loaded, or was tried to be.",
        Counter(|of| of.loads as f64),
    ),
    metric(
        "mlx_row_cache_bytes",
        "Bytes of the rows' caches; a page that several rows hold counts once.",
        Gauge(|of| of.load.cache_bytes as f64),
    ),
    metric(
        "mlx_row_cache_limit_bytes",
        "Most bytes of the rows' caches; 0 without a limit.",
        Gauge(|of| of.limits.cache_bytes.unwrap_or(0) as f64),
    ),
    metric(
        "mlx_pool_bytes",
        "Bytes of the memory of pages, held or not; on GPUs it is reserved at the start.",
        Gauge(|of| of.load.pool_bytes as f64),
    ),
    metric(
        "mlx_pool_moves_total",
        "How often the memory of pages was made or replaced by a larger one.",
        Counter(|of| of.load.pool_moves as f64),
    ),
    metric(
        "mlx_prefix_bytes",
        "Bytes of kept prefixes, without the pages that rows hold too.",
        Gauge(|of| of.load.prefix_bytes as f64),
    ),
    metric(
        "mlx_row_pages",
        "Pages of 64 positions that rows hold.",
        Gauge(|of| of.load.pages.by_rows as f64),
    ),
    metric(
        "mlx_shared_pages",
        "Pages that several rows hold.",
        Gauge(|of| of.load.pages.shared as f64),
    ),
    metric(
        "mlx_prefix_pages",
        "Pages that only kept prefixes hold.",
        Gauge(|of| of.load.pages.by_prefixes as f64),
    ),
    metric(
        "mlx_prefix_pages_evicted_total",
        "Pages of kept prefixes that were dropped to free memory.",
        Counter(|of| of.load.pages.evicted as f64),
    ),
    metric(
        "mlx_resumed_tokens_total",
        "Tokens of preempted rows that were still in memory when the row came back.",
        Counter(|of| of.load.resumed_tokens as f64),
    ),
    metric(
        "mlx_prefix_host_hits_total",
        "Prompt tokens that came from the host's memory (--prefix-host-bytes).",
        Counter(|of| of.load.prefix_host.tokens as f64),
    ),
    metric(
        "mlx_prefix_host_bytes",
        "Bytes of prefixes in the host's memory.",
        Gauge(|of| of.load.prefix_host.bytes as f64),
    ),
    metric(
        "mlx_prefix_dir_hits_total",
        "Prompt tokens that came from files of --prefix-dir.",
        Counter(|of| of.load.prefix_dir.tokens as f64),
    ),
    metric(
        "mlx_prefix_dir_bytes",
        "Bytes of this model's files in --prefix-dir.",
        Gauge(|of| of.load.prefix_dir.bytes as f64),
    ),
    metric(
        "mlx_prefix_dir_files",
        "This model's files in --prefix-dir.",
        Gauge(|of| of.load.prefix_dir.files as f64),
    ),
    metric(
        "mlx_prefix_dir_errors_total",
        "Files of --prefix-dir that could not be used, and failures to write there.",
        Counter(|of| of.load.prefix_dir.errors as f64),
    ),
    metric(
        "mlx_forwards_total",
        "Forward passes.",
        Counter(|of| of.load.forwards as f64),
    ),
    metric(
        "mlx_text_passes_total",
        "Passes over texts that are embedded, ranked, classified or scored; requests that wait share them.",
        Counter(|of| of.load.pieces as f64),
    ),
    metric(
        "mlx_mask_seconds_total",
        "Time for the masks of grammars, beside forward passes.",
        Counter(|of| of.load.mask_time.as_secs_f64()),
    ),
    of_server(
        "mlx_disconnects_total",
        "Clients that left before their answer was complete.",
        Counter(|of| read(&of.counters.disconnects)),
    ),
    metric(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "Drafted tokens that became tokens of an answer, by their positions in drafts.",
        Counters("position", |counters| {
            let sums = counters.accepted_at.iter().enumerate();
            sums.map(|(position, sum)| (position.to_string(), read(sum)))
                .collect()
        }),
    ),
    metric(
        "vllm:request_success_total",
        "Rows that ended, by reason.",
        Counters("finished_reason", |counters| {
            let reasons = REASONS.iter().zip(&counters.finished);
            reasons
                .map(|(reason, count)| ((*reason).to_owned(), read(count)))
                .collect()
        }),
    ),
    of_server(
        "mlx_responses_total",
        "Responses by status.",
        Counters("code", |counters| {
            let responses = lock(&counters.responses);
            responses
                .iter()
                .map(|(status, &count)| (status.to_string(), count as f64))
                .collect()
        }),
    ),
    metric(
        "vllm:time_to_first_token_seconds",
        "From the request to its first token.",
        Histogram(Time::First),
    ),
    metric(
        "vllm:inter_token_latency_seconds",
        "Between two tokens of a request.",
        Histogram(Time::Between),
    ),
    metric(
        "vllm:e2e_request_latency_seconds",
        "From the request to its last token.",
        Histogram(Time::Whole),
    ),
    metric(
        "vllm:request_queue_time_seconds",
        "From the request to the begin of its prompt.",
        Histogram(Time::Queue),
    ),
    metric(
        "vllm:request_prefill_time_seconds",
        "From the begin of the prompt to the first token.",
        Histogram(Time::Prefill),
    ),
    metric(
        "vllm:request_decode_time_seconds",
        "From the first token to the last.",
        Histogram(Time::Decode),
    ),
];

impl Sources<'_> {
    fn running(&self) -> usize {
        self.load.prefilling + self.load.decoding
    }

    fn usage(&self) -> f64 {
        match self.limits.cache_bytes {
            Some(limit) if limit > 0 => self.load.cache_bytes as f64 / limit as f64,
            _ => self.running() as f64 / self.limits.rows as f64,
        }
    }
}

fn read(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

/// Writes all metrics. `models` has labels and sources of each model, and `server` those of the
/// server.
pub(super) fn write(
    out: &mut Text,
    server: &(String, Sources<'_>),
    models: &[(String, Sources<'_>)],
) {
    for metric in &METRICS {
        let Metric { name, help, .. } = metric;
        let kind = match metric.value {
            Gauge(_) => "gauge",
            Counter(_) | Counters(..) => "counter",
            Histogram(_) => "histogram",
        };
        out.head(name, kind, help);
        let sources = match metric.is_of_server {
            true => std::slice::from_ref(server),
            false => models,
        };
        for (labels, of) in sources {
            out.labels.clone_from(labels);
            match &metric.value {
                Gauge(get) | Counter(get) => out.line(name, "", get(of)),
                Counters(label, get) => out.counters(name, label, get(of.counters)),
                Histogram(time) => {
                    let histogram = lock(&of.counters.times[*time as usize]);
                    out.histogram(name, time.bounds(), &histogram);
                }
            }
        }
    }
}
