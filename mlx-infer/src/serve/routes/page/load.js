// The engine's load, from /metrics, while its tab is open.

const SAMPLES = 120;
const samples = [];

// Prometheus' text to {name: [{labels, value}]}.
function metrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const parts = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (parts) (found[parts[1]] ??= []).push({ labels: parts[2] ?? "", value: Number(parts[3]) });
  }
  return found;
}

const total = (found, name) => (found[name] ?? []).reduce((sum, { value }) => sum + value, 0);
const mean = (found, name) => total(found, `${name}_sum`) / total(found, `${name}_count`);
const rate = (name) => (now, before) => (total(now.found, name) - total(before.found, name)) / (now.time - before.time);
const CHARTS = [
  ["Tokens generated a second", rate("vllm:generation_tokens_total"), (x) => x.toFixed(1)],
  ["Prompt tokens a second", rate("vllm:prompt_tokens_total"), (x) => x.toFixed(1)],
  ["Requests running", ({ found }) => total(found, "vllm:num_requests_running"), (x) => x.toFixed(0)],
  ["Requests waiting", ({ found }) => total(found, "vllm:num_requests_waiting"), (x) => x.toFixed(0)],
  ["KV cache in use", ({ found }) => 100 * total(found, "vllm:kv_cache_usage_perc"), (x) => `${x.toFixed(1)} %`],
];
const seconds = (x) => (Number.isFinite(x) ? (x < 1 ? `${(1000 * x).toFixed(1)} ms` : `${x.toFixed(2)} s`) : "–");
const FIGURES = [
  ["Time to first token, mean", (found) => seconds(mean(found, "vllm:time_to_first_token_seconds"))],
  ["Time between tokens, mean", (found) => seconds(mean(found, "vllm:inter_token_latency_seconds"))],
  ["Whole request, mean", (found) => seconds(mean(found, "vllm:e2e_request_latency_seconds"))],
  ["Time in queue, mean", (found) => seconds(mean(found, "vllm:request_queue_time_seconds"))],
  ["Prompt tokens from kept prefixes", (found) => {
    const share = total(found, "vllm:prefix_cache_hits_total") / total(found, "vllm:prefix_cache_queries_total");
    return Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–";
  }],
  ["Rows evicted", (found) => String(total(found, "vllm:num_preemptions_total"))],
];

async function measure() {
  if (!$("load").hidden && !document.hidden) {
    try {
      const found = metrics(await (await call("/metrics")).text());
      samples.push({ time: performance.now() / 1000, found });
      if (samples.length > SAMPLES) samples.shift();
      draw(found);
      status("");
    } catch (error) {
      status(error.message, true);
      if (error.status === 401) return;
    }
  }
  setTimeout(measure, 1000);
}

function draw(found) {
  $("charts").replaceChildren(...CHARTS.map(chart));
  const finished = (found["vllm:request_success_total"] ?? []).filter(({ value }) => value).map(({ labels, value }) => [
    `Requests ended: ${/finished_reason="([^"]*)"/.exec(labels)?.[1] ?? labels}`, String(value),
  ]);
  const rows = [...FIGURES.map(([name, text]) => [name, text(found)]), ...finished];
  $("figures").tBodies[0].replaceChildren(...rows.map(([name, text]) => element("tr", {}, element("th", {}, name), element("td", {}, text))));
}

function chart([name, value, text]) {
  const values = samples.slice(1).map((now, index) => value(now, samples[index]));
  const top = Math.max(...values, 1e-9);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SAMPLES} 40`);
  svg.setAttribute("preserveAspectRatio", "none");
  const path = document.createElementNS(svg.namespaceURI, "path");
  const points = values.map((one, index) => `${SAMPLES - values.length + index},${(39 - (37 * one) / top).toFixed(2)}`);
  path.setAttribute("d", points.length ? `M${points.join("L")}` : "");
  svg.append(path);
  const now = values.length ? text(values.at(-1)) : "–";
  return element("figure", {}, element("figcaption", {}, name, element("b", {}, now)), svg);
}
