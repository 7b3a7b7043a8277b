//! `ci`: what CI runs, in the order in which it is cheap to fail.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cargo;

mod digest;

/// A step is a command: its name, whether cargo or this program runs it, its arguments and settings.
struct Step {
    name: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy)]
enum Program {
    Cargo,
    Xtask,
}

const fn step(
    name: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    settings: &'static [(&'static str, &'static str)],
) -> Step {
    Step {
        name,
        program,
        arguments,
        settings,
    }
}

const CLIPPY: [&str; 6] = [
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "--deny",
    "warnings",
];

/// The tests run twice, the second time without the CPU kernels of this repository: the kernels are compared with MLX's
/// own operations, which other devices use.
const STEPS: [Step; 6] = [
    step("tidy", Program::Xtask, &["tidy"], &[]),
    step("format", Program::Cargo, &["fmt", "--all", "--check"], &[]),
    step("lints", Program::Cargo, &CLIPPY, &[]),
    step(
        "documentation",
        Program::Cargo,
        &["doc", "--workspace", "--no-deps"],
        &[("RUSTDOCFLAGS", "--deny warnings")],
    ),
    step("tests", Program::Xtask, &["test"], &[]),
    step(
        "tests without our CPU kernels",
        Program::Xtask,
        &["test"],
        &[("MLX_CPU_KERNELS", "off")],
    ),
];

/// Runs every step, also after one has failed. At the end it prints which steps failed and the relevant part of their
/// output.
pub fn run() -> Result<()> {
    let xtask = env::current_exe().context("cannot tell where this program is")?;
    let mut verdicts = Vec::new();
    for step in &STEPS {
        println!("==> {}", step.name);
        let start = Instant::now();
        let (passed, lines) = step.run(&xtask)?;
        verdicts.push((step.name, passed, start.elapsed(), lines));
    }
    for (name, passed, _, lines) in &verdicts {
        if !passed {
            println!("\n==> what failed in {name}");
            for line in digest::of(lines) {
                println!("{line}");
            }
        }
    }
    println!();
    for (name, passed, time, _) in &verdicts {
        let verdict = if *passed { "passed" } else { "FAILED" };
        println!("{verdict} {name} ({:.0} s)", time.as_secs_f64());
    }
    let failed: Vec<&str> = verdicts.iter().filter(|v| !v.1).map(|v| v.0).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

impl Step {
    /// Whether it succeeded, and its output, which is also printed as it comes.
    fn run(&self, xtask: &Path) -> Result<(bool, Vec<String>)> {
        let mut command = match self.program {
            Program::Cargo => cargo::command([]),
            Program::Xtask => Command::new(xtask),
        };
        // One pipe for both streams keeps errors in their place.
        let (output, input) = io::pipe()?;
        command
            .args(self.arguments)
            .envs(self.settings.iter().copied())
            .stdout(input.try_clone()?)
            .stderr(input);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot run the step {}", self.name))?;
        // It holds the write end of the pipe; without the drop reading would not end.
        drop(command);
        let mut lines = Vec::new();
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            println!("{line}");
            lines.push(line);
        }
        let status = child.wait()?;
        if !status.success() {
            lines.push(format!("error: {}: {status}", self.name));
        }
        Ok((status.success(), lines))
    }
}
