//! `bench serve`: HTTP servers under load, on the same checkpoint and requests, in turns.
//!
//! Closed loops of 1 to 64 clients, then Poisson arrivals at fractions of each server's own
//! throughput. In the closed loops the library gets the same requests without HTTP, and computes as
//! many of them at a time as there are clients.
//!
//! With `--mixes` the requests are those of chats, agents, long prompts and others, and any server
//! can be measured ([`latency`]).

mod client;
mod latency;
mod load;
mod mixes;
mod server;
mod sides;
mod stall;
mod vocabulary;

use std::path::PathBuf;

use anyhow::Result;

use super::plot::{self, Line, Panel};
use super::record::{Goal, Record};
use super::session::turns;
use super::stats::{Row, Spread, Table};
use super::{Shared, checkpoints, machine};
use load::{Answers, Job, Load, quantile};
use sides::{LIBRARY, MLX_LM};

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Clients of the closed loops
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024), default_values_t = [1, 4, 16, 32, 64])]
    clients: Vec<u16>,
    /// Fractions of a server's own throughput at which requests arrive in the open loops
    #[arg(long, value_name = "S,S", value_delimiter = ',', default_values_t = [0.5, 0.8])]
    arrivals: Vec<f64>,
    /// Only closed loops
    #[arg(long, conflicts_with = "arrivals")]
    closed: bool,
    /// Runs of the other servers, which take longer [default: as many as of this server]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    peer_runs: Option<u32>,
    /// A checkpoint, instead of the random bf16 one of `bench batch`
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// A Python that has gguf and llama-cpp-python with its server, to measure that too; the checkpoint must be a Qwen 3 in bf16
    #[arg(long, value_name = "FILE")]
    llama_python: Option<PathBuf>,
    /// Folder of a release build of this repository to measure, instead of building it
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Only this project's server and the library
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    mixed: latency::MixArguments,
}

/// Words of a prompt, and tokens of an answer.
const WORDS: usize = 24;
const TOKENS: usize = 32;
/// Requests of each client, and the fewest of a closed loop.
const REQUESTS: usize = 3;
const LEAST: usize = 12;
/// The limits of a good request: seconds to the first token, and mean seconds between tokens.
const GOOD: (f64, f64) = (1.0, 0.1);
/// The goals: a fraction of the library's throughput with as many rows as clients, milliseconds
/// after the library's first token, and a multiple of mlx-lm's throughput.
const GOAL_OF_LIBRARY: f64 = 0.95;
const GOAL_CLIENTS: usize = 32;
const GOAL_FIRST_MS: f64 = 5.0;
const GOAL_OF_PEER: f64 = 5.0;
const THROUGHPUT: &str = "tokens/s";
const FIRST: &str = "first token p50, ms";
const CPU: &str = "CPU, ms a token";

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    if !arguments.mixed.mixes.is_empty() {
        return latency::run(shared, arguments);
    }
    let python = shared.python()?;
    let checkpoint = match &arguments.checkpoint {
        Some(folder) => folder.clone(),
        None => checkpoints(&python)?.join("bf16"),
    };
    let load_before = machine::load_average();
    let mut sides = sides::start(&python, &checkpoint, arguments)?;
    let names: Vec<&'static str> = sides.iter().map(sides::Side::name).collect();
    let peer_runs = arguments.peer_runs.unwrap_or(shared.runs());
    let is_measured = |side: usize, number: u32| side < 2 || number <= peer_runs;
    let mut rows = Vec::new();
    let mut most = vec![0.0f64; sides.len()];
    let (mut same, mut compared) = (0, 0);
    for &clients in &arguments.clients {
        let load = Load::Clients(clients.into());
        let count = match shared.quick {
            true => clients.into(),
            false => LEAST.max(REQUESTS * usize::from(clients)),
        };
        let runs = turns(shared.runs(), sides.len(), |side, number| {
            if !is_measured(side, number) {
                return Ok(None);
            }
            eprintln!("{}: run {number}, {}", load.name(), names[side]);
            sides[side].run(&jobs(number, count), load)
        })?;
        for (most, runs) in most.iter_mut().zip(&runs) {
            let throughput: Vec<f64> = runs.iter().map(Answers::throughput).collect();
            *most = most.max(Spread::of(&throughput).median);
        }
        for (ours, library) in runs[0].iter().zip(&runs[1]) {
            let texts = ours.outcomes.iter().zip(&library.outcomes);
            same += texts
                .filter(|(ours, library)| ours.text == library.text)
                .count();
            compared += ours.outcomes.len();
        }
        rows.extend(measures(load, &[load.name()], &names, &runs));
    }
    let arrivals: &[f64] = if arguments.closed {
        &[]
    } else {
        &arguments.arrivals
    };
    for &share in arrivals {
        let count = if shared.quick { 8 } else { 64 };
        let runs = turns(shared.runs(), sides.len(), |side, number| {
            if !is_measured(side, number) {
                return Ok(None);
            }
            let load = Load::Arrivals(share * most[side] / TOKENS as f64);
            eprintln!("{}: run {number}, {}", load.name(), names[side]);
            sides[side].run(&jobs(number, count), load)
        })?;
        let label = format!("Poisson, {share} of its most");
        rows.extend(measures(Load::Arrivals(share), &[label], &names, &runs));
    }
    let goals = first_token(&rows).into_iter().collect();
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
        lines: (0..names.len())
            .map(|side| Line::of(names[side], &arguments.clients, &closed, side))
            .collect(),
    };
    let plot = plot::lines("Tokens a second of all clients, by clients", &[panel]);
    let mut method = format!(
        "Servers stay loaded and answer in turns. Each request is a text of {WORDS} words and {TOKENS} greedy tokens, \
         streamed over HTTP; no two texts begin alike. Closed loops: {REQUESTS} requests a client, at least {LEAST}. The library \
         (`{LIBRARY}`) gets the same texts: `generate` for one client, `batch_generate` over all of them with as many rows as there are \
         clients for more. The first token is the first text that is not empty. Goodput: first token within {} s, and at most {} s \
         between tokens on average.",
        GOOD.0, GOOD.1
    );
    if !arrivals.is_empty() {
        method += " Poisson arrivals come at shares of each server's own highest throughput.";
    }
    if peer_runs < shared.runs() {
        method += &format!(" Other servers ran {peer_runs} times.");
    }
    shared.finish(&Record {
        kind: "serve".to_owned(),
        method,
        commit: machine::commit(),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: Vec::new(),
        facts: Vec::new(),
        table: Table {
            labels: &["load"],
            sides: names,
            rows,
        },
        goals,
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes: vec![format!(
            "{same} of {compared} answers of our server are the library's, letter by letter"
        )],
        plot: Some(plot),
    })
}

