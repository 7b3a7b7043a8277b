//! The result dtype of operations, for all dtypes and pairs of dtypes.

use std::collections::BTreeMap;

use mlx_core::{self as mlx, Array, DType, Result, ones};

use crate::case::{Results, document, dtype};

type Binary = fn(&Array, &Array) -> Result<Vec<Array>>;
type Unary = fn(&Array) -> Result<Vec<Array>>;

macro_rules! methods {
    ($($name:ident)*) => { vec![$( (stringify!($name), (|a, b| a.$name(b).map(Results::list)) as Binary) ),*] };
}

fn binary() -> BTreeMap<&'static str, Binary> {
    let mut table = methods! {
        add subtract multiply divide power maximum minimum logaddexp arctan2 bitwise_and bitwise_or bitwise_xor
        left_shift right_shift floor_divide remainder divmod equal less logical_and logical_xor matmul inner outer
    };
    table.push(("select", |a, b| {
        Array::scalar(true)?
            .expand_dims(0)?
            .select(a, b)
            .map(Results::list)
    }));
    table.push(("concat", |a, b| mlx::concat(&[a, b], 0).map(Results::list)));
    table.push(("stack", |a, b| mlx::stack(&[a, b], 0).map(Results::list)));
    table.into_iter().collect()
}

macro_rules! methods {
    ($($name:ident)* | $($reduction:ident)* | $($scan:ident)*) => { vec![
        $( (stringify!($name), (|a| a.$name().map(Results::list)) as Unary), )*
        $( (stringify!($reduction), (|a| a.$reduction(.., false).map(Results::list)) as Unary), )*
        $( (stringify!($scan), (|a| a.$scan(0).map(Results::list)) as Unary), )*
    ] };
}

fn unary() -> BTreeMap<&'static str, Unary> {
    let mut table = methods! {
        abs negative positive exp expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sin cos tan arcsin arccos
        arctan sinh cosh tanh arcsinh arccosh arctanh sigmoid erf erfinv floor ceil trunc sign isnan isinf isfinite
        isneginf isposinf logical_not bitwise_invert degrees radians conjugate real imag stop_gradient |
        sum prod mean max min all any logsumexp median count_nonzero |
        cumsum cumprod cummax cummin logcumsumexp
    };
    table.push(("softmax", |a| a.softmax(..).map(Results::list)));
    table.push(("var", |a| a.var(.., false).map(Results::list)));
    table.push(("std", |a| a.std(.., false).map(Results::list)));
    table.push(("argmax", |a| a.argmax(0, false).map(Results::list)));
    table.push(("argmin", |a| a.argmin(0, false).map(Results::list)));
    table.push(("sort", |a| a.sort(0).map(Results::list)));
    table.push(("argsort", |a| a.argsort(0).map(Results::list)));
    table.into_iter().collect()
}

struct Letters(BTreeMap<DType, char>);

impl Letters {
    fn of(&self, result: Result<Vec<Array>>) -> char {
        result.map_or('.', |arrays| self.0[&arrays[0].dtype()])
    }
}

#[test]
fn dtypes_promote_as_in_mlx() {
    let document = document("promotion");
    let dtypes: Vec<DType> = document["dtypes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| dtype(name.as_str().unwrap()))
        .collect();
    assert_eq!(dtypes.len(), DType::ALL.len());
    let letters = Letters(
        dtypes
            .iter()
            .copied()
            .zip(document["letters"].as_str().unwrap().chars())
            .collect(),
    );
    let arrays: Vec<Array> = dtypes
        .iter()
        .map(|&dtype| ones(&[1], dtype).unwrap())
        .collect();
    let mut faults = Vec::new();
    let mut check = |name: &str, found: String, expected: &serde_json::Value| {
        if Some(found.as_str()) != expected.as_str() {
            faults.push(format!("{name}: found {found}, expected {expected}"));
        }
    };

    let golden = document["binary"].as_object().unwrap();
    let table = binary();
    assert!(
        table.keys().copied().eq(sorted(golden)),
        "binary operations and goldens differ"
    );
    for (name, f) in table {
        for (a, expected) in arrays.iter().zip(golden[name].as_array().unwrap()) {
            let found = arrays.iter().map(|b| letters.of(f(a, b))).collect();
            check(&format!("{name} of {}", a.dtype()), found, expected);
        }
    }

    let golden = document["unary"].as_object().unwrap();
    let table = unary();
    assert!(
        table.keys().copied().eq(sorted(golden)),
        "unary operations and goldens differ"
    );
    for (name, f) in table {
        check(
            name,
            arrays.iter().map(|a| letters.of(f(a))).collect(),
            &golden[name],
        );
    }

    macro_rules! scalars {
        ($($name:ident)*) => { $(
            let name = stringify!($name);
            let golden = &document["scalar"];
            let all = |f: &dyn Fn(&Array) -> Result<Array>| arrays.iter().map(|a| letters.of(f(a).map(Results::list))).collect();
            check(&format!("{name} and 2.0"), all(&|a| a.$name(2.0)), &golden["float"][name]);
            check(&format!("{name} and 2.0f32"), all(&|a| a.$name(2.0f32)), &golden["float"][name]);
            check(&format!("{name} and 2"), all(&|a| a.$name(2)), &golden["int"][name]);
            check(&format!("{name} and true"), all(&|a| a.$name(true)), &golden["bool"][name]);
        )* };
    }
    scalars!(add multiply divide power maximum floor_divide remainder equal bitwise_and);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn sorted(object: &serde_json::Map<String, serde_json::Value>) -> impl Iterator<Item = &str> {
    let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    names.into_iter()
}
