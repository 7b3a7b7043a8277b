//! Edge cases compared with Python's MLX (`xtask/golden/ops_edges.py`): nothing in an array, no dimensions, views, NaN and
//! infinities, limits of integers, broadcasts, and what MLX refuses.

use crate::case::{load, values};
use crate::table;

#[test]
fn edge_cases_equal_those_of_python() {
    let table = table();
    let mut faults = Vec::new();
    let (mut ran, mut refused) = (0, 0);
    for case in load("edges") {
        let op = table[case.op.as_str()];
        let found = op(&case).and_then(|found| {
            found
                .iter()
                .try_for_each(|array| values(array).map(|_| ()))?;
            Ok(found)
        });
        match found {
            Ok(_) if case.is_refused => faults.push(format!("{}: computed", case.describe())),
            Ok(found) => faults.extend(case.compare_edges(&found)),
            Err(error) if !case.is_refused => {
                faults.push(format!("{}: {error:?}", case.describe()))
            }
            Err(_) => refused += 1,
        }
        ran += 1;
    }
    assert!(ran > 1500 && refused > 80, "{ran} cases, {refused} refused");
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn a_sign_of_zero_and_a_class_of_numbers_show() {
    let cases = load("edges");
    let case = cases.iter().find(|case| case.op == "abs").unwrap();
    // The input itself: negative infinity, zero and numbers.
    assert!(!case.compare_edges(&case.inputs).is_empty());
    let right = case.x(0).abs().unwrap();
    assert!(case.compare_edges(std::slice::from_ref(&right)).is_empty());
    for wrong in [
        case.x(0).less(0.0).unwrap().select(-0.0, &right),
        right.isnan().unwrap().select(0.0, &right),
        right.isinf().unwrap().select(f32::MAX, &right),
    ] {
        let wrong = wrong.unwrap();
        assert_eq!(case.compare_edges(&[wrong]).len(), 1);
    }
}
