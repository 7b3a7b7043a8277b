//! compressed-tensors (llm-compressor, vLLM): matrices of integers, of 8-bit floats and of 4-bit
//! floats. The tensors of a module determine which one it is: `ignore`, `targets` and several
//! groups need no interpretation, but what is found must be in a group of the config.

use std::collections::BTreeSet;

use mlx_core::{Array, DType, Result};
use mlx_nn::Decoded;

use super::integers::{Integers, Part, Zeros, decoded as of_integers, integers, unpacked};
use super::tensors::{FLOATS, StoredTensors, count, float};
use super::{Format, Reading, fp4, fp8};
use crate::config::Config;

const FORMATS: [&str; 8] = [
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
];

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    known_format(entry)?;
    let groups = Groups::of(entry)?;
    let mut decoded = Decoded::default();
    let mut format = None;
    let mut left = tensors.without(&BTreeSet::new());
    let mut add = |left: &mut StoredTensors<'_>, found: Option<(Decoded, Format)>| {
        if let Some((own, found)) = found {
            *left = left.without(&own.hidden);
            super::join(&mut decoded, &mut format, own, found);
        }
    };
    let found = fp4::decoded(&left, entry, &fp4::COMPRESSED)?;
    if found.is_some() && !groups.has("float", 4) {
        return Err(groups.unfit(entry, "matrices of 4-bit floats"));
    }
    add(&mut left, found);
    let matrices = left.modules("weight_packed");
    let matrices = matrices
        .into_iter()
        .map(|path| packed(&left, entry, &groups, path));
    let mut matrices = matrices.collect::<Result<Vec<_>>>()?;
    for path in left.modules("weight") {
        if left
            .info(&format!("{path}.weight"))?
            .is_some_and(|(dtype, _)| dtype == "I8")
        {
            matrices.push(bytes(&left, entry, &groups, path)?);
        }
    }
    if !matrices.is_empty() {
        let program = "compressed-tensors";
        let found = of_integers(&left, entry, matrices, reading, program)?;
        add(&mut left, Some(found));
    }
    if left.have_fp8()? {
        if !groups.has("float", 8) {
            return Err(groups.unfit(entry, "matrices of 8-bit floats"));
        }
        let block = fp8::block_of_groups(entry)?;
        let found = fp8::decoded(&left, entry, block, reading)?;
        add(&mut left, Some(found));
    }
    // A config without files, and files whose modules are all ignored, have nothing to decode.
    let format = format.unwrap_or_else(|| {
        let described = "no matrix in a format of compressed-tensors".to_owned();
        Format::new([].into(), described, false)
    });
    decoded.hidden.extend(fp8::of_activations(&left));
    Ok((decoded, format))
}

/// Refuses unknown formats of the config and of its groups.
fn known_format(entry: &Config) -> Result<()> {
    let mut formats: Vec<(String, Config)> =
        vec![(entry.or("format", String::new())?, entry.clone())];
    if let Some(groups) = entry.object("config_groups")? {
        for key in groups.keys() {
            if let Some(group) = groups.object(&key)?
                && let Some(format) = group.opt("format")?
            {
                formats.push((format, group));
            }
        }
    }
    for (format, place) in formats {
        if !FORMATS.contains(&format.as_str()) {
            return Err(place.unsupported(format!(
                "format {format:?} of compressed-tensors is not supported; known: {}",
                FORMATS.join(", ")
            )));
        }
    }
    Ok(())
}

/// The weights of the groups in the config.
struct Groups(Vec<Group>);

struct Group {
    kind: String,
    bits: i32,
    symmetric: bool,
    /// `None`: a row is a group.
    size: Option<i32>,
}

impl Groups {
    fn of(entry: &Config) -> Result<Self> {
        let Some(groups) = entry.object("config_groups")? else {
            return Err(entry.error("config_groups is missing"));
        };
        let mut all = Vec::new();
        for key in groups.keys() {
            let weights = match groups.object(&key)? {
                Some(group) => group.object("weights")?,
                None => None,
            };
            let Some(weights) = weights else {
                return Err(groups.error(format!("{key} has no weights")));
            };
            let group = Group {
                kind: weights.or("type", "int".to_owned())?,
                bits: weights.size("num_bits", None)?,
                symmetric: weights.or("symmetric", true)?,
                size: weights.opt("group_size")?.filter(|&size: &i32| size > 0),
            };
            let known: &[(&str, i32)] = &[("int", 4), ("int", 8), ("float", 4), ("float", 8)];
            if !known.contains(&(group.kind.as_str(), group.bits)) {
                return Err(weights.unsupported(format!(
                    "num_bits {}, type {:?} is not supported; known: int or float of 4 or 8 bits",
                    group.bits, group.kind
                )));
            }
            all.push(group);
        }
        match all.is_empty() {
            true => Err(entry.error("config_groups is empty")),
            false => Ok(Self(all)),
        }
    }

