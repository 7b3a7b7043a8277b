//! The ranks that share the model of a command.

use mlx_infer::launch::{LaunchArgs, LaunchFault};
use mlx_infer::mlx_nn::shard::Ranks;
use mlx_infer::{ErrorKind, Files, LoadedModel, console, join_command, rank_here, refuse_ranks};

use super::{Failure, Result};

/// The commands that several ranks can run together.
const COMMANDS: [&str; 5] = ["generate", "serve", "classify", "embed", "score"];
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

/// Ends the work of the other ranks when the first one has read its texts, or fails.
pub(super) struct Leading<'m>(pub(super) &'m LoadedModel);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        // An error is one of the other ranks, which end by it.
        let _ = self.0.end_texts();
    }
}

/// Computes the texts that the first rank reads, if this process is another one. Returns whether it is.
pub(super) fn follow(load: impl FnOnce() -> Result<LoadedModel>) -> Result<bool> {
    match rank_here() {
        None | Some(0) => Ok(false),
        Some(_) => {
            load()?.follow_texts()?;
            Ok(true)
        }
    }
}
