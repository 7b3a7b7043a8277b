//! Integers with scales and zero points, from every format of them: a matrix stands for
//! `scale * (code - zero)`, with one scale and one zero point for each group of columns in a row.
//!
//! The affine scheme has `scale * code + bias` with the bias `-zero * scale`.
//!
//! - Where the dtype of the scales holds all biases exactly, as with a zero that is a power of two,
//!   scales and biases have that dtype.
//! - Otherwise, if each row is one group, the scheme holds `code - zero`, and the scales are factors
//!   of the rows.
//! - Otherwise, in a model of the dtype of the scales, residues hold what the rounded biases lack:
//!   their product with the sums of each group of inputs is added.
//! - Otherwise scales and biases are F32, which holds the products of scales of 16 bits exactly.
//!
//! Groups that the affine scheme does not have make the matrices dense.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlx_core::ops::stack;
use mlx_core::{Array, DType, QuantMode, Result, Scheme};
use mlx_nn::{Decoded, Made};

use super::tensors::StoredTensors;
use super::{Format, Reading};
use crate::config::Config;

/// The group sizes of the affine scheme, the largest first.
const GROUPS: [i32; 3] = [128, 64, 32];

/// Most columns of a matrix.
const LONGEST: i32 = 1 << 24;

/// An array that is computed from tensors of the files.
#[derive(Clone)]
pub(super) struct Part {
    of: Vec<String>,
    make: Rc<mlx_nn::Make>,
}

impl Part {
    pub fn new(of: &str, make: impl Fn(&Array) -> Result<Array> + 'static) -> Self {
        Self {
            of: vec![of.to_owned()],
            make: Rc::new(move |parts| make(&parts[0])),
        }
    }

    fn array(&self, tensors: &StoredTensors<'_>) -> Result<Array> {
        let parts = self.of.iter().map(|name| tensors.array(name));
        (self.make)(&parts.collect::<Result<Vec<_>>>()?)
    }
}

/// The zero points of a matrix.
pub(super) enum Zeros {
    /// One number.
    All(f32),
    /// F32 `[rows, groups]`
    Each(Part),
    /// The zero point is half of the number of codes, and a number of each group is added: F32
    /// `[rows, groups]`.
    Added(Part),
}

impl Zeros {
    /// The zero points, one number `[]` or one for each group, of codes of `bits`.
    fn part(&self, bits: i32) -> Part {
        let one = |zero: f32| Part {
            of: Vec::new(),
            make: Rc::new(move |_| Array::scalar(zero)),
        };
        match self {
            Self::Each(part) => part.clone(),
            &Self::All(zero) => one(zero),
            Self::Added(_) => one((1 << (bits - 1)) as f32),
        }
    }
}

/// A matrix of integers.
pub(super) struct Integers {
    /// The published path of its module.
    pub path: String,
    /// Rows and columns.
    pub shape: [i32; 2],
    /// 4 or 8.
    pub bits: i32,
    /// Columns that share a scale, if the groups are in order.
    pub group: i32,
    /// U32 `[rows, columns * bits / 32]`: codes from 0 on, as the affine scheme packs them.
    pub codes: Part,
    /// `[rows, groups]`
    pub scales: Part,
    pub scale_dtype: DType,
    pub zeros: Zeros,
    /// The name of a tensor with the group of each column.
    pub groups: Option<String>,
    /// The names of all its tensors.
    pub hidden: Vec<String>,
}

/// How the affine scheme holds matrices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Scales and biases have the dtype of the stored scales.
    Exact,
    /// The scales are factors of the rows.
    Rows,
    /// Scales and biases have the dtype of the stored scales, and residues hold what the biases
    /// lack.
    Split,
    /// Scales and biases are F32.
    Wide,
}

/// The numbers of a small tensor.
pub(super) fn integers(tensors: &StoredTensors<'_>, name: &str) -> Result<Vec<i64>> {
    tensors.array(name)?.astype(DType::I64)?.to_vec()
}

