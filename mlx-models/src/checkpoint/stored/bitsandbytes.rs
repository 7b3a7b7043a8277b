//! bitsandbytes. 4 bits (nf4, fp4; arXiv:2305.14314): `weight` U8 `[out * in / 2, 1]` has two codes
//! in a byte, the first in the high half, which index `weight.quant_map`; `weight.absmax` is the
//! scale of a block of consecutive numbers. The bytes may also be stored as numbers of another dtype
//! (`bnb_4bit_quant_storage`). With double quantisation `absmax` is U8 codes of
//! `nested_quant_map`, scaled by `nested_absmax`, plus an offset. Shape and block are in JSON. The
//! codes are not evenly spaced, so the matrices become dense.
//!
//! 8 bits (arXiv:2208.07339): `weight` I8 `[out, in]` and `SCB` `[out]`, F32; a number is
//! `weight * SCB / 127`.

use mlx_core::{Array, DType, Result};
use mlx_nn::{Decoded, Made};

use super::compressed::biased;
use super::integers::{Integers, Part, Zeros, decoded as of_integers, integers, nibbles};
use super::tensors::{StoredTensors, count};
use super::{Format, Reading};
use crate::config::Config;

/// The state of a 4-bit matrix, by the type of its codes.
const STATES: [&str; 2] = ["bitsandbytes__nf4", "bitsandbytes__fp4"];

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    let dtype = reading.dtype.map_or_else(|| tensors.dense_dtype(), Ok)?;
    let mut decoded = Decoded::default();
    let mut format = None;
    let mut integers = Vec::new();
    for path in tensors.modules("weight") {
        let weight = format!("{path}.weight");
        let has_state = STATES
            .iter()
            .any(|state| tensors.have(&format!("{weight}.quant_state.{state}")));
        match tensors.info(&weight)? {
            Some((stored, _)) if stored == "U8" || has_state => {
                let made = four(tensors, entry, path, dtype, &mut decoded)?;
                decoded.made.push(made);
            }
            Some(("I8", _)) => integers.push(eight(tensors, entry, path)?),
            _ => {}
        }
    }
    if !decoded.made.is_empty() {
        let described = format!("4-bit codes of bitsandbytes, dequantised to {dtype}");
        format = Some(Format::new([].into(), described, true));
    }
    if !integers.is_empty() || format.is_none() {
        let (own, found) = of_integers(tensors, entry, integers, reading, "bitsandbytes")?;
        super::join(&mut decoded, &mut format, own, found);
    }
    Ok((decoded, format.expect("one of both was added")))
}

/// The values of a 4-bit matrix's state.
struct State {
    shape: [i32; 2],
    block: i32,
    /// The block of scales that are codes themselves, and their offset.
    nested: Option<(i32, f32)>,
}

fn four(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    path: &str,
    dtype: DType,
    decoded: &mut Decoded,
) -> Result<Made> {
    let name = |part: &str| format!("{path}.weight{part}");
    let states = STATES.map(|state| name(&format!(".quant_state.{state}")));
    let Some(state) = states.iter().find(|state| tensors.have(state)) else {
        return Err(entry.error(format!(
            "tensor {:?} is missing: the state of 4-bit codes, nf4 or fp4",
            states[0]
        )));
    };
    let parsed = State::read(tensors, entry, state)?;
    let State {
        shape,
        block,
        nested,
    } = parsed;
    let numbers = i64::from(shape[0]) * i64::from(shape[1]);
    let check = |name: &str, dtypes: &[&str], size: i64| {
        let found = tensors.info(name)?;
        let fits =
            found.is_some_and(|(dtype, shape)| dtypes.contains(&dtype) && count(shape) == size);
        match fits {
            true => Ok(name.to_owned()),
            false => Err(entry.error(format!(
                "tensor {name:?}: found {found:?}, expected {size} numbers of {} for a matrix {shape:?} in blocks of {block}",
                dtypes.join(" or ")
            ))),
        }
    };
    let blocks = |n: i64, size: i32| (n + i64::from(size) - 1) / i64::from(size);
    let n = blocks(numbers, block);
    let bytes = (numbers + 1) / 2;
    let (stored, size) = match tensors.info(&name(""))? {
        Some(("BF16", _)) => ("BF16", 2),
        Some(("F16", _)) => ("F16", 2),
        Some(("F32", _)) => ("F32", 4),
        _ => ("U8", 1),
    };
    let mut of = vec![
        check(&name(""), &[stored], blocks(bytes, size))?,
        check(&name(".quant_map"), &["F32"], 16)?,
    ];
    match nested {
        None => of.push(check(&name(".absmax"), &["F32"], n)?),
        Some((size, _)) => {
            of.push(check(&name(".absmax"), &["U8"], n)?);
            of.push(check(&name(".nested_quant_map"), &["F32"], 256)?);
            of.push(check(&name(".nested_absmax"), &["F32"], blocks(n, size))?);
        }
    }
    decoded.hidden.extend(of.iter().cloned());
    decoded.hidden.insert(state.clone());
    let (numbers, n) = (numbers as i32, n as i32);
    Ok(Made {
        name: name(""),
        of,
        dtype,
        shape: shape.to_vec(),
        keeps: false,
        make: Box::new(move |parts| {
            // The high half of a byte comes first.
            let bytes = parts[0].contiguous()?.view(DType::U8)?.reshape(&[-1, 1])?;
            let pairs = nibbles(&bytes)?;
            let codes = pairs.take(&Array::from_slice(&[1, 0], &[2])?, 1)?;
            let codes = codes.reshape(&[-1])?.slice_axis(0, 0, numbers)?;
            let scales = match nested {
                None => parts[2].reshape(&[-1])?,
                Some((size, offset)) => {
                    let scales = parts[3].take(&parts[2].reshape(&[-1])?, 0)?;
                    let blocks = parts[4].repeat(size, 0)?.slice_axis(0, 0, n)?;
                    scales.multiply(blocks)?.add(offset)?
                }
            };
            let scales = scales.repeat(block, 0)?.slice_axis(0, 0, numbers)?;
            let dense = parts[1].take(&codes, 0)?.multiply(scales)?;
            dense.reshape(&shape)?.astype(dtype)
        }),
    })
}

