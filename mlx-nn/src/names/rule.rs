//! [`Rule`]: one line of a table of names.

use super::pattern::Pattern;
use super::rows::Rows;
use super::ternary::{Matrix, TernaryForm};
use super::{Change, Piece, Place};

/// One line of a family's table, for the tensors whose names match.
///
/// In names `*` stands for any run of characters, and `#` for a number. A new name has the same placeholders in the
/// same order.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    from: Vec<Pattern>,
    action: Action,
    pub(super) written: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Drop(String),
    Rename(Pattern),
    Copy(Pattern),
    Transpose(Vec<i32>),
    Reshape(Vec<i32>),
    Add(f32),
    Unit(i32, f32),
    Words,
    Stack(Pattern),
    Split(Rows, Vec<Pattern>),
    Join(Rows, Pattern),
    Ternary(Matrix),
}

impl Rule {
    fn new(from: &str, action: Action) -> Self {
        Self {
            from: vec![Pattern::new(from)],
            action,
            written: false,
        }
    }

    /// The tensor is not read; messages give the `reason`.
    pub fn drop(from: &str, reason: &str) -> Self {
        Self::new(from, Action::Drop(reason.to_owned()))
    }

    /// The tensor gets another name.
    ///
    /// # Panics
    /// The names have different placeholders.
    pub fn rename(from: &str, to: &str) -> Self {
        Self::new(from, Action::Rename(Pattern::new(to))).checked()
    }

    /// The tensor is also another parameter, with another name.
    ///
    /// # Panics
    /// The names have different placeholders.
    pub fn copy(from: &str, to: &str) -> Self {
        Self::new(from, Action::Copy(Pattern::new(to))).checked()
    }

    /// The axes get another order: axis i is axis `axes[i]` of the published tensor. Not for packed weights.
    ///
    /// # Panics
    /// `axes` is not a permutation.
    pub fn transpose(from: &str, axes: &[i32]) -> Self {
        let all = (0..axes.len() as i32).all(|axis| axes.contains(&axis));
        assert!(all, "{axes:?} is no order of axes");
        Self::new(from, Action::Transpose(axes.to_vec()))
    }

    /// The axes become these, of as many elements. Files may give a tensor other axes than those
    /// that are written. Not for packed weights.
    pub fn reshape(from: &str, shape: &[i32]) -> Self {
        Self::new(from, Action::Reshape(shape.to_vec()))
    }

    /// A number is added, in F32. For example, 1 turns a stored `weight - 1` into the weight of a norm.
    pub fn add(from: &str, number: f32) -> Self {
        Self::new(from, Action::Add(number))
    }

    /// Each column of a dense matrix `[rows, columns]` is divided by its Euclidean norm plus `least`, in
    /// F32. A written file has the divided matrix, and a packed matrix stays as it is.
    pub fn unit_columns(from: &str, least: f32) -> Self {
        Self::new(from, Action::Unit(0, least))
    }

    /// The same for each row.
    pub fn unit_rows(from: &str, least: f32) -> Self {
        Self::new(from, Action::Unit(1, least))
    }

    /// Bytes of packed codes, `[.., groups, bytes]`, are joined into 32-bit words
    /// `[.., groups * bytes / 4]`.
    pub fn words(from: &str) -> Self {
        Self::new(from, Action::Words)
    }

    /// The tensor becomes an item of a stack, such as one expert of many. The last `#` is its index, and is not a
    /// placeholder of `to`.
    ///
    /// # Panics
    /// The names have different placeholders.
    pub fn stack(from: &str, to: &str) -> Self {
        Self::new(from, Action::Stack(Pattern::new(to))).checked()
    }

    /// The rows of the tensor (features of a bias) belong to several parameters: there are `groups`
    /// groups, and `parts` gives each parameter and its number of rows in a group, in order. A
    /// tensor with another number of rows is split in the same proportions. To split columns of a
    /// dense matrix, put the rule between two [`transpose`](Self::transpose)s.
    ///
    /// # Panics
    /// The names have different placeholders, or a number is not positive.
    pub fn split<const N: usize>(from: &str, groups: i32, parts: [(&str, i32); N]) -> Self {
        let rows = Rows {
            groups,
            parts: parts.iter().map(|&(_, rows)| rows).collect(),
            first: false,
        };
        let to = parts.iter().map(|&(to, _)| Pattern::new(to)).collect();
        Self::new(from, Action::Split(rows, to)).checked()
    }