/// The matrices in the affine scheme, or dense if one of them cannot be. `program` describes the
/// format.
pub(super) fn decoded(
    tensors: &StoredTensors<'_>,
    entry: &Config,
    mut matrices: Vec<Integers>,
    reading: Reading,
    program: &str,
) -> Result<(Decoded, Format)> {
    let mut why_dense = None;
    for matrix in &mut matrices {
        let [rows, columns] = matrix.shape;
        if rows < 1 || !(1..=LONGEST).contains(&columns) {
            return Err(entry.error(format!(
                "{}: a matrix [{rows}, {columns}] is not supported; known: 1 to {LONGEST} columns",
                matrix.path
            )));
        }
        if !matrix.is_in_order(tensors, entry)? {
            why_dense = why_dense.or(Some("columns of a group are not in order"));
        } else {
            matrix.groups = None;
            if matrix.affine_group().is_none() {
                why_dense = why_dense.or(Some("groups are not a multiple of 32"));
            }
        }
    }
    let mut decoded = Decoded::default();
    let bits: BTreeSet<String> = matrices.iter().map(|m| m.bits.to_string()).collect();
    let bits = bits.into_iter().collect::<Vec<_>>().join(" and ");
    let mut schemes = BTreeMap::new();
    let described = match why_dense {
        Some(why) => {
            let dtype = reading.dtype.map_or_else(|| tensors.dense_dtype(), Ok)?;
            for matrix in matrices {
                decoded.hidden.extend(matrix.hidden.iter().cloned());
                decoded.made.push(matrix.dense(dtype)?);
            }
            format!("{bits}-bit integers of {program}, dequantised to {dtype} because {why}")
        }
        None => {
            let dtype = reading.dtype.map_or_else(|| tensors.dense_dtype(), Ok)?;
            let mut form = Form::Exact;
            for matrix in &matrices {
                if form == Form::Exact && !matrix.is_exact(tensors, dtype)? {
                    form = Form::Wide;
                }
            }
            if form == Form::Wide {
                let mut all = matrices.iter();
                if all.all(Integers::has_rows) {
                    form = Form::Rows;
                } else if splits(tensors, &matrices, dtype)? {
                    form = Form::Split;
                }
            }
            for matrix in matrices {
                decoded.hidden.extend(matrix.hidden.iter().cloned());
                let (scheme, made) = matrix.affine(form, dtype)?;
                schemes.insert(matrix.path, scheme);
                decoded.made.extend(made);
            }
            let form = match form {
                Form::Exact => "affine",
                Form::Rows => "affine with a factor for each row",
                Form::Split => "affine with residues of the biases",
                Form::Wide => "affine with scales and biases in F32",
            };
            format!("{bits}-bit integers of {program}, kept as {form}")
        }
    };
    let format = Format::new(schemes, described, true);
    Ok((decoded, format))
}

