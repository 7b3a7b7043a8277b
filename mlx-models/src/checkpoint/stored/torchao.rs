//! torchao, as transformers saves it in safetensors: the tensor `path.weight` is stored as
//! `path._weight_qdata`, `_weight_scale` and `_weight_zero_point`, and the file's metadata has its
//! class under `path.weight`. Two classes are read, which have codes of up to 8 bits, each in a byte:
//! Int8Tensor and IntxUnpackedToInt8Tensor. The others have layouts of particular kernels.

use mlx_core::{Array, DType, Result};
use mlx_nn::Decoded;
use serde_json::Value;

use super::compressed::{biased, group_of};
use super::integers::{Integers, Part, Zeros, decoded as of_integers};
use super::tensors::{FLOATS, StoredTensors, count, float};
use super::{Format, Reading};
use crate::config::Config;

const CLASSES: [&str; 2] = ["Int8Tensor", "IntxUnpackedToInt8Tensor"];

/// The dtypes of zero points.
const ZEROS: [&str; 6] = ["I8", "I32", "I64", "F32", "F16", "BF16"];

/// The ending of the name of codes.
const CODES: &str = "_weight_qdata";

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    let mut matrices = Vec::new();
    for path in tensors.modules(CODES) {
        matrices.push(matrix(tensors, entry, path)?);
    }
    of_integers(tensors, entry, matrices, reading, "torchao")
}

fn matrix(tensors: &StoredTensors<'_>, entry: &Config, path: &str) -> Result<Integers> {
    let [weight, codes, scale, zero, inputs] = [
        "weight",
        CODES,
        "_weight_scale",
        "_weight_zero_point",
        "_weight_act_pre_scale",
    ]
    .map(|part| format!("{path}.{part}"));
    check_class(tensors, entry, &weight)?;
    if tensors.have(&inputs) {
        return Err(entry.unsupported(format!(
            "tensor {inputs:?} is not supported: inputs are not scaled"
        )));
    }
    let (_, found) = tensors.tensor(entry, &codes, &["I8"], 2)?;
    let (rows, columns) = (found[0], found[1]);
    let axes = tensors
        .info(&scale)?
        .map_or(2, |(_, shape)| shape.len().clamp(1, 2));
    let (dtype, scales) = tensors.tensor(entry, &scale, &FLOATS, axes)?;
    let wide = match *scales {
        _ if count(scales) == 1 => vec![rows, 1],
        [n] => vec![n, 1],
        _ => scales.to_vec(),
    };
    let group = group_of(entry, &codes, [rows, columns], &scale, &wide)?;
    let spread = move |array: &Array, wide: &[i32]| match array.size() {
        1 => array.reshape(&[1, 1])?.broadcast_to(wide),
        _ => array.reshape(wide),
    };
    let mut hidden = vec![codes.clone(), scale.clone()];
    let mut zeros = Zeros::All(128.0);
    if let Some((found, shape)) = tensors.info(&zero)? {
        if !ZEROS.contains(&found) || shape != scales {
            return Err(entry.error(format!(
                "tensor {zero:?} is {found} {shape:?}, expected {} {scales:?}",
                ZEROS.join(" or ")
            )));
        }
        hidden.push(zero.clone());
        let wide = wide.clone();
        zeros = Zeros::Each(Part::new(&zero, move |zeros| {
            spread(&zeros.astype(DType::F32)?, &wide)?.add(128.0)
        }));
    }
    Ok(Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits: 8,
        group,
        codes: Part::new(&codes, biased),
        scales: Part::new(&scale, move |scales| spread(scales, &wide)),
        scale_dtype: float(dtype).expect("one of FLOATS"),
        zeros,
        groups: None,
        hidden,
    })
}

/// Refuses a class that is unknown or not in the files' metadata.
fn check_class(tensors: &StoredTensors<'_>, entry: &Config, weight: &str) -> Result<()> {
    let known = CLASSES.join(", ");
    let Some(text) = tensors.metadata(weight) else {
        return Err(entry.error(format!(
            "the metadata of the files has no class for {weight:?}; known: {known}"
        )));
    };
    let value: Value = serde_json::from_str(text)
        .map_err(|error| entry.error(format!("metadata of {weight:?} is no JSON: {error}")))?;
    let class: String =
        Config::new(&format!("metadata of {weight:?}"), value)?.required("_type")?;
    match CLASSES.contains(&class.as_str()) {
        true => Ok(()),
        false => Err(entry.unsupported(format!(
            "{weight:?} of the class {class} is not supported; known: {known}"
        ))),
    }
}
