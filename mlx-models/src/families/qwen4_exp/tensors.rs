//! The names of Qwen 4's tensors.

use std::collections::BTreeMap;

use mlx_core::Result;
use mlx_nn::{Rule, Rules};

use crate::config::keys;
use crate::config::{Bits, Source};
use crate::families::qwen3_5;

/// The norms of published files, which are stored as `weight - 1`.
const NORMS: [&str; 6] = [
    "*hyper_connection*.hc_norm.weight",
    "*.self_attn.q_norm.weight",
    "*.self_attn.k_norm.weight",
    "*.indexer.q_layernorm.weight",
    "*.indexer.k_layernorm.weight",
    "*.ple.norm_*.weight",
];

/// The axes of convolutions tell published files from MLX's, as for Qwen 3.5. Published tables of n-grams are in many
/// tensors.
pub(crate) fn names(source: &Source<'_>) -> Result<Rules> {
    let tensors = source.tensors;
    let mut rules = vec![
        Rule::drop("model.visual.*", "not of the text model"),
        Rule::drop("mtp.*", "a head for multi-token prediction"),
    ];
    rules.extend(qwen3_5::expert_names());
    if keys::has_published_convolutions(tensors, ".conv1d.weight")? {
        rules.push(Rule::transpose("*.conv1d.weight", &[0, 2, 1]));
        rules.extend(NORMS.map(|norm| Rule::add(norm, 1.0)));
    }
    let mut tables = BTreeMap::<&str, Vec<(usize, &str, i32)>>::new();
    for name in tensors.names() {
        if let Some((table, rest)) = name.split_once(".shard_")
            && let Some(number) = rest.strip_suffix(".weight")
            && let Ok(number) = number.parse()
            && let Some(&[rows, _]) = tensors.shape(name)?.as_deref()
        {
            tables.entry(table).or_default().push((number, name, rows));
        }
    }
    for (table, mut parts) in tables {
        parts.sort_unstable();
        if parts.iter().enumerate().any(|(at, part)| at != part.0) {
            return Err(source
                .config
                .error(format!("{table}.shard_N is missing for some N")));
        }
        let parts: Vec<(&str, i32)> = parts.iter().map(|part| (part.1, part.2)).collect();
        rules.push(Rule::concat(&parts, &format!("{table}.weight")));
    }
    Ok(Rules::from(rules))
}

/// [`qwen3_5::BITS`], and the few rows of weights by which outputs are added to streams.
pub(crate) const BITS: &[(&str, Bits)] = &[
    ("*.block_inject_weight", Bits::Dense),
    ("*.mlp.gate", Bits::EightUnlessMixed),
    ("*.mlp.shared_expert_gate", Bits::EightUnlessMixed),
];
