//! Runs cargo and finds its folders.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository: the one that this program was built in, or the current folder where the program was carried to another
/// machine.
pub fn repository() -> &'static Path {
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    built_in
        .filter(|folder| folder.join("Cargo.toml").exists())
        .unwrap_or(Path::new("."))
}

/// The cargo that runs this program.
pub fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A cargo command in the repository.
pub fn command<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(repository());
    // Variables of the run that started this program would pin the nested cargo to this package.
    for name in [
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_PATH",
        "CARGO_PKG_NAME",
        "CARGO_PKG_VERSION",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs a command whose failure is an error; its output is not captured.
pub fn run(command: &mut Command) -> Result<()> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .collect();
    let line = words.join(" ".as_ref()).to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {line}"))?;
    if !status.success() {
        bail!("{line}: {status}");
    }
    Ok(())
}

/// Runs a command of cargo that builds one executable, whose path is returned.
pub fn executable(command: &mut Command) -> Result<PathBuf> {
    command
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo: {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut executables = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executables
        .next_back()
        .context("cargo names no executable that it has built")
}

/// Cargo's build directory, in which build scripts work.
pub fn build_directory() -> Result<PathBuf> {
    // Cargo before 1.91 has one folder for both and does not name the build directory.
    folder(&metadata()?, &["build_directory", "target_directory"])
}

/// The same for a package whose metadata cargo has given.
pub fn build_directory_of(metadata: &serde_json::Value) -> Result<PathBuf> {
    folder(metadata, &["build_directory", "target_directory"])
}

/// The folder where finished programs are, by profile.
pub fn target_directory() -> Result<PathBuf> {
    folder(&metadata()?, &["target_directory"])
}

fn metadata() -> Result<serde_json::Value> {
    let output = command(["metadata", "--format-version=1", "--no-deps"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

/// The first of these names that cargo's metadata has a folder for.
fn folder(metadata: &serde_json::Value, names: &[&str]) -> Result<PathBuf> {
    names
        .iter()
        .find_map(|name| metadata[name].as_str())
        .map(PathBuf::from)
        .context("cargo metadata names no target directory")
}
