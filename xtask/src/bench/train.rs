//! `bench train`: steps of LoRA and of full training against `mlx_lm.lora`, on the same libmlx and the same batch.
//!
//! Every run is a process of its own. The data are one batch, so both sides learn the same tokens in every step and
//! begin with the same loss.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::plot;
use super::process::measured;
use super::record::Record;
use super::session::turns;
use super::stats::{Row, Spread, Table};
use super::{Shared, build, checkpoints, machine, scripts, work};
use crate::python;

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this kind of training
    #[arg(long)]
    only: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Kind {
    /// Adapters on f32 weights
    Lora,
    /// Adapters on bf16 weights
    LoraBf16,
    /// Adapters on 4-bit weights
    Qlora,
    /// All weights of all layers
    Full,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Lora => "LoRA, f32",
            Self::LoraBf16 => "LoRA, bf16",
            Self::Qlora => "LoRA, 4-bit base",
            Self::Full => "full, f32",
        }
    }

    fn checkpoint(self) -> &'static str {
        match self {
            Self::Lora | Self::Full => "f32",
            Self::LoraBf16 => "bf16",
            Self::Qlora => "q4",
        }
    }

    fn method(self) -> &'static str {
        match self {
            Self::Lora | Self::LoraBf16 | Self::Qlora => "lora",
            Self::Full => "full",
        }
    }
}

const SIDES: [&str; 2] = ["ours", "mlx-lm"];
/// Rows of the batch, and the tokens that each learns. mlx-lm pads rows to multiples of 32, so this length needs no
/// padding.
const BATCH: (usize, usize) = (2, 128);
/// Layers of the checkpoint; mlx-lm needs the number.
const LAYERS: usize = 8;
/// The goal: this many times faster than mlx-lm, with at most its memory.
const GOALS: (f64, f64) = (1.3, 1.0);

/// A step, in the fields that both sides report.
#[derive(Deserialize)]
struct Step {
    loss: f64,
    tokens: usize,
    seconds: f64,
    peak_bytes: u64,
}

/// The result of a run.
struct Run {
    first_loss: f64,
    tokens_per_s: f64,
    peak_arrays: f64,
    peak_rss: f64,
    versions: Option<Value>,
}

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let python = shared.python()?;
    let checkpoints = checkpoints(&python)?;
    let binary = build("mlx-train")?;
    let data = data()?;
    let load_before = machine::load_average();
    // The first step allocates and compiles.
    let steps = if shared.quick { 2 } else { 4 };
    let (mut rows, mut notes, mut versions) = (Vec::new(), Vec::new(), Value::Null);
    for kind in [Kind::Lora, Kind::LoraBf16, Kind::Full, Kind::Qlora] {
        if arguments.only.is_some_and(|only| only != kind) {
            continue;
        }
        let model = checkpoints.join(kind.checkpoint());
        let found = turns(shared.runs(), SIDES.len(), |side, number| {
            let (runs, side_name) = (shared.runs(), SIDES[side]);
            eprintln!("{}: run {number} of {runs}, {side_name}", kind.name());
            let mut command = match side {
                0 => std::process::Command::new(&binary),
                _ => python::command(&python),
            };
            match side {
                0 => command.args([kind.method(), "--json"]),
                _ => command
                    .arg(scripts().join("mlx_lm_train.py"))
                    .arg(kind.method()),
            };
            command
                .arg("--model")
                .arg(&model)
                .arg("--data")
                .arg(&data)
                .args(["--num-layers", &LAYERS.to_string()])
                .args(["--batch-size", &BATCH.0.to_string()])
                .args(["--max-seq-length", &(BATCH.1 + 1).to_string()])
                .args(["--optimizer", "adamw", "--learning-rate", "1e-5"])
                .arg(if side == 0 { "--steps" } else { "--iters" })
                .arg(steps.to_string())
                .arg(if side == 0 { "--out" } else { "--adapter-path" })
                .arg(work()?.join("trained").join(SIDES[side]));
            read(command, steps, side).map(Some)
        })?;
        notes.push(agreement(kind, &found)?);
        versions = found[1][0].versions.clone().unwrap_or(versions);
        type Quantity = fn(&Run) -> f64;
        let measures: [(&'static str, bool, Option<f64>, Quantity); 3] = [
            ("tokens/s", true, Some(GOALS.0), |run| run.tokens_per_s),
            (
                "peak memory of MLX's arrays, MB",
                false,
                Some(GOALS.1),
                |run| run.peak_arrays,
            ),
            (
                "peak memory of the process, MB",
                false,
                Some(GOALS.1),
                |run| run.peak_rss,
            ),
        ];
        rows.extend(measures.map(|(measure, more_is_better, goal, of)| {
            Row {
                labels: vec![kind.name().to_owned()],
                measure,
                more_is_better,
                values: found
                    .iter()
                    .map(|runs| runs.iter().map(of).collect())
                    .collect(),
                goals: vec![goal],
            }
        }));
    }
    let table = Table {
        labels: &["training"],
        sides: SIDES.to_vec(),
        rows,
    };
    shared.finish(&Record {
        kind: "train".to_owned(),
        method: format!(
            "Each run is a process of its own: {steps} steps of AdamW on the same batch of {} rows that learn {} tokens \
             each; the first step does not count. All layers are trained, embedding and head are not; adapters of \
             rank 8 on every linear layer.",
            BATCH.0, BATCH.1
        ),
        commit: machine::commit(),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: vec![("mlx-lm", versions)],
        facts: Vec::new(),
        plot: Some(plot::ratios("Training, times better than mlx-lm", &table, 1)),
        table,
        goals: Vec::new(),
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes,
    })
}