/// Whether 16 bits hold the scales and the residues of all biases exactly, for activations of
/// `dtype`.
fn splits(tensors: &StoredTensors<'_>, matrices: &[Integers], dtype: DType) -> Result<bool> {
    for matrix in matrices {
        if matrix.scale_dtype != dtype || dtype == DType::F32 {
            return Ok(false);
        }
        let residues = matrix.residues().array(tensors)?;
        let rounded = residues.astype(dtype)?.astype(DType::F32)?;
        if !rounded.array_equal(&residues)?.item::<bool>()? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Integers {
    /// Whether the columns of each group follow each other.
    fn is_in_order(&self, tensors: &StoredTensors<'_>, entry: &Config) -> Result<bool> {
        let Some(name) = &self.groups else {
            return Ok(true);
        };
        let groups = integers(tensors, name)?;
        let n = i64::from(self.groups_per_row());
        if let Some(wrong) = groups.iter().find(|&&group| group < 0 || group >= n) {
            return Err(entry.error(format!("{name}: group {wrong} of {n} groups")));
        }
        let group = i64::from(self.group);
        let mut columns = groups.iter().zip(0i64..);
        Ok(columns.all(|(&found, column)| found == column / group))
    }

    /// Whether each row is one group with a zero point.
    fn has_rows(&self) -> bool {
        self.groups_per_row() == 1 && !matches!(self.zeros, Zeros::Added(_))
    }

    fn groups_per_row(&self) -> i32 {
        (self.shape[1] + self.group - 1) / self.group
    }

    /// The largest group size of the affine scheme that divides the groups.
    fn affine_group(&self) -> Option<i32> {
        let fits = |group: &i32| self.group % group == 0 && self.shape[1] % self.group == 0;
        GROUPS.into_iter().find(fits)
    }

    /// The biases of the affine scheme: F32 `[rows, groups]`.
    fn biases(&self) -> Part {
        let (scales, zeros) = (self.scales.clone(), self.zeros.part(self.bits));
        let added = match &self.zeros {
            Zeros::Added(part) => Some(part.clone()),
            _ => None,
        };
        let of_added = added.iter().flat_map(|part| part.of.clone()).collect();
        let bounds = [scales.of.len(), zeros.of.len()];
        Part {
            of: [scales.of, zeros.of, of_added].concat(),
            make: Rc::new(move |parts| {
                let (own, rest) = parts.split_at(bounds[0]);
                let (of_zeros, of_added) = rest.split_at(bounds[1]);
                let scales = (scales.make)(own)?.astype(DType::F32)?;
                let biases = scales.multiply((zeros.make)(of_zeros)?.negative()?)?;
                match &added {
                    Some(added) => biases.add((added.make)(of_added)?),
                    None => Ok(biases),
                }
            }),
        }
    }

    /// What the biases lack in the dtype of the scales: F32 `[rows, groups]`.
    fn residues(&self) -> Part {
        let (biases, dtype) = (self.biases(), self.scale_dtype);
        Part {
            of: biases.of,
            make: Rc::new(move |parts| {
                let biases = (biases.make)(parts)?;
                biases.subtract(biases.astype(dtype)?.astype(DType::F32)?)
            }),
        }
    }

    /// Whether the dtype of the scales holds all biases, F32 all products, and the model has the
    /// dtype of the scales or F32.
    fn is_exact(&self, tensors: &StoredTensors<'_>, model: DType) -> Result<bool> {
        if self.scale_dtype == DType::F32 || ![DType::F32, self.scale_dtype].contains(&model) {
            return Ok(false);
        }
        if let Zeros::All(_) = self.zeros {
            return Ok(true);
        }
        let residues = self.residues().array(tensors)?;
        residues.equal(0.0f32)?.all_all()?.item()
    }

    /// The arrays of the affine scheme. `dtype` is that of the model.
    fn affine(&self, form: Form, dtype: DType) -> Result<(Scheme, Vec<Made>)> {
        let [rows, columns] = self.shape;
        let group = self.affine_group().expect("it was asked for before");
        let scheme = Scheme::new(group, self.bits, QuantMode::Affine)?;
        let made = |name: &str, of, dtype, shape, make: Box<mlx_nn::Make>| Made {
            name: format!("{}.{name}", self.path),
            of,
            dtype,
            shape,
            keeps: form == Form::Wide && dtype == DType::F32,
            make,
        };
        let dtype = match form {
            Form::Exact | Form::Split => self.scale_dtype,
            Form::Rows => dtype,
            Form::Wide => DType::F32,
        };
        let shape = vec![rows, columns / group];
        let spread = {
            let (shape, times) = (shape.clone(), self.group / group);
            move |array: Array| match array.ndim() {
                0 => array.astype(dtype)?.broadcast_to(&shape)?.contiguous(),
                _ => array.astype(dtype)?.repeat(times, 1)?.contiguous(),
            }
        };
        let codes = self.codes.clone();
        let words = vec![rows, columns * self.bits / 32];
        let make: Box<mlx_nn::Make> = Box::new(move |parts| (codes.make)(parts));
        let mut all = vec![made(
            "weight",
            self.codes.of.clone(),
            DType::U32,
            words,
            make,
        )];
        let scales = self.scales.clone();
        let (wide, own) = (spread.clone(), scales.make.clone());
        all.push(made(
            "scales",
            scales.of.clone(),
            dtype,
            shape.clone(),
            Box::new(move |parts| match form {
                Form::Rows => wide(Array::scalar(1.0f32)?),
                _ => wide(own(parts)?),
            }),
        ));
        let mut biases = self.biases();
        if form == Form::Rows {
            let zeros = self.zeros.part(self.bits);
            let n = scales.of.len();
            biases.make =
                Rc::new(move |parts| (zeros.make)(&parts[n..n + zeros.of.len()])?.negative());
        }
        let (residues_spread, residues_shape) = (spread.clone(), shape.clone());
        let make = biases.make;
        let make: Box<mlx_nn::Make> = Box::new(move |parts| spread(make(parts)?));
        all.push(made("biases", biases.of, dtype, shape, make));
        if form == Form::Split {
            let residues = self.residues();
            let make = residues.make;
            let make: Box<mlx_nn::Make> = Box::new(move |parts| residues_spread(make(parts)?));
            all.push(made("residues", residues.of, dtype, residues_shape, make));
        }
        if form == Form::Rows {
            let make: Box<mlx_nn::Make> =
                Box::new(move |parts| (scales.make)(parts)?.astype(DType::F32)?.reshape(&[rows]));
            all.push(made("factor", scales.of, DType::F32, vec![rows], make));
        }
        Ok((scheme, all))
    }

    /// The dense matrix, computed in F32 and rounded once.
    fn dense(self, dtype: DType) -> Result<Made> {
        let [rows, columns] = self.shape;
        let (bits, group) = (self.bits, self.group);
        let (codes, scales) = (self.codes, self.scales);
        let Part {
            of: zeros_of,
            make: zeros,
        } = self.zeros.part(bits);
        let added = match self.zeros {
            Zeros::Added(part) => Some(part),
            _ => None,
        };
        let added_of: Vec<String> = added.iter().flat_map(|part| part.of.clone()).collect();
        let has_groups = self.groups.is_some();
        let bounds = [
            codes.of.len(),
            scales.of.len(),
            zeros_of.len(),
            added_of.len(),
        ];
        let of = [
            codes.of,
            scales.of,
            zeros_of,
            added_of,
            self.groups.into_iter().collect(),
        ]
        .concat();
        let make = move |parts: &[Array]| {
            let (own, rest) = parts.split_at(bounds[0]);
            let codes = numbers(&(codes.make)(own)?, bits)?.slice_axis(1, 0, columns)?;
            let (own, rest) = rest.split_at(bounds[1]);
            let scales = (scales.make)(own)?.astype(DType::F32)?;
            let (own, rest) = rest.split_at(bounds[2]);
            let zeros = zeros(own)?;
            let (of_added, rest) = rest.split_at(bounds[3]);
            let group_of = match has_groups {
                true => rest[0].astype(DType::I32)?,
                false => {
                    let groups: Vec<i32> = (0..columns).map(|column| column / group).collect();
                    Array::from_slice(&groups, &[columns])?
                }
            };
            let zeros = match zeros.ndim() {
                0 => zeros,
                _ => zeros.take(&group_of, 1)?,
            };
            let codes = codes.astype(DType::F32)?.subtract(zeros)?;
            let dense = codes.multiply(scales.take(&group_of, 1)?)?;
            match &added {
                Some(added) => dense.add((added.make)(of_added)?.take(&group_of, 1)?)?,
                None => dense,
            }
            .astype(dtype)
        };
        Ok(Made {
            name: format!("{}.weight", self.path),
            of,
            dtype,
            shape: vec![rows, columns],
            keeps: false,
            make: Box::new(make),
        })
    }
}

/// Each code of packed words as a byte: U32 `[rows, words]` -> U8 `[rows, words * 32 / bits]`.
fn numbers(words: &Array, bits: i32) -> Result<Array> {
    let bytes = words.contiguous()?.view(DType::U8)?;
    match bits {
        8 => Ok(bytes),
        _ => nibbles(&bytes),
    }
}

/// The halves of bytes, the low one first: U8 `[.., n]` -> U8 `[.., 2 n]`.
pub(super) fn nibbles(bytes: &Array) -> Result<Array> {
    let low = bytes.bitwise_and(Array::scalar(15u8)?)?;
    let high = bytes.right_shift(Array::scalar(4u8)?)?;
    stack(&[low, high], -1)?.flatten_with(-2, -1)
}

/// The codes of `bits` bits in words along the last axis: U32 `[rows, words]` -> F32
/// `[rows, columns]`. There may be more codes than columns.
pub(super) fn unpacked(words: &Array, bits: i32, columns: i32) -> Result<Array> {
    let codes = numbers(words, bits)?.slice_axis(1, 0, columns)?;
    codes.astype(DType::F32)
}
