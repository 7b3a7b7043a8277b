//! `cargo xtask memcheck`: runs the hostile calls of mlx-core under valgrind, which reports
//! accesses outside of arrays. It takes minutes, so CI does not run it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;

#[derive(clap::Args)]
pub struct Arguments {
    /// Random variations of each golden, in addition to the calls with an empty or a larger axis
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Start with the call of this number
    #[arg(long, default_value_t = 0)]
    first: usize,
}

/// The errors that count. Reads of uninitialised memory do not: MLX computes with padding and drops
/// the results.
const FLAGS: [&str; 5] = [
    "--tool=memcheck",
    "--undef-value-errors=no",
    "--leak-check=no",
    "--error-exitcode=99",
    // OpenBLAS and the harness have large frames.
    "--max-stackframe=8000000",
];

pub fn run(arguments: &Arguments) -> Result<()> {
    let program: PathBuf = cargo::executable(&mut cargo::command([
        "test",
        "--package",
        "mlx-core",
        "--test",
        "ops",
        "--no-run",
    ]))?;
    let suppressions = cargo::repository().join("xtask/src/memcheck.supp");
    let status = Command::new("valgrind")
        .args(FLAGS)
        .arg(format!("--suppressions={}", suppressions.display()))
        .arg(program)
        .args(["--exact", "hostile::hostile_calls_are_made", "--nocapture"])
        .current_dir(cargo::repository().join("mlx-core"))
        .env(
            "MLX_CORE_TEST_HOSTILE_CALLS",
            format!("{},{}", arguments.first, arguments.rounds),
        )
        .env("RUST_BACKTRACE", "0")
        .env("RUST_TEST_THREADS", "1")
        .env("MLX_CPU_THREADS", "1")
        // Valgrind does not support AVX-512.
        .env(
            "MLX_CPU_ISA",
            if cfg!(target_arch = "x86_64") {
                "avx2"
            } else {
                "portable"
            },
        )
        .status()
        .context("cannot run valgrind (Debian: apt install valgrind)")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(99) => {
            bail!("valgrind found faults; the number of the call (@number) stands before each")
        }
        _ => bail!("a call ended the process: {status}; --first continues after it"),
    }
}
