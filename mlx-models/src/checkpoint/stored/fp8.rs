//! Weights of 8-bit floats (E4M3) with one scale for each block, each row, or the whole of a
//! matrix. Scales of activations have no effect: only weights are stored in 8 bits here, as in
//! transformers with `dequantize`.

use std::collections::BTreeMap;

use mlx_core::{Array, DType, QuantMode, Result, Scheme};
use mlx_nn::{Decoded, Made};

use super::tensors::StoredTensors;
use super::{Format, Reading};
use crate::config::Config;

/// The names of scales: those of weights with these endings, and `scale` beside the weight (DeepSeek V4).
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
const SCALE: &str = "scale";

/// The endings of tensors for rounding activations, keys and values, which has no effect here.
const OF_ACTIVATIONS: [&str; 12] = [
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".k_zero_point",
    ".v_zero_point",
    ".q_zero_point",
];

/// A weight and its scales.
struct Matrix<'c> {
    name: &'c str,
    scale: String,
    shape: &'c [i32],
    /// Rows and columns of scales.
    grid: [i32; 2],
    /// Rows and columns that share a scale.
    block: [i32; 2],
    /// Whether the scales are exponents (E8M0).
    exponents: bool,
}

/// `weight_block_size`, if the config has it.
pub(super) fn block(entry: &Config) -> Result<Option<[i32; 2]>> {
    sizes(entry, "weight_block_size")
}

/// `block_structure` of the weights in the groups of compressed-tensors, if the config has it.
pub(super) fn block_of_groups(entry: &Config) -> Result<Option<[i32; 2]>> {
    let Some(groups) = entry.object("config_groups")? else {
        return Ok(None);
    };
    let mut found = None;
    for (index, key) in groups.keys().iter().enumerate() {
        let weights = match groups.object(key)? {
            Some(group) => group.object("weights")?,
            None => None,
        };
        let block = match &weights {
            Some(weights) => sizes(weights, "block_structure")?,
            None => None,
        };
        if index > 0 && block != found {
            return Err(groups.unsupported(format!(
                "block_structure {block:?} of {key} beside {found:?} is not supported"
            )));
        }
        found = block;
    }
    Ok(found)
}

fn sizes(entry: &Config, key: &str) -> Result<Option<[i32; 2]>> {
    let block = entry.opt::<[i32; 2]>(key)?;
    match block {
        Some([rows, columns]) if rows < 1 || columns < 1 => Err(entry.error(format!(
            "{key} must be two sizes, found [{rows}, {columns}]"
        ))),
        block => Ok(block),
    }
}

/// The names of tensors for rounding activations, keys and values.
pub(super) fn of_activations(tensors: &StoredTensors<'_>) -> Vec<String> {
    let is_one = |name: &&str| OF_ACTIVATIONS.iter().any(|end| name.ends_with(end));
    let names = tensors.names().into_iter().filter(is_one);
    names.map(str::to_owned).collect()
}

pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    block: Option<[i32; 2]>,
    reading: Reading,
) -> Result<(Decoded, Format)> {
    let mut decoded = Decoded::default();
    let mut matrices = Vec::new();
    decoded.hidden.extend(of_activations(tensors));
    for name in tensors.names() {
        match tensors.info(name)? {
            Some(("F8_E4M3", shape)) => {
                matrices.push(Matrix::of(tensors, entry, name, shape, block)?);
            }
            Some((other, _)) if other.starts_with("F8_") && other != "F8_E8M0" => {
                return Err(entry.unsupported(format!(
                    "tensor {name:?} of {other} is not supported; known: F8_E4M3"
                )));
            }
            _ => {}
        }
    }
    let mut packs = !reading.dense;
    for matrix in &matrices {
        packs = packs && matrix.packs(tensors)?;
    }
    let dtype = reading.dtype.unwrap_or(DType::BF16);
    let mut schemes = BTreeMap::new();
    let mxfp8 = Scheme::default_of(QuantMode::Mxfp8);
    for matrix in matrices {
        if let Some(path) = matrix.name.strip_suffix(".weight").filter(|_| packs) {
            schemes.insert(path.to_owned(), mxfp8);
        }
        decoded.hidden.insert(matrix.name.to_owned());
        decoded.hidden.insert(matrix.scale.clone());
        match packs {
            true => decoded.made.extend(matrix.packed()),
            false => decoded.made.push(matrix.dense(dtype)),
        }
    }
    let described = match packs {
        true => "8-bit floats whose scales are powers of two, kept as mxfp8".to_owned(),
        false => format!("8-bit floats with scales, dequantised to {dtype}"),
    };
    // A config without files has the scheme that its files could have.
    let mut format = Format::new(schemes, described, false);
    format.scheme = packs.then_some(mxfp8);
    Ok((decoded, format))
}

