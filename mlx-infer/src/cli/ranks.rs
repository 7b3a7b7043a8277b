//! The ranks that share the model of a command.

use mlx_infer::launch::{LaunchArgs, LaunchFault};
use mlx_infer::mlx_nn::shard::Ranks;
use mlx_infer::{ErrorKind, Files, console, join_command, refuse_ranks};

use super::{Failure, Result};

/// The commands that several ranks can run together.
const COMMANDS: [&str; 2] = ["generate", "serve"];
/// Other commands that start none, or compute nothing.
const FREE: [&str; 4] = ["launch", "pull", "list", "backends"];

/// Refuses a command that one process runs, if the environment names several ranks.
pub(super) fn check(command: Option<&str>) -> Result {
    match command {
        Some(name) if !COMMANDS.contains(&name) && !FREE.contains(&name) => {
            Ok(refuse_ranks(name, &COMMANDS)?)
        }
        _ => Ok(()),
    }
}

/// Starts the processes of a command. Ends this one if a process fails.
pub(super) fn launch(command: LaunchArgs) -> Result {
    match command.run(&COMMANDS) {
        Ok(0) => Ok(()),
        Ok(code) => std::process::exit(code.into()),
        Err(LaunchFault::Usage(message)) => Err(Failure::Usage(message)),
        Err(LaunchFault::Failed(error)) => Err(error.into()),
    }
}

/// Connects this process with the other ranks of the model, if the environment names them. The first rank writes what the
/// command writes.
pub(super) fn join(files: &Files) -> Result<Ranks> {
    // Where the model is, and where one listens, may differ.
    let joined = join_command(files, &["--model", "--host", "--port"]);
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
