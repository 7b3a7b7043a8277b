//! `bench batch`: steps of 1 to 64 rows, and classification, against mlx-lm's `BatchGenerator`.
//!
//! Both sides stay loaded and run in turns. A warm-up of each size comes first and is not counted.

use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

use super::plot::{self, Line, Panel};
use super::record::{Goal, Record};
use super::session::{Generated, Session, prompts, turns};
use super::stats::{Row, Table};
use super::{Shared, build_session, checkpoints, machine, scripts};
use crate::python;

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this checkpoint
    #[arg(long)]
    only: Option<Checkpoint>,
    /// The sizes of batches
    #[arg(long, value_name = "B,B", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64), default_values_t = [1, 2, 4, 8, 16, 32, 64])]
    rows: Vec<u16>,
}

/// A checkpoint of `xtask/bench/checkpoint.py`.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Checkpoint {
    F32,
    Bf16,
    Q4,
}

impl Checkpoint {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q4 => "q4",
        }
    }
}

const SIDES: [&str; 2] = ["ours", "mlx-lm"];
/// Tokens of each prompt. Only the tokens after it are measured.
const PROMPT: usize = 8;
/// Tokens of a text that is classified.
const TEXT: usize = 24;
/// Number of texts that are classified at a time, and their total.
const TEXTS: [(usize, usize); 3] = [(1, 4), (8, 8), (32, 32)];
/// Goals: the rate of all rows as a multiple of mlx-lm's, and the rate of 32 rows as a multiple of
/// the own single row.
const GOAL: f64 = 1.5;
const GOAL_OF_32: f64 = 8.0;

/// Tokens of each row; a step of many rows takes mlx-lm a second.
fn tokens(rows: usize, quick: bool) -> usize {
    match (quick, rows) {
        (true, _) => 5,
        (false, ..=4) => 33,
        (false, _) => 9,
    }
}

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let python = shared.python()?;
    let checkpoints = checkpoints(&python)?;
    let binary = build_session()?;
    let load_before = machine::load_average();
    let (mut rows, mut goals, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let (mut panels, mut versions) = (Vec::new(), Value::Null);
    for checkpoint in [Checkpoint::F32, Checkpoint::Bf16, Checkpoint::Q4] {
        if arguments.only.is_some_and(|only| only != checkpoint) {
            continue;
        }
        let folder = checkpoints.join(checkpoint.name());
        let mut ours = std::process::Command::new(&binary);
        ours.arg(&folder);
        let mut peer = python::command(&python);
        peer.arg(scripts().join("mlx_lm_session.py")).arg(&folder);
        let mut sides = [
            Session::start(SIDES[0], ours)?,
            Session::start(SIDES[1], peer)?,
        ];
        versions = sides[1].hello["versions"].clone();
        let steps = sweep(&mut sides, checkpoint, shared, &arguments.rows, &mut notes)?;
        let aggregate: Vec<&Row> = steps.iter().filter(|row| row.measure == ALL).collect();
        goals.extend(scaling(checkpoint, &arguments.rows, &aggregate));
        panels.push(Panel {
            title: checkpoint.name().to_owned(),
            lines: (0..SIDES.len())
                .map(|side| Line::of(SIDES[side], &arguments.rows, &aggregate, side))
                .collect(),
        });
        rows.extend(steps);
        rows.extend(classify(&mut sides, checkpoint, shared)?);
    }
    shared.finish(&Record {
        kind: "batch".to_owned(),
        method: format!(
            "Both sides stay loaded and answer in turns, each size once before it counts. \
             Greedy, past end tokens; each row a prompt of its own of {PROMPT} tokens, then {} tokens \
             ({} from 8 rows on), timed from the first row's first token to the last token of all. \
             Classification: texts of {TEXT} tokens, so many at a time.",
            tokens(1, shared.quick),
            tokens(8, shared.quick),
        ),
        commit: machine::commit(),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: vec![("mlx-lm", versions)],
        facts: Vec::new(),
        table: Table {
            labels: &["checkpoint", "rows"],
            sides: SIDES.to_vec(),
            rows,
        },
        goals,
        roofs: Vec::new(),
        profiles: Vec::new(),
        sections: Vec::new(),
        notes,
        plot: Some(plot::lines(
            "Tokens a second of all rows, by rows",
            &panels,
        )),
    })
}