impl State {
    fn read(tensors: &StoredTensors<'_>, entry: &Config, name: &str) -> Result<Self> {
        tensors.tensor(entry, name, &["U8"], 1)?;
        let text: Vec<u8> = tensors.array(name)?.to_vec()?;
        let value = serde_json::from_slice(&text)
            .map_err(|error| entry.error(format!("tensor {name:?} is no JSON: {error}")))?;
        let place = format!("tensor {name:?}");
        let state = Config::new(&place, value)?;
        let shape: Vec<i32> = state.required("shape")?;
        let &[rows, columns] = &shape[..] else {
            return Err(state.error(format!("shape must be a matrix, found {shape:?}")));
        };
        let numbers = rows
            .checked_mul(columns)
            .filter(|_| rows > 0 && columns > 0);
        if numbers.is_none() {
            return Err(state.error(format!("shape {shape:?} is no size of a matrix")));
        }
        let nested = match state.opt::<i32>("nested_blocksize")? {
            Some(_) => {
                let size = state.size("nested_blocksize", None)?;
                Some((size, state.required("nested_offset")?))
            }
            None => None,
        };
        Ok(Self {
            shape: [rows, columns],
            block: state.size("blocksize", None)?,
            nested,
        })
    }
}

fn eight(tensors: &StoredTensors<'_>, entry: &Config, path: &str) -> Result<Integers> {
    let [weight, scb, format] =
        ["weight", "SCB", "weight_format"].map(|part| format!("{path}.{part}"));
    let (_, shape) = tensors.tensor(entry, &weight, &["I8"], 2)?;
    let (_, scales) = tensors.tensor(entry, &scb, &["F32"], 1)?;
    let &[rows, columns] = shape else {
        unreachable!("it has two axes");
    };
    if scales != [rows] || columns % 4 != 0 {
        return Err(entry.error(format!(
            "tensor {scb:?} {scales:?} does not fit {weight:?} {shape:?}"
        )));
    }
    let mut hidden = vec![weight.clone(), scb.clone()];
    if let Some((dtype, _)) = tensors.info(&format)? {
        // 0 means rows; the other formats are tiles of CUDA kernels.
        let found = integers(tensors, &format)?;
        if found != [0] {
            return Err(entry.unsupported(format!(
                "tensor {format:?} is {dtype} {found:?}; known: 0, rows"
            )));
        }
        hidden.push(format);
    }
    Ok(Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits: 8,
        group: columns,
        codes: Part::new(&weight, biased),
        scales: Part::new(&scb, |scales| {
            // bitsandbytes multiplies by this number.
            scales.expand_dims(-1)?.multiply(1.0f32 / 127.0)
        }),
        scale_dtype: DType::F32,
        zeros: Zeros::All(128.0),
        groups: None,
        hidden,
    })
}
