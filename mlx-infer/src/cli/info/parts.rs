//! `mlx-infer info --ranks N`: what each rank would hold.

use serde_json::{Value, json};

use super::DEFAULT_CONTEXT;
use crate::cli::{Failure, Result, args, output};

/// The most ranks that are described; each takes a pass over the names in the files.
const MOST: usize = 1024;

/// The parts of the model on `n` ranks.
pub(super) fn describe(load: &args::LoadArgs, n: usize) -> Result<Value> {
    if !(2..=MOST).contains(&n) {
        let message = format!("--ranks must be from 2 to {MOST}, given {n}");
        return Err(Failure::Usage(message));
    }
    if load.has_adapter() {
        let message = "--ranks describes the model without an adapter: leave out --adapter";
        return Err(Failure::Usage(message.to_owned()));
    }
    let outline = load.outline(n)?;
    let info = &outline.ranks[0].info;
    let context = info.max_positions.unwrap_or(DEFAULT_CONTEXT);
    let ranks = outline.ranks.iter().map(|part| {
        let costs = &part.costs;
        let row: usize = costs.iter().map(|cost| cost.row_bytes).sum();
        let position: usize = costs.iter().map(|cost| cost.position_bytes).sum();
        let caches: usize = costs.iter().map(|cost| cost.bytes(context)).sum();
        json!({
            "weight_bytes": part.info.weight_bytes,
            "cache_bytes_per_row": row,
            "cache_bytes_per_position": position,
            "cache_bytes": caches,
            "total_bytes": part.info.weight_bytes + caches,
        })
    });
    Ok(json!({
        "model": load.files()?.describe(),
        "architecture": info.model_type,
        "dtype": info.dtype.to_string(),
        "layers": info.geometry.layers().len(),
        "hidden": info.hidden,
        "cache_context": context,
        "counts": outline.counts,
        "ranks": ranks.collect::<Vec<_>>(),
    }))
}

pub(super) fn table(document: &Value) -> String {
    let bytes = |value: &Value| output::bytes(value.as_u64().unwrap_or(0) as usize);
    let none = Vec::new();
    let list = |key: &str| document[key].as_array().unwrap_or(&none).clone();
    let counts: Vec<String> = list("counts").iter().map(Value::to_string).collect();
    let counts = match counts.is_empty() {
        true => "any".to_owned(),
        false => counts.join(", "),
    };
    let mut text = format!(
        "{:<15} {}\n{:<15} {}\n{:<15} {counts}\n",
        "model",
        super::text(&document["model"]),
        "architecture",
        super::text(&document["architecture"]),
        "ranks that work",
    );
    let context = &document["cache_context"];
    for (rank, part) in list("ranks").iter().enumerate() {
        text += &format!(
            "{:<15} weights {}, caches {} for a row of {context} tokens ({} a token)\n",
            format!("rank {rank}"),
            bytes(&part["weight_bytes"]),
            bytes(&part["cache_bytes"]),
            bytes(&part["cache_bytes_per_position"]),
        );
    }
    text
}
