//! `bench serve --mixes`: first tokens and gaps between tokens beside throughput, for mixes of
//! requests, of this project's server and of any other that speaks OpenAI's API.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::client::Client;
use super::load::{self, Answers, Load};
use super::mixes::{Mix, Sizes, Task};
use super::server::Server;
use super::sides::cpu_seconds;
use super::stall::{self, Stall};
use super::{Arguments, measures, vocabulary};
use crate::bench::cuda::checkpoint::{Format, Model};
use crate::bench::cuda::programs::Gpu;
use crate::bench::record::Record;
use crate::bench::session::turns;
use crate::bench::stats::{Row, Spread, Table};
use crate::bench::{Shared, build_for, machine, work};
use crate::cargo;

/// The device that this project's server computes on.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum DeviceKind {
    Cpu,
    Gpu,
}

/// What `--mixes` measures.
#[derive(clap::Args)]
pub struct MixArguments {
    /// Measure first tokens and gaps between tokens for these mixes, instead of comparing servers with short texts
    #[arg(long, value_name = "MIX,MIX", value_delimiter = ',', value_enum)]
    pub mixes: Vec<Mix>,
    /// Another server to measure with the same client: its name and address, as in vllm=http://127.0.0.1:8000. It must serve
    /// the same checkpoint, take prompts of token ids at /v1/completions, and know ignore_eos. May be given several times
    #[arg(long, value_name = "NAME=URL", requires = "mixes", value_parser = name_and_url)]
    url: Vec<(String, String)>,
    /// Only the servers of --url
    #[arg(long, requires = "url")]
    only_urls: bool,
    /// The device of this project's server. For a GPU it is built for CUDA, unless --built or MLX_BACKEND say otherwise
    #[arg(long, value_enum, default_value_t = DeviceKind::Cpu, requires = "mixes")]
    device: DeviceKind,
    /// The shape of the random checkpoint that is written and served, if --checkpoint names none
    #[arg(long, value_enum, default_value_t = Model::Qwen3, requires = "mixes")]
    shape: Model,
    /// The coding of its matrices
    #[arg(long, value_enum, default_value_t = Format::Bf16, requires = "mixes")]
    format: Format,
    /// Serve the model that is part of the program
    #[arg(long, requires = "mixes", conflicts_with_all = ["checkpoint", "shape", "format"])]
    built_in: bool,
    /// Requests a second of the open loops (conversations, for agents), instead of fractions of a server's own throughput
    #[arg(long, value_name = "R,R", value_delimiter = ',', requires = "mixes")]
    rates: Vec<f64>,
    /// Requests of a run (conversations, for agents) [default: twice the clients, at least 8; for agents as many as clients]
    #[arg(long, value_name = "N", requires = "mixes", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,
    /// A factor of all lengths. Mixes that do not fit into the model's context have a smaller one
    #[arg(long, value_name = "F", default_value_t = 1.0, requires = "mixes", value_parser = factor)]
    scale: f64,
    /// The seed of all tokens, lengths and times
    #[arg(long, value_name = "N", default_value_t = 0, requires = "mixes")]
    seed: u64,
    /// Ids of the vocabulary, if no checkpoint tells [default: 32000]
    #[arg(long, value_name = "N", requires = "mixes", value_parser = clap::value_parser!(u32).range(64..))]
    vocab: Option<u32>,
    /// The most positions of a request, if the servers do not tell
    #[arg(long, value_name = "N", requires = "mixes")]
    context: Option<usize>,
    /// A further argument of this project's server, as in --serve-arg=--rows=256. May be given several times
    #[arg(
        long,
        value_name = "ARGUMENT",
        requires = "mixes",
        allow_hyphen_values = true
    )]
    serve_arg: Vec<String>,
    /// The commit of the programs of --built, if git cannot tell
    #[arg(long, value_name = "COMMIT", requires = "mixes")]
    commit: Option<String>,
}

fn name_and_url(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, url)) if !name.is_empty() && url.starts_with("http://") => {
            Ok((name.to_owned(), url.to_owned()))
        }
        _ => Err("expected a name and an address, as in vllm=http://127.0.0.1:8000".to_owned()),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if factor > 0.0 && factor <= 1.0 => Ok(factor),
        _ => Err("expected a number above 0 and up to 1".to_owned()),
    }
}

/// Rows that decode while a prompt is computed.
const STALL_ROWS: [usize; 2] = [1, 8];
/// The smallest context in which rows decode long enough.
const STALL_CONTEXT: usize = 2048;
/// The fewest requests of a run.
const LEAST: usize = 8;
/// The ids of a vocabulary that no checkpoint tells.
const VOCAB: u32 = 32_000;

/// A server.
struct Side {
    name: &'static str,
    client: Client,
    /// This project's server, which ends with this value.
    server: Option<Server>,
}

