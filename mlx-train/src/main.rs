//! The `mlx-train` command: results to stdout, everything else to stderr.

#![forbid(unsafe_code)]

use mlx_alloc as _;

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
