//! Every public operation has a golden, or is listed here with the reason why it has none.

use std::collections::BTreeSet;
use std::path::Path;

use crate::golden_names;

/// Public functions of the files of operations for which there is no golden.
const WITHOUT: &[(&str, &str)] = &[
    ("powf", "power by another name; tests/guessed.rs"),
    (
        "unsqueeze",
        "expand_dims by another name; tests/guessed_functions.rs",
    ),
    (
        "linalg::cross",
        "the method by another name; tests/guessed_functions.rs",
    ),
    ("einsum_path", "its result is no array; text.rs"),
    ("qqmm", "its CPU kernel is for one row; tests/quantize.rs"),
    ("gather_qqmm", "MLX has it on GPUs only"),
    ("random::new", "golden random::key"),
    (
        "random::from_array",
        "the way every random golden makes its key",
    ),
    (
        "random::as_array",
        "the way every random golden reads its key",
    ),
    (
        "random::bits",
        "Python has no such function; tests/random.rs",
    ),
];

/// Goldens that run an operation in a second way.
const SECOND: &[(&str, &str)] = &[
    ("at_add", "at"),
    ("at_sub", "at"),
    ("at_mul", "at"),
    ("at_div", "at"),
    ("at_max", "at"),
    ("at_min", "at"),
    ("unique_filled", "unique_of_size"),
    ("clip_arrays", "clip"),
    ("select_number", "select"),
    ("squeeze_all", "squeeze"),
    ("dequantize_to", "dequantize_with"),
    ("argmax_flat", "argmax"),
    ("argmin_flat", "argmin"),
    ("take_flat", "take"),
    ("take_along_axis_flat", "take_along_axis"),
    ("repeat_flat", "repeat"),
    ("sort_flat", "sort"),
    ("argsort_flat", "argsort"),
    ("topk_flat", "topk"),
    ("partition_flat", "partition"),
    ("argpartition_flat", "argpartition"),
    ("concat_flat", "concat"),
    ("roll_flat", "roll"),
    ("roll_axes", "roll"),
    ("zeros_like_method", "zeros_like"),
    ("ones_like_method", "ones_like"),
    ("full_like_method", "full_like"),
    ("random::uniform_seeded", "random::uniform"),
    ("random::normal_seeded", "random::normal"),
    ("random::laplace_seeded", "random::laplace"),
    ("random::gumbel_seeded", "random::gumbel"),
    ("random::bernoulli_seeded", "random::bernoulli"),
    ("random::randint_seeded", "random::randint"),
    (
        "random::truncated_normal_seeded",
        "random::truncated_normal",
    ),
];

/// Further names of operations, and functions of other libraries: tests/guessed_calls.rs compares them.
const FURTHER: [&str; 49] = [
    "absolute",
    "acos",
    "acosh",
    "affine",
    "as_dtype",
    "as_type",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "broadcast_add",
    "broadcast_as",
    "broadcast_div",
    "broadcast_mul",
    "broadcast_sub",
    "cast",
    "chunk",
    "clamp",
    "detach",
    "div",
    "dot",
    "flatten_all",
    "flatten_from",
    "flatten_to",
    "gelu_erf",
    "get",
    "index",
    "index_select",
    "ln",
    "log_sum_exp",
    "max_keepdim",
    "mean_keepdim",
    "min_keepdim",
    "mul",
    "narrow",
    "neg",
    "pad_with_zeros",
    "permute",
    "pow",
    "powi",
    "ravel",
    "recip",
    "sqr",
    "sub",
    "sum_keepdim",
    "to_dtype",
    "transpose_axes",
    "where_cond",
];

/// The names in a source file: `pub fn name`, and `name, other = mlx_…` in the macros that make many.
fn names(path: &Path, prefix: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let word = |text: &str| {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    text.lines()
        .flat_map(|line| {
            let line = line.trim_start();
            if let Some(rest) = line.strip_prefix("pub fn ") {
                let name = word(rest);
                return if name.is_empty() { vec![] } else { vec![name] };
            }
            let Some((names, rest)) = line.split_once(" = ") else {
                return vec![];
            };
            let names: Vec<String> = names.split(", ").map(str::to_owned).collect();
            let are_words = names.iter().all(|name| word(name) == *name);
            // `other = name(…), by "…"` makes a method under another name.
            let is_made = rest.starts_with("mlx_") || rest.contains("), by \"");
            if is_made && are_words { names } else { vec![] }
        })
        .map(|name| format!("{prefix}{name}"))
        .collect()
}

fn public_operations() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(src.join("ops")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            found.extend(names(&path, ""));
        }
    }
    for (file, module) in [
        ("fft", "fft"),
        ("fft/short_time", "fft"),
        ("linalg", "linalg"),
        ("random", "random"),
    ] {
        found.extend(names(
            &src.join(format!("{file}.rs")),
            &format!("{module}::"),
        ));
    }
    found
}

#[test]
fn every_operation_has_a_golden() {
    let operations = public_operations();
    assert!(
        operations.len() > 200,
        "the search found only {} operations",
        operations.len()
    );
    let mut golden = golden_names();
    for (second, operation) in SECOND {
        assert!(golden.remove(*second), "no golden {second}");
        golden.insert((*operation).into());
    }
    let unknown: Vec<_> = golden.difference(&operations).collect();
    assert!(
        unknown.is_empty(),
        "goldens of no public operation: {unknown:?}"
    );
    let without = WITHOUT.iter().map(|(name, _)| *name).chain(FURTHER);
    let without: BTreeSet<String> = without.map(str::to_owned).collect();
    let missing: Vec<_> = operations
        .iter()
        .filter(|name| !golden.contains(*name) && !without.contains(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "public operations without a golden: {missing:?}"
    );
    let stale: Vec<_> = without
        .iter()
        .filter(|name| !operations.contains(*name))
        .collect();
    assert!(
        stale.is_empty(),
        "reasons for operations that do not exist: {stale:?}"
    );
}
