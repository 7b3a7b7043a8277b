//! `cargo xtask`: the commands of this repository that cargo does not have, one file a command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(feature = "bench")]
mod bench;
mod bindings;
mod build_mlx;
mod cache;
mod cargo;
mod ci;
mod dist;
mod doctor;
mod families;
mod golden;
mod kernels;
mod memcheck;
/// The native build, the same files as in the build script of `mlx-c-sys`.
#[path = "../../mlx-c-sys/build/native.rs"]
mod native;
mod packages;
mod python;
mod scratch;
mod test;
mod tidy;
mod train_default;
mod train_hybrid;

/// Work on this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build MLX and mlx-c, as `cargo build` does by itself, with progress
    BuildMlx(build_mlx::Arguments),
    /// List the native builds in the user's cache, or remove those that are not used any more
    Cache(cache::Arguments),
    /// Write the bindings of mlx-c-sys from the headers again, or check them
    Bindings(bindings::Arguments),
    /// Print what the build finds on this machine, what is missing, and the command that fixes it
    Doctor,
    /// Build everything and run every test
    Test(test::Arguments),
    /// What CI runs: format, lints, documentation, tidy, tests
    Ci,
    /// Check the house rules that no compiler checks
    Tidy,
    /// Write the table of models in docs/guide/models.md from the registry
    Families,
    /// Write the goldens under testdata again from the reference implementations, or check them
    Golden(golden::Arguments),
    /// Measure this library and others side by side, and write a record
    #[cfg(feature = "bench")]
    Bench(bench::Arguments),
    /// Measure this library and others side by side, and write a record
    #[cfg(not(feature = "bench"))]
    #[command(disable_help_flag = true)]
    Bench {
        /// Its own arguments, which `cargo xtask bench --help` lists
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Make the built-in model from seeds: corpus, tokenizer, weights, and its accuracy
    TrainDefault(train_default::Arguments),
    /// Compile the CUDA kernels without a GPU, and compare their registers and spills with the committed table
    Kernels(kernels::Arguments),
    /// Run the hostile calls of mlx-core under valgrind
    Memcheck(memcheck::Arguments),
    /// Make the small hybrid model of the tests, with a trained head for multi-token prediction
    TrainHybrid(train_hybrid::Arguments),
    /// Pack the crates, and build and run a program against each, outside the workspace
    Packages,
    /// Pack a release binary together with its libraries
    Dist(dist::Arguments),
}

fn main() -> ExitCode {
    if native::cmake::step() {
        return ExitCode::SUCCESS;
    }
    let result = match Arguments::parse().command {
        Task::BuildMlx(arguments) => build_mlx::run(&arguments),
        Task::Cache(arguments) => cache::run(&arguments),
        Task::Bindings(arguments) => bindings::run(&arguments),
        Task::Doctor => doctor::run(),
        Task::Test(arguments) => test::run(&arguments),
        Task::Ci => ci::run(),
        Task::Tidy => tidy::run(),
        Task::Families => families::run(),
        Task::Golden(arguments) => golden::run(&arguments),
        #[cfg(not(feature = "bench"))]
        Task::Bench { arguments } => with_bench(&arguments),
        #[cfg(feature = "bench")]
        Task::Bench(arguments) => bench::run(&arguments),
        Task::TrainDefault(arguments) => train_default::run(&arguments),
        Task::Kernels(arguments) => kernels::run(&arguments),
        Task::Memcheck(arguments) => memcheck::run(&arguments),
        Task::TrainHybrid(arguments) => train_hybrid::run(&arguments),
        Task::Packages => packages::run(),
        Task::Dist(arguments) => dist::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds this program with the feature `bench`, and runs `bench` there.
#[cfg(not(feature = "bench"))]
fn with_bench(arguments: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let mut command = cargo::command(["run", "--quiet", "--package", "xtask", "--", "bench"]);
    cargo::run(command.args(arguments))
}
