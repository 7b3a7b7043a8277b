//! Functions in files: the graph of a function with its constants, as MLX's `export_function` writes it and Python's
//! `mx.import_function` reads it.
//!
//! ```
//! use mlx_core::export::{export_function, import_function};
//! use mlx_core::{Array, DType, ones};
//!
//! # fn main() -> mlx_core::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("f.mlxfn");
//! let w = ones(&[2, 3], DType::F32)?;
//! let f = move |x: &[Array]| Ok(vec![x[0].matmul(&w)?.add(1.0)?]);
//! export_function(&path, f, &[ones(&[4, 2], DType::F32)?])?;
//! let f = import_function(&path)?;
//! let y = f.call(&[ones(&[4, 2], DType::F32)?])?;
//! assert_eq!(y[0].to_vec::<f32>()?, [3.0; 12]);
//! # Ok(())
//! # }
//! ```
//!
//! # Files from elsewhere
//!
//! MLX's own importer does not check its file: a shape in it decides how much memory a kernel
//! reads. This crate therefore has a reader of its own, which checks the whole file when it is
//! opened. A call builds the graph again from this crate's operations, which check their arguments,
//! and compares the shapes and dtypes of results with those that the file states. A file can
//! therefore make a call fail, or take time and memory, but not read or write beyond an array. Some
//! operations are not supported; the error lists those that are.

use std::cell::Cell;
use std::path::Path;

use mlx_c_sys as sys;

use crate::array::Array;
use crate::error::{Error, ErrorKind, Result};
use crate::fast;
use crate::ffi::closure::Closure;
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg, cstring};
use crate::files::atomic::Unnamed;

mod dot;
mod import;
mod operations;
mod read;

pub use dot::export_to_dot;
pub use import::{ImportedFunction, import_function};

thread_local! {
    static TRACING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread traces a function for a file, which can only hold operations of MLX.
pub(crate) fn is_tracing() -> bool {
    TRACING.get()
}

/// Writes a function of arrays to a file, for inputs of the shapes and dtypes of `inputs`.
///
/// The function is called once, with placeholders: it cannot read values. Arrays that it captures become constants in
/// the file. The file appears whole or not at all. [`Exporter`] writes several signatures of a function, or one for all
/// shapes.
///
/// Operations of [`fast`] are written in their plain forms. A check of an index becomes a computation that
/// puts an index out of range into its range, because readers of the file have no such check.
///
/// ```
/// use mlx_core::{Array, DType, export, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("f.mlxfn");
/// let x = [ones(&[2], DType::F32)?];
/// export::export_function(&path, |x: &[Array]| Ok(vec![x[0].exp()?]), &x)?;
/// assert_eq!(export::import_function(&path)?.call(&x)?[0].shape(), [2]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The function fails or reads a value, MLX cannot write one of its operations (the message names it), or the file
/// cannot be written. `path` is then as it was.
pub fn export_function<F>(path: impl AsRef<Path>, f: F, inputs: &[Array]) -> Result<()>
where
    F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
{
    let mut exporter = Exporter::new(path, f)?;
    exporter.add(inputs)?;
    exporter.finish()
}

/// A file for a function, with one signature after the other.
///
/// ```
/// use mlx_core::export::{Exporter, import_function};
/// use mlx_core::{Array, DType, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("f.mlxfn");
/// let mut exporter = Exporter::new(&path, |x: &[Array]| Ok(vec![x[0].square()?]))?;
/// exporter.add(&[ones(&[2], DType::F32)?])?;
/// exporter.add(&[ones(&[3], DType::F32)?])?;
/// exporter.finish()?;
/// let f = import_function(&path)?;
/// assert_eq!(f.call(&[ones(&[3], DType::F32)?])?[0].shape(), [3]);
/// assert!(f.call(&[ones(&[4], DType::F32)?]).is_err());
/// # Ok(())
/// # }
/// ```
pub struct Exporter {
    // Dropped before the file, because MLX then writes what it has buffered.
    raw: Option<Raw>,
    file: Unnamed,
}

/// MLX's exporter.
struct Raw {
    exporter: sys::mlx_function_exporter,
    _function: Closure,
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: owned and non-null, freed once.
        unsafe { sys::mlx_function_exporter_free(self.exporter) };
    }
}

