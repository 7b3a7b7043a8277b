//! `bench cpu`: checkpoints of published shapes on the CPU, against llama.cpp and mlx-lm.
//!
//! Weights are random and the same on every side; 4-bit checkpoints of MLX are compared with Q4_0, 8-bit ones with
//! Q8_0. mlx-lm takes seconds for a token here, so it decodes only a few tokens of one row.

mod files;
mod work;

use std::cell::RefCell;

use anyhow::Result;
use clap::ValueEnum;
use serde_json::Value;

use super::limits::Limits;
use super::plot;
use super::record::Record;
use super::roofline::Roof;
use super::stats::{Row, Table};
use super::{Shared, build_session, machine, work as folder};
use files::Files;
use work::{Case, WORKS, Work};

/// What to measure.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these shapes
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Model::Qwen3, Model::Gemma3])]
    models: Vec<Model>,
    /// Only these formats
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Format::Q4, Format::Q8, Format::Bf16])]
    formats: Vec<Format>,
    /// Only these programs besides this project's
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Peer::LlamaCpp, Peer::MlxLm])]
    peers: Vec<Peer>,
    /// Layers of the checkpoints, for a quick look: no record is written
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,
    /// A Python that has llama-cpp-python and gguf, instead of building them
    #[arg(long, value_name = "FILE")]
    llama_python: Option<std::path::PathBuf>,
    /// Measure as if the machine had only these instructions. llama.cpp must have been built for
    /// the same
    #[arg(long, value_enum, requires = "llama_python")]
    isa: Option<Isa>,
}

/// The instruction sets of a smaller machine.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Isa {
    /// AVX2 and FMA
    Avx2,
    /// AVX-512 with VNNI
    Avx512vnni,
}

impl Isa {
    /// Its name for `MLX_CPU_ISA`.
    fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
            Self::Avx512vnni => "avx512vnni",
        }
    }

    /// The compilers' name of a machine with these instructions.
    fn machine(self) -> &'static str {
        match self {
            Self::Avx2 => "-march=x86-64-v3",
            Self::Avx512vnni => "-march=icelake-server",
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Model {
    /// The shape of Qwen3-0.6B
    #[value(name = "qwen3-0.6b")]
    Qwen3,
    /// The shape of Gemma3-1B
    #[value(name = "gemma3-1b")]
    Gemma3,
}

impl Model {
    /// Its name for scripts and tables.
    fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3-0.6b",
            Self::Gemma3 => "gemma3-1b",
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Q4,
    Q8,
    Bf16,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Q4 => "q4",
            Self::Q8 => "q8",
            Self::Bf16 => "bf16",
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Peer {
    #[value(name = "llama.cpp")]
    LlamaCpp,
    MlxLm,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::MlxLm => "mlx-lm",
        }
    }
}

/// Measures and writes the record.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let threads = machine::threads();
    let limits = Limits::measure(&folder()?, threads, arguments.isa.map(Isa::machine))?;
    eprintln!("{}", limits.text(threads));
    let files = Files::new(shared, arguments)?;
    let binary = build_session()?;
    let mut sides = vec!["ours"];
    sides.extend(arguments.peers.iter().map(|peer| peer.name()));
    let load_before = machine::load_average();
    let (mut rows, mut roofs, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    let (mut notes, mut versions) = (Vec::new(), Vec::new());
    for &model in &arguments.models {
        files.prepare(model)?;
        for &format in &arguments.formats {
            let case = Case {
                name: format!("{} {}", model.name(), format.name()),
                runs: shared.runs(),
                quick: shared.quick,
                commands: files.commands(&binary, model, format, threads),
                notes: RefCell::default(),
                versions: RefCell::default(),
            };
            let labels = vec![model.name().to_owned(), format.name().to_owned()];
            let mut found = Vec::new();
            let mut sessions = case.sessions()?;
            for work in WORKS {
                if work == Work::Fresh {
                    // No other model may be in memory during the measurement.
                    sessions.clear();
                }
                let measured = case.measure(&mut sessions, work)?;
                if let Some(ours) = sessions.first_mut() {
                    profiles.extend(case.profile(ours, &labels, work)?);
                }
                found.extend(measured.into_iter().map(|values| (work, values)));
            }
            let shape = files.shape(model, format)?;
            for (work, (measure, values)) in found {
                let row = Row {
                    labels: labels.clone(),
                    measure,
                    more_is_better: !matches!(work, Work::Fresh),
                    goals: goals(&sides, measure, limits.amx_bf16_gflop_s.is_some()),
                    values,
                };
                if let Some(amount) = work.amount(&shape, shared.quick) {
                    roofs.push(Roof::new(&row, &amount, &limits.rates()));
                }
                rows.push(row);
            }
            notes.extend(case.notes.take());
            merge(&mut versions, case.versions.take());
        }
    }
    let table = Table {
        labels: &["shape", "weights"],
        sides: sides.clone(),
        rows,
    };
    let plot = (sides.len() > 1).then(|| {
        let title = format!("On the CPU, times better than {}", sides[1]);
        plot::ratios(&title, &table, 1)
    });
    let mut facts = vec![limits.text(threads)];
    let mut kind = "cpu".to_owned();
    if let Some(isa) = arguments.isa.map(Isa::name) {
        kind = format!("cpu-{isa}");
        facts.push(format!(
            "Both sides and the limits do as if the machine had no more than {isa}"
        ));
    }
    let record = Record {
        kind,
        method: work::method(threads, arguments.layers, &sides),
        commit: machine::commit(),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: versions,
        facts,
        table,
        goals: Vec::new(),
        roofs,
        profiles,
        sections: Vec::new(),
        notes,
        plot,
    };
    match arguments.layers {
        None => shared.finish(&record),
        Some(_) => {
            print!("{}", record.markdown());
            Ok(())
        }
    }
}

/// The goal: how many times better than llama.cpp this project should be.
fn goals(sides: &[&str], measure: &str, amx: bool) -> Vec<Option<f64>> {
    let goal = match (measure, amx) {
        (work::PREFILL | work::CLASSIFY, true) => 5.0,
        (work::DECODE_1, true) => 1.2,
        (work::DECODE_8, true) => 2.0,
        (work::DECODE_32, true) => 4.0,
        (work::PREFILL | work::CLASSIFY | work::DECODE_8 | work::DECODE_32, false) => 1.2,
        (work::DECODE_1, false) | (work::LOAD, _) => 1.0,
        // Memory may be at most 1.1 times as much.
        (work::MEMORY, _) => 0.91,
        (other, _) => unreachable!("{other} has a goal"),
    };
    let peers = sides.iter().skip(1);
    peers
        .map(|&side| (side == "llama.cpp").then_some(goal))
        .collect()
}

/// Adds the values whose keys are new.
fn merge(known: &mut Vec<(&'static str, Value)>, more: Vec<(&'static str, Value)>) {
    for (name, versions) in more {
        if !known.iter().any(|(other, _)| *other == name) {
            known.push((name, versions));
        }
    }
}
