//! Integers of 4 or 8 bits, packed by compressed-tensors. In a group with the scale s, the code c stands for
//! `s * (c - zero)`, where zero is half of the number of codes. This is the affine scheme with the bias `-zero * s`,
//! which the dtype of the scales holds exactly.

use mlx_core::{DType, QuantMode, Result, Scheme};
use mlx_nn::{Decoded, Made};

use super::{Format, StoredTensors};
use crate::config::Config;

const PACKED: &str = "weight_packed";

/// The group sizes of the affine scheme, the largest first.
const GROUPS: [i32; 3] = [128, 64, 32];

pub(super) fn decoded(tensors: &StoredTensors<'_>, entry: &Config) -> Result<(Decoded, Format)> {
    let (bits, sizes) = bits(entry)?;
    let mut decoded = Decoded::default();
    let mut scheme: Option<Scheme> = None;
    for name in tensors.names() {
        let Some(path) = name.strip_suffix(PACKED) else {
            continue;
        };
        let [weight, scale, shape] =
            ["weight", "weight_scale", "weight_shape"].map(|part| format!("{path}{part}"));
        for part in ["weight_zero_point", "weight_g_idx"] {
            if tensors.info(&format!("{path}{part}"))?.is_some() {
                return Err(entry.unsupported(format!(
                    "{path}{part} is not supported: only symmetric weights whose groups are in order"
                )));
            }
        }
        let unfit = |what: String| entry.error(format!("{name}: {what}"));
        let Some(("I32", &[rows, words])) = tensors.info(name)? else {
            return Err(unfit("packed codes must be a matrix of I32".to_owned()));
        };
        let Some((dtype @ ("BF16" | "F16" | "F32"), &[n, groups])) = tensors.info(&scale)? else {
            return Err(unfit(format!("{scale} must be a matrix of floats")));
        };
        let columns = i64::from(words) * 32 / i64::from(bits);
        if tensors.info(&shape)?.is_some() {
            let told: Vec<i64> = tensors.array(&shape)?.astype(DType::I64)?.to_vec()?;
            if told != [i64::from(rows), columns] {
                return Err(unfit(format!(
                    "{shape} says {told:?}, found [{rows}, {columns}]"
                )));
            }
            decoded.hidden.insert(shape);
        }
        let stored = match i32::try_from(columns) {
            Ok(columns) if n == rows && groups > 0 && columns % groups == 0 => columns / groups,
            _ => {
                return Err(unfit(format!(
                    "scales [{n}, {groups}] do not fit [{rows}, {columns}]"
                )));
            }
        };
        if !sizes.is_empty() && !sizes.contains(&stored) {
            return Err(unfit(format!(
                "scales [{n}, {groups}] are of groups of {stored}, group_size says {sizes:?}"
            )));
        }
        let Some(group) = GROUPS.into_iter().find(|group| stored % group == 0) else {
            return Err(entry.unsupported(format!(
                "{name}: groups of {stored} are not supported; known: multiples of 32"
            )));
        };
        let found = Scheme::new(group, bits, QuantMode::Affine)?;
        if *scheme.get_or_insert(found) != found {
            return Err(unfit(format!(
                "groups of {stored} beside others are not supported"
            )));
        }
        let times = stored / group;
        let dtype = match dtype {
            "BF16" => DType::BF16,
            "F16" => DType::F16,
            _ => DType::F32,
        };
        let part = |name: String, factor: Option<f32>| Made {
            name,
            of: vec![scale.clone()],
            dtype,
            shape: vec![rows, groups * times],
            make: Box::new(move |parts| {
                let scales = match factor {
                    Some(factor) => parts[0].multiply(factor)?,
                    None => parts[0].clone(),
                };
                match times {
                    1 => Ok(scales),
                    _ => scales.repeat(times, 1)?.contiguous(),
                }
            }),
        };
        let zero = (1 << (bits - 1)) as f32;
        decoded.made.extend([
            Made {
                name: weight,
                of: vec![name.to_owned()],
                dtype: DType::U32,
                shape: vec![rows, words],
                make: Box::new(|parts| parts[0].view(DType::U32)),
            },
            part(format!("{path}scales"), None),
            part(format!("{path}biases"), Some(-zero)),
        ]);
        decoded.hidden.extend([name.to_owned(), scale.clone()]);
    }
    let described = format!("{bits}-bit integers of compressed-tensors, kept as affine");
    Ok((decoded, Format { scheme, described }))
}

/// `num_bits` of the weights in all groups of the config, and their `group_size`s if each has one.
fn bits(entry: &Config) -> Result<(i32, Vec<i32>)> {
    let Some(groups) = entry.object("config_groups")? else {
        return Err(entry.error("config_groups is missing"));
    };
    let (mut bits, mut sizes, mut has_whole_rows) = (None, Vec::new(), false);
    for key in groups.keys() {
        let weights = match groups.object(&key)? {
            Some(group) => group.object("weights")?,
            None => None,
        };
        let Some(weights) = weights else {
            return Err(groups.error(format!("{key} has no weights")));
        };
        let (own, kind) = (
            weights.size("num_bits", None)?,
            weights.or("type", "int".to_owned())?,
        );
        let symmetric = weights.or("symmetric", true)?;
        if ![4, 8].contains(&own)
            || kind != "int"
            || !symmetric
            || bits.is_some_and(|bits| bits != own)
        {
            return Err(weights.unsupported(format!(
                "num_bits {own}, type {kind:?}, symmetric {symmetric} is not supported; known: int of 4 or 8 bits, symmetric, in all \
                 groups"
            )));
        }
        bits = Some(own);
        // If the size is missing or -1, a row is one group.
        match weights.opt::<i32>("group_size")? {
            Some(size) if size > 0 => sizes.push(size),
            _ => has_whole_rows = true,
        }
    }
    if has_whole_rows {
        sizes.clear();
    }
    let bits = bits.ok_or_else(|| entry.error("config_groups is empty"))?;
    Ok((bits, sizes))
}
