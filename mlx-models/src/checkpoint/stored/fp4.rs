//! Matrices of 4-bit floats (E2M1), two in a byte, the first in the low half: nvfp4 of ModelOpt and
//! of compressed-tensors, with a scale of 8 bits (E4M3) for 16 columns and a factor for the matrix,
//! and mxfp4 of compressed-tensors, with an exponent (E8M0) for 32 columns.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, QuantMode, Result, Scheme};
use mlx_nn::{Decoded, Made};

use super::Format;
use super::tensors::{StoredTensors, count};
use crate::config::Config;

/// The names of a matrix's tensors in a format.
pub(super) struct Fp4Names {
    pub codes: &'static str,
    pub scales: &'static str,
    /// The name of the factor, and whether scales are divided by it.
    pub factor: (&'static str, bool),
    /// The dtype of codes, of which two are in a byte.
    pub bytes: &'static str,
    /// The program, for users.
    pub program: &'static str,
}

/// nvfp4 of ModelOpt.
pub(super) const MODELOPT: Fp4Names = Fp4Names {
    codes: "weight",
    scales: "weight_scale",
    factor: ("weight_scale_2", false),
    bytes: "U8",
    program: "ModelOpt",
};

/// nvfp4 and mxfp4 of compressed-tensors.
pub(super) const COMPRESSED: Fp4Names = Fp4Names {
    codes: "weight_packed",
    scales: "weight_scale",
    factor: ("weight_global_scale", true),
    bytes: "U8",
    program: "compressed-tensors",
};

/// mxfp4 of the experts that DeepSeek V4 publishes beside 8-bit floats.
pub(super) const DEEPSEEK: Fp4Names = Fp4Names {
    codes: "weight",
    scales: "scale",
    factor: ("", false),
    bytes: "I8",
    program: "DeepSeek",
};

/// The matrices of a format whose codes are bytes. `None` if there are none.
pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    names: &Fp4Names,
) -> Result<Option<(Decoded, Format)>> {
    let mut decoded = Decoded::default();
    let mut schemes = BTreeMap::new();
    for path in tensors.modules(names.codes) {
        let codes = format!("{path}.{}", names.codes);
        let Some((_, shape)) = tensors
            .info(&codes)?
            .filter(|(dtype, _)| *dtype == names.bytes)
        else {
            continue;
        };
        let [leading @ .., rows, bytes] = shape else {
            return Err(entry.error(format!("tensor {codes:?} {shape:?} is no matrix")));
        };
        let rows = [leading, &[*rows]].concat();
        let scales = format!("{path}.{}", names.scales);
        let known: &[&str] = match names.factor.0 {
            "" => &["F8_E8M0", "U8"],
            _ => &["F8_E4M3", "F8_E8M0", "U8"],
        };
        let (dtype, _) = tensors.tensor(entry, &scales, known, shape.len())?;
        let mode = match dtype {
            "F8_E4M3" => QuantMode::Nvfp4,
            _ => QuantMode::Mxfp4,
        };
        let scheme = Scheme::default_of(mode);
        let groups = bytes.saturating_mul(2) / scheme.group_size;
        let wanted = [&rows[..], &[groups]].concat();
        let (_, found) = tensors.tensor(entry, &scales, &[dtype], shape.len())?;
        if found != wanted || bytes % 16 != 0 || count(shape) == 0 {
            return Err(entry.error(format!(
                "tensor {scales:?} {dtype} {found:?} does not fit {codes:?} {shape:?}: expected {wanted:?}, rows a multiple of 32"
            )));
        }
        let made = |part: &str, of: &str, dtype, shape, make: Box<mlx_nn::Make>| Made {
            name: format!("{path}.{part}"),
            of: vec![of.to_owned()],
            dtype,
            shape,
            keeps: false,
            make,
        };
        let words = [&rows[..], &[bytes / 4]].concat();
        let as_words: Box<mlx_nn::Make> = Box::new(|parts| parts[0].contiguous()?.view(DType::U32));
        let unchanged: Box<mlx_nn::Make> = Box::new(|parts| Ok(parts[0].clone()));
        decoded.made.extend([
            made("weight", &codes, DType::U32, words, as_words),
            made("scales", &scales, DType::U8, wanted, unchanged),
        ]);
        if mode == QuantMode::Nvfp4 {
            let (name, divides) = names.factor;
            let factor = format!("{path}.{name}");
            check_factor(tensors, entry, &factor, leading)?;
            let shape = rows.clone();
            let make: Box<mlx_nn::Make> = Box::new(move |parts| {
                let factor = parts[0].astype(DType::F32)?;
                let factor = match divides {
                    true => Array::scalar(1.0f32)?.divide(factor)?,
                    false => factor,
                };
                of_rows(&factor, &shape)
            });
            decoded
                .made
                .push(made("factor", &factor, DType::F32, rows, make));
            decoded.hidden.insert(factor);
        }
        decoded.hidden.extend([codes, scales]);
        schemes.insert(path.to_owned(), scheme);
    }
    if schemes.is_empty() {
        return Ok(None);
    }
    let modes: std::collections::BTreeSet<_> =
        schemes.values().map(|scheme| scheme.mode.name()).collect();
    let modes = modes.into_iter().collect::<Vec<_>>().join(" and ");
    let described = format!("4-bit floats of {}, kept as {modes}", names.program);
    Ok(Some((decoded, Format::new(schemes, described, true))))
}

