//! The command line. Exit status: 0 done, or the reader of the output is gone; 1 failed; 2 wrong usage.

mod args;
mod backend;
mod batch;
#[cfg(feature = "serve")]
mod batch_file;
mod bench;
mod cache;
mod chat;
mod classify;
#[cfg(feature = "serve")]
mod config;
mod convert;
mod drafters;
mod embed;
mod fit;
mod generate;
mod info;
mod interrupt;
mod lines;
mod list;
#[cfg(feature = "serve")]
mod listen;
mod memory;
mod output;
mod pull;
mod ranks;
mod score;
#[cfg(feature = "serve")]
mod serve;
mod tokenize;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
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
    Generate(generate::GenerateArgs),
    /// Chat, or answer the conversation in a file
    Chat(chat::ChatArgs),
    /// Continue many prompts at a time: JSON lines in, JSON lines out
    Batch(batch::BatchArgs),
    /// Print the label, or the token, that follows each line: lines in, JSON lines out
    Classify(classify::ClassifyArgs),
    /// Embed texts: lines in; vectors, JSON lines or a file out
    Embed(embed::EmbedArgs),
    /// Compute a prompt and store it in a file, for generate --prompt-cache
    Cache(cache::CacheArgs),
    /// Serve the model over HTTP, with OpenAI's, Anthropic's and Ollama's APIs
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    /// Print how likely a text is, and its likeliest next tokens
    Score(score::ScoreArgs),
    /// Turn text into token ids, or ids into text
    Tokenize(tokenize::TokenizeArgs),
    /// Measure the speed of prompts and of decoding, by rows and lengths
    Bench(bench::BenchArgs),
    /// Start a command on several processes, which share the model
    Launch(mlx_infer::launch::LaunchArgs),
    /// Describe a model: architecture, parameters, caches, memory
    Info(info::InfoArgs),
    /// Write a checkpoint quantised, unpacked or in another type
    Convert(convert::ConvertArgs),
    /// Download models from the hub into the cache
    Pull(pull::PullArgs),
    /// List the models in the cache
    List(list::ListArgs),
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
    let mut flags = flags();
    let given = std::env::args_os().collect();
    #[cfg(feature = "serve")]
    let given = config::with_file(&flags, given);
    #[cfg(not(feature = "serve"))]
    let given = Ok::<Vec<_>, clap::Error>(given);
    let found = given.and_then(|given| {
        let found = flags.try_get_matches_from_mut(&given);
        #[cfg(feature = "serve")]
        let found = found.map_err(|error| config::of_variable(&flags, &given, error));
        found
    });
    let name = found
        .as_ref()
        .ok()
        .and_then(|found| found.subcommand_name().map(str::to_owned));
    let command = match found.and_then(|mut found| Cli::from_arg_matches_mut(&mut found)) {
        Ok(cli) => cli.command,
        Err(error) => return console::usage(&error),
    };
    console::show_warnings();
    let settings = mlx_core::settings::check().map_err(|error| Error::from(error).into());
    let allowed = settings.and_then(|()| ranks::check(name.as_deref()));
    let result = allowed.and_then(|()| match command {
        Command::Generate(command) => command.run(),
        Command::Chat(command) => command.run(),
        Command::Batch(command) => command.run(),
        Command::Classify(command) => command.run(),
        Command::Embed(command) => command.run(),
        Command::Cache(command) => command.run(),
        #[cfg(feature = "serve")]
        Command::Serve(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Tokenize(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Launch(command) => ranks::launch(command),
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
            // The usage of the command is shown, not that of the program.
            let of_command = name.and_then(|name| flags.find_subcommand_mut(name));
            let error = match of_command {
                Some(command) => command.error(kind, message),
                None => flags.error(kind, message),
            };
            console::usage(&error)
        }
    }
}

/// All commands with their flags. The value of a flag may be a negative number; if it is out of
/// range, it is then refused with the range.
fn flags() -> clap::Command {
    let with_values = |arg: clap::Arg| match arg.get_action() {
        clap::ArgAction::Set | clap::ArgAction::Append if !arg.is_allow_hyphen_values_set() => {
            arg.allow_negative_numbers(true)
        }
        _ => arg,
    };
    let flags = Cli::command().mut_subcommands(|command| command.mut_args(with_values));
    #[cfg(feature = "serve")]
    let flags = config::with_variables(flags);
    let mut flags = flags;
    flags.build();
    flags
}
