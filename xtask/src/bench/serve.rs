//! `bench serve`: HTTP servers under load, on the same checkpoint and requests, in turns.
//!
//! Closed loops of 1 to 64 clients, then Poisson arrivals at shares of each server's own throughput. The library's own
//! batch gets the same requests without HTTP.

mod client;
mod load;
mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::plot::{self, Line, Panel};
use super::record::{Goal, Record};
use super::session::{Session, turns};
use super::stats::{Row, Spread, Table};
use super::{Shared, build, build_session, checkpoints, machine, work};
use crate::python;
use load::{Answers, Job, Load, quantile};
use server::Server;

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Clients of the closed loops
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64), default_values_t = [1, 4, 16, 32, 64])]
    clients: Vec<u16>,
    /// Shares of a server's own throughput at which requests arrive in the open loops
    #[arg(long, value_name = "S,S", value_delimiter = ',', default_values_t = [0.5, 0.8])]
    arrivals: Vec<f64>,
    /// A checkpoint, instead of the random bf16 one of `bench batch`
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// A Python that has llama-cpp-python with its server, and the GGUF file for it
    #[arg(long, value_names = ["PYTHON", "GGUF"], num_args = 2)]
    llama: Vec<PathBuf>,
    /// Only our server
    #[arg(long)]
    alone: bool,
}

/// Words of a prompt, and tokens of an answer.
const WORDS: usize = 24;
const TOKENS: usize = 32;
/// Requests of each client.
const REQUESTS: usize = 3;
/// The limits of a good request: seconds to the first token, and mean seconds between tokens.
const GOOD: (f64, f64) = (1.0, 0.1);
/// The goals: a share of the library's throughput, milliseconds after its first token, and a multiple of mlx-lm's
/// throughput.
const GOAL_OF_LIBRARY: f64 = 0.95;
const GOAL_FIRST_MS: f64 = 5.0;
const GOAL_OF_PEER: f64 = 5.0;
const THROUGHPUT: &str = "tokens/s";

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let python = shared.python()?;
    let checkpoint = match &arguments.checkpoint {
        Some(folder) => folder.clone(),
        None => checkpoints(&python)?.join("bf16"),
    };
    let load_before = machine::load_average();
    let servers = servers(&python, &checkpoint, arguments)?;
    let sides: Vec<&'static str> = servers.iter().map(|server| server.name).collect();
    let mut rows = Vec::new();
    let mut most = vec![0.0f64; servers.len()];
    let mut ours_at = Vec::new();
    for &clients in &arguments.clients {
        let clients = usize::from(clients);
        let count = clients * if shared.quick { 1 } else { REQUESTS };
        let runs = turns(shared.runs(), servers.len(), |side, number| {
            eprintln!("{clients} clients: run {number}, {}", sides[side]);
            let jobs = jobs(number, count);
            load::run(&servers[side].client, &jobs, Load::Clients(clients)).map(Some)
        })?;
        for (most, runs) in most.iter_mut().zip(&runs) {
            let throughput: Vec<f64> = runs.iter().map(Answers::throughput).collect();
            *most = most.max(Spread::of(&throughput).median);
        }
        let measured = measures(&Load::Clients(clients).name(), &runs);
        ours_at.push((clients, measured.clone()));
        rows.extend(measured);
    }
    for &share in &arguments.arrivals {
        let count = if shared.quick { 8 } else { 64 };
        let runs = turns(shared.runs(), servers.len(), |side, number| {
            let rate = share * most[side] / TOKENS as f64;
            let load = Load::Arrivals(rate);
            eprintln!("{}: run {number}, {}", load.name(), sides[side]);
            load::run(&servers[side].client, &jobs(number, count), load).map(Some)
        })?;
        let label = format!("Poisson, {share} of its most");
        rows.extend(
            measures(&label, &runs)
                .into_iter()
                .filter(|row| row.measure != THROUGHPUT),
        );
    }
    let goals = goals(&servers[0], &checkpoint, shared, &ours_at)?;
    let closed: Vec<&Row> = rows
        .iter()
        .filter(|row| row.measure == THROUGHPUT)
        .collect();
    let panel = Panel {
        title: checkpoint
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        lines: (0..sides.len())
            .map(|side| Line::of(sides[side], &arguments.clients, &closed, side))
            .collect(),
    };
    let plot = plot::lines("Tokens a second of all clients, by clients", &[panel]);
    shared.finish(&Record {
        kind: "serve".to_owned(),
        method: format!(
            "Servers stay loaded and answer in turns. Each request is a text of {WORDS} words and {TOKENS} greedy tokens, \
             streamed over HTTP; no two texts begin alike. Closed loops: {REQUESTS} requests a client. Poisson arrivals come \
             at shares of each server's own highest throughput. Goodput: first token within {} s, and at most {} s between \
             tokens on average.",
            GOOD.0, GOOD.1
        ),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: Vec::new(),
        facts: Vec::new(),
        table: Table { labels: &["load"], sides, rows },
        goals,
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes: Vec::new(),
        plot: Some(plot),
    })
}

