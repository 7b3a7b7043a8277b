//! Wheels, through pip, with hashes.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pins;
use super::report::{Failure, Result};
use super::store::Entry;

/// The Python to use: `PYTHON`, else `python3`.
pub fn python() -> OsString {
    std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into())
}

/// The output of `python -m pip --version`, or the reason why there is none.
pub fn version() -> Result<String> {
    let python = python();
    let failure = |found: String| {
        Failure::new("there is no Python with pip")
            .sought(format!("{} -m pip", python.display()))
            .found(found)
            .fix("install python3 and pip (on Debian or Ubuntu: apt-get install python3-pip)")
            .fix("or set PYTHON to a Python that has pip")
            .fix("or set MLX_C_DIR to a folder that `cargo xtask build-mlx` has made")
    };
    match Command::new(&python)
        .args(["-m", "pip", "--version"])
        .output()
    {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        Ok(output) => Err(failure(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
        Err(error) => Err(failure(error.to_string())),
    }
}

/// Unpacks the wheels of a requirement file into `dir`, once. `files` must exist afterwards.
pub fn unpack<const N: usize>(
    dir: PathBuf,
    what: &str,
    requirements: &str,
    files: [PathBuf; N],
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf> {
    let digest = pins::digest([requirements]);
    let entry = Entry::new(dir, [("requirements", digest.as_str())], files);
    entry.ensure(|partial| {
        say(&format!("downloading {what}"));
        install(partial, what, requirements, &[])
    })?;
    Ok(entry.dir)
}

/// `pip install --target` of exactly the files whose hashes `requirements` has.
pub fn install(dir: &Path, what: &str, requirements: &str, more: &[&str]) -> Result<()> {
    version()?;
    let file = dir.join("requirements.txt");
    fs::write(&file, requirements).map_err(|e| Failure::io("write", &file, &e))?;
    let output = Command::new(python())
        .args([
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--no-compile",
        ])
        .args([
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar=off",
            "--target",
        ])
        .arg(dir)
        .arg("-r")
        .arg(&file)
        .args(more)
        // These settings of a user would contradict --target.
        .env("PIP_USER", "0")
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        .env_remove("PIP_PREFIX")
        .env_remove("PIP_ROOT")
        .output()
        .map_err(|e| Failure::io("run", Path::new(&python()), &e))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let names: Vec<&str> = requirements
        .lines()
        .filter_map(|l| l.split_once("=="))
        .map(|(name, _)| name)
        .collect();
    let failure =
        Failure::command(&format!("pip could not fetch {what}"), &output).sought(names.join(", "));
    Err(if text.contains("DO NOT MATCH THE HASHES") {
        failure
            .fix("the download is not the file that was pinned: broken on the way, or not genuine; nothing of it is used")
            .fix("try again with `PIP_NO_CACHE_DIR=1`; if it stays so, look at the index or proxy that pip uses")
    } else if text.contains("No matching distribution") {
        failure
            .fix("there is no such wheel for this machine (Linux: glibc 2.35 or later on x86-64 or aarch64; macOS: 14 or later on arm64), or pip does not reach its index")
            .fix("set MLX_DIR to an MLX that is installed, or build it with MLX_FROM_SOURCE=1")
    } else {
        failure
            .fix("see that pip reaches its index (proxy, certificate), and try again")
            .fix("or set MLX_C_DIR to a folder that `cargo xtask build-mlx` has made")
    })
}
