//! The files that a program needs beside it where it is carried to another machine.
//!
//! `src/libraries.rs` and `cargo xtask dist` both compile this file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where programs look for MLX and libmlxc (`src/loader.rs`), from their own folder. The wheel's libmlx looks for its
/// own libraries two folders up, so the wheel's layout is kept under `lib`.
pub const LIBRARIES: &str = "lib/mlx/lib";

/// A file, and its place from the folder of the program.
pub type Packed = (PathBuf, PathBuf);

/// The libraries, headers and licences of a finished build and its MLX, in the order of their places.
pub fn files(build: &Path, mlx: &Path) -> io::Result<Vec<Packed>> {
    let mut files = Vec::new();
    let libraries = Path::new(LIBRARIES);
    for name in ["libmlxc.so", "libmlxc.dylib"] {
        let library = build.join("lib").join(name);
        if library.is_file() {
            files.push((library, libraries.join(name)));
        }
    }
    if files.is_empty() {
        let missing = format!("{}: there is no libmlxc", build.join("lib").display());
        return Err(io::Error::new(io::ErrorKind::NotFound, missing));
    }
    add(&mlx.join("lib"), libraries, &is_library, &mut files)?;
    // Headers with which the CUDA back end compiles its kernels at run time.
    let headers = Path::new("lib/mlx/include/cccl");
    add(&mlx.join("include/cccl"), headers, &|_| true, &mut files)?;
    // The wheel's own libraries, and NVIDIA's, beside the folder `mlx`.
    let site = mlx.parent().unwrap_or(mlx);
    for item in fs::read_dir(site)? {
        let item = item?;
        let name = item.file_name().to_string_lossy().into_owned();
        if name.starts_with("mlx") && name.ends_with(".libs") || name == "nvidia" {
            let to = Path::new("lib").join(&name);
            add(&item.path(), &to, &is_library, &mut files)?;
        } else if name.starts_with("mlx") && name.ends_with(".dist-info") {
            let to = Path::new("licenses/mlx");
            add(&item.path().join("licenses"), to, &|_| true, &mut files)?;
        }
    }
    files.push((build.join("LICENSE-mlx-c"), "licenses/mlx-c".into()));
    files.sort_by(|a, b| a.1.cmp(&b.1));
    files.dedup_by(|a, b| a.1 == b.1);
    Ok(files)
}

/// Shared libraries, and Metal's compiled kernels, which libmlx looks for in its own folder.
fn is_library(name: &str) -> bool {
    name.contains(".so") || name.ends_with(".dylib") || name.ends_with(".metallib")
}

/// Adds the wanted files below `from`, if that is a folder.
fn add(
    from: &Path,
    to: &Path,
    wanted: &dyn Fn(&str) -> bool,
    files: &mut Vec<Packed>,
) -> io::Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    for item in fs::read_dir(from)? {
        let item = item?;
        let (path, to) = (item.path(), to.join(item.file_name()));
        if path.is_dir() {
            add(&path, &to, wanted, files)?;
        } else if wanted(&item.file_name().to_string_lossy()) {
            files.push((path, to));
        }
    }
    Ok(())
}
