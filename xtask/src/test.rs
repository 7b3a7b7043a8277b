//! `test`: builds everything and passes every test, with one command and nothing to set.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::{cargo, python};

mod plain;

/// Arguments that are passed to `cargo test`.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only build what the tests need
    #[arg(long)]
    no_run: bool,
    /// Run only the tests whose results can depend on the CPU kernels, with MLX's own operations (MLX_CPU_KERNELS=off)
    #[arg(long, conflicts_with = "cargo")]
    plain: bool,
    /// Arguments for `cargo test` in place of `--workspace`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    cargo: Vec<String>,
}

/// Unit, integration and documentation tests of all crates.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let is_whole = arguments.cargo.is_empty() && !arguments.plain;
    let python = match is_whole {
        true => with_packages()?,
        false => None,
    };
    if arguments.no_run {
        return Ok(());
    }
    let runs = match (arguments.plain, is_whole) {
        (true, _) => plain::runs()?,
        (false, true) => vec![vec![]],
        (false, false) => vec![arguments.cargo.clone()],
    };
    let mut failure = None;
    for run in runs {
        let mut command = cargo::command(["test"]);
        if let Some(python) = &python {
            command.env("MLX_TEST_PYTHON", python);
        }
        if arguments.cargo.is_empty() {
            // All tests run, also after one has failed.
            command.args(["--workspace", "--no-fail-fast"]);
        }
        if arguments.plain {
            command.env("MLX_CPU_KERNELS", "off");
        }
        // MLX's streams belong to threads, and every thread that touches it leaks a stream.
        command.args(run).env("RUST_TEST_THREADS", "1");
        failure = failure.or(cargo::run(&mut command).err());
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    eprintln!("all tests passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A Python with the packages that tests compare with, installed while the tests are built. None where it cannot be had:
/// those tests then say that they were left out.
fn with_packages() -> Result<Option<PathBuf>> {
    if let Some(given) = std::env::var_os("MLX_TEST_PYTHON") {
        return Ok(Some(given.into()));
    }
    let requirements = cargo::repository().join("xtask/tests/requirements.txt");
    let work = cargo::build_directory()?.join("test-python");
    let install = std::thread::spawn(move || python::environment(&work, &requirements));
    let built = cargo::run(
        cargo::command(["test", "--workspace", "--no-run"]).env("RUST_TEST_THREADS", "1"),
    );
    let installed = install
        .join()
        .map_err(|_| anyhow!("the installation panicked"))?;
    built?;
    Ok(match installed {
        Ok(python) => Some(python),
        Err(error) => {
            eprintln!("warning: tests against Python packages are left out: {error:#}");
            None
        }
    })
}
