//! `bench cuda`: checks the kernels on an NVIDIA GPU, and compares the speed of models with mlx-lm
//! and llama.cpp, and the speed of each kernel with the card's limits.
//!
//! A GPU host may have neither cargo nor a network, so every program can be built elsewhere and
//! given by an option. Each part gets a part of the time. Work that does not fit is left out, and
//! the record says so.

pub(super) mod checkpoint;
mod clock;
mod correct;
mod gguf;
mod golden;
mod independent;
mod kernels;
mod pools;
mod program;
pub(super) mod programs;
mod recorded;
mod sides;
mod speed;
mod training;
mod work;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::plot;
use super::record::{Record, slug};
use super::roofline::{Roof, Shape};
use super::session::Session;
use super::stats::{Row, Table};
use super::{Shared, machine};
use crate::cargo;
use checkpoint::{Format, Model};
use clock::Clock;
use correct::{Check, Tests};
use kernels::Kernels;
use programs::{Gpu, Programs};
use training::Training;

/// What to measure, and with which programs.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only these shapes
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Model::Gemma3, Model::Qwen3])]
    models: Vec<Model>,
    /// Only these codings of weights
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Format::Q4, Format::Bf16])]
    formats: Vec<Format>,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [Part::Correctness, Part::Kernels, Part::Training, Part::Speed])]
    parts: Vec<Part>,
    /// This project's session driver (`bench_session` of mlx-infer), instead of building it
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
    /// The tests of the kernels (`cuda` of mlx-core), instead of building them
    #[arg(long, value_name = "FILE")]
    tests: Option<PathBuf>,
    /// The benchmark of the kernels (`cuda_kernels` of mlx-core), instead of building it
    #[arg(long, value_name = "FILE")]
    kernels: Option<PathBuf>,
    /// `mlx-train`, instead of building it
    #[arg(long, value_name = "FILE")]
    train: Option<PathBuf>,
    /// The goldens of training (`golden` of mlx-train), instead of building them
    #[arg(long, value_name = "FILE")]
    goldens: Option<PathBuf>,
    /// `llama-batched-bench` of a llama.cpp for CUDA; without it recorded figures are shown. mlx-lm runs if `--python`
    /// names a Python that has it and MLX for CUDA
    #[arg(long, value_name = "FILE")]
    llama: Option<PathBuf>,
    /// Where checkpoints are written, instead of `target/bench/cuda`
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
    /// The commit of the programs, if git cannot tell
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// The time for everything but building
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    minutes: u16,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    Correctness,
    Kernels,
    Training,
    Speed,
}

/// A checkpoint: a shape in a coding.
#[derive(Clone, Copy)]
struct Case {
    model: Model,
    format: Format,
}

impl Case {
    fn name(self) -> String {
        format!("{} {}", self.model.name(), self.format.name())
    }

    /// Its folder, written if it is not there.
    fn folder(self, work: &Path) -> Result<PathBuf> {
        let folder = work.join(self.model.name()).join(self.format.name());
        self.model.write(self.format, &folder)?;
        Ok(folder)
    }
}

/// A run: its programs, its GPU, and its time.
struct Bench<'a> {
    shared: &'a Shared,
    arguments: &'a Arguments,
    programs: Programs,
    work: PathBuf,
    clock: Clock,
    cases: Vec<Case>,
    notes: Vec<String>,
}

/// Checks, measures and writes the record; fails if a check failed.
pub fn run(shared: &Shared, arguments: &Arguments) -> Result<()> {
    let gpu = Gpu::find()?;
    eprintln!("{}", gpu.text());
    let cases = arguments.models.iter().flat_map(|&model| {
        let formats = arguments.formats.iter().copied();
        formats
            .filter(move |&format| model.has(format))
            .map(move |format| Case { model, format })
    });
    let mut bench = Bench {
        shared,
        arguments,
        programs: Programs::find(arguments)?,
        work: match &arguments.work {
            Some(work) => work.clone(),
            None => super::work()?.join("cuda"),
        },
        clock: Clock::start(arguments.minutes),
        cases: cases.collect(),
        notes: Vec::new(),
    };
    if bench.cases.is_empty() {
        bail!("no checkpoint has these shapes and codings: llama3.1-8b has q4 only");
    }
    let load_before = machine::load_average();
    let wants = |part| arguments.parts.contains(&part);
    if wants(Part::Correctness) || wants(Part::Speed) {
        bench.first_process()?;
    }
    let tests = bench.start_tests();
    let mut checks = match wants(Part::Correctness) {
        true => bench.correctness()?,
        false => Vec::new(),
    };
    for tests in tests {
        checks.push(tests.end()?);
    }
    let kernels = match wants(Part::Kernels) {
        true => Some(bench.kernels()?),
        false => None,
    };
    let training = match wants(Part::Training) {
        true => Some(bench.training()?),
        false => None,
    };
    let (table, versions) = bench.speed(wants(Part::Speed))?;
    let mut sections = Vec::new();
    sections.extend(training.as_ref().map(Training::section));
    if !checks.is_empty() {
        sections.push(correct::section(&checks));
    }
    sections.extend(kernels.as_ref().map(Kernels::section));
    let limits = kernels.as_ref().map(|kernels| kernels.limits);
    let roofs = match limits {
        Some(limits) => bench.roofs(&table, &limits)?,
        None => Vec::new(),
    };
    let record = Record {
        kind: format!("cuda-{}", slug(&gpu.name)),
        method: bench.method(),
        commit: arguments.commit.clone().or_else(machine::commit),
        runs: shared.runs(),
        quick: shared.quick,
        load_before,
        peers: versions,
        facts: bench.facts(&gpu, &table, limits),
        goals: work::goals(&table, limits.map(|limits| limits.copy_gb_s)),
        roofs,
        profiles: Vec::new(),
        sections,
        notes: bench.notes,
        plot: (!table.rows.is_empty()).then(|| {
            let title = format!("On {}, times better than {}", gpu.name, table.sides[2]);
            plot::ratios(&title, &table, 2)
        }),
        table,
    };
    shared.finish(&record)?;
    match &correct::failed(&checks)[..] {
        [] => Ok(()),
        failed => bail!(
            "{} of {} checks failed: {}",
            failed.len(),
            checks.len(),
            failed.join("; ")
        ),
    }
}

