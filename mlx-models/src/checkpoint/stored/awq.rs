//! AWQ (arXiv:2306.00978) as AutoAWQ writes it for its product "gemm". In `qweight`, I32
//! `[in, out / 8]`, a word has eight consecutive outputs of one input in the order 0 2 4 6 1 3 5 7,
//! the first in its lowest bits; `qzeros` `[groups, out / 8]` has the same order; `scales` is
//! `[groups, out]`. A weight is `scale * (code - zero)`.

use mlx_core::ops::concat;
use mlx_core::{Array, DType, Result};
use mlx_nn::Decoded;

use super::gptq::known_bits;
use super::integers::{Integers, Part, Zeros, decoded as of_integers, nibbles};
use super::tensors::{FLOATS, StoredTensors, float};
use super::{Format, Reading};
use crate::config::Config;

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    let entry = &entry.with_aliases(&[("bits", "w_bit"), ("group_size", "q_group_size")]);
    let version: String = entry.or("version", "gemm".to_owned())?;
    if !version.eq_ignore_ascii_case("gemm") {
        return Err(entry.unsupported(format!("version {version:?} is not supported; known: gemm")));
    }
    known_bits(entry, "bits", entry.size("bits", Some(4))?, &[4])?;
    let group = super::group_size(entry, "group_size")?;
    let mut matrices = Vec::new();
    for path in tensors.modules("qweight") {
        let matrix = matrix(tensors, entry, path)?;
        let own = group.unwrap_or(matrix.shape[1]);
        if matrix.group != own {
            return Err(entry.error(format!(
                "{path}.qweight and {path}.scales are of groups of {}, group_size says {own}",
                matrix.group
            )));
        }
        matrices.push(matrix);
    }
    of_integers(tensors, entry, matrices, reading, "AWQ")
}

fn matrix(tensors: &StoredTensors<'_>, entry: &Config, path: &str) -> Result<Integers> {
    let [qweight, qzeros, scales] =
        ["qweight", "qzeros", "scales"].map(|name| format!("{path}.{name}"));
    let (_, codes) = tensors.tensor(entry, &qweight, &["I32"], 2)?;
    let (_, zeros) = tensors.tensor(entry, &qzeros, &["I32"], 2)?;
    let (dtype, of_scales) = tensors.tensor(entry, &scales, &FLOATS, 2)?;
    let (columns, rows) = (codes[0], codes[1].saturating_mul(8));
    let groups = of_scales[0];
    if of_scales[1] != rows
        || zeros != [groups, codes[1]]
        || groups < 1
        || columns % groups != 0
        || columns % 8 != 0
    {
        return Err(entry.error(format!(
            "tensors {qweight:?} {codes:?}, {qzeros:?} {zeros:?} and {scales:?} {of_scales:?} do not fit each other, or inputs are no multiple of 8"
        )));
    }
    Ok(Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits: 4,
        group: columns / groups,
        codes: Part::new(&qweight, packed),
        scales: Part::new(&scales, |scales| scales.transpose(&[1, 0])),
        scale_dtype: float(dtype).expect("one of FLOATS"),
        zeros: Zeros::Each(Part::new(&qzeros, |zeros| {
            in_order(zeros)?.astype(DType::F32)
        })),
        groups: None,
        hidden: vec![qweight, qzeros, scales],
    })
}

/// The words of the affine scheme, of consecutive inputs: I32 `[in, out / 8]` -> U32
/// `[out, in / 8]`.
///
/// Eight words of consecutive inputs are a matrix of 8 x 8 codes, which is transposed in three
/// steps, as in "Hacker's Delight", 7-3: blocks of `size` codes beside the diagonal change places.
fn packed(words: &Array) -> Result<Array> {
    let [inputs, n] = [words.dim(0)?, words.dim(1)?];
    let mut words = words.view(DType::U32)?.reshape(&[inputs / 8, 8, n])?;
    for (size, mask) in [(4, 0x0000_ffffu32), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f)] {
        let shift = Array::scalar(4 * size as u32)?;
        let pairs = words.reshape(&[inputs / 8, 4 / size, 2, size, n])?;
        let half = |at: i32| pairs.slice_axis(2, at, at + 1);
        let (low, high) = (half(0)?, half(1)?);
        let moved = low.right_shift(&shift)?.bitwise_xor(&high)?;
        let moved = moved.bitwise_and(Array::scalar(mask)?)?;
        let low = low.bitwise_xor(moved.left_shift(&shift)?)?;
        words = concat(&[low, high.bitwise_xor(moved)?], 2)?.reshape(&[inputs / 8, 8, n])?;
    }
    // Words 0 to 3 of eight now are of the even outputs, words 4 to 7 of the odd ones.
    let words = words
        .reshape(&[inputs / 8, 2, 4, n])?
        .transpose(&[3, 2, 1, 0])?;
    words.contiguous()?.reshape(&[8 * n, inputs / 8])
}

/// The codes of words, each as a byte, outputs in order: I32 `[n, out / 8]` -> U8 `[out, n]`.
fn in_order(words: &Array) -> Result<Array> {
    let bytes = words.contiguous()?.view(DType::U8)?;
    // Codes 0 to 3 of a word are of the even outputs, codes 4 to 7 of the odd ones.
    let codes = nibbles(&bytes)?.unflatten(1, &[-1, 2, 4])?;
    let codes = codes.transpose(&[1, 3, 2, 0])?;
    codes.contiguous()?.reshape(&[-1, words.dim(0)?])
}
