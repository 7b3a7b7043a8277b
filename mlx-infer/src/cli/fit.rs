//! What fits the memory that is free.

#[cfg(feature = "serve")]
use std::path::Path;

use mlx_infer::LoadedModel;
#[cfg(feature = "serve")]
use mlx_infer::{Error, ErrorKind, Files};
use mlx_nn::StateCost;
use serde_json::{Value, json};

use super::Result;
#[cfg(feature = "serve")]
use super::{memory, output};

/// The smallest context of the list of what fits; each further one is four times as long.
const LEAST_CONTEXT: usize = 1024;

/// What fits beside the weights of a model that took its memory from the `free` bytes before: the
/// bytes for caches of rows, and the rows for several contexts. `None` if the system does not
/// report its memory.
///
/// On a GPU with memory of its own these are the bytes that `serve` takes. Elsewhere it is nine
/// tenths of what the weights leave.
///
/// # Errors
/// The memory of the device cannot be read.
pub(super) fn describe(
    model: &LoadedModel,
    free: Option<usize>,
    context: usize,
) -> Result<Option<Value>> {
    let weights = model.info().weight_bytes;
    let of_device = model.cache_room()?;
    let of_system = || free.map(|free| free.saturating_sub(weights) / 10 * 9);
    let Some(room) = of_device.or_else(of_system) else {
        return Ok(None);
    };
    let costs = model.state_costs();
    let fits: Vec<Value> = contexts(context)
        .into_iter()
        .map(|context| json!({"context": context, "rows": rows(&costs, room, context)}))
        .collect();
    Ok(Some(
        json!({"free_bytes": free, "cache_room_bytes": room, "rows": fits}),
    ))
}

/// The contexts of the list, up to that of the model.
fn contexts(context: usize) -> Vec<usize> {
    let longer = std::iter::successors(Some(LEAST_CONTEXT), |length| length.checked_mul(4));
    let mut all: Vec<usize> = longer.take_while(|length| *length < context).collect();
    all.push(context);
    all
}

/// How many rows of this many positions fit.
fn rows(costs: &[StateCost], room: usize, context: usize) -> usize {
    let row: usize = costs.iter().map(|cost| cost.bytes(context)).sum();
    room / row.max(1)
}

/// The bytes of the weights' files, if they are files.
#[cfg(feature = "serve")]
fn weight_bytes(files: &Files) -> Option<usize> {
    let length = |path: &Path| {
        std::fs::metadata(path)
            .ok()
            .map(|found| found.len() as usize)
    };
    match files {
        Files::Directory(folder) => {
            let entries = std::fs::read_dir(folder).ok()?.flatten();
            let weights = entries
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
            Some(weights.filter_map(|path| length(&path)).sum())
        }
        Files::Gguf { path, .. } if path.is_file() => length(path),
        _ => None,
    }
}

/// Checks before a model is loaded that its weights and the bytes that were asked for fit.
///
/// # Errors
/// They do not; the message has the numbers.
#[cfg(feature = "serve")]
pub(super) fn check(
    files: &Files,
    is_converted: bool,
    asked: &[(&str, Option<usize>)],
) -> mlx_infer::Result<()> {
    // The bytes of weights of another type are not those of their files.
    let weights = match is_converted {
        true => None,
        false => weight_bytes(files),
    };
    match (memory::free(), fault(weights.unwrap_or(0), asked)) {
        (Some(free), Some((needed, parts))) if needed > free => Err(Error::new(
            ErrorKind::Memory,
            format!(
                "{} does not fit this machine: {parts} need {}, and {} of memory are free",
                files.describe(),
                output::bytes(needed),
                output::bytes(free)
            ),
        )),
        _ => Ok(()),
    }
}

/// The bytes that are needed, and their parts in words; `None` if nothing is.
#[cfg(feature = "serve")]
fn fault(weights: usize, asked: &[(&str, Option<usize>)]) -> Option<(usize, String)> {
    let weights = (weights > 0).then_some(("its weights", weights));
    let asked = asked
        .iter()
        .filter_map(|&(name, bytes)| Some((name, bytes.filter(|&n| n > 0)?)));
    let parts: Vec<(&str, usize)> = weights.into_iter().chain(asked).collect();
    let needed = parts
        .iter()
        .fold(0, |sum: usize, part| sum.saturating_add(part.1));
    let words = parts
        .iter()
        .map(|(name, bytes)| format!("{name} ({})", output::bytes(*bytes)));
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| (needed, words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_grow_up_to_the_models() {
        assert_eq!(contexts(512), [512]);
        assert_eq!(contexts(1024), [1024]);
        assert_eq!(contexts(40_960), [1024, 4096, 16_384, 40_960]);
    }

    #[cfg(feature = "serve")]
    #[test]
    fn parts_are_named_with_their_bytes() {
        let (needed, words) = fault(
            2_000_000,
            &[("--cache-bytes", Some(3_000_000)), ("x", None)],
        )
        .unwrap();
        assert_eq!(needed, 5_000_000);
        assert_eq!(words, "its weights (2.0 MB), --cache-bytes (3.0 MB)");
        assert!(fault(0, &[("x", Some(0))]).is_none());
    }
}
