//! The command line. Exit status: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, with a
//! checkpoint to resume from.

mod eval;
mod fuse;
mod init;
mod mlx_lm;
mod quantize;
mod ranks;
mod report;
mod run;
mod settings;
mod source;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mlx_infer::console;
use mlx_infer::launch::LaunchArgs;

/// Trains language models with MLX.
#[derive(Parser)]
#[command(name = "mlx-train", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train low-rank adapters (LoRA, DoRA), also of a quantised model
    Lora(settings::Settings),
    /// Train the model's own parameters
    Full(settings::Settings),
    /// Write a model with random weights, for training from scratch
    Init(init::Init),
    /// Merge an adapter into a model's weights, and write the model
    Fuse(fuse::Fuse),
    /// Pack a model's weights in few bits that lose less than rounding does (DWQ, dynamic_quant)
    Quantize(quantize::Quantize),
    /// Measure loss, perplexity and accuracy
    Eval(eval::Eval),
    /// Start lora or full on several processes that share the batches
    Launch(LaunchArgs),
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Self::Lora(_) => "lora",
            Self::Full(_) => "full",
            Self::Init(_) => "init",
            Self::Fuse(_) => "fuse",
            Self::Eval(_) => "eval",
            Self::Quantize(_) => "quantize",
            Self::Launch(_) => "launch",
        }
    }
}

/// The end of a command that did not fail.
enum Done {
    All,
    Interrupted,
}

pub(crate) fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return console::usage(&error),
    };
    let command = match command {
        Command::Launch(args) => return ranks::launch(args),
        command => command,
    };
    let settings = mlx_core::settings::check().map_err(mlx_train::Error::from);
    let allowed = settings.and_then(|()| ranks::check(command.name()));
    let result = allowed.and_then(|()| match command {
        Command::Launch(_) => Ok(Done::All),
        Command::Lora(settings) => run::run(settings, true),
        Command::Full(settings) => run::run(settings, false),
        Command::Init(init) => init.run().map(|()| Done::All),
        Command::Fuse(fuse) => fuse.run().map(|()| Done::All),
        Command::Quantize(quantize) => quantize.run().map(|()| Done::All),
        Command::Eval(eval) => eval.run().map(|()| Done::All),
    });
    match result {
        Ok(Done::Interrupted) => console::status(130),
        Ok(Done::All) => console::end(Ok(())),
        Err(error) => console::end(Err(error)),
    }
}
