//! What MLX says in text, as in Python: arrays as they print, and the paths and reports of einsum.

use mlx_core::{Array, DType, PrintOptions, einsum, einsum_path, get_printoptions, ones, zeros};
use serde_json::Value;

use crate::case::{array, document};

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn numbers(value: &Value) -> Vec<usize> {
    let numbers = list(value).iter();
    numbers
        .map(|number| number.as_u64().unwrap() as usize)
        .collect()
}

#[test]
fn einsum_takes_the_paths_of_python() {
    let golden = document("text");
    let mut refused = 0;
    for row in list(&golden["einsum"]) {
        let subscripts = row["subscripts"].as_str().unwrap();
        let shapes = list(&row["shapes"]).iter();
        let operands: Vec<Array> = shapes
            .map(|shape| zeros(numbers(shape), DType::F32).unwrap())
            .collect();
        let found = einsum_path(subscripts, &operands);
        if row["path"].is_null() {
            assert!(found.is_err(), "{subscripts} of {operands:?}");
            refused += 1;
            continue;
        }
        let (path, report) = found.unwrap();
        let expected: Vec<Vec<usize>> = list(&row["path"]).iter().map(numbers).collect();
        assert_eq!(path, expected, "{subscripts}");
        assert_eq!(report, row["report"].as_str().unwrap(), "{subscripts}");
    }
    assert!(refused >= 6);
}

#[test]
fn an_index_of_the_result_that_no_operand_has_is_refused_by_name() {
    let operands = [
        ones([2, 3], DType::F32).unwrap(),
        ones([3, 4], DType::F32).unwrap(),
    ];
    let expected = "einsum \"ij,jk->il\": no operand has the index l of the result";
    for error in [
        einsum("ij,jk->il", &operands).unwrap_err(),
        einsum_path("ij,jk->il", &operands).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn arrays_print_as_in_python() {
    let golden = document("text");
    let mut texts = 0;
    for row in list(&golden["print"]) {
        let array = array(&row["array"]);
        for (precision, expected) in row["texts"].as_object().unwrap() {
            let precision: i32 = precision.parse().unwrap();
            let expected = expected.as_str().unwrap();
            let options = PrintOptions {
                precision: u8::try_from(precision).ok(),
            };
            assert_eq!(options.scope(|| array.to_string()), expected);
            if let Some(digits) = options.precision {
                assert_eq!(format!("{array:.*}", usize::from(digits)), expected);
            }
            texts += 1;
        }
    }
    assert!(texts > 60);
}

#[test]
fn a_scope_ends_with_its_closure_and_is_of_its_thread() {
    let x = Array::scalar(0.5f32).unwrap();
    let three = PrintOptions { precision: Some(3) };
    let inside = three.scope(|| {
        let here = x.to_string();
        let other = std::thread::spawn(get_printoptions).join().unwrap();
        let inner = PrintOptions::default().scope(|| x.to_string());
        (here, other, inner, x.to_string())
    });
    assert_eq!(inside.0, "array(0.500, dtype=float32)");
    assert_eq!(inside.1, PrintOptions::default());
    assert_eq!(inside.2, "array(0.5, dtype=float32)");
    assert_eq!(inside.3, inside.0);
    let panicked = std::panic::catch_unwind(|| three.scope(|| panic!("in the scope")));
    assert!(panicked.is_err());
    assert_eq!(get_printoptions(), PrintOptions::default());
    assert_eq!(x.to_string(), "array(0.5, dtype=float32)");
}