impl Side {
    /// Does all tasks.
    fn run(&self, tasks: &[Task], load: Load, seed: u64) -> Result<Answers> {
        let used = || {
            self.server
                .as_ref()
                .and_then(|ours| cpu_seconds(ours.process()))
        };
        let before = used();
        let client = &self.client;
        let answer = |task: &Task| {
            let turns = task.turns.iter();
            turns
                .map(|turn| client.complete(&turn.prompt[..].into(), turn.max_tokens))
                .collect::<Result<Vec<_>>>()
        };
        let (outcomes, seconds) = load::run(tasks, load, seed, answer)
            .with_context(|| format!("{}: {}", self.name, load.name()))?;
        let cpu_s = before.zip(used());
        Ok(Answers {
            outcomes: outcomes.into_iter().flatten().collect(),
            seconds,
            cpu_s: cpu_s.map(|(before, after)| [0, 1].map(|at| after[at] - before[at])),
        })
    }
}

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let own = &arguments.mixed;
    let gpu = match own.device {
        DeviceKind::Gpu if !own.only_urls => Some(Gpu::find()?),
        _ => None,
    };
    let load_before = machine::load_average();
    let folder = checkpoint(arguments)?;
    let sides = start(arguments, folder.as_deref())?;
    let sizes = sizes(own, folder.as_deref(), &sides)?;
    if own.mixes.contains(&Mix::Stall) && sizes.context < STALL_CONTEXT {
        bail!(
            "mix stall needs a context of at least {STALL_CONTEXT} tokens, the model has {}",
            sizes.context
        );
    }
    let bench = Bench {
        shared,
        arguments,
        sides,
        sizes,
        answers: Cell::new(0),
        silent: Cell::new(0),
    };
    let mut rows = Vec::new();
    for &mix in &own.mixes {
        match mix {
            Mix::Stall => rows.extend(bench.stalls()?),
            _ => rows.extend(bench.mix(mix)?),
        }
    }
    let mut facts: Vec<String> = gpu.iter().map(Gpu::text).collect();
    facts.push(format!(
        "Checkpoint: {}; {} ids, contexts of {} tokens, lengths times {}",
        served(arguments),
        sizes.vocab,
        sizes.context,
        own.mixes
            .iter()
            .map(|&mix| format!("{:.2} ({})", mix.factor(sizes), mix.name()))
            .collect::<Vec<_>>()
            .join(", ")
    ));
    if !own.serve_arg.is_empty() {
        facts.push(format!(
            "Arguments of our server: {}",
            own.serve_arg.join(" ")
        ));
    }
    shared.finish(&Record {
        kind: format!("serve-mixes-{}", served(arguments).replace(' ', "-")),
        method: method(own),
        commit: own.commit.clone().or_else(machine::commit),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: Vec::new(),
        facts,
        table: Table {
            labels: &["mix", "load"],
            sides: bench.names(),
            rows,
        },
        goals: Vec::new(),
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes: vec![format!(
            "{} of {} answers had no text, and no first token",
            bench.silent.get(),
            bench.answers.get()
        )],
        plot: None,
    })
}

/// What is served, in words.
fn served(arguments: &Arguments) -> String {
    let own = &arguments.mixed;
    match &arguments.checkpoint {
        _ if own.only_urls => "of the other servers".to_owned(),
        _ if own.built_in => "built-in".to_owned(),
        Some(folder) => folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        None => format!("{} {}", own.shape.name(), own.format.name()),
    }
}

fn method(own: &MixArguments) -> String {
    let mixes = own.mixes.iter().filter_map(|mix| {
        let value = mix.to_possible_value()?;
        Some(format!("{}: {}", mix.name(), value.get_help()?))
    });
    format!(
        "Servers answer in turns, at /v1/completions, streamed, greedy (sampled where rows stall), with prompts of random token ids; the same requests for \
         all, other ones in each run; seed {}. {}. In conversations earlier answers stand as other ids of the same lengths. The \
         first token is the first text that is not empty; gaps are between successive texts of a request. Poisson arrivals come \
         at the rates named, or at shares of the requests a second that the server reached in its largest closed loop. Stall: \
         the 95th percentile of gaps that overlap the time from sending a prompt to its first token, over that of 48 gaps before.",
        own.seed,
        mixes.collect::<Vec<_>>().join("; "),
    )
}

