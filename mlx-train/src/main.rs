//! The `mlx-train` command: results to stdout, everything else to stderr.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use mlx_alloc as _;

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
