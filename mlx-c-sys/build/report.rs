//! Failures of the build. Each message says what was looked for, what was found, and what fixes it.

use std::fmt;
use std::path::Path;
use std::process::Output;

use super::pins;

/// A build that cannot go on.
#[derive(Debug)]
pub struct Failure {
    what: String,
    sought: Vec<String>,
    found: Vec<String>,
    fixes: Vec<String>,
}

/// The result of a step of the build.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// `what` completes "the native MLX build failed: …".
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            sought: Vec::new(),
            found: Vec::new(),
            fixes: Vec::new(),
        }
    }

    /// A failing file operation.
    pub fn io(what: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::new(format!("cannot {what} {}", path.display())).found(error.to_string())
    }

    /// The failure of a command. Its last lines of output become the `found` part.
    pub fn command(what: &str, output: &Output) -> Self {
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Self::new(what).found(format!(
            "{}, and its last lines:\n{}",
            output.status,
            last_lines(&text, 30)
        ))
    }

    /// Adds a place or thing that was looked for.
    pub fn sought(mut self, text: impl Into<String>) -> Self {
        self.sought.push(text.into());
        self
    }

    /// Adds what was found instead.
    pub fn found(mut self, text: impl Into<String>) -> Self {
        self.found.push(text.into());
        self
    }

    /// Adds one way to fix it.
    pub fn fix(mut self, text: impl Into<String>) -> Self {
        self.fixes.push(text.into());
        self
    }

    /// The ways to fix it.
    pub fn fixes(&self) -> &[String] {
        &self.fixes
    }

    /// The failure in one line.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the native MLX build failed: {}", self.what)?;
        for (title, lines) in [
            ("sought", &self.sought),
            ("found", &self.found),
            ("to fix it", &self.fixes),
        ] {
            for line in lines {
                writeln!(
                    f,
                    "  {title}: {}",
                    line.trim_end().replace('\n', "\n      ")
                )?;
            }
        }
        let host = super::host::triple();
        let target = std::env::var("TARGET").unwrap_or_else(|_| host.clone());
        write!(
            f,
            "  host {host}, target {target}, MLX {}, mlx-c {}",
            pins::MLX,
            pins::MLX_C
        )
    }
}

impl std::error::Error for Failure {}

/// The last `n` lines of `text` that are not blank.
pub fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}
