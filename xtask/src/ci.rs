//! `ci`: what CI runs, in the order in which it is cheap to fail.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

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

/// The libraries without what their features bring.
const PLAIN: [&str; 9] = [
    "clippy",
    "--workspace",
    "--exclude=xtask",
    "--lib",
    "--no-default-features",
    "--quiet",
    "--",
    "--deny",
    "warnings",
];

/// The crates that need no C compiler of the target, for a target other than this machine.
const fn check_for(target: &'static str) -> [&'static str; 7] {
    [
        "check",
        target,
        "--quiet",
        "--package=mlx-c-sys",
        "--package=mlx-core",
        "--package=mlx-nn",
        "--package=mlx-models",
    ]
}
const ON_ARM: [&str; 7] = check_for("--target=aarch64-unknown-linux-gnu");
const ON_MAC: [&str; 7] = check_for("--target=aarch64-apple-darwin");
const NO_NATIVE: &[(&str, &str)] = &[("MLX_NO_NATIVE", "1")];

/// The feature of mlx-infer that is off by default.
const TRACES: [&str; 7] = [
    "test",
    "--package=mlx-infer",
    "--features=otel",
    "--lib",
    "--test=serve",
    "--",
    "spans",
];

/// The lanes of a stage run at the same time, and the steps of a lane one after the other. The steps of cargo wait for
/// each other's locks, so they are one lane; the compiler of the CUDA kernels uses the time in which cargo waits for
/// the slowest crate. Tests whose results can depend on the CPU kernels run a second time with MLX's own operations,
/// which other devices use (`xtask/src/test/plain.rs` lists the others).
const STAGES: [&[&[Step]]; 4] = [
    &[&[step("tidy", Program::Xtask, &["tidy"], &[])]],
    &[&[step(
        "format",
        Program::Cargo,
        &["fmt", "--all", "--check"],
        &[],
    )]],
    &[
        &[
            step("lints", Program::Cargo, &CLIPPY, &[]),
            step(
                "documentation",
                Program::Cargo,
                &["doc", "--workspace", "--no-deps"],
                &[("RUSTDOCFLAGS", "--deny warnings")],
            ),
            step("no features", Program::Cargo, &PLAIN, &[]),
            step("Linux on Arm", Program::Cargo, &ON_ARM, NO_NATIVE),
            step("macOS", Program::Cargo, &ON_MAC, NO_NATIVE),
            step(
                "build of the tests",
                Program::Xtask,
                &["test", "--no-run"],
                &[],
            ),
            step("packed program", Program::Xtask, &["dist", "--debug"], &[]),
            step("traces", Program::Cargo, &TRACES, &[]),
            step("packages", Program::Xtask, &["packages"], &[]),
        ],
        &[step("CUDA kernels", Program::Xtask, &["kernels"], &[])],
    ],
    &[&[step("tests", Program::Xtask, &["test", "--twice"], &[])]],
];

/// The result of a step: whether it succeeded, its output, and its time.
type Outcome = (bool, Vec<String>, Duration);

/// Runs every step, also after one has failed. At the end it prints which steps failed and the relevant part of their
/// output.
pub fn run() -> Result<()> {
    let xtask = env::current_exe().context("cannot tell where this program is")?;
    let mut verdicts = Vec::new();
    for stage in STAGES {
        verdicts.extend(together(stage, &xtask)?);
    }
    for (name, (passed, lines, _)) in &verdicts {
        if !passed {
            println!("\n==> what failed in {name}");
            for line in digest::of(lines) {
                println!("{line}");
            }
        }
    }
    println!();
    for (name, (passed, _, time)) in &verdicts {
        let verdict = if *passed { "passed" } else { "FAILED" };
        println!("{verdict} {name} ({:.0} s)", time.as_secs_f64());
    }
    let failed = verdicts.iter().filter(|(_, outcome)| !outcome.0);
    let failed: Vec<&str> = failed.map(|(name, _)| *name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs the lanes of a stage. The output of the first is printed as it comes, that of the others when they have ended.
fn together(stage: &[&[Step]], xtask: &Path) -> Result<Vec<(&'static str, Outcome)>> {
    thread::scope(|scope| {
        let mut lanes = stage.iter();
        let first = lanes.next().context("a stage has a lane")?;
        let others: Vec<_> = lanes
            .map(|lane| {
                scope.spawn(|| {
                    let steps = lane.iter();
                    steps
                        .map(|step| Ok((step.name, step.run(xtask, &|_| ())?)))
                        .collect::<Result<Vec<_>>>()
                })
            })
            .collect();
        let mut outcomes = Vec::new();
        for step in *first {
            println!("==> {}", step.name);
            outcomes.push((step.name, step.run(xtask, &|line| println!("{line}"))?));
        }
        for lane in others {
            let ended = lane.join().map_err(|_| anyhow!("a step panicked"))??;
            for (name, (_, lines, _)) in &ended {
                println!("==> {name}");
                lines.iter().for_each(|line| println!("{line}"));
            }
            outcomes.extend(ended);
        }
        Ok(outcomes)
    })
}

impl Step {
    /// Runs it, and shows each line of its output as it comes.
    fn run(&self, xtask: &Path, show: &dyn Fn(&str)) -> Result<Outcome> {
        let start = Instant::now();
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
            show(&line);
            lines.push(line);
        }
        let status = child.wait()?;
        if !status.success() {
            lines.push(format!("error: {}: {status}", self.name));
        }
        Ok((status.success(), lines, start.elapsed()))
    }
}
