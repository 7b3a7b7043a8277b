//! Maps published tensors to a module's parameters, and back: their names and their form.
//!
//! A family has a table of [`Rule`]s, which is applied from top to bottom: each rule sees the names
//! that the rules above it made. Rules apply to dense and to quantised tensors (rows of packed
//! weights, scales and biases are split and joined alike), and to adapters if the result is exact.
//! Nothing is read or copied before a tensor is evaluated.
//!
//! ```
//! use mlx_nn::{Rule, Rules};
//!
//! let rules = Rules::from([
//!     Rule::drop("mtp.*", "not used without speculation"),
//!     // One tensor for each expert becomes an item of a stack.
//!     Rule::stack("*.experts.#.*", "*.switch_mlp.*"),
//!     // [q | k | v] of 4 and 2 heads of 8, in files of MLX too.
//!     Rule::split("*.qkv_proj.*", 1, [("*.q_proj.*", 32), ("*.k_proj.*", 16), ("*.v_proj.*", 16)]).written(),
//!     Rule::transpose("*.conv1d.weight", &[0, 2, 1]),
//!     Rule::add("*norm.weight", 1.0),
//! ]);
//! let pieces = rules.pieces("layers.0.qkv_proj.scales").unwrap();
//! let names: Vec<&str> = pieces.iter().map(|piece| piece.name()).collect();
//! assert_eq!(names, ["layers.0.q_proj.scales", "layers.0.k_proj.scales", "layers.0.v_proj.scales"]);
//! assert_eq!(rules.pieces("mtp.fc.weight").unwrap_err(), "not used without speculation");
//! let back = rules.inverse().pieces("layers.0.k_proj.weight").unwrap();
//! assert_eq!(back[0].name(), "layers.0.qkv_proj.weight");
//! ```

use mlx_core::{Array, DType, Result};

mod gather;
mod pattern;
mod rows;
mod rule;
mod ternary;

pub use gather::Gather;
use rows::Rows;
pub use rule::Rule;
use ternary::TernaryChange;
pub use ternary::{TernaryForm, ternary_scheme};

/// A table of [`Rule`]s, applied from top to bottom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules(Vec<Rule>);

impl<R: IntoIterator<Item = Rule>> From<R> for Rules {
    fn from(rules: R) -> Self {
        Self(rules.into_iter().collect())
    }
}

impl Rules {
    /// No rules: each tensor is the parameter of the same name.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// These rules, followed by those of `other`.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self([&self.0[..], &other.0[..]].concat())
    }

    /// The parameters, or parts of parameters, that are made from a tensor of this name.
    ///
    /// # Errors
    /// The tensor is dropped; the error is the reason.
    pub fn pieces(&self, name: &str) -> Result<Vec<Piece>, &str> {
        let mut pieces = vec![Piece {
            name: name.to_owned(),
            changes: Vec::new(),
            place: Place::Whole,
        }];
        for rule in &self.0 {
            let mut next = Vec::new();
            let mut dropped = None;
            for piece in pieces {
                match rule.apply(piece, &mut next) {
                    Ok(()) => {}
                    Err(reason) => dropped = Some(reason),
                }
            }
            if let (Some(reason), true) = (dropped, next.is_empty()) {
                return Err(reason);
            }
            pieces = next;
        }
        Ok(pieces)
    }

    /// The modules that are made from a published module. Rules are applied to the name of its
    /// weight.
    ///
    /// # Errors
    /// The weight is dropped; the error is the reason.
    pub fn modules(&self, path: &str) -> Result<Vec<Piece>, &str> {
        const WEIGHT: &str = ".weight";
        let mut pieces = self.pieces(&format!("{path}{WEIGHT}"))?;
        // A weight may also become scales and biases, which are no modules.
        pieces.retain(|piece| !piece.name.ends_with(".scales") && !piece.name.ends_with(".biases"));
        for piece in &mut pieces {
            if let Some(path) = piece.name.strip_suffix(WEIGHT) {
                piece.name.truncate(path.len());
            }
        }
        Ok(pieces)
    }

    /// The rules that also apply to files that MLX programs wrote ([`Rule::written`]).
    #[must_use]
    pub fn of_written(&self) -> Self {
        Self(self.0.iter().filter(|rule| rule.written).cloned().collect())
    }

    /// The table that makes the tensors of such a file ([`Rule::written`]) from a module's
    /// parameters.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let written = self.0.iter().rev().filter(|rule| rule.written);
        Self(written.filter_map(Rule::inverse).collect())
    }
}

/// A parameter or a part of one, with the changes that make it from a published tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    name: String,
    changes: Vec<Change>,
    place: Place,
}

/// The part of a tensor that comes from one source.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    Whole,
    /// An item along a new first axis.
    Item(usize),
    /// Rows: part `index` of a matrix whose parts have the names `names`.
    Part {
        index: usize,
        rows: Rows,
        is_bias: bool,
        names: Vec<String>,
    },
}

