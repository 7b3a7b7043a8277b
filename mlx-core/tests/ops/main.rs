//! Every operation compared with tables that Python MLX and NumPy made (`xtask/golden/ops.py`).

mod array_ops;
mod case;
mod coverage;
mod edges;
mod elementwise;
mod hostile;
mod indices;
mod matrix;
mod numeric;
mod promotion;
mod short;
mod text;
mod types;

use std::collections::{BTreeMap, BTreeSet};

use case::{Case, Op, load};

/// The call of each operation of the goldens.
fn table() -> BTreeMap<&'static str, Op> {
    let rows = [
        elementwise::rows(),
        array_ops::rows(),
        matrix::rows(),
        numeric::rows(),
        indices::rows(),
        short::rows(),
    ]
    .concat();
    let count = rows.len();
    let table: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(table.len(), count, "an operation has two rows");
    table
}

fn check(file: &str) {
    let table = table();
    let mut faults = Vec::new();
    let mut ran = 0;
    for case in load(file) {
        let Some(op) = table.get(case.op.as_str()) else {
            faults.push(format!("{}: no row runs it", case.op));
            continue;
        };
        match op(&case) {
            Ok(found) => faults.extend(case.compare(&found)),
            Err(error) => faults.push(format!("{}: {error:?}", case.describe())),
        }
        ran += 1;
    }
    assert!(ran > 50, "only {ran} cases in {file}");
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn elementwise_operations_equal_the_tables() {
    check("elementwise");
}

#[test]
fn array_operations_equal_the_tables() {
    check("array");
}

#[test]
fn matrix_operations_equal_the_tables() {
    check("matrix");
}

#[test]
fn numeric_operations_equal_the_tables() {
    check("numeric");
}

#[test]
fn indices_equal_the_tables() {
    check("index");
}

#[test]
fn calls_without_arguments_that_have_a_default_equal_the_tables() {
    check("short");
}

/// The files of the goldens.
const FILES: [&str; 7] = [
    "elementwise",
    "array",
    "matrix",
    "numeric",
    "index",
    "short",
    "edges",
];

/// The names of all operations that the goldens hold.
fn golden_names() -> BTreeSet<String> {
    FILES
        .into_iter()
        .flat_map(load)
        .map(|case: Case| case.op)
        .collect()
}

#[test]
fn every_row_has_a_case() {
    let golden = golden_names();
    let idle: Vec<_> = table()
        .into_keys()
        .filter(|name| !golden.contains(*name))
        .collect();
    assert!(idle.is_empty(), "rows that no golden runs: {idle:?}");
}
