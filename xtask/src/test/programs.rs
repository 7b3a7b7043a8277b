//! The programs that cargo makes of the tests.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// The part of a crate that a program tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unit tests of the library.
    Library,
    /// Unit tests of a command.
    Command,
    /// A file or folder of `tests/`.
    Tests,
}

/// A program with tests.
pub(super) struct Program {
    pub kind: Kind,
    /// The name of the library, the command, or the test file.
    pub name: String,
    /// The folder of the crate.
    pub folder: PathBuf,
    pub file: PathBuf,
}

/// Builds all tests of the workspace.
pub(super) fn build() -> Result<Vec<Program>> {
    let mut command = cargo::command(["test", "--workspace", "--no-run"]);
    command
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the tests do not compile: cargo: {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<Program> = messages.lines().filter_map(program).collect();
    if programs.is_empty() {
        bail!("cargo names no test that it has built");
    }
    Ok(programs)
}

/// The program that a message of cargo reports, if it is one with tests.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let kind = match message["target"]["kind"][0].as_str()? {
        "lib" | "proc-macro" => Kind::Library,
        "bin" => Kind::Command,
        "test" => Kind::Tests,
        _ => return None,
    };
    Some(Program {
        kind,
        name: message["target"]["name"].as_str()?.to_owned(),
        folder: manifest.parent()?.to_owned(),
        file,
    })
}

impl Program {
    /// The crate and the program, as cargo prints them: "mlx-core tests/linear".
    pub(super) fn title(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().display();
        match self.kind {
            Kind::Library => format!("{package} src/lib.rs"),
            Kind::Command => format!("{package} src/main.rs"),
            Kind::Tests => format!("{package} tests/{}", self.name),
        }
    }

    /// Runs as cargo runs it: in the folder of its crate.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command
            .current_dir(&self.folder)
            .env("CARGO", cargo::program());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, program};

    #[test]
    fn messages_of_cargo_name_the_programs_with_tests() {
        let message = |kind: &str, is_test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/mlx-core/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"linear"}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
            )
        };
        let found = program(&message("test", true, r#""/w/target/linear-1""#)).unwrap();
        assert_eq!(
            (found.kind, found.title().as_str()),
            (Kind::Tests, "mlx-core tests/linear")
        );
        assert_eq!(found.folder.to_str(), Some("/w/mlx-core"));
        let library = program(&message("lib", true, r#""/w/target/core-1""#)).unwrap();
        assert_eq!(library.title(), "mlx-core src/lib.rs");
        assert!(program(&message("bin", false, r#""/w/target/mlx-infer""#)).is_none());
        assert!(program(&message("lib", true, "null")).is_none());
        assert!(program("no JSON").is_none());
    }
}
