//! The list of the files that a program needs on another machine.

use std::io;
use std::path::{Path, PathBuf};

#[path = "../build/package.rs"]
mod package;

/// The folders of libmlxc and of MLX, empty in a build without them.
const BUILD: &str = env!("MLXC_BUILD");
const MLX: &str = env!("MLXC_MLX");

/// A file that a program needs beside it on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Where it is on this machine.
    pub file: PathBuf,
    /// Where it belongs: relative to the folder of the program.
    pub place: PathBuf,
}

/// The libraries of MLX that this crate was built with, with their licences: what a packed program needs beside it.
///
/// Together they are 60 MB without a GPU and some GB with CUDA. `cargo xtask dist` packs them with a program. A build
/// script or a packing program of one's own copies each file to its place:
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let folder = std::path::Path::new("packed");
/// for library in mlx_c_sys::libraries()? {
///     let place = folder.join(library.place);
///     std::fs::create_dir_all(place.parent().unwrap_or(folder))?;
///     std::fs::copy(library.file, place)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The crate was built without MLX (`MLX_NO_NATIVE=1`), or its libraries have been removed from the cache since.
pub fn libraries() -> io::Result<Vec<Library>> {
    if BUILD.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "this program was built without MLX (MLX_NO_NATIVE=1)",
        ));
    }
    let files = package::files(Path::new(BUILD), Path::new(MLX))?;
    let library = |(file, place)| Library { file, place };
    Ok(files.into_iter().map(library).collect())
}