impl Bench<'_> {
    /// The first process of the run, in which nothing is compiled or cached by an earlier run.
    fn first_process(&mut self) -> Result<()> {
        let case = self.cases[0];
        let folder = case.folder(&self.work)?;
        let start = sides::ours(&self.programs.session, &folder);
        let seconds = sides::fresh("ours", &start)?;
        self.notes.push(format!(
            "The first process of this run ({}) gave its first token {seconds:.1} s after its start",
            case.name()
        ));
        Ok(())
    }

    /// Starts the test programs. On a new machine most of their time is MLX's, which compiles
    /// kernels on the host, one at a time in each process. So many processes run at the same time,
    /// next to the other checks. Speed is measured only after they have ended.
    fn start_tests(&self) -> Vec<Tests> {
        let limit = self.clock.left().mul_f64(0.6);
        let programs = [
            (
                Part::Correctness,
                "tests of the kernels (`mlx-core/tests/cuda`)",
                &self.programs.tests,
                Some(correct::EXACT),
            ),
            (
                Part::Training,
                "goldens of training (`mlx-train/tests/golden`)",
                &self.programs.goldens,
                None,
            ),
        ];
        let wanted = programs
            .into_iter()
            .filter(|(part, ..)| self.arguments.parts.contains(part));
        wanted
            .filter_map(|(_, what, program, setting)| {
                Some(Tests::start(what, program.clone()?, setting, limit))
            })
            .collect()
    }

    /// The checks that compare results: at most half of the time.
    fn correctness(&mut self) -> Result<Vec<Check>> {
        let mut checks = Vec::new();
        let testdata = cargo::repository().join("testdata");
        let tiny = testdata.join("models").join(golden::CASES[0]);
        let session = |device: &str| {
            let mut command = Command::new(&self.programs.session);
            // The CPU computes the plain form; the GPU's kernels have a setting of their own.
            command.arg(&tiny).args(["0", device]);
            command.env("MLX_CPU_KERNELS", "off");
            Session::start("ours", command)
        };
        checks.extend(golden::checks(
            &testdata,
            &mut session("gpu")?,
            &mut session("cpu")?,
        )?);
        for &case in &self.cases {
            if self.clock.used() > 0.5 {
                self.notes.push(format!(
                    "{}: rows were not compared, for lack of time",
                    case.name()
                ));
                continue;
            }
            let start = sides::ours(&self.programs.session, &case.folder(&self.work)?);
            let mut session = Session::start("ours", start())?;
            checks.extend(independent::checks(
                &case.name(),
                &mut session,
                self.shared.quick,
            )?);
        }
        Ok(checks)
    }

    fn kernels(&mut self) -> Result<Kernels> {
        let Some(program) = &self.programs.kernels else {
            bail!("the benchmark of the kernels is missing");
        };
        eprintln!("kernels one by one");
        kernels::measure(program, self.shared.quick, self.clock.left().mul_f64(0.4))
    }

    /// The limits of the card for each row of the table.
    fn roofs(&self, table: &Table, limits: &kernels::Limits) -> Result<Vec<Roof>> {
        let mut roofs = Vec::new();
        for &Case { model, format } in &self.cases {
            let shape = Shape::of(&model.config(), model.step_bytes(format))?;
            for work in work::works(model) {
                let row = work.row(model, format, Vec::new());
                let same =
                    |other: &&Row| other.labels == row.labels && other.measure == row.measure;
                let amount = work.amount(&shape, self.shared.quick);
                if let (Some(row), Some(amount)) = (table.rows.iter().find(same), amount) {
                    roofs.push(Roof::new(row, &amount, &limits.rates()));
                }
            }
        }
        Ok(roofs)
    }

    fn method(&self) -> String {
        format!(
            "Random weights of the published shapes; 4 bits are affine in groups of 64, and Q4_0 in llama.cpp. The sides take turns at doing all works, after \
             one run that does not count. Decode: {} steps behind prompts of {} tokens, all rows; ours and mlx-lm choose the likeliest tokens, llama.cpp's \
             llama-batched-bench chooses none. Process start to first token: from the start of a process, whose file is in the page cache, to its token behind \
             32 others.",
            work::steps(self.shared.quick),
            work::PROMPT,
        )
    }

    fn facts(&self, gpu: &Gpu, table: &Table, limits: Option<kernels::Limits>) -> Vec<String> {
        let mut facts = vec![gpu.text()];
        facts.extend(limits.map(|limits| limits.text()));
        if table.sides.iter().any(|side| side.ends_with("(recorded)")) {
            facts.push(recorded::ORIGIN.to_owned());
        }
        let seconds = self.clock.elapsed().as_secs();
        facts.push(format!(
            "All of it took {} minutes and {} seconds",
            seconds / 60,
            seconds % 60
        ));
        facts
    }
}
