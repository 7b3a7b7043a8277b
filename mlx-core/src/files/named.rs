//! Arrays with names, as the functions that write files take them.

use std::borrow::Borrow;

use crate::array::Array;

/// An array with its name: a pair of a text and an array, or a reference to one.
///
/// So a list of arrays may be `&[("a", &a), ("b", &b)]`, a `Vec<(String, Array)>`, or a `&BTreeMap<String, Array>`.
///
/// ```
/// use std::collections::BTreeMap;
/// use mlx_core::{Array, DType, load, ones, save_safetensors};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// let a = ones(&[2], DType::F32)?;
/// save_safetensors(&path, &[("a", &a)])?;
/// let map = BTreeMap::from([("a".to_owned(), a)]);
/// save_safetensors(&path, &map)?;
/// assert_eq!(load(&path)?.get("a")?.shape(), [2]);
/// # Ok(())
/// # }
/// ```
pub trait NamedArray {
    /// The name.
    fn name(&self) -> &str;
    /// The array.
    fn array(&self) -> &Array;
}

impl<N: AsRef<str>, A: Borrow<Array>> NamedArray for (N, A) {
    fn name(&self) -> &str {
        self.0.as_ref()
    }

    fn array(&self) -> &Array {
        self.1.borrow()
    }
}

impl<N: AsRef<str>, A: Borrow<Array>> NamedArray for &(N, A) {
    fn name(&self) -> &str {
        self.0.as_ref()
    }

    fn array(&self) -> &Array {
        self.1.borrow()
    }
}

/// The pairs of a list.
pub(crate) fn named<N: NamedArray>(arrays: &[N]) -> Vec<(&str, &Array)> {
    let pairs = arrays.iter().map(|item| (item.name(), item.array()));
    pairs.collect()
}