/// The folder of the checkpoint that this project's server loads; `None` for the built-in model.
fn checkpoint(arguments: &Arguments) -> Result<Option<PathBuf>> {
    let own = &arguments.mixed;
    if own.only_urls || own.built_in {
        return Ok(arguments.checkpoint.clone());
    }
    if let Some(folder) = &arguments.checkpoint {
        return Ok(Some(folder.clone()));
    }
    if !own.shape.has(own.format) {
        bail!(
            "{} has no checkpoint in {}",
            own.shape.name(),
            own.format.name()
        );
    }
    let folder = work()?
        .join("serve")
        .join(own.shape.name())
        .join(own.format.name());
    own.shape.write(own.format, &folder)?;
    let vocab = own.shape.config()["vocab_size"]
        .as_u64()
        .unwrap_or_default();
    vocabulary::write(&folder, vocab as usize)?;
    Ok(Some(folder))
}

/// Starts this project's server, and finds the others.
fn start(arguments: &Arguments, folder: Option<&Path>) -> Result<Vec<Side>> {
    let own = &arguments.mixed;
    let extra = || json!({"ignore_eos": true});
    let mut sides = Vec::new();
    if !own.only_urls {
        let binary = match &arguments.built {
            Some(built) => built.join("mlx-infer"),
            None => build_for(
                "mlx-infer",
                (own.device == DeviceKind::Gpu).then_some("cuda13"),
            )?,
        };
        let command = |port: u16| {
            let mut command = Command::new(&binary);
            command.args(["serve", "--quiet", "--port", &port.to_string()]);
            command.args(["--max-requests", "4096"]);
            if let Some(folder) = folder {
                command.arg("--model").arg(folder);
            }
            command.args(&own.serve_arg);
            command
        };
        let work = work()?;
        std::fs::create_dir_all(&work)
            .with_context(|| format!("cannot create {}", work.display()))?;
        let server = Server::start("ours", command, extra(), &work.join("serve-ours.log"))?;
        let client = server.client.clone();
        sides.push(Side {
            name: "ours",
            client,
            server: Some(server),
        });
    }
    for (name, url) in &own.url {
        sides.push(Side {
            // Tables hold names for the whole run.
            name: name.clone().leak(),
            client: Client::at(url, extra()),
            server: None,
        });
    }
    for side in &mut sides {
        let served = (side.client.served()).with_context(|| format!("side {}", side.name))?;
        side.client = side.client.clone().with("model", served.id.into());
    }
    Ok(sides)
}

/// The vocabulary of the checkpoint, and the smallest context of the servers.
fn sizes(own: &MixArguments, folder: Option<&Path>, sides: &[Side]) -> Result<Sizes> {
    let config = match folder {
        Some(folder) => Some(folder.to_owned()),
        None if own.built_in => Some(cargo::repository().join("mlx-infer/assets/default-model")),
        None => None,
    };
    let vocab = match (own.vocab, config) {
        (Some(vocab), _) => vocab,
        (None, Some(folder)) => {
            let path = folder.join("config.json");
            let text = std::fs::read(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let config: Value = serde_json::from_slice(&text)?;
            let text = config.get("text_config").unwrap_or(&config);
            let vocab = text["vocab_size"]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok());
            vocab.with_context(|| format!("{}: no vocab_size; give --vocab", path.display()))?
        }
        (None, None) => VOCAB,
    };
    let mut context = own.context;
    for side in sides {
        let told = side.client.served()?.max_model_len;
        context = context.into_iter().chain(told).min();
    }
    Ok(Sizes {
        vocab,
        context: context.context("no server tells its context; give --context")?,
        scale: own.scale,
    })
}

/// A run over all mixes.
struct Bench<'a> {
    shared: &'a Shared,
    arguments: &'a Arguments,
    sides: Vec<Side>,
    sizes: Sizes,
    /// Answers, and those without text.
    answers: Cell<usize>,
    silent: Cell<usize>,
}

