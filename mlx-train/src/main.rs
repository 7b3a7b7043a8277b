//! The `mlx-train` command: results to stdout, everything else to stderr.

#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
