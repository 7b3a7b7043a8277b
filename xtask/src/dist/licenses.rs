//! The folder `licenses` of a packed program.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::copy;
use super::formats::{all_files, copy_all};
use crate::cargo;

/// Writes the licences of this repository, of the server's page, of the crates (`of_crates`), of Rust's standard
/// library, and of what is in MLX's libraries and beside them. Those of MLX, mlx-c and NVIDIA are in the folder already
/// (`package::files`).
pub fn write(folder: &Path, of_crates: &str) -> Result<()> {
    let to = folder.join("licenses");
    let repository = cargo::repository();
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(
            &repository.join(license),
            &to.join("mlx-rust").join(license),
        )?;
    }
    // The server's page has these libraries in it.
    let vendor = repository.join("mlx-infer/src/serve/routes/page/vendor");
    for library in ["marked", "highlight"] {
        let license = vendor.join(format!("LICENSE-{library}"));
        copy(&license, &to.join(library).join("LICENSE"))?;
    }
    let file = to.join("crates.txt");
    fs::write(&file, of_crates).with_context(|| file.display().to_string())?;
    of_rust(&to)?;
    // The wheel names the licence of MLX only.
    let kept = repository.join("xtask/src/dist/licenses");
    copy_all(&kept.join("mlx"), &to.join("mlx"))?;
    let libraries = all_files(&folder.join("lib"))?;
    let has = |start: &str| {
        let name = |file: &Path| {
            file.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        libraries.iter().any(|file| name(file).starts_with(start))
    };
    if has("libgfortran") || has("libquadmath") {
        copy_all(&kept.join("gcc"), &to.join("gcc"))?;
    }
    if has("libblas") || has("liblapack") {
        copy_all(&kept.join("lapack"), &to.join("lapack"))?;
    }
    Ok(())
}

/// The licences of the standard library, which come with the compiler.
fn of_rust(to: &Path) -> Result<()> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .context("cannot run rustc")?;
    if !output.status.success() {
        bail!("rustc: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let root = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let name = "COPYRIGHT-library.html";
    let file = Path::new(&root).join("share/doc/rust").join(name);
    if file.is_file() {
        return copy(&file, &to.join("rust").join(name));
    }
    // Compilers of some distributions have no such file.
    eprintln!(
        "warning: {} does not exist: the licences of Rust's standard library are named, without their texts",
        file.display()
    );
    let file = to.join("rust");
    fs::write(
        &file,
        "Rust's standard library: MIT OR Apache-2.0, https://github.com/rust-lang/rust\n",
    )
    .with_context(|| file.display().to_string())
}