/// A change of one tensor.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Transpose(Vec<i32>),
    Reshape(Vec<i32>),
    Add(f32),
    /// Vectors along this axis of a matrix are divided by their norms plus a number.
    Unit(i32, f32),
    /// Bytes are joined into 32-bit words.
    Words,
    /// A change between two forms of a matrix of -1, 0 and 1.
    Ternary(TernaryChange),
    /// Only the rows of one part.
    Rows {
        rows: Rows,
        part: usize,
        is_bias: bool,
    },
}

impl Piece {
    /// The name of the parameter.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn then(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }

    /// The array `part` (`lora_a`, `lora_b` or `m`; see [`Layout`](crate::Layout)) of an adapter of the published
    /// layer, for the layer that has this piece of its matrix. `None` if such an adapter is impossible: the matrix is
    /// stacked or joined with others.
    ///
    /// # Errors
    /// The array does not divide into the parts.
    pub fn adapter(&self, part: &str, array: &Array) -> Result<Option<Array>> {
        let mut array = array.clone();
        if self.place != Place::Whole {
            return Ok(None);
        }
        for change in &self.changes {
            let (rows, at) = match change {
                Change::Rows { rows, part, .. } => (rows, part),
                // The matrix keeps its rows and columns.
                Change::Ternary(_) => continue,
                // The layer has the same inputs and outputs however its matrix is stored.
                Change::Transpose(axes) if axes[..] == [1, 0] => continue,
                Change::Transpose(axes) if axes[..] == [0, 2, 1] && array.ndim() == 3 => continue,
                _ => return Ok(None),
            };
            // A multiplies the inputs, which all parts share. B and the magnitudes belong to rows.
            let axis = match (part, array.ndim()) {
                ("lora_a", _) => continue,
                ("lora_b", ndim) if ndim > 1 => 1,
                (_, ndim) => ndim.saturating_sub(1),
            };
            if rows.part_shape(array.shape(), axis, *at).is_none() {
                return Ok(None);
            }
            array = rows.split(&array, axis, *at)?;
        }
        Ok(Some(array))
    }
}

/// The shape of a tensor after these changes. The error names the change that does not fit.
fn changed_shape(
    dtype: DType,
    mut shape: Vec<i32>,
    changes: &[Change],
) -> Result<Vec<i32>, String> {
    for change in changes {
        shape = match change {
            Change::Transpose(_) | Change::Add(_) if dtype == DType::U32 => {
                return Err(format!("packed {shape:?} cannot be transposed or added to"));
            }
            Change::Reshape(to) => {
                let size = |shape: &[i32]| shape.iter().map(|&n| i64::from(n)).product::<i64>();
                if dtype == DType::U32 || size(&shape) != size(to) {
                    return Err(format!("{shape:?} cannot be reshaped to {to:?}"));
                }
                to.clone()
            }
            Change::Add(_) | Change::Unit(..) => shape,
            Change::Ternary(change) => change.shape(dtype, &shape)?,
            Change::Words => match *shape {
                [ref rest @ .., groups, bytes] if dtype == DType::U8 && groups * bytes % 4 == 0 => {
                    [rest, &[groups * bytes / 4]].concat()
                }
                _ => return Err(format!("{shape:?} {dtype} are no bytes of packed codes")),
            },
            Change::Transpose(axes) => {
                if axes.len() != shape.len() {
                    return Err(format!("{shape:?} has no axes {axes:?}"));
                }
                axes.iter().map(|&axis| shape[axis as usize]).collect()
            }
            Change::Rows {
                rows,
                part,
                is_bias,
            } => {
                let axis = rows.axis(*is_bias, shape.len());
                let part = rows.part_shape(&shape, axis, *part);
                part.ok_or_else(|| {
                    let Rows { groups, parts, .. } = rows;
                    format!("{shape:?} cannot be split into {groups} groups of {parts:?} rows")
                })?
            }
        };
    }
    Ok(shape)
}

/// The tensor after these changes, which must fit its shape.
fn changed(mut array: Array, changes: &[Change]) -> Result<Array> {
    for change in changes {
        array = match change {
            Change::Transpose(axes) => array.transpose(axes)?.contiguous()?,
            Change::Reshape(shape) => array.reshape(shape)?,
            Change::Add(number) => array.astype(DType::F32)?.add(*number)?,
            // A matrix is packed after the division.
            Change::Unit(..) if array.dtype() == DType::U32 => array,
            Change::Unit(axis, least) => {
                let wide = array.astype(DType::F32)?;
                let norms = wide.square()?.sum(*axis, true)?.sqrt()?;
                wide.divide(norms.add(*least)?)?
            }
            Change::Ternary(change) => change.of(&array)?,
            Change::Words => array.flatten_with(-2, -1)?.contiguous()?.view(DType::U32)?,
            Change::Rows {
                rows,
                part,
                is_bias,
            } => rows.split(&array, rows.axis(*is_bias, array.ndim()), *part)?,
        };
    }
    Ok(array)
}
