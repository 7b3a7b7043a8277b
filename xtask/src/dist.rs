//! `dist`: an archive with a release binary and every library it needs, that runs from any folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::native::{self, host};
use crate::{build_mlx, cargo};

/// Arguments of `dist`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The program, which is also the name of its package
    #[arg(long, default_value = "mlx-infer")]
    bin: String,
}

/// The place of MLX and libmlxc in the archive, where programs look for them (`mlx-c-sys/src/loader.rs`). The wheel's
/// libmlx looks for its own libraries two folders up, so the wheel's layout is kept under `lib`.
const LIBRARIES: &str = "lib/mlx/lib";

/// Builds, collects and packs.
pub fn run(arguments: &Arguments) -> Result<()> {
    let options = build_mlx::from_env()?;
    let prefix =
        native::ensure(&options, &mut |step| eprintln!("{step}")).map_err(|e| anyhow!("{e}"))?;
    cargo::run(
        cargo::command(["build", "--release", "--package", &arguments.bin])
            .args(["--bin", &arguments.bin]),
    )?;
    let target = cargo::build_directory()?.join("dist");

    let name = format!(
        "{}-{}-{}-{}",
        arguments.bin,
        env!("CARGO_PKG_VERSION"),
        host::triple(),
        options.backend.name()
    );
    let folder = target.join(&name);
    native::store::remove(&folder).map_err(|e| anyhow!("{e}"))?;
    copy(
        &cargo::target_directory()?
            .join("release")
            .join(&arguments.bin),
        &folder.join(&arguments.bin),
    )?;
    let libmlxc = host::library("mlxc");
    copy(
        &prefix.lib().join(&libmlxc),
        &folder.join(LIBRARIES).join(&libmlxc),
    )?;
    copy_libraries(&prefix.mlx.join("lib"), &folder.join(LIBRARIES))?;
    // Headers with which the CUDA back end compiles its kernels at run time.
    let headers = prefix.mlx.join("include/cccl");
    if headers.is_dir() {
        copy_tree(&headers, &folder.join("lib/mlx/include/cccl"), &|_| true)?;
    }
    // The wheel's own libraries, and NVIDIA's, beside the folder `mlx`.
    let site = prefix
        .mlx
        .parent()
        .context("MLX is at the root of the file system")?;
    for item in fs::read_dir(site).with_context(|| format!("cannot read {}", site.display()))? {
        let item = item?;
        let name = item.file_name().to_string_lossy().into_owned();
        if name.starts_with("mlx") && name.ends_with(".libs") || name == "nvidia" {
            copy_libraries(&item.path(), &folder.join("lib").join(&name))?;
        } else if name.starts_with("mlx") && name.ends_with(".dist-info") {
            copy_tree(
                &item.path().join("licenses"),
                &folder.join("licenses/mlx"),
                &|_| true,
            )?;
        }
    }
    copy(
        &prefix.dir.join("LICENSE-mlx-c"),
        &folder.join("licenses/mlx-c"),
    )?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(
            &cargo::repository().join(license),
            &folder.join("licenses").join(license),
        )?;
    }
    let archive = target.join(format!("{name}.tar.gz"));
    cargo::run(
        Command::new("tar")
            .arg("-czf")
            .arg(&archive)
            .arg("-C")
            .arg(&target)
            .arg(&name),
    )?;
    println!("{}", archive.display());
    Ok(())
}

/// Copies shared libraries, and Metal's compiled kernels, which libmlx looks for in its own folder.
fn copy_libraries(from: &Path, to: &Path) -> Result<()> {
    copy_tree(from, to, &|name| {
        name.contains(".so") || name.ends_with(".dylib") || name.ends_with(".metallib")
    })
}

fn copy_tree(from: &Path, to: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    for item in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let item = item?;
        let (path, name): (PathBuf, _) = (item.path(), item.file_name());
        if path.is_dir() {
            copy_tree(&path, &to.join(&name), wanted)?;
        } else if wanted(&name.to_string_lossy()) {
            copy(&path, &to.join(&name))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