/// All servers, ours first, each with its checkpoint loaded and one request answered.
fn servers(python: &Path, checkpoint: &Path, arguments: &Arguments) -> Result<Vec<Server>> {
    let binary = build("mlx-infer")?;
    let log = |name: &str| work().map(|folder| folder.join(format!("serve-{name}.log")));
    let ours = |port: u16| {
        let mut command = Command::new(&binary);
        command
            .args(["serve", "--port", &port.to_string(), "--model"])
            .arg(checkpoint);
        command
    };
    let extra = json!({"ignore_eos": true});
    let mut servers = vec![Server::start("ours", ours, extra, &log("ours")?)?];
    if !arguments.alone {
        let mlx_lm = |port: u16| {
            let mut command = python::command(python);
            command
                .args([
                    "-m",
                    "mlx_lm",
                    "server",
                    "--port",
                    &port.to_string(),
                    "--model",
                ])
                .arg(checkpoint);
            command
        };
        servers.push(Server::start(
            "mlx_lm.server",
            mlx_lm,
            json!({}),
            &log("mlx-lm")?,
        )?);
    }
    if let [llama, gguf] = &arguments.llama[..] {
        let llama_cpp = |port: u16| {
            let mut command = python::command(llama);
            command
                .args([
                    "-m",
                    "llama_cpp.server",
                    "--port",
                    &port.to_string(),
                    "--model",
                ])
                .arg(gguf);
            command
        };
        servers.push(Server::start(
            "llama_cpp.server",
            llama_cpp,
            json!({}),
            &log("llama-cpp")?,
        )?);
    }
    for server in &servers {
        let first = server.client.complete(&text(0), TOKENS);
        first.with_context(|| format!("{}: the first request", server.name))?;
    }
    Ok(servers)
}

