//! Python environments below the build folder, with the packages that a requirements file pins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;

/// Makes an empty folder and removes what was there.
pub fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// The Python of the environment `work/venv` with the packages of `requirements`. The environment
/// is made if there is none, or if it has other pins.
pub fn environment(work: &Path, requirements: &Path) -> Result<PathBuf> {
    let pins = fs::read(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let folder = work.join("venv");
    let python = folder.join("bin").join("python");
    // This file is written last: an interrupted installation leaves an environment without it.
    let stamp = folder.join("installed-requirements.txt");
    if fs::read(&stamp).is_ok_and(|installed| installed == pins) {
        return Ok(python);
    }
    fresh(&folder)?;
    cargo::run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    cargo::run(
        Command::new(&python)
            .args(["-m", "pip", "install", "--requirement"])
            .arg(requirements),
    )?;
    fs::write(&stamp, pins).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

/// A Python that does not use the network and writes no bytecode into the repository.
pub fn command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HF_HUB_OFFLINE", "1");
    command
}