impl Exporter {
    /// Begins a file for a function whose inputs have the shapes that are [added](Self::add).
    ///
    /// # Errors
    /// The file cannot be made beside `path`.
    pub fn new<F>(path: impl AsRef<Path>, f: F) -> Result<Self>
    where
        F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    {
        Self::begin(path.as_ref(), f, false)
    }

    /// As [`new`](Self::new), but each signature holds for inputs of its dtypes and numbers of
    /// dimensions, in all sizes. That is right for functions that do not use a size: see
    /// [`Compiled`](crate::transforms::Compiled).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn shapeless<F>(path: impl AsRef<Path>, f: F) -> Result<Self>
    where
        F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    {
        Self::begin(path.as_ref(), f, true)
    }

    fn begin<F>(path: &Path, f: F, shapeless: bool) -> Result<Self>
    where
        F: Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    {
        let begin = || {
            let file = Unnamed::new(path)?;
            let function = Closure::keep(move |inputs| {
                let outputs = fast::plainly(|| f(inputs))?;
                if outputs.is_empty() {
                    let message = "an exported function must return at least one array";
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                Ok(outputs)
            })?;
            let present = file.present_path().to_str();
            let present = present
                .ok_or_else(|| Error::new(ErrorKind::Unsupported, "a path that is not UTF-8"))?;
            let present = cstring(present)?;
            // SAFETY: a path that ends in NUL and a live closure, of which MLX keeps a copy.
            let exporter = unsafe {
                sys::mlx_function_exporter_new(present.as_ptr(), function.raw(), shapeless)
            };
            if exporter.ctx.is_null() {
                return Err(ffi::take_error(ErrorKind::Io));
            }
            let raw = Some(Raw {
                exporter,
                _function: function,
            });
            Ok(Self { raw, file })
        };
        begin().map_err(|error: Error| error.context(path.display()))
    }

    /// Traces the function for inputs of these shapes and dtypes.
    ///
    /// # Errors
    /// As [`export_function`]; or the file has a function for these shapes and dtypes.
    pub fn add(&mut self, inputs: &[Array]) -> Result<()> {
        struct Tracing;
        impl Drop for Tracing {
            fn drop(&mut self) {
                TRACING.set(false);
            }
        }

        let Some(raw) = &self.raw else {
            let message = "an earlier signature failed: the file is lost";
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let result = inputs.iter().try_for_each(Arg::check).and_then(|()| {
            let inputs = VectorArray::new(inputs)?;
            TRACING.set(true);
            let _tracing = Tracing;
            // SAFETY: a live exporter and live inputs.
            ffi::call(ErrorKind::Mlx, || unsafe {
                sys::mlx_function_exporter_apply(raw.exporter, inputs.c())
            })
        });
        result.map_err(|error| {
            // What was written of this signature cannot be removed from the file.
            self.raw = None;
            error.context(self.file.path().display())
        })
    }

    /// Completes the file and renames it to its path.
    ///
    /// # Errors
    /// A signature failed, or the file cannot be flushed or renamed.
    pub fn finish(mut self) -> Result<()> {
        let path = self.file.path().display().to_string();
        if self.raw.take().is_none() {
            let message = format!("{path}: a signature failed, so there is no file");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let finish = || {
            // MLX does not report a full disk, so the file is read back.
            let bytes = std::fs::read(self.file.present_path())?;
            read::parse(&bytes).map_err(|what| Error::new(ErrorKind::Io, what))?;
            Ok(self.file.finish()?)
        };
        finish().map_err(|error: Error| error.context(path))
    }
}
