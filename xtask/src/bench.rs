//! `bench`: this library and mlx-lm side by side, on the same checkpoints and prompts, into `records`.
//!
//! Every run is a process of its own, and the two take turns, so that a machine that slows down slows both. The
//! checkpoints are random and made once; times do not depend on what a model has learned.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{cargo, python};

mod machine;
mod record;
mod side;
mod stats;

use side::{Run, Sides};
use stats::{Measure, Row};

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Two short runs of everything: does it work, not how fast is it
    #[arg(long)]
    quick: bool,
    /// Only this part
    #[arg(long)]
    only: Option<Part>,
    /// How often each side runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// A Python that has the pinned packages, instead of installing them
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Print the table and write no record
    #[arg(long)]
    no_record: bool,
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Tokens a second after the first
    Decode,
    /// Tokens of a prompt a second
    Prefill,
    /// From the start of the process to its end, with one token between
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
    /// Whether both sides compute in the same precision throughout, so that their tokens are the same.
    exact: bool,
}

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

/// Prompt of a part, in tokens, and how many to generate.
fn lengths(part: Part, quick: bool) -> (usize, usize) {
    match (part, quick) {
        (Part::Decode, false) => (32, 129),
        (Part::Decode, true) => (32, 17),
        (Part::Prefill, false) => (512, 1),
        (Part::Prefill, true) => (64, 1),
        (Part::Start, _) => (0, 1),
    }
}

/// Measures, checks that the two sides say the same, and writes the record.
pub fn run(arguments: &Arguments) -> Result<()> {
    let work = cargo::build_directory()?.join("bench");
    let python = match &arguments.python {
        Some(python) => python.clone(),
        None => python::environment(&work, &scripts().join("requirements.txt"))?,
    };
    let checkpoints = checkpoints(&work, &python)?;
    let sides = Sides::new(build()?, python, scripts().join("peer.py"));
    let runs = if arguments.quick { 2 } else { arguments.runs };
    let before = machine::load_average();
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
            let (prompt, tokens) = lengths(part, arguments.quick);
            let run = |ours: bool, number: u32| {
                let side = if ours { "ours" } else { "mlx-lm" };
                eprintln!(
                    "{} {}: run {number} of {runs}, {side}",
                    checkpoint.name,
                    part.name()
                );
                match (part, ours) {
                    (Part::Start, true) => sides.our_start(&folder),
                    (Part::Start, false) => sides.peer_start(&folder),
                    (_, true) => sides.ours(&folder, &ids(prompt), tokens),
                    (_, false) => sides.peer(&folder, &ids(prompt), tokens),
                }
            };
            let (mut ours, mut peer): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
            for number in 1..=runs {
                // Neither side always runs behind the same neighbour.
                if number % 2 == 1 {
                    ours.push(run(true, number)?);
                    peer.push(run(false, number)?);
                } else {
                    peer.push(run(false, number)?);
                    ours.push(run(true, number)?);
                }
            }
            if part != Part::Start {
                notes.push(agreement(checkpoint, part, &ours, &peer)?);
                versions = peer
                    .last()
                    .and_then(|run| run.versions.clone())
                    .or(versions);
            }
            rows.extend(Measure::of(part).iter().map(|&measure| {
                Row::new(
                    checkpoint.name,
                    measure,
                    (part.name(), prompt),
                    &ours,
                    &peer,
                )
            }));
        }
    }
    let record = record::Record {
        runs,
        quick: arguments.quick,
        loads: [before, machine::load_average()],
        peer_versions: versions,
        rows,
        notes,
    };
    print!("{}", record.markdown());
    if arguments.no_record {
        return Ok(());
    }
    let written = record.write(&cargo::repository().join("records"))?;
    eprintln!("written: {}", written.display());
    Ok(())
}

/// How far the tokens of the two sides are the same; an error if they should be and are not.
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

/// A prompt of `n` ids that every checkpoint has.
fn ids(n: usize) -> Vec<u32> {
    // Steps of a prime through a part of the vocabulary that holds no special tokens.
    (0..n as u32).map(|i| 300 + i * 37 % 1500).collect()
}

/// The folder of the checkpoints, which are written when the script has changed or never ran.
fn checkpoints(work: &Path, python: &Path) -> Result<PathBuf> {
    let script = scripts().join("checkpoint.py");
    let tokenizer = cargo::repository().join("mlx-infer/assets/default-model");
    let folder = work.join("checkpoints");
    // Written last: a folder whose writing broke off has none.
    let stamp = folder.join("checkpoint.py");
    let source = std::fs::read(&script)?;
    if std::fs::read(&stamp).is_ok_and(|written| written == source) {
        return Ok(folder);
    }
    eprintln!("writing checkpoints");
    python::fresh(&folder)?;
    cargo::run(
        python::command(python)
            .arg(&script)
            .args([&folder, &tokenizer]),
    )?;
    std::fs::write(&stamp, source)?;
    Ok(folder)
}

/// The release binary.
fn build() -> Result<PathBuf> {
    cargo::run(&mut cargo::command([
        "build",
        "--release",
        "--package",
        "mlx-infer",
    ]))?;
    let binary = format!("mlx-infer{}", std::env::consts::EXE_SUFFIX);
    Ok(cargo::target_directory()?.join("release").join(binary))
}

fn scripts() -> PathBuf {
    cargo::repository().join("xtask").join("bench")
}

/// What a command prints, if it runs.
fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
