//! `test`: builds everything and passes every test, with one command and nothing to set.

use std::time::Instant;

use anyhow::Result;

use crate::cargo;

/// Arguments that are passed to `cargo test`.
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

/// Unit, integration and documentation tests of all crates.
pub fn run(arguments: &Arguments) -> Result<()> {
    let start = Instant::now();
    let mut command = cargo::command(["test"]);
    if arguments.cargo.is_empty() {
        // All tests run, also after one has failed.
        command.args(["--workspace", "--no-fail-fast"]);
    } else {
        command.args(&arguments.cargo);
    }
    // MLX's streams belong to threads, and every thread that touches it leaks a stream.
    command.env("RUST_TEST_THREADS", "1");
    cargo::run(&mut command)?;
    eprintln!("all tests passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
