//! The ranks that share the model of a command.

use mlx_infer::mlx_nn::shard::Ranks;
use mlx_infer::{ErrorKind, Files, console, join_ranks, refuse_ranks};

use super::Result;

/// The commands that several ranks can run together.
const COMMANDS: [&str; 2] = ["generate", "serve"];
/// Other commands that start none, or compute nothing.
const FREE: [&str; 4] = ["launch", "pull", "list", "backends"];

/// Refuses a command that one process runs, if the environment names several ranks.
pub(super) fn check(command: Option<&str>) -> Result {
    match command {
        Some(name) if !COMMANDS.contains(&name) && !FREE.contains(&name) => Ok(refuse_ranks(name)?),
        _ => Ok(()),
    }
}

/// Connects this process with the other ranks of the model, if the environment names them. The first rank writes what the
/// command writes.
pub(super) fn join(files: &Files) -> Result<Ranks> {
    // Where the model is, and where one listens, may differ.
    let own = ["--model", "--host", "--port"];
    let mut given = std::env::args().skip(1);
    let mut flags = Vec::new();
    while let Some(flag) = given.next() {
        match own.iter().find(|own| flag.starts_with(**own)) {
            Some(own) if flag == *own => drop(given.next()),
            Some(_) => {}
            None => flags.push(flag),
        }
    }
    let joined = join_ranks(files, &[("command line", flags.join(" "))]);
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
