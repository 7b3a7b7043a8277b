//! Promotion, kinds and limits of dtypes, as Python has them.

use mlx_core::{DType, DTypeKind, can_cast, finfo, iinfo, isdtype, issubdtype, result_type};
use serde_json::Value;

use crate::case::{document, dtype};

const KINDS: [DTypeKind; 8] = [
    DTypeKind::Generic,
    DTypeKind::Number,
    DTypeKind::Integer,
    DTypeKind::SignedInteger,
    DTypeKind::UnsignedInteger,
    DTypeKind::Inexact,
    DTypeKind::Floating,
    DTypeKind::ComplexFloating,
];

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn texts(value: &Value) -> Vec<&str> {
    list(value)
        .iter()
        .map(|text| text.as_str().expect("text"))
        .collect()
}

#[test]
fn dtypes_promote_and_are_of_kinds_as_in_python() {
    let golden = document("types");
    let order: Vec<DType> = texts(&golden["order"]).into_iter().map(dtype).collect();
    assert_eq!(order, DType::ALL);
    for a in DType::ALL {
        let row = &golden["types"][a.name()];
        let promoted: Vec<DType> = texts(&row["promote"]).into_iter().map(dtype).collect();
        let found: Vec<DType> = order.iter().map(|&b| result_type([a, b])).collect();
        assert_eq!(found, promoted, "{a} beside {order:?}");
        let casts: Vec<bool> = list(&row["can_cast"])
            .iter()
            .map(|b| b.as_bool().unwrap())
            .collect();
        assert_eq!(
            order.iter().map(|&b| can_cast(a, b)).collect::<Vec<_>>(),
            casts,
            "{a}"
        );
        for (kind, of) in KINDS.into_iter().zip(list(&row["kinds"])) {
            assert_eq!(
                issubdtype(a, kind),
                of.as_bool().unwrap(),
                "{a} of {kind:?}"
            );
            assert_eq!(
                isdtype(a, &[kind]),
                of.as_bool().unwrap(),
                "{a} of {kind:?}"
            );
        }
    }
}

#[test]
fn limits_are_those_of_python() {
    let golden = document("types");
    for a in DType::ALL {
        let row = &golden["types"][a.name()];
        match row.get("float") {
            Some(expected) => {
                let info = finfo(a).unwrap();
                let found = [info.min, info.max, info.eps, info.smallest_normal];
                let expected = texts(expected);
                assert_eq!(info.bits.to_string(), expected[0], "{a}");
                let expected: Vec<f64> = expected[1..].iter().map(|x| x.parse().unwrap()).collect();
                assert_eq!(found[..], expected, "{a}");
            }
            None => assert!(finfo(a).is_err(), "{a}"),
        }
        match row.get("integer") {
            Some(expected) => {
                let info = iinfo(a).unwrap();
                assert_eq!(
                    [info.min, info.max].map(|x| x.to_string())[..],
                    texts(expected),
                    "{a}"
                );
            }
            None => assert!(iinfo(a).is_err(), "{a}"),
        }
    }
}
