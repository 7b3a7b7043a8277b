//! The mlx-c sources: fetched by cargo with their checksum, copied, and patched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pins;
use super::report::{Failure, Result};

/// Puts the patched sources into `dir/mlx-c` and the shim into `dir/shim`.
pub fn unpack(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let (source, shim) = (dir.join("mlx-c"), dir.join("shim"));
    let original = fetch(dir)?;
    copy(&original.join("mlx"), &source.join("mlx"))?;
    let license = original.join("LICENSE");
    let text = fs::read_to_string(&license).map_err(|e| Failure::io("read", &license, &e))?;
    write(&source.join("LICENSE"), &text)?;
    for (name, text) in pins::PATCHES {
        patch(&source, name, text)?;
    }
    for (name, text) in pins::SHIM.iter() {
        write(&shim.join(name), text)?;
    }
    Ok((source, shim))
}

/// The folder in cargo's registry where the sources are.
fn fetch(dir: &Path) -> Result<PathBuf> {
    let home = dir.join("mlx-c-source");
    let manifest = home.join("Cargo.toml");
    write(&manifest, pins::SOURCE_MANIFEST)?;
    write(&home.join("Cargo.lock"), pins::SOURCE_LOCK)?;
    write(&home.join("lib.rs"), "")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--manifest-path",
        ])
        .arg(&manifest)
        .current_dir(&home)
        .output()
        .map_err(|e| Failure::io("run", Path::new(&cargo), &e))?;
    let failure = |what: &str| {
        Failure::command(what, &output)
            .sought(format!("package {} {} in cargo's registry", pins::SOURCE_PACKAGE, pins::MLX_C))
            .fix("see that cargo reaches its registry (`cargo fetch` fails in the same way), and try again")
            .fix("or set MLX_C_DIR to a folder that `cargo xtask build-mlx` has made")
    };
    if !output.status.success() {
        return Err(failure("cargo could not fetch the mlx-c sources"));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| failure("cargo metadata is not JSON"))?;
    let found = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| {
            package["name"] == pins::SOURCE_PACKAGE && package["version"] == pins::MLX_C
        })
        .and_then(|package| package["manifest_path"].as_str());
    let folder = found
        .and_then(|path| Path::new(path).parent())
        .map(|package| package.join(pins::SOURCE_FOLDER))
        .ok_or_else(|| failure("cargo metadata does not name the mlx-c sources"))?;
    if folder.join("mlx/c/mlx.h").is_file() {
        Ok(folder)
    } else {
        Err(failure("the package has no mlx-c sources"))
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|e| Failure::io("create", to, &e))?;
    for item in fs::read_dir(from).map_err(|e| Failure::io("read", from, &e))? {
        let item = item.map_err(|e| Failure::io("read", from, &e))?;
        let (from, to) = (item.path(), to.join(item.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            // The bytes are copied, not the file with its permissions: files of the registry may be read-only, and the
            // copy is patched.
            let bytes = fs::read(&from).map_err(|e| Failure::io("read", &from, &e))?;
            fs::write(&to, bytes).map_err(|e| Failure::io("write", &to, &e))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|e| Failure::io("create", parent, &e))?;
    }
    fs::write(path, text).map_err(|e| Failure::io("write", path, &e))
}

/// Applies one change. Two anchors give its place, so that a patch contains no more of the
/// original: in `file`, `insert` is inserted after the first `after` that follows the only
/// `within`.
pub fn patch(source: &Path, name: &str, text: &str) -> Result<()> {
    let broken = |why: String| {
        Failure::new(format!(
            "patch {name} does not apply to mlx-c {}",
            pins::MLX_C
        ))
        .found(why)
        .fix("the patches belong to one release of mlx-c: see mlx-c-sys/patches")
    };
    let field = |key: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        line.ok_or_else(|| broken(format!("it has no line \"{key}: …\"")))
    };
    let path = source.join(field("file")?);
    let (within, after, insert) = (field("within")?, field("after")?, field("insert")?);
    let original = fs::read_to_string(&path).map_err(|e| Failure::io("read", &path, &e))?;
    let places: Vec<usize> = original.match_indices(within).map(|(at, _)| at).collect();
    let [start] = places[..] else {
        return Err(broken(format!(
            "\"{within}\" is {} times in {}",
            places.len(),
            path.display()
        )));
    };
    let Some(at) = original[start..].find(after) else {
        return Err(broken(format!(
            "\"{after}\" does not follow \"{within}\" in {}",
            path.display()
        )));
    };
    let (before, behind) = original.split_at(start + at + after.len());
    write(&path, &format!("{before}\n{insert}{behind}"))
}
