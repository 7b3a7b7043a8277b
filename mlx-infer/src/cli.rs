//! The command line. Exit status: 0 done, or the reader of the output is gone; 1 failed; 2 wrong usage.

mod args;
mod backend;
mod batch;
mod cache;
mod chat;
mod classify;
mod convert;
mod drafters;
mod generate;
mod info;
mod interrupt;
mod lines;
mod list;
mod output;
mod pull;
mod score;
#[cfg(feature = "serve")]
mod serve;
mod tokenize;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use mlx_infer::{Error, console};

/// Generates text with MLX.
#[derive(Parser)]
#[command(name = "mlx-infer", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt, without a chat template
    Generate(generate::Generate),
    /// Chat, or answer the conversation in a file
    Chat(chat::Chat),
    /// Continue many prompts at a time: JSON lines in, JSON lines out
    Batch(batch::Batch),
    /// Print the label, or the token, that follows each line: lines in, JSON lines out
    Classify(classify::Classify),
    /// Compute a prompt and store it in a file, for generate --prompt-cache
    Cache(cache::Cache),
    /// Serve the model over HTTP, with OpenAI's and Anthropic's APIs
    #[cfg(feature = "serve")]
    Serve(Box<serve::Serve>),
    /// Print how likely a text is, and its likeliest next tokens
    Score(score::Score),
    /// Turn text into token ids, or ids into text
    Tokenize(tokenize::Tokenize),
    /// Describe a model: architecture, parameters, caches, memory
    Info(info::Info),
    /// Write a checkpoint quantised, unpacked or in another type
    Convert(convert::Convert),
    /// Download models from the hub into the cache
    Pull(pull::Pull),
    /// List the models in the cache
    List(list::List),
    /// List the back ends, and why one is not available
    Backends(backend::Backends),
}

/// The reason why a command failed.
enum Failure {
    /// The flags contradict each other or are out of range.
    Usage(String),
    /// The command failed.
    Failed(Error),
}

type Result<T = ()> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(crate) fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return console::usage(&error),
    };
    console::show_warnings();
    let settings = mlx_core::settings::check().map_err(|error| Error::from(error).into());
    let result = settings.and_then(|()| match command {
        Command::Generate(command) => command.run(),
        Command::Chat(command) => command.run(),
        Command::Batch(command) => command.run(),
        Command::Classify(command) => command.run(),
        Command::Cache(command) => command.run(),
        #[cfg(feature = "serve")]
        Command::Serve(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Tokenize(command) => command.run(),
        Command::Info(command) => command.run(),
        Command::Convert(command) => command.run(),
        Command::Pull(command) => command.run(),
        Command::List(command) => command.run(),
        Command::Backends(command) => command.run(),
    });
    match result {
        Ok(()) => console::end(Ok(())),
        Err(Failure::Failed(error)) => console::end(Err(error)),
        Err(Failure::Usage(message)) => {
            let kind = clap::error::ErrorKind::ValueValidation;
            console::usage(&Cli::command().error(kind, message))
        }
    }
}
