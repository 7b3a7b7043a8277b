//! [`Gather`]: tensors under the names that rules give them, each made from one source or several.

use std::collections::{BTreeMap, HashMap};

use mlx_core::ops::stack;
use mlx_core::{Array, DType, Error, ErrorKind, Result};

use super::rows::Rows;
use super::{Change, Piece, Place, changed, changed_shape};
use crate::shard::Cut;

/// A source and its changes.
struct Changed<T> {
    of: T,
    changes: Vec<Change>,
}

/// How one tensor is made.
enum Composition<T> {
    One(Changed<T>),
    /// Items along a new first axis, by their index.
    Stack(BTreeMap<usize, Changed<T>>),
    /// Rows of several tensors.
    Join {
        rows: Rows,
        is_bias: bool,
        names: Vec<String>,
        parts: BTreeMap<usize, Changed<T>>,
    },
}

/// Tensors under their new names, in the order in which they were added. `T` identifies a source.
pub struct Gather<T> {
    tensors: Vec<(String, Composition<T>)>,
    places: HashMap<String, usize>,
}

impl<T> Default for Gather<T> {
    fn default() -> Self {
        Self {
            tensors: Vec::new(),
            places: HashMap::new(),
        }
    }
}

impl<T: Clone> Gather<T> {
    /// Adds a source with the pieces that [`Rules::pieces`](super::Rules::pieces) made of its name.
    ///
    /// # Errors
    /// Another source is already the same tensor or the same part of it.
    pub fn add(&mut self, pieces: Vec<Piece>, source: &T) -> Result<()> {
        for piece in pieces {
            let name = piece.name.clone();
            let taken = self.put(piece, source.clone());
            taken.map_err(|place| {
                let message = format!("two tensors claim to be {name}{place}");
                Error::new(ErrorKind::Format, message)
            })?;
        }
        Ok(())
    }

    /// Adds one piece. The error names the tensor or part that another source already is.
    fn put(&mut self, piece: Piece, of: T) -> Result<(), String> {
        let Piece {
            name,
            changes,
            place,
        } = piece;
        let source = Changed { of, changes };
        let Some(&at) = self.places.get(&name) else {
            let made = match place {
                Place::Whole => Composition::One(source),
                Place::Item(index) => Composition::Stack(BTreeMap::from([(index, source)])),
                Place::Part {
                    index,
                    rows,
                    is_bias,
                    names,
                } => Composition::Join {
                    rows,
                    is_bias,
                    names,
                    parts: BTreeMap::from([(index, source)]),
                },
            };
            self.places.insert(name.clone(), self.tensors.len());
            self.tensors.push((name, made));
            return Ok(());
        };
        let (sources, index, place) = match (&mut self.tensors[at].1, place) {
            (Composition::Stack(items), Place::Item(index)) => (items, index, format!("[{index}]")),
            (Composition::Join { parts, names, .. }, Place::Part { index, .. }) => {
                let place = format!(", part {}", names[index]);
                (parts, index, place)
            }
            _ => return Err(String::new()),
        };
        match sources.insert(index, source) {
            None => Ok(()),
            Some(_) => Err(place),
        }
    }