    /// The tensor is a part of the rows of another: the inverse of [`split`](Self::split).
    ///
    /// # Panics
    /// The names have different placeholders, or a number is not positive.
    pub fn join<const N: usize>(parts: [(&str, i32); N], groups: i32, to: &str) -> Self {
        Self::split(to, groups, parts)
            .inverse()
            .expect("splitting can be undone")
    }

    /// The tensor is the rows of others, in order: their names, and their numbers of rows.
    ///
    /// # Panics
    /// The names have different placeholders, or a number is not positive.
    pub fn concat(parts: &[(&str, i32)], to: &str) -> Self {
        let rows = Rows {
            groups: 1,
            parts: parts.iter().map(|&(_, rows)| rows).collect(),
            first: false,
        };
        let from = parts.iter().map(|&(name, _)| Pattern::new(name)).collect();
        let rule = Self::new(to, Action::Split(rows, from)).checked();
        rule.inverse().expect("splitting can be undone")
    }

    /// The first axis of the tensor is those of several others, in order: their names, and their sizes there. For
    /// convolutions, whose channels are the first axis.
    ///
    /// # Panics
    /// The names have different placeholders, or a number is not positive.
    pub fn split_channels(from: &str, parts: &[(&str, i32)]) -> Self {
        let rows = Rows {
            groups: 1,
            parts: parts.iter().map(|&(_, size)| size).collect(),
            first: true,
        };
        let to = parts.iter().map(|&(name, _)| Pattern::new(name)).collect();
        Self::new(from, Action::Split(rows, to)).checked()
    }

    /// The tensors are parts of the first axis of another: the inverse of [`split_channels`](Self::split_channels).
    ///
    /// # Panics
    /// The names have different placeholders, or a number is not positive.
    pub fn concat_channels(parts: &[(&str, i32)], to: &str) -> Self {
        let rule = Self::split_channels(to, parts);
        rule.inverse().expect("splitting can be undone")
    }

    /// The rows of the tensor are those of several others, of as many rows each.
    ///
    /// # Panics
    /// The names have different placeholders.
    pub fn divide(from: &str, to: &[&str]) -> Self {
        let rows = Rows {
            groups: 1,
            parts: vec![1; to.len()],
            first: false,
        };
        let to = to.iter().map(|name| Pattern::new(name)).collect();
        Self::new(from, Action::Split(rows, to)).checked()
    }

    /// The tensors of the matrix `[out, in]` at `path`, which are its weight and scale in this
    /// form, become packed codes of 2 bits with [scales and biases](super::ternary_scheme). The
    /// inverse rule packs them as they are published; the scale is then a factor.
    pub fn ternary(path: &str, shape: [i32; 2], form: TernaryForm) -> Self {
        let path = path.to_owned();
        Self::of_matrix(Matrix {
            path,
            shape,
            form,
            back: false,
        })
    }

    fn of_matrix(matrix: Matrix) -> Self {
        let from = matrix.sources();
        Self {
            from: from.iter().map(|name| Pattern::new(name)).collect(),
            action: Action::Ternary(matrix),
            written: true,
        }
    }

    /// The rule also applies to checkpoints and adapters that MLX programs wrote, because these
    /// keep the published form, as mlx-lm's files do. It is undone when a model is saved.
    ///
    /// # Panics
    /// The rule cannot be undone: it drops, copies, stacks or makes words.
    #[must_use]
    pub fn written(mut self) -> Self {
        assert!(self.inverse().is_some(), "{self:?} cannot be undone");
        self.written = true;
        self
    }

    /// The rule. An invalid rule panics, because tables of rules are part of the program.
    fn checked(self) -> Self {
        let (to, fewer): (&[Pattern], usize) = match &self.action {
            Action::Drop(_)
            | Action::Transpose(_)
            | Action::Reshape(_)
            | Action::Add(_)
            | Action::Unit(..)
            | Action::Words
            | Action::Ternary(_) => (&[], 0),
            Action::Rename(to) | Action::Copy(to) | Action::Join(_, to) => {
                (std::slice::from_ref(to), 0)
            }
            Action::Stack(to) => (std::slice::from_ref(to), 1),
            Action::Split(_, to) => (to, 0),
        };
        let mut from = self.from.iter();
        assert!(
            from.all(|from| to.iter().all(|to| from.fills(to, fewer))),
            "the names of {self:?} have other places"
        );
        if let Action::Split(rows, _) | Action::Join(rows, _) = &self.action {
            let positive = rows.groups > 0 && rows.parts.iter().all(|&rows| rows > 0);
            assert!(positive, "{self:?} has rows that are not positive");
        }
        self
    }

