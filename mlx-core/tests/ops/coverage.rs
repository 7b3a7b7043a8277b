//! Every public operation has a golden, or is listed here with the reason why it has none.

use std::collections::BTreeSet;
use std::path::Path;

use crate::golden_names;

/// Public functions of the files of operations for which there is no golden.
const WITHOUT: &[(&str, &str)] = &[
    ("powf", "power by another name; tests/guessed.rs"),
    ("qqmm", "its CPU kernel is for one row; tests/quantize.rs"),
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
    ("dequantize_to", "dequantize"),
    ("random::key", "random::new"),
];

/// The names in a source file: `pub fn name`, and `name = mlx_…` in the macros that make many.
fn names(path: &Path, prefix: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let word = |text: &str| {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    text.lines()
        .filter_map(|line| {
            let line = line.trim_start();
            if let Some(rest) = line.strip_prefix("pub fn ") {
                let name = word(rest);
                return (!name.is_empty()).then_some(name);
            }
            let (name, rest) = line.split_once(" = ")?;
            (rest.starts_with("mlx_") && word(name) == name).then(|| name.to_owned())
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
    for module in ["fft", "linalg", "random"] {
        found.extend(names(
            &src.join(format!("{module}.rs")),
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
    let without: BTreeSet<String> = WITHOUT.iter().map(|(name, _)| (*name).into()).collect();
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