    fn has(&self, kind: &str, bits: i32) -> bool {
        self.0
            .iter()
            .any(|group| group.kind == kind && group.bits == bits)
    }

    /// The groups of integers of so many bits.
    fn integers(&self, bits: i32) -> impl Iterator<Item = &Group> {
        let fits = move |group: &&Group| group.kind == "int" && group.bits == bits;
        self.0.iter().filter(fits)
    }

    fn unfit(&self, entry: &Config, found: &str) -> mlx_core::Error {
        let all = self.0.iter();
        let all: Vec<String> = all
            .map(|group| format!("{} of {} bits", group.kind, group.bits))
            .collect();
        entry.error(format!(
            "found {found}, config_groups has only {}",
            all.join(", ")
        ))
    }

    /// Refuses zero points that the config does not allow, missing ones, and groups of other sizes.
    fn check(&self, entry: &Config, matrix: &Integers, scales: &[i32]) -> Result<()> {
        let path = &matrix.path;
        let groups: Vec<&Group> = self.integers(matrix.bits).collect();
        if groups.is_empty() {
            let found = format!("{path} of {}-bit integers", matrix.bits);
            return Err(self.unfit(entry, &found));
        }
        let symmetric = matches!(matrix.zeros, Zeros::All(_));
        if symmetric && groups.iter().all(|group| !group.symmetric) {
            return Err(entry.error(format!(
                "tensor \"{path}.weight_zero_point\" is missing: symmetric is false"
            )));
        }
        let sizes: Vec<i32> = groups.iter().filter_map(|group| group.size).collect();
        if sizes.len() == groups.len() && !sizes.contains(&matrix.group) {
            return Err(entry.error(format!(
                "{path}: scales {scales:?} are of groups of {}, group_size says {sizes:?}",
                matrix.group
            )));
        }
        Ok(())
    }
}

/// Integers in words: `weight_packed` I32 `[rows, columns * bits / 32]` holds the number plus half
/// of the number of codes; `weight_zero_point` is packed in the same way along the rows.
fn packed(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    groups: &Groups,
    path: &str,
) -> Result<Integers> {
    let [codes, scale, shape, zero, g_idx] = [
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
    ]
    .map(|part| format!("{path}.{part}"));
    let (_, found) = tensors.tensor(entry, &codes, &["I32"], 2)?;
    let (dtype, scales) = tensors.tensor(entry, &scale, &FLOATS, 2)?;
    let (rows, words) = (found[0], found[1]);
    let mut hidden = vec![codes.clone(), scale.clone()];
    let mut told = None;
    if tensors.have(&shape) {
        told = Some(integers(tensors, &shape)?);
        hidden.push(shape.clone());
    }
    // With several widths the shape determines which one it is.
    let fits = |bits: i32| match told.as_deref() {
        Some(&[_, columns]) => i64::from(words) * 32 == columns * i64::from(bits),
        _ => true,
    };
    let known = [4, 8].into_iter().filter(|&bits| groups.has("int", bits));
    let known: Vec<i32> = known.collect();
    let bits = known.iter().copied().find(|&bits| fits(bits));
    let Some(bits) = bits.or(known.first().copied()) else {
        return Err(groups.unfit(entry, &format!("{codes:?} of packed integers")));
    };
    let columns = words.saturating_mul(32 / bits);
    if told
        .as_ref()
        .is_some_and(|told| told != &[i64::from(rows), i64::from(columns)])
    {
        return Err(entry.error(format!(
            "{codes}: {shape} says {told:?}, found [{rows}, {columns}] of {bits} bits"
        )));
    }
    let group = group_of(entry, &codes, [rows, columns], &scale, scales)?;
    let mut zeros = Zeros::All((1 << (bits - 1)) as f32);
    if tensors.have(&zero) {
        let (_, packed) = tensors.tensor(entry, &zero, &["I32"], 2)?;
        if i64::from(packed[0]) * 32 != i64::from(rows) * i64::from(bits) || packed[1] != scales[1]
        {
            return Err(entry.error(format!(
                "tensor {zero:?} {packed:?} does not fit {rows} rows of {bits} bits and {scale:?} {scales:?}"
            )));
        }
        hidden.push(zero.clone());
        zeros = Zeros::Each(Part::new(&zero, move |words| {
            let words = words.view(DType::U32)?.transpose(&[1, 0])?;
            unpacked(&words, bits, rows)?.transpose(&[1, 0])
        }));
    }
    let has_groups = tensors.have(&g_idx);
    if has_groups {
        check_columns(tensors, entry, &g_idx, columns)?;
        hidden.push(g_idx.clone());
    }
    let matrix = Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits,
        group,
        codes: Part::new(&codes, |words| words.view(DType::U32)),
        scales: Part::new(&scale, |scales| Ok(scales.clone())),
        scale_dtype: float(dtype).expect("one of FLOATS"),
        zeros,
        groups: has_groups.then_some(g_idx),
        hidden,
    };
    groups.check(entry, &matrix, scales)?;
    Ok(matrix)
}

