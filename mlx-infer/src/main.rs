//! The `mlx-infer` command: text to stdout, everything else to stderr.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

#[global_allocator]
static MEMORY: mlx_core::memory::Allocator = mlx_core::memory::Allocator::SYSTEM;

fn main() -> std::process::ExitCode {
    #[cfg(feature = "mimalloc")]
    mlx_core::memory::use_mimalloc();
    // Loads the library before other threads start. If it is missing, the first command that needs
    // it fails with the reason.
    let _ = mlx_core::init();
    cli::main()
}
