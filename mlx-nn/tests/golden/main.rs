//! Layers, losses, optimisers and initialisers compared with mlx.nn, whose results `xtask/golden/nn.py` has written.

mod init;
mod layers;
mod optimizers;

use std::path::PathBuf;

use mlx_core::safetensors::Safetensors;
use mlx_core::{Array, DType};
use serde_json::Value;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/nn"))
}

/// The list of cases and the scalars.
fn index() -> Value {
    serde_json::from_slice(&std::fs::read(folder().join("index.json")).unwrap()).unwrap()
}

/// The arrays of a part.
fn arrays(part: &str) -> Safetensors {
    Safetensors::open(folder().join(part).join("golden.safetensors")).unwrap()
}

/// The names of a list in the index.
fn names(index: &Value, list: &str) -> Vec<String> {
    let names = index[list].as_array().unwrap().iter();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

fn numbers(array: &Array) -> Vec<f32> {
    array.astype(DType::F32).unwrap().to_vec::<f32>().unwrap()
}

/// The largest distance of two arrays of one shape, relative to the largest magnitude where that is
/// above 1. NaN equals only NaN.
fn distance(found: &Array, expected: &Array) -> f32 {
    assert_eq!(found.shape(), expected.shape());
    let expected = numbers(expected);
    let finite = expected.iter().filter(|x| x.is_finite());
    let scale = finite.fold(1.0f32, |most, x| most.max(x.abs()));
    let pairs = numbers(found).into_iter().zip(expected);
    pairs.fold(0.0f32, |most, (found, expected)| {
        let same = found == expected || found.is_nan() && expected.is_nan();
        let off = if same {
            0.0
        } else {
            (found - expected).abs() / scale
        };
        if off.is_nan() {
            f32::INFINITY
        } else {
            most.max(off)
        }
    })
}