/// One row of the table for each measure.
fn measures(label: &str, runs: &[Vec<Answers>]) -> Vec<Row> {
    type Of = fn(&Answers) -> f64;
    fn at(times: impl Iterator<Item = f64>, share: f64) -> f64 {
        1e3 * quantile(times, share)
    }
    fn first(answers: &Answers, share: f64) -> f64 {
        at(answers.outcomes.iter().map(|one| one.first_s), share)
    }
    fn gap(answers: &Answers, share: f64) -> f64 {
        at(
            answers
                .outcomes
                .iter()
                .flat_map(|one| one.gaps_s.iter().copied()),
            share,
        )
    }
    fn whole(answers: &Answers, share: f64) -> f64 {
        at(answers.outcomes.iter().map(|one| one.whole_s), share)
    }
    let measures: [(&'static str, bool, Of); 11] = [
        (THROUGHPUT, true, Answers::throughput),
        (FIRST, false, |a| first(a, 0.5)),
        ("first token p95, ms", false, |a| first(a, 0.95)),
        ("first token p99, ms", false, |a| first(a, 0.99)),
        ("between tokens p50, ms", false, |a| gap(a, 0.5)),
        ("between tokens p95, ms", false, |a| gap(a, 0.95)),
        ("between tokens p99, ms", false, |a| gap(a, 0.99)),
        ("whole p50, ms", false, |a| whole(a, 0.5)),
        ("whole p95, ms", false, |a| whole(a, 0.95)),
        ("whole p99, ms", false, |a| whole(a, 0.99)),
        ("goodput", true, |a| a.goodput(GOOD.0, GOOD.1)),
    ];
    let row = |(measure, more_is_better, of): (&'static str, bool, Of)| Row {
        labels: vec![label.to_owned()],
        measure,
        more_is_better,
        values: runs
            .iter()
            .map(|runs| runs.iter().map(of).collect())
            .collect(),
        goals: vec![(measure == THROUGHPUT).then_some(GOAL_OF_PEER)],
    };
    measures.into_iter().map(row).collect()
}

const FIRST: &str = "first token p50, ms";

/// The cost of HTTP: the server's rate compared with that of the library's batch for the same requests.
fn goals(
    ours: &Server,
    checkpoint: &Path,
    shared: &Shared,
    closed: &[(usize, Vec<Row>)],
) -> Result<Vec<Goal>> {
    let mut command = Command::new(build_session()?);
    command.arg(checkpoint);
    let mut library = Session::start("library", command)?;
    let mut goals = Vec::new();
    for (clients, rows) in closed {
        if ![1, 32].contains(clients) {
            continue;
        }
        let jobs = jobs(0, *clients);
        let prompts: Vec<Vec<u32>> = jobs
            .iter()
            .map(|job| ids(ours, &job.prompt))
            .collect::<Result<_>>()?;
        library.generate(&prompts, TOKENS)?;
        let runs: Vec<_> = (0..shared.runs())
            .map(|_| library.generate(&prompts, TOKENS))
            .collect::<Result<_>>()?;
        let median = |of: &dyn Fn(&super::session::Generated) -> f64| {
            Spread::of(&runs.iter().map(of).collect::<Vec<_>>()).median
        };
        let served = |measure| {
            rows.iter()
                .find(|row| row.measure == measure)
                .and_then(|row| row.median(0))
        };
        if *clients == 1 {
            let library_ms = 1e3 * median(&|run| run.prefill_s);
            goals.push(Goal {
                what: format!("1 client: {GOAL_FIRST_MS} ms by what the first token comes later than the library's"),
                wanted: 1.0,
                found: GOAL_FIRST_MS / (served(FIRST).context("first token")? - library_ms).max(1e-3),
            });
        } else {
            let tokens = (prompts.len() * TOKENS) as f64;
            let library = median(&|run| tokens / (run.prefill_s + run.decode_s));
            goals.push(Goal {
                what: format!("{clients} clients: throughput, as a share of the library's batch"),
                wanted: GOAL_OF_LIBRARY,
                found: served(THROUGHPUT).context("throughput")? / library,
            });
        }
    }
    Ok(goals)
}

/// The token ids of a text, as the server tokenises it.
fn ids(server: &Server, text: &str) -> Result<Vec<u32>> {
    let mut answer: Value = server.client.post("/tokenize", &json!({"prompt": text}))?;
    serde_json::from_value(answer["tokens"].take()).context("tokens of /tokenize")
}

/// The jobs of one run. Each run and size has its own texts, so no server can start from a stored prefix.
fn jobs(run: u32, count: usize) -> Vec<Job> {
    let from = 100_000 * run as usize + 1_000 * count;
    let job = |number| Job {
        prompt: text(number),
        max_tokens: TOKENS,
    };
    (from..from + count).map(job).collect()
}

/// A different text for each number, of words that any vocabulary has.
fn text(number: usize) -> String {
    const NAMES: [&str; 16] = [
        "river", "stone", "winter", "garden", "letter", "mountain", "window", "bread", "horse",
        "island", "market", "silver", "forest", "kitchen", "morning", "shadow",
    ];
    let mut words = vec![format!("Story {number}:")];
    words.extend(
        (1..WORDS)
            .map(|at| NAMES[(number * 7 + at * 5 + number / 16 * at) % NAMES.len()].to_owned()),
    );
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_texts_are_alike() {
        let mut texts: Vec<String> = (0..192).map(text).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 192);
        assert_eq!(text(3).split(' ').count(), WORDS + 1);
    }
}