/// Two texts that are longer than a row: both sides truncate them at the same token.
fn data() -> Result<PathBuf> {
    const WORDS: [&str; 8] = [
        "river", "seven", "the", "engine", "cloud", "reads", "a", "number",
    ];
    let folder = python::fresh(&work()?.join("training-data"))?;
    let text = |row: usize| {
        let words: Vec<&str> = (0..2 * BATCH.1)
            .map(|at| WORDS[(at * at + 3 * at * row + at / 7 + row) % WORDS.len()])
            .collect();
        json!({"text": words.join(" ")}).to_string() + "\n"
    };
    let lines: String = (0..BATCH.0).map(text).collect();
    // mlx-lm requires both files, and the benchmark evaluates neither.
    for file in ["train.jsonl", "valid.jsonl"] {
        std::fs::write(folder.join(file), &lines)?;
    }
    Ok(folder)
}

/// Runs a side, whose output has the steps as JSON lines among other lines.
fn read(mut command: std::process::Command, steps: usize, side: usize) -> Result<Run> {
    // The previous run has left a checkpoint, which mlx-train does not overwrite.
    let out = work()?.join("trained").join(SIDES[side]);
    python::fresh(&out)?;
    let (run, output) = measured(&mut command)?;
    let lines = output
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut found, mut versions) = (Vec::new(), None);
    for line in lines {
        match line["event"].as_str() {
            Some("step") => found.push(serde_json::from_value::<Step>(line).context("a step")?),
            Some("versions") => versions = Some(line["versions"].clone()),
            _ => {}
        }
    }
    if found.len() != steps {
        bail!(
            "{}: {steps} steps were asked for, {} reported",
            SIDES[side],
            found.len()
        );
    }
    let learnt = BATCH.0 * BATCH.1;
    if let Some(step) = found.iter().find(|step| step.tokens != learnt) {
        bail!(
            "{}: a step of {} tokens, not {learnt}",
            SIDES[side],
            step.tokens
        );
    }
    let counted = &found[1..];
    let seconds: f64 = counted.iter().map(|step| step.seconds).sum();
    let peak = found.iter().map(|step| step.peak_bytes).max().unwrap_or(0);
    Ok(Run {
        first_loss: found[0].loss,
        tokens_per_s: (learnt * counted.len()) as f64 / seconds,
        peak_arrays: peak as f64 / 1e6,
        peak_rss: run.peak_rss as f64 / 1e6,
        versions,
    })
}

/// The relative difference of the first losses. An error if it is too large for the same
/// computation.
fn agreement(kind: Kind, found: &[Vec<Run>]) -> Result<String> {
    let median = |side: usize| {
        let losses: Vec<f64> = found[side].iter().map(|run| run.first_loss).collect();
        Spread::of(&losses).median
    };
    let (ours, theirs) = (median(0), median(1));
    let apart = (ours - theirs).abs() / theirs;
    if apart > 1e-3 {
        bail!(
            "{}: losses before the first step are {ours} and {theirs}",
            kind.name()
        );
    }
    Ok(format!(
        "{}: the losses before the first step, {ours:.4} and {theirs:.4}, differ by {apart:.1e} of them",
        kind.name()
    ))
}