const ALL: &str = "decode of all rows, tokens/s";

/// Decodes with every size of batch: one row of the table for each measure and size.
fn sweep(
    sides: &mut [Session; 2],
    checkpoint: Checkpoint,
    shared: &Shared,
    sizes: &[u16],
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let name = checkpoint.name();
    let mut found = Vec::new();
    for &size in sizes {
        let (size, tokens) = (usize::from(size), tokens(usize::from(size), shared.quick));
        let prompts = prompts(size, PROMPT);
        for side in sides.iter_mut() {
            side.generate(&prompts, 3)?;
        }
        let runs = turns(shared.runs(), sides.len(), |side, number| {
            eprintln!(
                "{name}, {size} rows: run {number} of {}, {}",
                shared.runs(),
                SIDES[side]
            );
            sides[side].generate(&prompts, tokens).map(Some)
        })?;
        let (ours, theirs) = (&runs[0][0].tokens, &runs[1][0].tokens);
        let same = ours.iter().zip(theirs).filter(|(a, b)| a == b).count();
        notes.push(format!(
            "{name}, {size} rows: {same} have the same {tokens} tokens on both sides"
        ));
        found.push((size, tokens - 1, runs));
    }
    type Quantity = fn(f64, usize) -> f64;
    let measures: [(&'static str, bool, Quantity); 3] = [
        (ALL, true, |step, rows| rows as f64 / step),
        ("decode of a row, tokens/s", true, |step, _| 1.0 / step),
        ("step, ms", false, |step, _| 1e3 * step),
    ];
    let row = |(measure, more_is_better, of): (_, _, Quantity), size, steps, runs: &[Vec<_>]| {
        let value = |run: &Generated| of(run.decode_s / steps as f64, size);
        Row {
            labels: vec![name.to_owned(), size.to_string()],
            measure,
            more_is_better,
            values: runs
                .iter()
                .map(|runs| runs.iter().map(value).collect())
                .collect(),
            goals: vec![(measure == ALL).then_some(GOAL)],
        }
    };
    Ok(measures
        .into_iter()
        .flat_map(|measure| {
            let sizes = found.iter();
            sizes.map(move |(size, steps, runs)| row(measure, *size, *steps, runs))
        })
        .collect())
}

/// The rate of all rows as a multiple of the single row, both of this project.
fn scaling(checkpoint: Checkpoint, sizes: &[u16], aggregate: &[&Row]) -> Option<Goal> {
    let of = |size| aggregate[sizes.iter().position(|&s| s == size)?].median(0);
    Some(Goal {
        what: format!(
            "{}: ours with 32 rows, times our single row",
            checkpoint.name()
        ),
        wanted: GOAL_OF_32,
        found: of(32)? / of(1)?,
    })
}

/// Texts a second, with this many texts at a time.
fn classify(sides: &mut [Session; 2], checkpoint: Checkpoint, shared: &Shared) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (batch, all) in TEXTS {
        let texts = prompts(all, TEXT);
        for side in sides.iter_mut() {
            side.classify(&texts[..batch], batch)?;
        }
        let name = checkpoint.name();
        let values = turns(shared.runs(), sides.len(), |side, number| {
            let (runs, side_name) = (shared.runs(), SIDES[side]);
            eprintln!("{name}, {batch} texts at a time: run {number} of {runs}, {side_name}");
            let (seconds, _) = sides[side].classify(&texts, batch)?;
            Ok(Some(texts.len() as f64 / seconds))
        })?;
        rows.push(Row {
            labels: vec![name.to_owned(), batch.to_string()],
            measure: "classify, texts/s",
            more_is_better: true,
            values,
            goals: Vec::new(),
        });
    }
    Ok(rows)
}
