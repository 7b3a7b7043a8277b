//! The ranks that share the batches of a run.

use std::process::ExitCode;

use clap::{Command, CommandFactory};
use mlx_infer::launch::{LaunchArgs, LaunchFault};
use mlx_infer::{Files, console, join_command, refuse_ranks};
use mlx_nn::shard::Ranks;
use mlx_train::{ErrorKind, Result};

/// The commands that several ranks can run together.
const COMMANDS: [&str; 2] = ["lora", "full"];

/// Refuses a command that one process runs, if the environment names several ranks.
pub(super) fn check(command: &str) -> Result<()> {
    match COMMANDS.contains(&command) {
        true => Ok(()),
        false => refuse_ranks(command, &COMMANDS),
    }
}

/// Starts the processes of a command and waits for them.
pub(super) fn launch(args: LaunchArgs) -> ExitCode {
    match args.run(&COMMANDS) {
        Ok(code) => console::status(code),
        Err(LaunchFault::Failed(error)) => console::end(Err(error)),
        Err(LaunchFault::Usage(message)) => {
            let mut program = super::Cli::command();
            program.build();
            let kind = clap::error::ErrorKind::ValueValidation;
            let launch: Option<&mut Command> = program.find_subcommand_mut("launch");
            let error = match launch {
                Some(launch) => launch.error(kind, message),
                None => program.error(kind, message),
            };
            console::usage(&error)
        }
    }
}

/// Connects this process with the other ranks of the run, if the environment names them. The first rank writes what the
/// command writes.
pub(super) fn join(files: &Files) -> Result<Ranks> {
    // Where model, data and results are may differ.
    let joined = join_command(files, &["--model", "--data", "--out", "--config"]);
    let ranks = match joined {
        // The first rank says in what they differ.
        Err(error) if error.kind() == ErrorKind::Cancelled => std::process::exit(1),
        joined => joined?,
    };
    if ranks.rank() > 0 {
        console::mute();
    }
    Ok(ranks)
}