    /// The new names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|(name, _)| name.as_str())
    }

    /// Every source, once for each use.
    pub fn sources(&self) -> impl Iterator<Item = &T> {
        self.tensors
            .iter()
            .flat_map(|(_, made)| made.sources())
            .map(|source| &source.of)
    }

    /// The sources of a tensor; none if there is no such tensor.
    pub fn sources_of(&self, name: &str) -> impl Iterator<Item = &T> {
        let found = self.places.get(name).map(|&at| &self.tensors[at].1);
        found
            .into_iter()
            .flat_map(Composition::sources)
            .map(|source| &source.of)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The shape of a tensor, from those of its sources; `None` if there is no such tensor. The
    /// inner error is the reason why the tensor has no shape.
    ///
    /// # Errors
    /// The errors of `of`.
    pub fn shape(
        &self,
        name: &str,
        of: impl Fn(&T) -> Result<(DType, Vec<i32>)>,
    ) -> Result<Option<Result<Vec<i32>, String>>> {
        match self.places.get(name) {
            None => Ok(None),
            Some(&at) => self.tensors[at].1.shape(of).map(Some),
        }
    }

    /// A rank's part of a tensor that is one unchanged source, or a stack of these. `None` if it is made otherwise, or
    /// if `of` has no part of a source along an axis.
    ///
    /// # Errors
    /// The errors of `of`.
    pub(crate) fn part(
        &self,
        name: &str,
        dtype: Option<DType>,
        cut: &Cut,
        of: impl Fn(&T, Option<usize>) -> Result<Option<Array>>,
    ) -> Result<Option<Array>> {
        let Some(&at) = self.places.get(name) else {
            return Ok(None);
        };
        let array = |source: &Changed<T>, axis: Option<usize>| match source.changes[..] {
            [] => match (of(&source.of, axis)?, dtype) {
                (Some(array), Some(dtype)) if array.dtype().is_float() => {
                    array.astype(dtype).map(Some)
                }
                (array, _) => Ok(array),
            },
            _ => Ok(None),
        };
        match &self.tensors[at].1 {
            Composition::One(source) => array(source, Some(cut.axis)),
            Composition::Stack(items) => {
                let is_held = |index: usize| {
                    cut.ranges
                        .iter()
                        .any(|range| range.contains(&(index as i32)))
                };
                let (held, axis) = match cut.axis.checked_sub(1) {
                    Some(axis) => (items.iter().collect(), Some(axis)),
                    None => (
                        items.iter().filter(|(index, _)| is_held(**index)).collect(),
                        None,
                    ),
                };
                let held: Vec<_> = held;
                let parts = held.into_iter().map(|(_, source)| array(source, axis));
                let parts = parts.collect::<Result<Option<Vec<_>>>>()?;
                parts.map(|parts| stack(&parts, 0)).transpose()
            }
            Composition::Join { .. } => Ok(None),
        }
    }

    /// A tensor, made from its sources, whose shapes [fit](Self::shape); `None` if there is no such tensor.
    /// Floating-point values are converted to `dtype`, or to the dtype of the first source.
    ///
    /// # Errors
    /// The errors of `of`.
    pub fn array(
        &self,
        name: &str,
        dtype: Option<DType>,
        of: impl Fn(&T) -> Result<Array>,
    ) -> Result<Option<Array>> {
        let Some(&at) = self.places.get(name) else {
            return Ok(None);
        };
        let array = |source: &Changed<T>| {
            let array = of(&source.of)?;
            let stored = array.dtype();
            let array = changed(array, &source.changes)?;
            match stored.is_float() && array.dtype().is_float() {
                true => array.astype(dtype.unwrap_or(stored)),
                false => Ok(array),
            }
        };
        let all = |sources: &BTreeMap<usize, Changed<T>>| {
            sources.values().map(array).collect::<Result<Vec<_>>>()
        };
        match &self.tensors[at].1 {
            Composition::One(source) => array(source),
            Composition::Stack(items) => stack(&all(items)?, 0),
            Composition::Join {
                rows,
                is_bias,
                parts,
                ..
            } => {
                let parts = all(parts)?;
                rows.join(&parts, rows.axis(*is_bias, parts[0].ndim()))
            }
        }
        .map(Some)
    }
}

impl<T> Composition<T> {
    fn sources(&self) -> Vec<&Changed<T>> {
        match self {
            Self::One(source) => vec![source],
            Self::Stack(sources) | Self::Join { parts: sources, .. } => sources.values().collect(),
        }
    }

    fn shape(
        &self,
        of: impl Fn(&T) -> Result<(DType, Vec<i32>)>,
    ) -> Result<Result<Vec<i32>, String>> {
        let mut shapes = Vec::new();
        for source in self.sources() {
            let (dtype, shape) = of(&source.of)?;
            match changed_shape(dtype, shape, &source.changes) {
                Ok(shape) => shapes.push((dtype, shape)),
                Err(fault) => return Ok(Err(fault)),
            }
        }
        let (dtype, first) = &shapes[0];
        Ok(match self {
            Self::One(_) => Ok(first.clone()),
            Self::Stack(items) => {
                let place = items.keys().zip(&shapes).enumerate();
                let wrong = place
                    .map(|(position, (&index, found))| (position, index, found))
                    .find(|(position, index, (kind, shape))| {
                        index != position || (kind, shape) != (dtype, first)
                    });
                match wrong {
                    None => Ok([&[items.len() as i32], &first[..]].concat()),
                    Some((position, index, (kind, shape))) => Err(format!(
                        "item {index} of the stack is {shape:?} {kind}; item {position} must be {first:?} {dtype}"
                    )),
                }
            }
            Self::Join {
                rows,
                is_bias,
                names,
                parts,
            } => {
                let missing: Vec<&str> = (0..names.len())
                    .filter(|index| !parts.contains_key(index))
                    .map(|index| names[index].as_str())
                    .collect();
                if !missing.is_empty() {
                    return Ok(Err(format!("without {}", missing.join(", "))));
                }
                let axis = rows.axis(*is_bias, first.len());
                let mut joined = first.clone();
                joined[axis] = shapes
                    .iter()
                    .map(|(_, shape)| shape.get(axis).unwrap_or(&0))
                    .sum();
                let fits = shapes.iter().enumerate().all(|(part, (kind, shape))| {
                    kind == dtype && rows.part_shape(&joined, axis, part).as_ref() == Some(shape)
                });
                let found: Vec<&Vec<i32>> = shapes.iter().map(|(_, shape)| shape).collect();
                match fits {
                    true => Ok(joined),
                    false => Err(format!(
                        "{found:?} of {} cannot be joined",
                        names.join(", ")
                    )),
                }
            }
        })
    }
}
