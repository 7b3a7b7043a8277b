//! A decode step on the CPU runs this project's kernels: its graph has no product and no attention
//! of MLX.

use std::collections::BTreeMap;

use mlx_core::{Array, Device, Result, eval, profile};
use mlx_nn::{CacheOptions, ModelCache};

use super::case::Case;

/// Nodes of MLX for which this project has kernels.
const PLAIN: [&str; 5] = [
    "Matmul",
    "QuantizedMatmul",
    "GatherMM",
    "GatherQMM",
    "ScaledDotProductAttention",
];

/// Cases whose graphs keep nodes of MLX, and the reasons.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// The nodes of a decode step of `rows` rows after a prompt.
fn decode(case: &Case, rows: usize) -> Result<Vec<String>> {
    let model = case.load("config.json", None)?;
    let model = model.model.as_ref();
    let mut cache = ModelCache::new(model.states(), rows, CacheOptions::default());
    let prompt: Vec<u32> = (8..8 + 12 * rows as u32).collect();
    let prompt = Array::from_slice(&prompt, &[1, 12 * rows as i32])?;
    let mut step = cache.begin(&vec![12; rows])?;
    let hidden = model.hidden(&prompt, &mut step)?;
    step.commit_all()?;
    eval([&hidden])?;
    eval(cache.arrays())?;
    let next = Array::from_slice(&vec![9u32; rows], &[1, rows as i32])?;
    let mut step = cache.begin(&vec![1; rows])?;
    let logits = model.logits(&model.hidden(&next, &mut step)?)?;
    step.commit_all()?;
    profile::graph(std::iter::once(&logits).chain(&cache.arrays()))
}

#[test]
fn a_decode_step_has_no_plain_product() {
    let is_off = std::env::var("MLX_CPU_KERNELS").as_deref() == Ok("off");
    let has_kernels =
        cfg!(not(target_os = "macos")) && !is_off && !Device::GPU.is_available().unwrap();
    let (mut faults, mut nodes) = (Vec::new(), 0);
    for case in Case::all() {
        for rows in [1, 2] {
            let found =
                decode(&case, rows).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            nodes += found.len();
            let mut plain: BTreeMap<&str, usize> = BTreeMap::new();
            for node in found.iter().filter(|node| PLAIN.contains(&node.as_str())) {
                *plain.entry(node).or_default() += 1;
            }
            let is_known = EXCEPTIONS.iter().any(|(name, _)| *name == case.name);
            if !plain.is_empty() && !is_known {
                faults.push(format!("{}, {rows} rows: {plain:?}", case.name));
            }
            // Where the kernels are missing, MLX's nodes must be found. This shows that the test
            // can fail.
            if !has_kernels {
                assert!(!plain.is_empty(), "{}: {found:?}", case.name);
            }
        }
    }
    assert!(nodes > 10_000, "{nodes} nodes");
    assert!(!has_kernels || faults.is_empty(), "{}", faults.join("\n"));
}
