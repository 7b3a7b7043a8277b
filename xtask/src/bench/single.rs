//! `bench single`: one sequence in whole processes, this project's and mlx-lm's.
//!
//! Every run is a process of its own.

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::process::{Run, Sides};
use super::record::Record;
use super::session::turns;
use super::stats::{Row, Table};
use super::{Shared, build, checkpoints, machine, scripts};

/// What to measure.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Tokens a second after the first
    Decode,
    /// Tokens of a prompt a second
    Prefill,
    /// From the start of the process to its end, with one token
    Start,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Decode => "decode",
            Part::Prefill => "prefill",
            Part::Start => "start",
        }
    }
}

/// A checkpoint of `xtask/bench/checkpoint.py`.
struct Checkpoint {
    name: &'static str,
    /// Whether both sides compute in the same precision throughout, so that their tokens must be equal.
    exact: bool,
}

const SIDES: [&str; 2] = ["ours", "mlx-lm"];

const CHECKPOINTS: [Checkpoint; 3] = [
    Checkpoint {
        name: "f32",
        exact: true,
    },
    Checkpoint {
        name: "bf16",
        exact: false,
    },
    Checkpoint {
        name: "q4",
        exact: true,
    },
];

/// The prompt of a part, in tokens, and the number of tokens to generate.
fn lengths(part: Part, quick: bool) -> (usize, usize) {
    match (part, quick) {
        (Part::Decode, false) => (32, 129),
        (Part::Decode, true) => (32, 17),
        (Part::Prefill, false) => (512, 1),
        (Part::Prefill, true) => (64, 1),
        (Part::Start, _) => (0, 1),
    }
}

/// A quantity of a run.
#[derive(Clone, Copy, PartialEq)]
enum Measure {
    /// Tokens a second after the first.
    Decode,
    /// Tokens of the prompt a second, including the choice of the first token.
    Prefill,
    /// Loading, in seconds, without imports.
    Load,
    /// The whole process with one token, in seconds.
    Start,
    /// The peak memory of the process, in bytes.
    PeakRss,
    /// The peak memory of MLX's arrays, in bytes.
    PeakArrays,
}

impl Measure {
    /// The quantities that a part measures.
    fn of(part: Part) -> &'static [Self] {
        match part {
            Part::Decode => &[Self::Decode, Self::Load, Self::PeakRss, Self::PeakArrays],
            Part::Prefill => &[Self::Prefill, Self::PeakRss, Self::PeakArrays],
            Part::Start => &[Self::Start, Self::PeakRss],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode, tokens/s",
            Self::Prefill => "prefill, tokens/s",
            Self::Load => "load, s",
            Self::Start => "process start to first token, s",
            Self::PeakRss => "peak memory of the process, MB",
            Self::PeakArrays => "peak memory of MLX's arrays, MB",
        }
    }

    /// The goal for the ratio of a checkpoint.
    fn goal(self, checkpoint: &str) -> Option<f64> {
        match (self, checkpoint) {
            (Self::Decode, "f32") => Some(1.5),
            (Self::Start, "f32") => Some(5.0),
            _ => None,
        }
    }

    /// The quantity of one run whose prompt has `prompt` tokens.
    fn value(self, run: &Run, prompt: usize) -> f64 {
        let timing = |name: &str| run.timings[name].as_f64().unwrap_or(f64::NAN);
        match self {
            Self::Decode => run.tokens.len().saturating_sub(1) as f64 / timing("decode_s"),
            Self::Prefill => prompt as f64 / timing("prefill_s"),
            Self::Load => timing("load_s"),
            Self::Start => run.process_s,
            Self::PeakRss => run.peak_rss as f64 / 1e6,
            Self::PeakArrays => timing("peak_memory_bytes") / 1e6,
        }
    }

    fn row(self, checkpoint: &str, part: Part, prompt: usize, runs: &[Vec<Run>]) -> Row {
        let values = |runs: &Vec<Run>| runs.iter().map(|run| self.value(run, prompt)).collect();
        Row {
            labels: vec![checkpoint.to_owned(), part.name().to_owned()],
            measure: self.name(),
            more_is_better: matches!(self, Self::Decode | Self::Prefill),
            values: runs.iter().map(values).collect(),
            goals: vec![self.goal(checkpoint)],
        }
    }
}