    /// The rule that undoes this one.
    pub(super) fn inverse(&self) -> Option<Self> {
        let from = || self.from[0].clone();
        let (action, from) = match &self.action {
            Action::Drop(_)
            | Action::Copy(_)
            | Action::Stack(_)
            | Action::Unit(..)
            | Action::Words => return None,
            Action::Ternary(matrix) => {
                return (!matrix.back).then(|| {
                    Self::of_matrix(Matrix {
                        back: true,
                        ..matrix.clone()
                    })
                });
            }
            Action::Rename(to) => (Action::Rename(from()), vec![to.clone()]),
            Action::Transpose(axes) => {
                let at = |axis| axes.iter().position(|&other| other == axis);
                let place = |axis| at(axis).map(|at| at as i32);
                let axes = (0..axes.len() as i32).map(place).collect::<Option<_>>()?;
                (Action::Transpose(axes), self.from.clone())
            }
            // A written tensor keeps the parameter's axes.
            Action::Reshape(shape) => (Action::Reshape(shape.clone()), self.from.clone()),
            Action::Add(number) => (Action::Add(-number), self.from.clone()),
            Action::Split(rows, to) => (Action::Join(rows.clone(), from()), to.clone()),
            Action::Join(rows, to) => {
                let action = Action::Split(rows.clone(), self.from.clone());
                (action, vec![to.clone()])
            }
        };
        Some(Self {
            from,
            action,
            written: self.written,
        })
    }

    /// Appends the results for a piece to `out`. The error is the reason why the piece is dropped.
    pub(super) fn apply(&self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), &str> {
        let found = self.from.iter().enumerate();
        let mut found = found.filter_map(|(at, from)| Some((at, from.captures(&piece.name)?)));
        let Some((at, mut captures)) = found.next() else {
            out.push(piece);
            return Ok(());
        };
        // Both have one number for each row, also in a stack.
        let is_bias = piece.name.ends_with("bias") || piece.name.ends_with(".factor");
        let renamed = |name: String, piece: Piece| Piece { name, ..piece };
        match &self.action {
            Action::Drop(reason) => return Err(reason),
            Action::Rename(to) => out.push(renamed(to.fill(&captures), piece)),
            Action::Copy(to) => {
                out.push(renamed(to.fill(&captures), piece.clone()));
                out.push(piece);
            }
            Action::Transpose(axes) => out.push(piece.then(Change::Transpose(axes.clone()))),
            Action::Reshape(shape) => out.push(piece.then(Change::Reshape(shape.clone()))),
            Action::Add(number) => out.push(piece.then(Change::Add(*number))),
            Action::Unit(axis, least) => out.push(piece.then(Change::Unit(*axis, *least))),
            Action::Words => out.push(piece.then(Change::Words)),
            Action::Ternary(matrix) => {
                let made = matrix.made(at);
                if made.is_empty() {
                    return Err("it follows from the scales");
                }
                for (name, change) in made {
                    out.push(renamed(name, piece.clone()).then(Change::Ternary(change)));
                }
            }
            Action::Stack(to) => {
                let index = captures.pop_number();
                // A number that does not fit an index is not an item of any stack.
                let index = index.unwrap_or(usize::MAX);
                out.push(Piece {
                    name: to.fill(&captures),
                    place: Place::Item(index),
                    ..piece
                });
            }
            Action::Split(rows, to) => {
                for (part, to) in to.iter().enumerate() {
                    let rows = Change::Rows {
                        rows: rows.clone(),
                        part,
                        is_bias,
                    };
                    out.push(renamed(to.fill(&captures), piece.clone()).then(rows));
                }
            }
            Action::Join(rows, to) => out.push(Piece {
                name: to.fill(&captures),
                place: Place::Part {
                    index: at,
                    rows: rows.clone(),
                    is_bias,
                    names: self.from.iter().map(|from| from.fill(&captures)).collect(),
                },
                ..piece
            }),
        }
        Ok(())
    }
}
