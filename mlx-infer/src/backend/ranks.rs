//! The ranks that share a model, as the environment of this process connects them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use mlx_core::distributed::{Backend, Messenger, init};
use mlx_nn::shard::{Ranks, join};
use serde_json::{Map, Value, json};

use crate::engine::ranks::{gathered, set_messenger};
use crate::error::{Error, ErrorKind, Result};
use crate::text::files::Files;

/// The variables by which launchers tell a process its rank: those of MLX, which `mlx.launch` and `mlx-infer launch` set,
/// and those of MPI's launchers.
const RANK: [&str; 4] = ["MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"];

/// How long the ranks of a ring wait for each other's connections for messages. They have connected for sums by then.
const LIMIT: Duration = Duration::from_secs(60);

/// The rank that the environment gives this process, if it does.
pub fn rank_here() -> Option<usize> {
    std::env::var(configured()?).ok()?.parse().ok()
}

/// The name of the variable that gives this process a rank among several, if one does.
fn configured() -> Option<&'static str> {
    RANK.into_iter()
        .find(|name| std::env::var_os(name).is_some())
}

/// Connects this process with the others that the environment names, on the thread that will use the model, and checks
/// that all have the same version, model and options. A process alone, if the environment names no others.
///
/// # Errors
/// The processes cannot connect. They differ: then the message of the first rank says in what, and the others have an
/// error of the kind [`ErrorKind::Cancelled`].
pub fn join_ranks(files: &Files, options: &[(&str, String)]) -> Result<Ranks> {
    if configured().is_none() {
        return Ok(Ranks::ALONE);
    }
    let apart = |error| {
        let message = format!("the ranks of this model do not connect: {error}");
        Error::new(ErrorKind::Network, message)
    };
    let connect = |backend| init(false, backend).map_err(apart);
    // First the ring: it notices ranks that do not come, and NCCL waits for them without end.
    let ring = connect(Backend::Ring)?;
    let group = connect(Backend::Any)?;
    if let Some(reason) = group.without_peers() {
        tracing::debug!("NCCL carries all sums of the ranks: {reason}");
    }
    let size = group.size();
    let is_nccl = group.backend() == Backend::Nccl;
    let ranks = join(group);
    if is_nccl && ring.size() > 1 && ring.size() != size {
        let message = format!(
            "NCCL has {size} ranks (MLX_WORLD_SIZE), and the ring has {} (MLX_HOSTFILE)",
            ring.size()
        );
        return Err(Error::new(ErrorKind::Argument, message));
    }
    if ranks.size() == 1 {
        return Ok(ranks);
    }
    // With MPI or JACCL alone, messages are collectives.
    if ring.size() > 1 {
        set_messenger(Messenger::connect(&ring, LIMIT).map_err(apart)?);
    }
    let mut facts = Map::new();
    facts.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    facts.insert("model".to_owned(), identity(files)?.into());
    for (name, value) in options {
        facts.insert(format!("options ({name})"), value.as_str().into());
    }
    facts.insert("number of ranks".to_owned(), json!(ranks.size()));
    let all = gathered(ranks, &Value::Object(facts).to_string())?;
    match difference(&all) {
        None => Ok(ranks),
        Some(message) if ranks.rank() == 0 => Err(Error::new(ErrorKind::Argument, message)),
        Some(message) => Err(Error::new(ErrorKind::Cancelled, message)),
    }
}

/// Like [`join_ranks`] for a command of this program, whose flags must be the same on all ranks, but for those of `own`
/// and their values.
///
/// # Errors
/// The same as those of [`join_ranks`].
pub fn join_command(files: &Files, own: &[&str]) -> Result<Ranks> {
    let mut given = std::env::args().skip(1);
    let mut flags = Vec::new();
    while let Some(flag) = given.next() {
        let name = flag.split('=').next().unwrap_or_default();
        match own.contains(&name) {
            true if flag == name => drop(given.next()),
            true => {}
            false => flags.push(flag),
        }
    }
    join_ranks(files, &[("command line", flags.join(" "))])
}

/// What tells a model from others: its config and the names and sizes of its weights.
fn identity(files: &Files) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    match files.path() {
        // A model in GGUF is one file.
        Some(path) if path.is_file() => std::fs::metadata(path)
            .map_or(0, |about| about.len())
            .hash(&mut hasher),
        _ => files
            .read("config.json")?
            .as_deref()
            .unwrap_or_default()
            .hash(&mut hasher),
    }
    if let Some(folder) = files.path() {
        let mut weights = Vec::new();
        let entries = std::fs::read_dir(folder).ok().into_iter().flatten();
        for entry in entries.filter_map(std::result::Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = std::fs::metadata(entry.path()).map_or(0, |about| about.len());
            if name.ends_with(".safetensors") || name.ends_with(".gguf") {
                weights.push((name, size));
            }
        }
        weights.sort();
        weights.hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The first thing in which the ranks differ, as a message.
fn difference(all: &[String]) -> Option<String> {
    let parse =
        |text: &String| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let all: Vec<_> = all.iter().map(parse).collect();
    let first = all.first()?;
    let mut names = all.iter().flat_map(|facts| facts.keys());
    let differs = |name: &String| {
        all.iter()
            .position(|facts| facts.get(name) != first.get(name))
    };
    let (name, rank) = names.find_map(|name| Some((name, differs(name)?)))?;
    let shown = |facts: &Map<String, Value>| match facts.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "none".to_owned(),
    };
    Some(format!(
        "the ranks differ in their {name}: rank 0 has {}, and rank {rank} has {}",
        shown(first),
        shown(&all[rank])
    ))
}

/// The error of a command that cannot run on several ranks. `known` are the commands that can.
///
/// # Errors
/// The environment names several ranks.
pub fn refuse_ranks(command: &str, known: &[&str]) -> Result<()> {
    match configured() {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{command} runs in one process only, and {name} is set; on several ranks run: {}",
                known.join(", ")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named_with_its_ranks() {
        let same = r#"{"version":"1","model":"a"}"#.to_owned();
        assert_eq!(difference(&[same.clone(), same.clone()]), None);
        let other = r#"{"version":"1","model":"b"}"#.to_owned();
        assert_eq!(
            difference(&[same.clone(), same.clone(), other]).unwrap(),
            "the ranks differ in their model: rank 0 has a, and rank 2 has b"
        );
        let less = r#"{"version":"1"}"#.to_owned();
        let message = difference(&[less, same]).unwrap();
        assert!(
            message.ends_with("rank 0 has none, and rank 1 has a"),
            "{message}"
        );
    }
}
