//! torchao, as transformers saves it in safetensors: the tensor `path.weight` is stored as
//! `path._weight_qdata`, `_weight_scale` and `_weight_zero_point`, and the file's metadata has its
//! class under `path.weight`. Int8Tensor and IntxUnpackedToInt8Tensor have codes of up to 8 bits, each
//! in a byte; Int4Tensor has two in a byte, the first in the low half, and scales `[groups, out]`.
//! The other classes have layouts of particular kernels.

use mlx_core::{Array, DType, Result};
use mlx_nn::Decoded;
use serde_json::Value;

use super::compressed::{biased, group_of};
use super::integers::{Integers, Part, Zeros, decoded as of_integers};
use super::tensors::{FLOATS, StoredTensors, count, float};
use super::{Format, Reading};
use crate::config::Config;

const CLASSES: [&str; 3] = [INT4, "Int8Tensor", "IntxUnpackedToInt8Tensor"];
const INT4: &str = "Int4Tensor";

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
    let class = class(tensors, entry, &weight)?;
    if tensors.have(&inputs) {
        return Err(entry.unsupported(format!(
            "tensor {inputs:?} is not supported: inputs are not scaled"
        )));
    }
    if class == INT4 {
        return int4(tensors, entry, path, [&codes, &scale, &zero]);
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

/// A matrix of an Int4Tensor: a number is `scale * code + zero` with a code from -8 to 7.
fn int4(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    path: &str,
    [codes, scale, zero]: [&str; 3],
) -> Result<Integers> {
    let (_, found) = tensors.tensor(entry, codes, &["I8", "U8"], 2)?;
    let (dtype, scales) = tensors.tensor(entry, scale, &FLOATS, 2)?;
    let (_, zeros) = tensors.tensor(entry, zero, &FLOATS, 2)?;
    let (rows, columns) = (found[0], found[1].saturating_mul(2));
    let group = group_of(
        entry,
        codes,
        [rows, columns],
        scale,
        &[scales[1], scales[0]],
    )?;
    if zeros != scales || columns % 8 != 0 {
        return Err(entry.error(format!(
            "tensors {codes:?} {found:?}, {scale:?} {scales:?} and {zero:?} {zeros:?} do not fit each other"
        )));
    }
    Ok(Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits: 4,
        group,
        codes: Part::new(codes, |bytes| {
            // From -8 to 7 to codes from 0 on, in both halves.
            let bytes = bytes.contiguous()?.view(DType::U8)?;
            let codes = bytes.bitwise_xor(Array::scalar(0x88u8)?)?;
            codes.contiguous()?.view(DType::U32)
        }),
        scales: Part::new(scale, |scales| scales.transpose(&[1, 0])),
        scale_dtype: float(dtype).expect("one of FLOATS"),
        zeros: Zeros::Added(Part::new(zero, |zeros| {
            zeros.astype(DType::F32)?.transpose(&[1, 0])
        })),
        groups: None,
        hidden: [codes, scale, zero].map(str::to_owned).into(),
    })
}

/// The class of a tensor in the files' metadata.
fn class(tensors: &StoredTensors<'_>, entry: &Config, weight: &str) -> Result<String> {
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
        true => Ok(class),
        false => Err(entry.unsupported(format!(
            "{weight:?} of the class {class} is not supported; known: {known}"
        ))),
    }
}
