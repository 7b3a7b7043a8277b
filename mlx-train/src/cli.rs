//! The command line. Exit status: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, with a
//! checkpoint to resume from.

mod eval;
mod fuse;
mod init;
mod report;
mod run;
mod settings;
mod source;

use std::error::Error as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mlx_train::Error;

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
    /// Write a model with weights drawn at random, to train it from nothing
    Init(init::Init),
    /// Make an adapter part of a model's weights, and write the model
    Fuse(fuse::Fuse),
    /// Measure loss, perplexity and accuracy
    Eval(eval::Eval),
}

/// How a command ended that did not fail.
enum Done {
    All,
    Interrupted,
}

pub(crate) fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Lora(settings) => run::run(settings, true),
        Command::Full(settings) => run::run(settings, false),
        Command::Init(init) => init.run().map(|()| Done::All),
        Command::Fuse(fuse) => fuse.run().map(|()| Done::All),
        Command::Eval(eval) => eval.run().map(|()| Done::All),
    };
    match result {
        Ok(Done::All) => ExitCode::SUCCESS,
        Ok(Done::Interrupted) => ExitCode::from(130),
        Err(error) => {
            report_error(&error);
            ExitCode::from(1)
        }
    }
}

/// Prints an error once, with those causes that it does not quote itself.
fn report_error(error: &Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let shown = error.to_string();
        if !text.contains(&shown) {
            text.push_str(": ");
            text.push_str(&shown);
        }
        cause = error.source();
    }
    eprintln!("error: {text}");
}