/// A row of the table for each measure that a side reports.
fn measures(load: Load, labels: &[String], names: &[&str], runs: &[Vec<Answers>]) -> Vec<Row> {
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
    let measures: [(&'static str, bool, Of); 13] = [
        (THROUGHPUT, true, Answers::throughput),
        (CPU, false, |a| a.cpu_ms(0)),
        ("clients' CPU, ms a token", false, |a| a.cpu_ms(1)),
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
    // The rate of an open loop is the requested one, so it is not a measure.
    let measures = measures
        .into_iter()
        .filter(|(measure, ..)| *measure != THROUGHPUT || matches!(load, Load::Clients(_)));
    let goal = |measure: &str, name: &str| match name {
        _ if measure != THROUGHPUT => None,
        LIBRARY if load == Load::Clients(GOAL_CLIENTS) => Some(GOAL_OF_LIBRARY),
        MLX_LM => Some(GOAL_OF_PEER),
        _ => None,
    };
    let row = |(measure, more_is_better, of): (&'static str, bool, Of)| {
        // A side may not report a measure: a batch has no times of single answers.
        let values = |(&name, runs): (&&str, &Vec<Answers>)| -> Vec<f64> {
            if name == LIBRARY && measure == "goodput" {
                return Vec::new();
            }
            let values = runs.iter().map(of);
            values.filter(|value| !value.is_nan()).collect()
        };
        Row {
            labels: labels.to_vec(),
            measure,
            more_is_better,
            values: names.iter().zip(runs).map(values).collect(),
            goals: names[1..].iter().map(|name| goal(measure, name)).collect(),
        }
    };
    measures.map(row).collect()
}

/// The goal for the first token of a single client: its time after the library's first token.
fn first_token(rows: &[Row]) -> Option<Goal> {
    let label = Load::Clients(1).name();
    let row = rows
        .iter()
        .find(|row| row.measure == FIRST && row.labels == [label.as_str()])?;
    let later_ms = row.median(0)? - row.median(1)?;
    Some(Goal {
        what: format!(
            "1 client: {GOAL_FIRST_MS} ms by the time that the first token comes later than the library's, {later_ms:.2} ms"
        ),
        wanted: 1.0,
        found: GOAL_FIRST_MS / later_ms.max(1e-3),
    })
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
