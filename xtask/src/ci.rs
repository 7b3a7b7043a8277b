//! `ci`: what CI runs, in the order in which it is cheap to fail.

use std::time::Instant;

use anyhow::{Result, bail};

use crate::{cargo, test, tidy};

type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 6] = [
    ("tidy", tidy::run),
    ("format", || {
        cargo::run(&mut cargo::command(["fmt", "--all", "--check"]))
    }),
    ("lints", || {
        cargo::run(&mut cargo::command([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ]))
    }),
    ("documentation", || {
        let mut doc = cargo::command(["doc", "--workspace", "--no-deps"]);
        cargo::run(doc.env("RUSTDOCFLAGS", "--deny warnings"))
    }),
    ("tests", || test::run(&test::Arguments::default())),
    ("tests without our CPU kernels", test::run_plain),
];

/// Runs every step, also after one has failed, and says at the end which did.
pub fn run() -> Result<()> {
    let mut verdicts = Vec::new();
    for (name, step) in STEPS {
        eprintln!("==> {name}");
        let start = Instant::now();
        let result = step();
        let seconds = start.elapsed().as_secs_f64();
        if let Err(error) = &result {
            eprintln!("error: {error:#}");
        }
        verdicts.push((name, result.is_ok(), seconds));
    }
    for (name, passed, seconds) in &verdicts {
        eprintln!(
            "{} {name} ({seconds:.0} s)",
            if *passed { "passed" } else { "FAILED" }
        );
    }
    let failed: Vec<&str> = verdicts.iter().filter(|v| !v.1).map(|v| v.0).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