/// Measures, checks that the two sides have the same tokens, and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let python = shared.python()?;
    let checkpoints = checkpoints(&python)?;
    let sides = Sides::new(build("mlx-infer")?, python, scripts().join("peer.py"));
    let runs = shared.runs();
    let load_before = machine::load_average();
    let (mut rows, mut notes, mut versions) = (Vec::new(), Vec::new(), None);
    for part in [Part::Decode, Part::Prefill, Part::Start] {
        if arguments.only.is_some_and(|only| only != part) {
            continue;
        }
        for checkpoint in &CHECKPOINTS {
            if part == Part::Start && checkpoint.name != "f32" {
                continue;
            }
            let folder = checkpoints.join(checkpoint.name);
            let (prompt, tokens) = lengths(part, shared.quick);
            let found = turns(runs, 2, |side, number| {
                let (checkpoint, part_name) = (checkpoint.name, part.name());
                eprintln!(
                    "{checkpoint} {part_name}: run {number} of {runs}, {}",
                    SIDES[side]
                );
                let run = match (part, side) {
                    (Part::Start, 0) => sides.our_start(&folder),
                    (Part::Start, _) => sides.peer_start(&folder),
                    (_, 0) => sides.ours(&folder, &ids(prompt), tokens),
                    (_, _) => sides.peer(&folder, &ids(prompt), tokens),
                };
                run.map(Some)
            })?;
            if part != Part::Start {
                notes.push(agreement(checkpoint, part, &found[0], &found[1])?);
                let last = found[1].last().and_then(|run| run.versions.clone());
                versions = last.or(versions);
            }
            let measures = Measure::of(part).iter();
            rows.extend(measures.map(|m| m.row(checkpoint.name, part, prompt, &found)));
        }
    }
    shared.finish(&Record {
        kind: "single".to_owned(),
        method: "Each run is a process of its own.".to_owned(),
        commit: machine::commit(),
        runs,
        quick: shared.quick,
        load_before,
        peers: versions
            .map(|versions| ("mlx-lm", versions))
            .into_iter()
            .collect(),
        facts: Vec::new(),
        table: Table {
            labels: &["checkpoint", "in"],
            sides: SIDES.to_vec(),
            rows,
        },
        goals: Vec::new(),
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes,
        plot: None,
    })
}

/// The number of equal tokens of the two sides. An error if they must be equal and are not.
fn agreement(checkpoint: &Checkpoint, part: Part, ours: &[Run], peer: &[Run]) -> Result<String> {
    let name = format!("{} {}", checkpoint.name, part.name());
    let (first, theirs) = (&ours[0].tokens, &peer[0].tokens);
    for (side, runs) in [("ours", ours), ("mlx-lm", peer)] {
        if runs.iter().any(|run| run.tokens != runs[0].tokens) {
            bail!("{name}: {side} gave other tokens in another run");
        }
    }
    let same = first.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    if first.len() != theirs.len() || (checkpoint.exact && same < first.len()) {
        bail!(
            "{name}: ours and mlx-lm's tokens differ from token {same} on: {:?} and {:?}",
            first.get(same..),
            theirs.get(same..)
        );
    }
    Ok(format!(
        "{name}: the first {same} of {} tokens are the same",
        first.len()
    ))
}

/// A prompt of `n` ids that exist in every checkpoint.
fn ids(n: usize) -> Vec<u32> {
    // Multiples of a prime within a part of the vocabulary that has no special tokens.
    (0..n as u32).map(|i| 300 + i * 37 % 1500).collect()
}