impl Bench<'_> {
    fn names(&self) -> Vec<&'static str> {
        self.sides.iter().map(|side| side.name).collect()
    }

    /// The seed of a run: another one for each mix, load and run.
    fn seed(&self, mix: Mix, load: usize, number: u32) -> u64 {
        let parts = [
            self.arguments.mixed.seed,
            mix as u64,
            load as u64,
            number.into(),
        ];
        parts.iter().fold(0, |seed, &part| {
            (seed ^ part)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        })
    }

    /// The closed loops of a mix, then the open ones.
    fn mix(&self, mix: Mix) -> Result<Vec<Row>> {
        let own = &self.arguments.mixed;
        let names = self.names();
        let mut rows = Vec::new();
        // Tasks a second in the largest closed loop, of each side.
        let mut rates = vec![0.0; self.sides.len()];
        let mut measure = |load: usize, kind: &dyn Fn(usize) -> Load, count, label: String| {
            let runs = turns(self.shared.runs(), self.sides.len(), |side, number| {
                eprintln!("{}, {label}: run {number}, {}", mix.name(), names[side]);
                let seed = self.seed(mix, load, number);
                let tasks = mix.tasks(seed, count, self.sizes)?;
                let answers = self.sides[side].run(&tasks, kind(side), seed)?;
                let outcomes = answers.outcomes.iter();
                let silent = outcomes.filter(|one| one.first_s.is_nan()).count();
                self.answers
                    .set(self.answers.get() + answers.outcomes.len());
                self.silent.set(self.silent.get() + silent);
                Ok(Some(answers))
            })?;
            let labels = vec![mix.name().to_owned(), label];
            rows.extend(measures(kind(0), &labels, &names, &runs));
            anyhow::Ok(runs)
        };
        for &clients in &self.arguments.clients {
            let (clients, load) = (usize::from(clients), Load::Clients(clients.into()));
            let count = match own.requests {
                Some(count) => count as usize,
                None if mix == Mix::Agents || self.shared.quick => clients,
                None => LEAST.max(2 * clients),
            };
            let runs = measure(clients, &|_| load, count, load.name())?;
            for (rate, runs) in rates.iter_mut().zip(&runs) {
                let found: Vec<f64> = runs.iter().map(|run| count as f64 / run.seconds).collect();
                *rate = Spread::of(&found).median;
            }
        }
        if self.arguments.closed {
            return Ok(rows);
        }
        let largest = self.arguments.clients.iter().max();
        let largest = largest.map_or(LEAST, |&clients| clients.into());
        let count = match own.requests {
            Some(count) => count as usize,
            None if mix == Mix::Agents || self.shared.quick => largest.max(2),
            None => LEAST.max(2 * largest),
        };
        if own.rates.is_empty() {
            for (at, &share) in self.arguments.arrivals.iter().enumerate() {
                let label = format!("Poisson, {share} of its most");
                measure(
                    1000 + at,
                    &|side| Load::Arrivals(share * rates[side]),
                    count,
                    label,
                )?;
            }
        }
        for (at, &rate) in own.rates.iter().enumerate() {
            let load = Load::Arrivals(rate);
            measure(
                2000 + at,
                &|_| load,
                count,
                format!("Poisson, {}", load.name()),
            )?;
        }
        Ok(rows)
    }

    /// Gaps of rows while a long prompt is computed.
    fn stalls(&self) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for count in STALL_ROWS {
            let runs = turns(self.shared.runs(), self.sides.len(), |side, number| {
                let Side { name, client, .. } = &self.sides[side];
                eprintln!("stall, rows: {count}, run {number}, {name}");
                let seed = self.seed(Mix::Stall, count, number);
                let stall = stall::measure(client, count, seed, self.sizes);
                stall.with_context(|| format!("{name}: stall")).map(Some)
            })?;
            type Of = fn(&Stall) -> f64;
            let measures: [(&'static str, Of); 4] = [
                ("between tokens p95 without the prompt, ms", |stall| {
                    1e3 * stall.gap_s[0]
                }),
                ("between tokens p95 during the prompt, ms", |stall| {
                    1e3 * stall.gap_s[1]
                }),
                ("p95 during over p95 without", |stall| {
                    stall.gap_s[1] / stall.gap_s[0]
                }),
                ("first token of the prompt, ms", |stall| 1e3 * stall.first_s),
            ];
            let label = match count {
                1 => "1 row".to_owned(),
                n => format!("{n} rows"),
            };
            rows.extend(measures.map(|(measure, of)| {
                Row {
                    labels: vec![Mix::Stall.name().to_owned(), label.clone()],
                    measure,
                    more_is_better: false,
                    values: runs
                        .iter()
                        .map(|runs| runs.iter().map(of).collect())
                        .collect(),
                    goals: vec![None; self.sides.len() - 1],
                }
            }));
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::serve::{FIRST, THROUGHPUT};

    #[test]
    fn servers_have_names_and_addresses() {
        let found = name_and_url("vllm=http://127.0.0.1:8000").unwrap();
        assert_eq!(
            found,
            ("vllm".to_owned(), "http://127.0.0.1:8000".to_owned())
        );
        for wrong in ["http://127.0.0.1:8000", "=http://a", "vllm=127.0.0.1"] {
            assert!(name_and_url(wrong).is_err(), "{wrong}");
        }
        assert!(factor("0").is_err() && factor("2").is_err() && factor("0.5").is_ok());
    }

    #[test]
    fn measures_have_the_labels_of_their_mix() {
        let answers = Answers {
            outcomes: Vec::new(),
            seconds: 1.0,
            cpu_s: None,
        };
        let labels = ["chat".to_owned(), "4 clients".to_owned()];
        let rows = measures(Load::Clients(4), &labels, &["ours"], &[vec![answers]]);
        assert!(rows.iter().all(|row| row.labels == labels));
        let has = |measure: &str| rows.iter().any(|row| row.measure == measure);
        assert!(has(THROUGHPUT) && has(FIRST));
    }
}
