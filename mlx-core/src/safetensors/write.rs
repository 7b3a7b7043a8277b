//! Writing safetensors files.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use super::header::{self, TensorSpec, nbytes};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::files::atomic::Unnamed;
use crate::files::named::{NamedArray, named};

/// Writes `arrays` and `metadata` to a safetensors file, evaluating the arrays one after the other.
///
/// The file appears whole or not at all: it is written beside `path` under another name, flushed to
/// disk and renamed. The bytes depend on names and contents only, not on the order of `arrays`:
/// larger elements come first, then names in order, so that everything is aligned. `arrays` may be a slice of names and
/// arrays, or a map ([`NamedArray`]).
///
/// ```
/// use mlx_core::{DType, Safetensors, ones, safetensors};
///
/// # fn main() -> mlx_core::Result<()> {
/// use std::collections::BTreeMap;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// let metadata = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
/// safetensors::save(&path, [("w", ones(&[2], DType::F32)?)], &metadata)?;
/// assert_eq!(Safetensors::open(&path)?.metadata(), &metadata);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A name is given twice or is `__metadata__`, an evaluation fails, or the file cannot be written.
/// `path` is then as it was.
pub fn save<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    let arrays: Vec<N> = arrays.into_iter().collect();
    let mut arrays = named(&arrays);
    arrays.sort_by_key(|(name, array)| (Reverse(array.dtype().size()), *name));
    write(path, &arrays, metadata).map_err(|error| error.context(path.display()))
}

/// [`save`] without metadata.
///
/// ```
/// use mlx_core::{DType, Safetensors, ones, save_safetensors};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// save_safetensors(&path, &[("w", ones(&[2], DType::F32)?)])?;
/// assert_eq!(Safetensors::open(&path)?.array("w")?.shape(), [2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`save`].
pub fn save_safetensors<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
) -> Result<()> {
    save(path, arrays, &BTreeMap::new())
}

fn write(
    path: &Path,
    arrays: &[(&str, &Array)],
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let specs: Vec<TensorSpec<'_>> = arrays
        .iter()
        .map(|(name, array)| (*name, array.dtype(), array.shape()))
        .collect();
    let mut writer = Writer::begin(path, &specs, metadata)?;
    for (name, array) in arrays {
        writer.put(name, array)?;
    }
    writer.end()
}

/// A safetensors file whose tensors are announced first and then written one at a time, in any order, so that they need
/// not exist at the same time.
///
/// As with [`save`], the file appears whole or not at all, and its bytes depend on names and contents
/// only. Dropping a writer that was not [finished](Self::finish) leaves nothing behind.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use mlx_core::{Array, DType, Result, safetensors::{Safetensors, Writer}};
/// # fn main() -> Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let tensors = [("a", DType::F32, &[2][..]), ("b", DType::F32, &[1, 1][..])];
/// let mut writer = Writer::new(&path, tensors, &BTreeMap::new())?;
/// writer.write("b", &Array::from_slice(&[3.0f32], &[1, 1])?)?;
/// writer.write("a", &Array::from_slice(&[1.0f32, 2.0], &[2])?)?;
/// writer.finish()?;
/// assert_eq!(Safetensors::open(&path)?.array("a")?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub struct Writer {
    file: Unnamed,
    /// The tensors that are not yet written: position, dtype and shape.
    left: BTreeMap<String, (u64, DType, Vec<i32>)>,
}

impl Writer {
    /// Begins a file with these tensors.
    ///
    /// # Errors
    /// A name is given twice or is `__metadata__`, or no file can be made beside `path`.
    pub fn new<'a>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (&'a str, DType, &'a [i32])>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let path = path.as_ref();
        let mut tensors: Vec<TensorSpec<'a>> = tensors.into_iter().collect();
        tensors.sort_by_key(|(name, dtype, _)| (Reverse(dtype.size()), *name));
        Self::begin(path, &tensors, metadata).map_err(|error| error.context(path.display()))
    }

    fn begin(
        path: &Path,
        tensors: &[TensorSpec<'_>],
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let header = header::write(tensors, metadata)
            .map_err(|message| Error::new(ErrorKind::Invalid, message))?;
        let mut unnamed = Unnamed::new(path)?;
        let file = unnamed.file();
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let mut start = 8 + header.len() as u64;
        let mut left = BTreeMap::new();
        for &(name, dtype, shape) in tensors {
            left.insert(name.to_owned(), (start, dtype, shape.to_vec()));
            start += nbytes(dtype, shape) as u64;
        }
        Ok(Self {
            file: unnamed,
            left,
        })
    }

    /// Evaluates one of the tensors and writes it.
    ///
    /// # Errors
    /// The file has no such tensor, or it is already written, or `array` has another dtype or shape than was announced;
    /// or the evaluation or the writing fails.
    pub fn write(&mut self, name: &str, array: &Array) -> Result<()> {
        let result = self.put(name, array);
        result.map_err(|error| error.context(self.file.path().display()))
    }

    fn put(&mut self, name: &str, array: &Array) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let Some((start, dtype, shape)) = self.left.get(name) else {
            return wrong(format!("tensor {name:?} is not one of those left to write"));
        };
        if (*dtype, shape.as_slice()) != (array.dtype(), array.shape()) {
            return wrong(format!(
                "tensor {name:?} was announced as {shape:?} {dtype}, given {:?} {}",
                array.shape(),
                array.dtype()
            ));
        }
        let file = self.file.file();
        file.seek(SeekFrom::Start(*start))?;
        array
            .with_bytes(|bytes| file.write_all(bytes))
            .map_err(|error| error.context(format!("tensor {name:?}")))??;
        self.left.remove(name);
        Ok(())
    }

    /// Completes the file and renames it to its path.
    ///
    /// # Errors
    /// A tensor is missing, or the file cannot be flushed or renamed; then no file exists.
    pub fn finish(self) -> Result<()> {
        let path = self.file.path().to_owned();
        self.end().map_err(|error| error.context(path.display()))
    }

    fn end(self) -> Result<()> {
        if let Some(name) = self.left.keys().next() {
            let message = format!(
                "{} tensors are not written, among them {name:?}",
                self.left.len()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(self.file.finish()?)
    }
}
