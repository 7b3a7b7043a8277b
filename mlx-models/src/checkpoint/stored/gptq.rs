//! GPTQ (arXiv:2210.17323) as gptqmodel and AutoGPTQ write it. In `qweight`, I32
//! `[in * bits / 32, out]`, a word has consecutive inputs of one output, the first in its lowest
//! bits; `qzeros` `[groups, out * bits / 32]` has words of consecutive outputs; `scales` is
//! `[groups, out]`. `g_idx` `[in]` is the group of each input. A weight is `scale * (code - zero)`.
//!
//! `qzeros` holds zeros in the format `gptq_v2`. In the format `gptq` one is subtracted from each
//! zero in a word. As in gptqmodel, the words are added to, so that a zero of 0 is possible.

use mlx_core::{Array, DType, Result};
use mlx_nn::Decoded;

use super::integers::{Integers, Part, Zeros, decoded as of_integers, unpacked};
use super::tensors::{FLOATS, StoredTensors, float};
use super::{Format, Reading};
use crate::config::Config;

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    let format: String = entry.or("checkpoint_format", "gptq".to_owned())?;
    let adds = match format.as_str() {
        "gptq" => true,
        "gptq_v2" => false,
        other => {
            return Err(entry.unsupported(format!(
                "checkpoint_format {other:?} is not supported; known: gptq, gptq_v2"
            )));
        }
    };
    let bits = entry.size("bits", None)?;
    known_bits(entry, "bits", bits, &[4, 8])?;
    let group = super::group_size(entry, "group_size")?;
    // Some modules may have other bits and groups.
    let is_uniform = entry
        .object("dynamic")?
        .is_none_or(|dynamic| dynamic.is_empty());
    let mut matrices = Vec::new();
    for path in tensors.modules("qweight") {
        let matrix = matrix(tensors, entry, path, adds, bits)?;
        let own = group.unwrap_or(matrix.shape[1]);
        if is_uniform && (matrix.bits != bits || matrix.group != own) {
            return Err(entry.error(format!(
                "{path}.qweight and {path}.scales are of {} bits in groups of {}, the config says {bits} bits and group_size {own}",
                matrix.bits, matrix.group
            )));
        }
        matrices.push(matrix);
    }
    of_integers(tensors, entry, matrices, reading, "GPTQ")
}

/// Refuses other numbers of bits than the known ones.
pub(super) fn known_bits(entry: &Config, key: &str, found: i32, known: &[i32]) -> Result<()> {
    match known.contains(&found) {
        true => Ok(()),
        false => {
            let known: Vec<String> = known.iter().map(i32::to_string).collect();
            let known = known.join(", ");
            Err(entry.unsupported(format!("{key} {found} is not supported; known: {known}")))
        }
    }
}

fn matrix(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    path: &str,
    adds: bool,
    usual: i32,
) -> Result<Integers> {
    let [qweight, qzeros, scales, g_idx] =
        ["qweight", "qzeros", "scales", "g_idx"].map(|name| format!("{path}.{name}"));
    let (_, words) = tensors.tensor(entry, &qweight, &["I32"], 2)?;
    let (_, zeros) = tensors.tensor(entry, &qzeros, &["I32"], 2)?;
    let (dtype, of_scales) = tensors.tensor(entry, &scales, &FLOATS, 2)?;
    let rows = words[1];
    let unfit = |name: &str, found: &[i32], what: String| {
        entry.error(format!("tensor {name:?} {found:?} does not fit {what}"))
    };
    let by_zeros = zeros[1].saturating_mul(32) / rows.max(1);
    let bits = if by_zeros == 4 || by_zeros == 8 {
        by_zeros
    } else {
        usual
    };
    if of_scales[1] != rows
        || zeros[0] != of_scales[0]
        || i64::from(rows) * i64::from(bits) / 32 != i64::from(zeros[1])
    {
        let what = format!("{qweight:?} {words:?} and {scales:?} {of_scales:?}");
        return Err(unfit(&qzeros, zeros, what));
    }
    let columns = words[0].saturating_mul(32 / bits);
    let groups = of_scales[0];
    if groups < 1 || columns % groups != 0 {
        return Err(unfit(
            &scales,
            of_scales,
            format!("{columns} inputs of {qweight:?}"),
        ));
    }
    let mut hidden = vec![qweight.clone(), qzeros.clone(), scales.clone()];
    let has_groups = tensors.have(&g_idx);
    if has_groups {
        let (_, found) = tensors.tensor(entry, &g_idx, &["I32", "I64"], 1)?;
        if found != [columns] {
            return Err(unfit(
                &g_idx,
                found,
                format!("{columns} inputs of {qweight:?}"),
            ));
        }
        hidden.push(g_idx.clone());
    }
    let ones: u32 = if bits == 4 { 0x1111_1111 } else { 0x0101_0101 };
    let transposed = |array: &Array| array.transpose(&[1, 0])?.contiguous();
    Ok(Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits,
        group: columns / groups,
        codes: Part::new(&qweight, move |words| transposed(&words.view(DType::U32)?)),
        scales: Part::new(&scales, move |scales| scales.transpose(&[1, 0])),
        scale_dtype: float(dtype).expect("one of FLOATS"),
        zeros: Zeros::Each(Part::new(&qzeros, move |words| {
            let words = words.view(DType::U32)?;
            let words = match adds {
                true => words.add(Array::scalar(ones)?)?,
                false => words,
            };
            unpacked(&words, bits, rows)?.transpose(&[1, 0])
        })),
        groups: has_groups.then_some(g_idx),
        hidden,
    })
}
