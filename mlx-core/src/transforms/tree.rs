//! Arrays in the structures that functions take and return.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};

/// The form of a [`Tree`], without its arrays.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Structure {
    /// One array.
    Array,
    /// The elements of a slice, vector, array or tuple.
    List(Vec<Structure>),
    /// The entries of a map, by ascending names.
    Map(Vec<(String, Structure)>),
}

impl Structure {
    /// The number of arrays.
    pub fn count(&self) -> usize {
        match self {
            Structure::Array => 1,
            Structure::List(items) => items.iter().map(Structure::count).sum(),
            Structure::Map(entries) => entries.iter().map(|(_, item)| item.count()).sum(),
        }
    }

    fn items(&self) -> &[Structure] {
        match self {
            Structure::List(items) => items,
            _ => &[],
        }
    }

    fn entries(&self) -> &[(String, Structure)] {
        match self {
            Structure::Map(entries) => entries,
            _ => &[],
        }
    }
}

/// What a function that is transformed takes or returns: an [`Array`]; a slice, vector or array of trees; a tuple of up to
/// eight trees; or a map from names to trees.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that a transformed function takes or returns",
    note = "it takes references to, and returns, an `Array`, or a vector, array, tuple, `HashMap<String, _>` or `BTreeMap<String, _>` of such"
)]
pub trait Tree {
    /// The type that owns such arrays: `Vec<Array>` for `[Array]`.
    type Owned: Tree<Owned = Self::Owned> + Borrow<Self> + 'static;

    /// The form.
    fn structure(&self) -> Structure;

    /// The form of all values of the type, if they have the same: of arrays and tuples of arrays.
    fn fixed() -> Option<Structure> {
        None
    }

    /// Puts handles to the arrays into `out`, in the order of the form.
    fn flatten(&self, out: &mut Vec<Array>);

    /// The arrays in this form.
    ///
    /// # Errors
    /// There are fewer arrays than the form has, or the form does not fit the type.
    fn build(structure: &Structure, arrays: &mut dyn Iterator<Item = Array>)
    -> Result<Self::Owned>;
}

fn wrong_form() -> Error {
    let message =
        "the arrays of a transformed function do not fit the form of its arguments or results";
    Error::new(ErrorKind::Closure, message)
}

impl Tree for Array {
    type Owned = Array;

    fn structure(&self) -> Structure {
        Structure::Array
    }

    fn fixed() -> Option<Structure> {
        Some(Structure::Array)
    }

    fn flatten(&self, out: &mut Vec<Array>) {
        out.push(self.clone());
    }

    fn build(_structure: &Structure, arrays: &mut dyn Iterator<Item = Array>) -> Result<Array> {
        arrays.next().ok_or_else(wrong_form)
    }
}

impl<T: Tree<Owned = T> + 'static> Tree for [T] {
    type Owned = Vec<T>;

    fn structure(&self) -> Structure {
        Structure::List(self.iter().map(Tree::structure).collect())
    }

    fn flatten(&self, out: &mut Vec<Array>) {
        self.iter().for_each(|item| item.flatten(out));
    }

    fn build(structure: &Structure, arrays: &mut dyn Iterator<Item = Array>) -> Result<Vec<T>> {
        let items = structure.items().iter();
        items.map(|item| T::build(item, arrays)).collect()
    }
}

impl<T: Tree<Owned = T> + 'static> Tree for Vec<T> {
    type Owned = Vec<T>;

    fn structure(&self) -> Structure {
        self.as_slice().structure()
    }

    fn flatten(&self, out: &mut Vec<Array>) {
        self.as_slice().flatten(out);
    }

    fn build(structure: &Structure, arrays: &mut dyn Iterator<Item = Array>) -> Result<Vec<T>> {
        <[T]>::build(structure, arrays)
    }
}

impl<T: Tree<Owned = T> + 'static, const N: usize> Tree for [T; N] {
    type Owned = [T; N];

    fn structure(&self) -> Structure {
        self.as_slice().structure()
    }

    fn fixed() -> Option<Structure> {
        Some(Structure::List(vec![T::fixed()?; N]))
    }

    fn flatten(&self, out: &mut Vec<Array>) {
        self.as_slice().flatten(out);
    }

    fn build(structure: &Structure, arrays: &mut dyn Iterator<Item = Array>) -> Result<[T; N]> {
        let items = <[T]>::build(structure, arrays)?;
        items.try_into().map_err(|_| wrong_form())
    }
}

macro_rules! tuples {
    ($($($name:ident $index:tt)+;)*) => { $(
        impl<$($name: Tree<Owned = $name> + 'static),+> Tree for ($($name,)+) {
            type Owned = ($($name,)+);

            fn structure(&self) -> Structure {
                Structure::List(vec![$(self.$index.structure()),+])
            }

            fn fixed() -> Option<Structure> {
                Some(Structure::List(vec![$($name::fixed()?),+]))
            }

            fn flatten(&self, out: &mut Vec<Array>) {
                $( self.$index.flatten(out); )+
            }

            fn build(
                structure: &Structure,
                arrays: &mut dyn Iterator<Item = Array>,
            ) -> Result<Self::Owned> {
                let items = structure.items();
                Ok(($( $name::build(items.get($index).ok_or_else(wrong_form)?, arrays)?, )+))
            }
        }
    )* };
}
tuples! {
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7;
}

impl<T: Tree<Owned = T> + 'static> Tree for BTreeMap<String, T> {
    type Owned = Self;

    fn structure(&self) -> Structure {
        let entries = self.iter();
        Structure::Map(
            entries
                .map(|(name, item)| (name.clone(), item.structure()))
                .collect(),
        )
    }

    fn flatten(&self, out: &mut Vec<Array>) {
        self.values().for_each(|item| item.flatten(out));
    }

    fn build(structure: &Structure, arrays: &mut dyn Iterator<Item = Array>) -> Result<Self> {
        let entries = structure.entries().iter();
        entries
            .map(|(name, item)| Ok((name.clone(), T::build(item, arrays)?)))
            .collect()
    }
}

impl<T: Tree<Owned = T> + 'static> Tree for HashMap<String, T> {
    type Owned = Self;

    fn structure(&self) -> Structure {
        let entries = sorted(self).into_iter();
        Structure::Map(
            entries
                .map(|(name, item)| (name.clone(), item.structure()))
                .collect(),
        )
    }

    fn flatten(&self, out: &mut Vec<Array>) {
        sorted(self)
            .into_iter()
            .for_each(|(_, item)| item.flatten(out));
    }

    fn build(structure: &Structure, arrays: &mut dyn Iterator<Item = Array>) -> Result<Self> {
        let entries = structure.entries().iter();
        entries
            .map(|(name, item)| Ok((name.clone(), T::build(item, arrays)?)))
            .collect()
    }
}

/// The entries by ascending names, because a hash map has no order.
fn sorted<T>(map: &HashMap<String, T>) -> Vec<(&String, &T)> {
    let mut entries: Vec<_> = map.iter().collect();
    entries.sort_by_key(|(name, _)| *name);
    entries
}
