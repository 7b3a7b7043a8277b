//! Runs one side once, in a new process.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use wait4::Wait4;

use crate::python;

/// The tokens, times and memory of one run.
pub struct Run {
    /// The tokens that it generated; empty if only the time is measured.
    pub tokens: Vec<u32>,
    /// From the start of the process to its end, in seconds.
    pub process_s: f64,
    /// Most memory that the process had, in bytes.
    pub peak_rss: u64,
    /// Times by the side's own clocks, in seconds, and MLX's counts of memory, in bytes.
    pub timings: Value,
    /// Versions of mlx-lm's side.
    pub versions: Option<Value>,
}

/// The two sides that are compared.
pub struct Sides {
    binary: PathBuf,
    python: PathBuf,
    script: PathBuf,
}

/// The prompt of both sides when a whole process is measured.
const PROMPT: &str = "The red fox runs.";

impl Sides {
    /// The sides: this project's program, and a Python with mlx-lm and the script for it.
    pub fn new(binary: PathBuf, python: PathBuf, script: PathBuf) -> Self {
        Self {
            binary,
            python,
            script,
        }
    }

    /// A greedy generation of this program.
    pub fn ours(&self, model: &Path, ids: &[u32], max_tokens: usize) -> Result<Run> {
        reported(
            Command::new(&self.binary)
                .args(["generate", "--json", "--ignore-eos", "--model"])
                .arg(model)
                .args(["--tokens", &list(ids)])
                .args(["--max-tokens", &max_tokens.to_string()]),
        )
    }

    /// A run of mlx-lm with the same prompt.
    pub fn peer(&self, model: &Path, ids: &[u32], max_tokens: usize) -> Result<Run> {
        reported(
            python::command(&self.python)
                .arg(&self.script)
                .arg(model)
                .args([list(ids), max_tokens.to_string()]),
        )
    }

    /// A run of this project's command line that generates one token.
    pub fn our_start(&self, model: &Path) -> Result<Run> {
        let mut command = Command::new(&self.binary);
        command
            .args(["generate", "--prompt", PROMPT, "--max-tokens", "1"])
            .arg("--model")
            .arg(model);
        measured(&mut command).map(|(run, _)| run)
    }

    /// A run of mlx-lm's command line that generates one token.
    pub fn peer_start(&self, model: &Path) -> Result<Run> {
        let mut command = python::command(&self.python);
        command
            .args(["-m", "mlx_lm", "generate", "--ignore-chat-template"])
            .args([
                "--prompt",
                PROMPT,
                "--max-tokens",
                "1",
                "--verbose",
                "False",
            ])
            .arg("--model")
            .arg(model);
        measured(&mut command).map(|(run, _)| run)
    }
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Runs a side that reports its times and tokens in JSON.
fn reported(command: &mut Command) -> Result<Run> {
    let (mut run, output) = measured(command)?;
    let mut report: Value = serde_json::from_str(&output)
        .with_context(|| format!("{:?} printed no JSON: {output}", command.get_program()))?;
    run.tokens = serde_json::from_value(report["tokens"].take()).context("tokens of a report")?;
    run.timings = report["timings"].take();
    run.versions = report.get_mut("versions").map(Value::take);
    Ok(run)
}

/// Runs a command whose failure is an error, and returns its output.
pub fn measured(command: &mut Command) -> Result<(Run, String)> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {:?}", command.get_program()))?;
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut output)?;
    }
    let ended = child.wait4().context("cannot wait for a run")?;
    let process_s = started.elapsed().as_secs_f64();
    if !ended.status.success() {
        bail!("{command:?}: {}", ended.status);
    }
    let run = Run {
        tokens: Vec::new(),
        process_s,
        peak_rss: ended.rusage.maxrss,
        timings: Value::Null,
        versions: None,
    };
    Ok((run, output))
}