impl<'c> Matrix<'c> {
    fn of(
        tensors: &StoredTensors<'_>,
        entry: &Config,
        name: &'c str,
        shape: &'c [i32],
        block: Option<[i32; 2]>,
    ) -> Result<Self> {
        let names = SCALES.map(|end| format!("{name}{end}"));
        let beside = name
            .strip_suffix("weight")
            .map(|path| format!("{path}{SCALE}"));
        let mut found = None;
        for scale in names.into_iter().chain(beside) {
            if let Some((dtype, shape)) = tensors.info(&scale)? {
                found = found.or(Some((scale, dtype, shape)));
            }
        }
        let Some((scale, dtype, scales)) = found else {
            return Err(entry.error(format!(
                "tensor {name:?} is F8_E4M3 and has no scales ({name}_scale_inv or {name}_scale)"
            )));
        };
        let exponents = dtype == "F8_E8M0" || dtype == "U8";
        if !exponents && !["F32", "BF16", "F16"].contains(&dtype) {
            return Err(entry.unsupported(format!(
                "{scale}: scales of {dtype} are not supported; known: F32, BF16, F16, F8_E8M0"
            )));
        }
        let unfit = || {
            entry.error(format!(
                "{scale}: scales {scales:?} do not fit a weight {shape:?} in blocks of {block:?}"
            ))
        };
        let [leading @ .., rows, columns] = shape else {
            return Err(unfit());
        };
        let matrices: i32 = leading.iter().product();
        let grid = match scales {
            // ModelOpt keeps the axes of a block's elements.
            [r, 1, c, 1] if leading.is_empty() => [*r, *c],
            [.., r, c] if scales.len() == shape.len() && leading == &scales[..leading.len()] => {
                [*r, *c]
            }
            [r] if leading.is_empty() && r == rows => [*r, 1],
            _ if scales.iter().product::<i32>() == matrices => [1, 1],
            _ => return Err(unfit()),
        };
        // Blocks that the config names are not guessed from the shapes.
        let size = |n: i32, parts: i32, given: Option<i32>| match given {
            Some(size) => (n / size + i32::from(n % size != 0) == parts).then_some(size),
            None => (parts > 0 && n % parts == 0).then(|| n / parts),
        };
        let given = |at: usize| block.map(|block| block[at]);
        let block = [
            size(*rows, grid[0], given(0)).ok_or_else(unfit)?,
            size(*columns, grid[1], given(1)).ok_or_else(unfit)?,
        ];
        Ok(Self {
            name,
            scale,
            shape,
            grid,
            block,
            exponents,
        })
    }

    /// Whether mxfp8 represents the matrix exactly: each group of 32 columns has one scale, a power
    /// of two.
    fn packs(&self, tensors: &StoredTensors<'_>) -> Result<bool> {
        let &[_, columns] = self.shape else {
            return Ok(false);
        };
        let whole = columns % 32 == 0 && (self.grid[1] == 1 || self.block[1] % 32 == 0);
        if !whole || !self.name.ends_with(".weight") {
            return Ok(false);
        }
        let scales = tensors.array(&self.scale)?;
        if self.exponents {
            return Ok(!scales.to_vec::<u8>()?.contains(&u8::MAX));
        }
        let scales: Vec<f32> = scales.astype(DType::F32)?.to_vec()?;
        let is_power = |scale: &f32| scale.is_normal() && scale.to_bits() << 9 == 0;
        Ok(scales.iter().all(|scale| is_power(scale) && *scale > 0.0))
    }

    /// The unchanged codes, and the exponent of the scale for each group.
    fn packed(self) -> [Made; 2] {
        let [rows, columns] = [self.shape[0], self.shape[1]];
        let path = self.name.strip_suffix("weight").unwrap_or(self.name);
        let shape = vec![rows, columns / 32];
        let grid = Grid {
            shape: shape.clone(),
            grid: self.grid,
            block: [self.block[0], (self.block[1] / 32).max(1)],
        };
        let exponents = self.exponents;
        [
            Made {
                name: self.name.to_owned(),
                of: vec![self.name.to_owned()],
                dtype: DType::U32,
                shape: vec![rows, columns / 4],
                keeps: false,
                make: Box::new(|parts| parts[0].contiguous()?.view(DType::U32)),
            },
            Made {
                name: format!("{path}scales"),
                of: vec![self.scale],
                dtype: DType::U8,
                shape,
                keeps: false,
                make: Box::new(move |parts| {
                    let scales = match exponents {
                        true => parts[0].clone(),
                        false => {
                            let bits = parts[0].astype(DType::F32)?.view(DType::U32)?;
                            bits.right_shift(Array::scalar(23u32)?)?.astype(DType::U8)?
                        }
                    };
                    grid.spread(&scales)?.contiguous()
                }),
            },
        ]
    }

    /// The products of codes and scales, computed in F32.
    fn dense(self, dtype: DType) -> Made {
        let grid = Grid {
            shape: self.shape.to_vec(),
            grid: self.grid,
            block: self.block,
        };
        let exponents = self.exponents;
        Made {
            name: self.name.to_owned(),
            of: vec![self.name.to_owned(), self.scale],
            dtype,
            shape: self.shape.to_vec(),
            keeps: false,
            make: Box::new(move |parts| {
                let codes = parts[0].from_fp8(DType::F32)?;
                let scales = match exponents {
                    true => Array::scalar(2.0f32)?
                        .power(parts[1].astype(DType::F32)?.subtract(127.0)?)?,
                    false => parts[1].astype(DType::F32)?,
                };
                codes.multiply(grid.spread(&scales)?)?.astype(dtype)
            }),
        }
    }
}

/// The blocks of a matrix that the scales belong to.
struct Grid {
    shape: Vec<i32>,
    grid: [i32; 2],
    block: [i32; 2],
}

impl Grid {
    /// The scale of each element, in an array that broadcasts to the matrix. The last blocks may be smaller.
    fn spread(&self, scales: &Array) -> Result<Array> {
        let n = self.shape.len();
        let mut shape = self.shape.clone();
        shape[n - 2..].copy_from_slice(&self.grid);
        let mut scales = scales.reshape(&shape)?;
        for (at, axis) in [n - 2, n - 1].into_iter().enumerate() {
            if self.grid[at] > 1 || self.shape[axis] == 1 {
                scales = scales.repeat(self.block[at], axis as i32)?;
                scales = scales.slice_axis(axis as i32, 0, self.shape[axis])?;
            }
        }
        scales.broadcast_to(&self.shape)
    }
}