/// Refuses a factor that is missing or has another shape than one number for each matrix.
fn check_factor(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    name: &str,
    leading: &[i32],
) -> Result<()> {
    let matrices = count(leading);
    match tensors.info(name)? {
        Some(("F32" | "BF16" | "F16", shape)) if count(shape) == matrices => Ok(()),
        Some((dtype, shape)) => Err(entry.error(format!(
            "tensor {name:?} is {dtype} {shape:?}, expected {matrices} numbers of F32"
        ))),
        None => Err(entry.error(format!(
            "tensor {name:?} is missing: {matrices} numbers of F32"
        ))),
    }
}

/// One number for each matrix, for each of its rows.
fn of_rows(factor: &Array, rows: &[i32]) -> Result<Array> {
    let (_, leading) = rows.split_last().expect("a matrix has rows");
    let factor = factor.reshape(&[leading, &[1]].concat())?;
    factor.broadcast_to(rows)?.contiguous()
}

/// The largest number that nvfp4 of MLX represents without a global scale.
pub(crate) const LARGEST_NVFP4: f32 = 448.0 * 6.0;

/// The ending of the name of MLX's scales for whole matrices.
pub(crate) const GLOBAL_SCALE: &str = "global_scale";

/// The factors of nvfp4 matrices with a `global_scale`, which is the largest number of a matrix, as
/// MLX writes them. Empty if there are none.
pub(super) fn of_mlx(tensors: &StoredTensors<'_>, place: &Config) -> Result<Decoded> {
    let mut decoded = Decoded::default();
    for path in tensors.modules(GLOBAL_SCALE) {
        let (name, scales) = (format!("{path}.{GLOBAL_SCALE}"), format!("{path}.scales"));
        let Some((_, [leading @ .., rows, _])) = tensors.info(&scales)? else {
            return Err(place.error(format!("tensor {name:?} needs a matrix {scales:?}")));
        };
        check_factor(tensors, place, &name, leading)?;
        let rows = [leading, &[*rows]].concat();
        let shape = rows.clone();
        decoded.made.push(Made {
            name: format!("{path}.factor"),
            of: vec![name.clone()],
            dtype: DType::F32,
            shape: rows,
            keeps: false,
            make: Box::new(move |parts| {
                of_rows(&parts[0].astype(DType::F32)?.divide(LARGEST_NVFP4)?, &shape)
            }),
        });
        decoded.hidden.insert(name);
    }
    Ok(decoded)
}
