//! Runs a packed program in a root folder that has only the C and C++ libraries of the system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::formats::{all_files, copy_all, fresh};

/// What the program is asked, and what the built-in model answers.
pub const QUESTION: (&[&str], &str) = (&["generate", "--prompt", "47 + 38 ="], " 85\n");

/// The libraries that a program may expect of a system.
const OF_SYSTEM: [&str; 8] = [
    "ld-linux",
    "libc.",
    "libm.",
    "libdl.",
    "libpthread.",
    "librt.",
    "libgcc_s.",
    "libstdc++.",
];

/// Runs the program `place` of the folder `packed` in a root of its own, made in `to`, and compares
/// what it prints. Returns `false`, and says so, where a process cannot have such a root.
pub fn tried(packed: &Path, place: &str, to: &Path, question: (&[&str], &str)) -> Result<bool> {
    let allowed = Command::new("unshare")
        .args(["--map-root-user", "true"])
        .output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("left out: this machine gives no process a root of its own");
        return Ok(false);
    }
    let root = fresh(&to.join("bare"))?;
    copy_all(packed, &root.join("packed"))?;
    let programs = all_files(packed)?;
    for library in programs
        .iter()
        .map(|file| of_system(file))
        .collect::<Result<Vec<_>>>()?
        .concat()
    {
        let name = library.file_name().context("a library has a name")?;
        // The loader is named by its whole path.
        for to in [
            root.join("lib64").join(name),
            root.join(library.strip_prefix("/")?),
        ] {
            super::copy(&library, &to)?;
        }
    }
    let (arguments, expected) = question;
    let output = Command::new("unshare")
        .args(["--map-root-user", "--root"])
        .arg(&root)
        .arg(Path::new("/packed").join(place))
        .args(arguments)
        .env_clear()
        .env("LD_LIBRARY_PATH", "/lib64")
        .output()
        .context("cannot run unshare")?;
    fs::remove_dir_all(&root)?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || printed != expected {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{place} prints {printed:?} in a bare root, expected {expected:?}: {}",
            errors.trim()
        );
    }
    Ok(true)
}

/// The libraries of the system that a program or a library needs.
fn of_system(file: &Path) -> Result<Vec<PathBuf>> {
    let bytes = fs::read(file)?;
    if !bytes.starts_with(b"\x7fELF") {
        return Ok(Vec::new());
    }
    let output = Command::new("ldd")
        .arg(file)
        .output()
        .context("cannot run ldd")?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let paths = listed.lines().filter_map(|line| {
        let path = line.split("=> ").last()?.trim().split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    let is_wanted = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| OF_SYSTEM.iter().any(|start| name.starts_with(start)))
    };
    Ok(paths.filter(is_wanted).collect())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_with_the_libraries_of_the_system_only() {
        let work = tempfile::tempdir().unwrap();
        let packed = work.path().join("packed");
        fs::create_dir_all(packed.join("bin")).unwrap();
        fs::copy("/usr/bin/env", packed.join("bin/said")).unwrap();
        let run = |arguments: &[&str], expected: &str| {
            tried(&packed, "bin/said", work.path(), (arguments, expected))
        };
        match run(&[], "LD_LIBRARY_PATH=/lib64\n") {
            Ok(false) => return,
            tried => assert!(tried.unwrap()),
        }
        let error = run(&[], "something else").unwrap_err().to_string();
        assert!(
            error.contains("LD_LIBRARY_PATH") && error.contains("something else"),
            "{error}"
        );
        // There is no shell, and nothing else, in the root.
        let error = run(&["/bin/sh", "-c", "true"], "").unwrap_err().to_string();
        assert!(error.contains("/bin/sh"), "{error}");
    }
}
