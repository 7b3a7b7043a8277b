//! `test`: builds everything and passes every test, with one command and nothing to set.

use std::time::Instant;

use anyhow::Result;

use crate::cargo;

/// What is handed on to `cargo test`.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Arguments for `cargo test` in place of `--workspace`
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGS"
    )]
    cargo: Vec<String>,
}

/// All tests once more without the CPU kernels of this repository: MLX's own operations are what they are held to, and
/// what other devices compute by.
pub fn run_plain() -> Result<()> {
    run_with(&Arguments::default(), &[("MLX_CPU_KERNELS", "off")])
}

/// Unit, integration and documentation tests of all crates.
pub fn run(arguments: &Arguments) -> Result<()> {
    run_with(arguments, &[])
}

fn run_with(arguments: &Arguments, settings: &[(&str, &str)]) -> Result<()> {
    let start = Instant::now();
    let mut command = cargo::command(["test"]);
    if arguments.cargo.is_empty() {
        // All of them before the verdict, not only up to the first that fails.
        command.args(["--workspace", "--no-fail-fast"]);
    } else {
        command.args(&arguments.cargo);
    }
    // MLX's streams belong to threads, and every thread that touches it leaks a stream.
    command.env("RUST_TEST_THREADS", "1");
    command.envs(settings.iter().copied());
    cargo::run(&mut command)?;
    eprintln!("all tests passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