/// Integers of 8 bits: `weight` I8 `[rows, columns]`, with or without `weight_zero_point`.
fn bytes(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    groups: &Groups,
    path: &str,
) -> Result<Integers> {
    let [weight, scale, zero] =
        ["weight", "weight_scale", "weight_zero_point"].map(|part| format!("{path}.{part}"));
    let (_, found) = tensors.tensor(entry, &weight, &["I8"], 2)?;
    let (rows, columns) = (found[0], found[1]);
    let axes = tensors
        .info(&scale)?
        .map_or(2, |(_, shape)| shape.len().clamp(1, 2));
    let (dtype, scales) = tensors.tensor(entry, &scale, &FLOATS, axes)?;
    // One scale for the whole matrix counts as one for each row.
    let is_one = count(scales) == 1;
    let wide = if is_one {
        vec![rows, 1]
    } else {
        scales.to_vec()
    };
    let group = group_of(entry, &weight, [rows, columns], &scale, &wide)?;
    let mut hidden = vec![weight.clone(), scale.clone()];
    let mut zeros = Zeros::All(128.0);
    if let Some((found, shape)) = tensors.info(&zero)? {
        if found != "I8" || shape != scales {
            return Err(entry.error(format!(
                "tensor {zero:?} is {found} {shape:?}, expected I8 {scales:?}"
            )));
        }
        hidden.push(zero.clone());
        let shape = wide.clone();
        zeros = Zeros::Each(Part::new(&zero, move |zeros| {
            let zeros = zeros.astype(DType::F32)?.add(128.0)?;
            zeros.broadcast_to(&shape)
        }));
    }
    let matrix = Integers {
        path: path.to_owned(),
        shape: [rows, columns],
        bits: 8,
        group,
        codes: Part::new(&weight, biased),
        scales: Part::new(&scale, move |scales| scales.broadcast_to(&wide)),
        scale_dtype: float(dtype).expect("one of FLOATS"),
        zeros,
        groups: None,
        hidden,
    };
    groups.check(entry, &matrix, scales)?;
    Ok(matrix)
}

/// Signed bytes as codes from 0 on, in words: I8 `[rows, n]` -> U32 `[rows, n / 4]`.
pub(super) fn biased(bytes: &Array) -> Result<Array> {
    let bytes = bytes.contiguous()?.view(DType::U8)?;
    let codes = bytes.bitwise_xor(Array::scalar(128u8)?)?;
    codes.contiguous()?.view(DType::U32)
}

/// The number of columns that share a scale.
pub(super) fn group_of(
    entry: &Config,
    name: &str,
    [rows, columns]: [i32; 2],
    scale: &str,
    scales: &[i32],
) -> Result<i32> {
    match *scales {
        [n, groups] if n == rows && groups > 0 && columns % groups == 0 && columns % 4 == 0 => {
            Ok(columns / groups)
        }
        _ => Err(entry.error(format!(
            "{name}: scales {scale:?} {scales:?} do not fit [{rows}, {columns}]"
        ))),
    }
}

fn check_columns(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    name: &str,
    columns: i32,
) -> Result<()> {
    let (_, found) = tensors.tensor(entry, name, &["I32", "I64"], 1)?;
    match found == [columns] {
        true => Ok(()),
        false => Err(entry.error(format!(
            "tensor {name:?} {found:?} does not fit {columns} columns"
        ))),
    }
}
