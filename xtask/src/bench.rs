//! `bench`: this library and others side by side, on the same checkpoints and prompts, into `records`.
//!
//! The programs that are compared run in turns, so that a busy machine slows all of them. The checkpoints are random
//! and made once; times do not depend on the values of weights. `docs/design/benchmarks.md` defines each number.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use clap::Subcommand;

use crate::{cargo, python};

mod batch;
mod cpu;
mod cuda;
mod limits;
mod machine;
mod plot;
mod process;
mod profile;
mod record;
mod roofline;
mod serve;
mod session;
mod single;
mod speculate;
mod stats;
mod train;

/// The benchmark; `single` without a name.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Subcommand)]
enum Benchmark {
    /// One sequence against mlx-lm: decode, prefill, start and memory of whole processes
    Single(single::Arguments),
    /// Batches of 1 to 64 rows against mlx-lm's BatchGenerator, and classification
    Batch(batch::Arguments),
    /// Published shapes on the CPU against llama.cpp, and the machine's limits
    Cpu(cpu::Arguments),
    /// Published shapes on an NVIDIA GPU: correctness, kernels, and speed against llama.cpp and mlx-lm
    Cuda(Box<cuda::Arguments>),
    /// Steps of LoRA and of full training against mlx_lm.lora
    Train(train::Arguments),
    /// Speculation against plain decoding, on shapes of Qwen3.5-0.8B with an acceptance of 0.8
    Speculate(speculate::Arguments),
    /// The HTTP server under load, against mlx_lm.server and llama_cpp.server
    Serve(Box<serve::Arguments>),
}

/// The flags of all benchmarks.
#[derive(clap::Args)]
struct Shared {
    /// Two short runs of everything, to check that it works; the times mean nothing
    #[arg(long, global = true)]
    quick: bool,
    /// Number of runs of each side
    #[arg(long, global = true, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// A Python that has the pinned packages, instead of installing them
    #[arg(long, global = true, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Print the table and write no record
    #[arg(long, global = true)]
    no_record: bool,
    /// Print the record as JSON instead of the table
    #[arg(long, global = true)]
    json: bool,
}

impl Shared {
    fn runs(&self) -> u32 {
        match self.quick {
            true => 2,
            false => self.runs,
        }
    }

    /// A Python with the pinned packages.
    fn python(&self) -> Result<PathBuf> {
        match &self.python {
            Some(python) => Ok(python.clone()),
            None => python::environment(&work()?, &scripts().join("requirements.txt")),
        }
    }

    /// Prints the record, and writes it unless it is to be discarded.
    fn finish(&self, record: &record::Record) -> Result<()> {
        match self.json {
            true => println!("{:#}", record.json()),
            false => print!("{}", record.markdown()),
        }
        if !self.no_record {
            let written = record.write(&cargo::repository().join("records"))?;
            eprintln!("written: {}", written.display());
        }
        Ok(())
    }
}

/// Measures and writes the record.
pub fn run(arguments: &Arguments) -> Result<()> {
    let shared = &arguments.shared;
    match &arguments.benchmark {
        None => single::run(shared, &single::Arguments::default()),
        Some(Benchmark::Single(arguments)) => single::run(shared, arguments),
        Some(Benchmark::Batch(arguments)) => batch::run(shared, arguments),
        Some(Benchmark::Cpu(arguments)) => cpu::run(shared, arguments),
        Some(Benchmark::Cuda(arguments)) => cuda::run(shared, arguments),
        Some(Benchmark::Train(arguments)) => train::run(shared, arguments),
        Some(Benchmark::Speculate(arguments)) => speculate::run(shared, arguments),
        Some(Benchmark::Serve(arguments)) => serve::run(shared, arguments),
    }
}

/// The folder of the random Qwen 3 checkpoint. It is written when its script has changed or never ran.
fn checkpoints(python: &Path) -> Result<PathBuf> {
    let script = scripts().join("checkpoint.py");
    let tokenizer = cargo::repository().join("mlx-infer/assets/default-model");
    let folder = work()?.join("checkpoints");
    // This file is written last: after an interrupted run the folder is without it.
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

/// Builds a release binary of a package, and returns its path.
fn build(package: &str) -> Result<PathBuf> {
    build_for(package, None)
}

/// The same, for a back end if the environment names none.
fn build_for(package: &str, backend: Option<&str>) -> Result<PathBuf> {
    let mut command = cargo::command(["build", "--release", "--package", package]);
    if let (Some(backend), None) = (backend, std::env::var_os("MLX_BACKEND")) {
        command.env("MLX_BACKEND", backend);
    }
    cargo::run(&mut command)?;
    let binary = format!("{package}{}", std::env::consts::EXE_SUFFIX);
    Ok(cargo::target_directory()?.join("release").join(binary))
}

/// Builds the program with which this project takes part in a session.
fn build_session() -> Result<PathBuf> {
    cargo::run(&mut cargo::command([
        "build",
        "--release",
        "--package=mlx-infer",
        "--example=bench_session",
    ]))?;
    let binary = format!("bench_session{}", std::env::consts::EXE_SUFFIX);
    let examples = cargo::target_directory()?.join("release").join("examples");
    Ok(examples.join(binary))
}

/// The folder of environments and checkpoints.
fn work() -> Result<PathBuf> {
    Ok(cargo::build_directory()?.join("bench"))
}

fn scripts() -> PathBuf {
    cargo::repository().join("xtask").join("bench")
}

/// The output of a command, if it runs.
fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
