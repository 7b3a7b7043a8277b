//! What must be right before speed counts: the tests of the kernels, goldens of models in 16 bits, and rows that do not
//! depend on their batch.

use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::program;
use crate::bench::record::Section;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Passed,
    Failed,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
        }
    }
}

/// One check.
#[derive(Debug, PartialEq)]
pub struct Check {
    pub what: String,
    pub verdict: Verdict,
    /// Numbers.
    pub found: String,
}

/// The checks as a part of the record.
pub fn section(checks: &[Check]) -> Section {
    let mut text = "Correctness:\n\n| check | result | found |\n|---|---|---|\n".to_owned();
    for check in checks {
        text += &format!(
            "| {} | {} | {} |\n",
            check.what,
            check.verdict.name(),
            check.found
        );
    }
    let json = checks.iter().map(
        |check| json!({"what": check.what, "verdict": check.verdict.name(), "found": check.found}),
    );
    Section {
        name: "correctness",
        json: json.collect::<Value>(),
        text,
    }
}

/// The names of the checks that failed.
pub fn failed(checks: &[Check]) -> Vec<&str> {
    let failed = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Failed);
    failed.map(|check| check.what.as_str()).collect()
}

/// The setting with which rows are the same to the bit in prompts, too (docs/cuda.md).
pub const EXACT: (&str, &str) = ("MLX_CUDA_CUBLAS", "off");

/// A program of tests that runs beside other checks.
pub struct Tests(JoinHandle<Result<Check>>);

impl Tests {
    /// Starts the program, for at most `limit`.
    pub fn start(what: &'static str, mut command: Command, limit: Duration) -> Self {
        // What the tests print tells whether they were skipped.
        command.args(["--nocapture", "--test-threads=4"]);
        Self(thread::spawn(move || {
            let run = program::run(&mut command, limit)?;
            for line in &run.lines {
                eprintln!("  {line}");
            }
            Ok(judged(what, &run))
        }))
    }

    /// Waits for its result.
    pub fn end(self) -> Result<Check> {
        self.0
            .join()
            .map_err(|_| anyhow!("a thread that runs tests has panicked"))?
    }
}

fn judged(what: &str, run: &program::Run) -> Check {
    let result = run
        .lines
        .iter()
        .find_map(|line| line.strip_prefix("test result: "));
    let skipped = run.lines.iter().find(|line| line.contains("skipped: "));
    let (verdict, found) = match (result, skipped) {
        _ if run.timed_out => (Verdict::Failed, "its time was over".to_owned()),
        (_, Some(line)) => (Verdict::Failed, line.trim().to_owned()),
        (Some(result), None) => {
            let ran = !result.starts_with("ok. 0 passed");
            let verdict = match run.succeeded && ran {
                true => Verdict::Passed,
                false => Verdict::Failed,
            };
            let counts = result.split(';').take(2).collect::<Vec<_>>().join(",");
            // The last list of failures has the names alone.
            let list = run.lines.rsplit(|line| line == "failures:").next();
            let names = list.into_iter().flatten();
            let names = names.map_while(|line| line.strip_prefix("    "));
            let names: Vec<&str> = names.filter(|_| !run.succeeded).collect();
            (
                verdict,
                format!(
                    "{counts}{}{}",
                    if names.is_empty() { "" } else { ": " },
                    names.join(", ")
                ),
            )
        }
        (None, None) => (Verdict::Failed, "it ended without a result".to_owned()),
    };
    Check {
        what: what.to_owned(),
        verdict,
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(succeeded: bool, lines: &[&str]) -> program::Run {
        program::Run {
            succeeded,
            timed_out: false,
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
        }
    }

    #[test]
    fn tests_count_that_ran_and_passed() {
        let line = "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        let passed = judged("tests", &run(true, &["test a ... ok", line]));
        assert_eq!(passed.verdict, Verdict::Passed);
        assert_eq!(passed.found, "ok. 9 passed, 0 failed");
        let line = "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured";
        let lines = [
            "failures:",
            "",
            "failures:",
            "    layers::norms",
            "    products::rows",
            "",
            line,
        ];
        let failed = judged("tests", &run(false, &lines));
        assert_eq!(failed.verdict, Verdict::Failed);
        let found = "FAILED. 7 passed, 2 failed: layers::norms, products::rows";
        assert_eq!(failed.found, found);
    }

    #[test]
    fn tests_that_did_not_run_do_not_pass() {
        let line = "test result: ok. 9 passed; 0 failed";
        let skipped = judged("tests", &run(true, &["skipped: no GPU", line]));
        assert_eq!(
            (skipped.verdict, &*skipped.found),
            (Verdict::Failed, "skipped: no GPU")
        );
        let none = judged(
            "tests",
            &run(true, &["test result: ok. 0 passed; 0 failed"]),
        );
        assert_eq!(none.verdict, Verdict::Failed);
        assert_eq!(judged("tests", &run(true, &[])).verdict, Verdict::Failed);
        let late = program::Run {
            timed_out: true,
            ..run(true, &[line])
        };
        assert_eq!(judged("tests", &late).verdict, Verdict::Failed);
    }

    #[test]
    fn what_failed_is_named() {
        let check = |what: &str, verdict| Check {
            what: what.to_owned(),
            verdict,
            found: "3 of 64 rows differ".to_owned(),
        };
        let checks = [check("a", Verdict::Failed), check("b", Verdict::Passed)];
        assert_eq!(failed(&checks), ["a"]);
        let section = section(&checks);
        let line = "| a | FAILED | 3 of 64 rows differ |\n";
        assert!(section.text.contains(line), "{}", section.text);
        assert_eq!(section.json[1]["verdict"], "passed");
    }
}
