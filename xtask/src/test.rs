//! `test`: builds everything and runs all tests, with one command and without settings.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::{cargo, python};

mod plain;
mod programs;
mod queue;

use programs::Program;
use queue::Job;

/// Which tests run.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only build what the tests need
    #[arg(long)]
    no_run: bool,
    /// Run only the tests whose results can depend on the CPU kernels, with MLX's own operations (MLX_CPU_KERNELS=off)
    #[arg(long, conflicts_with_all = ["cargo", "twice"])]
    plain: bool,
    /// Run all tests, and those of --plain a second time with MLX's own operations
    #[arg(long, conflicts_with = "cargo")]
    twice: bool,
    /// Arguments for `cargo test` in place of `--workspace`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    cargo: Vec<String>,
}

/// The programs that take longest, the longest first. They start before all others, so that none of
/// them runs alone at the end.
const LONG: &[&str] = &[
    "batch",
    "linear",
    "install",
    "serve",
    "config_keys",
    "golden",
    "fused_isa",
    "model",
    "mlx_infer",
    "hub",
    "failures",
];

/// Unit, integration and documentation tests of all crates.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    if !arguments.cargo.is_empty() {
        let mut command = cargo::command(["test"]);
        command.args(&arguments.cargo);
        // MLX's streams belong to threads, and every thread that touches it leaks a stream.
        cargo::run(command.env("RUST_TEST_THREADS", "1"))?;
        return passed(start, "");
    }
    let (programs, python) = match arguments.plain {
        true => (programs::build()?, None),
        false => with_packages()?,
    };
    if arguments.no_run {
        return Ok(());
    }
    let mut jobs = Vec::new();
    for program in &programs {
        if !arguments.plain {
            jobs.push((rank(program), whole(program, python.as_deref())));
        }
        if (arguments.plain || arguments.twice)
            && let Some(filters) = plain::filters(program)
        {
            jobs.push((rank(program), without_kernels(program, &filters)));
        }
    }
    jobs.sort_by_key(|(rank, _)| *rank);
    let mut jobs: Vec<Job> = jobs.into_iter().map(|(_, job)| job).collect();
    if !arguments.plain {
        // Cargo compiles the documentation tests now. The installation among the long tests runs
        // cargo too, so the two are kept apart.
        jobs.insert(jobs.len().min(2 * LONG.len()), documentation());
    }
    let cpu = queue::run(jobs)?;
    passed(start, &format!(", CPU {:.0} s", cpu.as_secs_f64()))
}

fn passed(start: Instant, more: &str) -> Result<()> {
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("all tests passed in {seconds:.0} s{more}");
    Ok(())
}

/// The place of a program in the order of starts.
fn rank(program: &Program) -> usize {
    let place = LONG.iter().position(|name| *name == program.name);
    place.unwrap_or(LONG.len())
}

fn whole(program: &Program, python: Option<&Path>) -> Job {
    let mut command = program.command();
    if let Some(python) = python {
        command.env("MLX_TEST_PYTHON", python);
    }
    command.env("RUST_TEST_THREADS", "1");
    Job {
        title: program.title(),
        command,
    }
}

fn without_kernels(program: &Program, filters: &[String]) -> Job {
    let mut job = whole(program, None);
    job.command.args(filters).env("MLX_CPU_KERNELS", "off");
    job.title += ", without our CPU kernels";
    job
}

fn documentation() -> Job {
    let mut command = cargo::command(["test", "--workspace", "--doc", "--no-fail-fast"]);
    command.env("RUST_TEST_THREADS", "1");
    Job {
        title: "documentation tests".to_owned(),
        command,
    }
}

/// Builds the tests, and at the same time installs a Python with the packages that tests compare
/// with. If the packages cannot be installed, no Python is returned, and those tests report that
/// they were left out.
fn with_packages() -> Result<(Vec<Program>, Option<PathBuf>)> {
    if let Some(given) = std::env::var_os("MLX_TEST_PYTHON") {
        return Ok((programs::build()?, Some(given.into())));
    }
    let requirements = cargo::repository().join("xtask/tests/requirements.txt");
    let work = cargo::build_directory()?.join("test-python");
    let install = std::thread::spawn(move || python::environment(&work, &requirements));
    let built = programs::build();
    let installed = install
        .join()
        .map_err(|_| anyhow!("the installation panicked"))?;
    let python = match installed {
        Ok(python) => Some(python),
        Err(error) => {
            eprintln!("warning: tests against Python packages are left out: {error:#}");
            None
        }
    };
    Ok((built?, python))
}
