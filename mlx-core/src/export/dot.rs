//! Graphs as drawings.

use std::io::{Read, Seek};
use std::path::Path;

use mlx_c_sys as sys;

use crate::error::{ErrorKind, Result};
use crate::ffi::vector::VectorArray;
use crate::ffi::{self, Arg, cstring};
use crate::files::atomic::Unnamed;
use crate::files::named::{NamedArray, named};

/// Writes the graph that computes `arrays` in the language of Graphviz, with their names. Nothing
/// is evaluated; an array that is already computed is a leaf.
///
/// ```
/// use mlx_core::{DType, export::export_to_dot, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("graph.dot");
/// let y = ones(&[2], DType::F32)?.exp()?;
/// export_to_dot(&path, &[("y", &y)])?;
/// assert!(std::fs::read_to_string(&path)?.contains("Exp"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An array belongs to a failed evaluation, a name holds a NUL byte, or the file cannot be written.
pub fn export_to_dot<N: NamedArray>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = N>,
) -> Result<()> {
    let path = path.as_ref();
    let arrays: Vec<N> = arrays.into_iter().collect();
    let arrays = named(&arrays);
    let write = || {
        let namer = Namer::new()?;
        for (name, array) in &arrays {
            array.check()?;
            let name = cstring(name)?;
            // SAFETY: a live namer and array; the name ends in NUL and is copied.
            ffi::call(ErrorKind::Mlx, || unsafe {
                sys::mlx_node_namer_set_name(namer.0, array.raw(), name.as_ptr())
            })?;
        }
        let outputs = VectorArray::new(arrays.iter().map(|(_, array)| *array))?;
        let mut unnamed = Unnamed::new(path)?;
        let stream = Stream::over(unnamed.present_path())?;
        // SAFETY: an open stream, a live namer and live arrays.
        ffi::call(ErrorKind::Mlx, || unsafe {
            sys::mlx_export_to_dot(stream.0.cast(), namer.0, outputs.c())
        })?;
        stream.close()?;
        // MLX does not report a full disk.
        let file = unnamed.file();
        file.rewind()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        if !text.trim_end().ends_with('}') {
            return Err(std::io::Error::other("the graph was not written to its end").into());
        }
        Ok(unnamed.finish()?)
    };
    write().map_err(|error: crate::Error| error.context(path.display()))
}

/// Names of nodes, for MLX.
struct Namer(sys::mlx_node_namer);

impl Namer {
    fn new() -> Result<Self> {
        // SAFETY: takes nothing.
        let namer = unsafe { sys::mlx_node_namer_new() };
        if namer.ctx.is_null() {
            return Err(ffi::take_error(ErrorKind::Mlx));
        }
        Ok(Self(namer))
    }
}

impl Drop for Namer {
    fn drop(&mut self) {
        // SAFETY: owned and non-null, freed once.
        unsafe { sys::mlx_node_namer_free(self.0) };
    }
}

/// A stream of C's library.
struct Stream(*mut libc::FILE);

impl Stream {
    fn over(path: &Path) -> Result<Self> {
        let path = path.to_str().unwrap_or_default();
        let path = cstring(path)?;
        // SAFETY: both texts end in NUL.
        let file = unsafe { libc::fopen(path.as_ptr(), c"w".as_ptr()) };
        if file.is_null() {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Self(file))
    }

    fn close(self) -> Result<()> {
        // SAFETY: open, and forgotten below.
        let status = unsafe { libc::fclose(self.0) };
        let error = std::io::Error::last_os_error();
        std::mem::forget(self);
        match status {
            0 => Ok(()),
            _ => Err(error.into()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: open, closed once.
        unsafe { libc::fclose(self.0) };
    }
}
