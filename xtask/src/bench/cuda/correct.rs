//! Checks before speed is measured: the tests of the kernels, goldens of models in 16 bits, and
//! rows that must not depend on their batch.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::program;
use crate::bench::record::Section;

/// The outcome of a check.
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
    /// The measured numbers.
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

/// The setting with which products of all sizes give rows that are the same to the bit on every GPU (docs/design/cuda.md).
pub const EXACT: (&str, &str) = ("MLX_CUDA_CUBLAS", "off");

/// A test program that runs next to other checks: one process for each of its modules.
pub struct Tests(JoinHandle<Result<Check>>);

impl Tests {
    /// Starts the program, for at most `limit`.
    pub fn start(
        what: &'static str,
        program: PathBuf,
        setting: Option<(&'static str, &'static str)>,
        limit: Duration,
    ) -> Self {
        Self(thread::spawn(move || {
            let mut list = Command::new(&program);
            let list = program::run(list.args(["--list", "--format=terse"]), limit)?;
            let runs: Vec<_> = modules_of(&list.lines)
                .into_iter()
                .map(|module| {
                    let mut command = Command::new(&program);
                    // The output of the tests says whether they were skipped.
                    command.args([&*module, "--nocapture", "--test-threads=4"]);
                    command.envs(setting);
                    let run = thread::spawn(move || program::run(&mut command, limit));
                    (module, run)
                })
                .collect();
            let mut found = Vec::new();
            for (module, run) in runs {
                let run = run.join().map_err(|_| panicked())??;
                for line in &run.lines {
                    eprintln!("  {line}");
                }
                found.push(judged(&module, &run));
            }
            Ok(joined(what, &found))
        }))
    }

    /// Waits for its result.
    pub fn end(self) -> Result<Check> {
        self.0.join().map_err(|_| panicked())?
    }
}

fn panicked() -> anyhow::Error {
    anyhow!("a thread that runs tests has panicked")
}

/// The modules in a list of tests, each followed by `::`, or the names of tests without a module.
fn modules_of(list: &[String]) -> BTreeSet<String> {
    let tests = list.iter().filter_map(|line| line.strip_suffix(": test"));
    let module = |name: &str| match name.split_once("::") {
        Some((module, _)) => format!("{module}::"),
        None => name.to_owned(),
    };
    tests.map(module).collect()
}

/// The result of one process of tests.
struct Judged {
    /// The number of tests that passed, if all did.
    passed: Option<usize>,
    /// The names of failed tests, or the reason why there is no result.
    failed: String,
}

fn judged(module: &str, run: &program::Run) -> Judged {
    let result = run.lines.iter().find_map(|line| {
        let counts = line.strip_prefix("test result: ok. ")?;
        counts.split_once(' ')?.0.parse().ok()
    });
    let skipped = run.lines.iter().find(|line| line.contains("skipped: "));
    // The last list of failures has only the names.
    let list = run.lines.rsplit(|line| line == "failures:").next();
    let names = list.into_iter().flatten();
    let names = names.map_while(|line| line.strip_prefix("    "));
    let names = names.collect::<Vec<_>>().join(", ");
    let failed = match skipped {
        _ if run.timed_out => format!("{module} its time was over"),
        Some(line) => line.trim().to_owned(),
        None if !names.is_empty() => names,
        None if result == Some(0) => format!("{module} no test ran"),
        None => format!("{module} ended without a result"),
    };
    let is_good = run.succeeded && !run.timed_out && skipped.is_none();
    Judged {
        passed: result.filter(|&passed| is_good && passed > 0),
        failed,
    }
}

/// The result of all processes of a program.
fn joined(what: &str, runs: &[Judged]) -> Check {
    let passed: usize = runs.iter().filter_map(|run| run.passed).sum();
    let failed = runs.iter().filter(|run| run.passed.is_none());
    let failed: Vec<&str> = failed.map(|run| run.failed.as_str()).collect();
    let (verdict, found) = match &failed[..] {
        [] if passed > 0 => (Verdict::Passed, format!("{passed} tests")),
        [] => (Verdict::Failed, "the program has no tests".to_owned()),
        _ => (Verdict::Failed, failed.join("; ")),
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
        let passed = judged("layers::", &run(true, &["test a ... ok", line]));
        assert_eq!(passed.passed, Some(9));
        let line = "test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured";
        let lines = [
            "failures:",
            "",
            "failures:",
            "    layers::norms",
            "    layers::rows",
            "",
            line,
        ];
        let failed = judged("layers::", &run(false, &lines));
        let names = "layers::norms, layers::rows";
        assert_eq!((failed.passed, &*failed.failed), (None, names));
        let all = joined("tests", &[passed, failed]);
        assert_eq!((all.verdict, &*all.found), (Verdict::Failed, names));
    }

    #[test]
    fn tests_that_did_not_run_do_not_pass() {
        let line = "test result: ok. 9 passed; 0 failed";
        let late = program::Run {
            timed_out: true,
            ..run(true, &[line])
        };
        for (run, why) in [
            (run(true, &["skipped: no GPU", line]), "skipped: no GPU"),
            (
                run(true, &["test result: ok. 0 passed; 0 failed"]),
                "a:: no test ran",
            ),
            (run(true, &[]), "a:: ended without a result"),
            (run(false, &[line]), "a:: ended without a result"),
            (late, "a:: its time was over"),
        ] {
            let found = judged("a::", &run);
            assert_eq!((found.passed, &*found.failed), (None, why));
        }
        assert_eq!(joined("tests", &[]).verdict, Verdict::Failed);
    }

    #[test]
    fn each_module_has_a_process() {
        let list = [
            "a::b: test",
            "a::c::d: test",
            "e: test",
            "",
            "3 tests, 0 benchmarks",
        ];
        let list = list.map(str::to_owned);
        assert!(modules_of(&list).iter().eq(["a::", "e"]));
        let of = |passed| Judged {
            passed: Some(passed),
            failed: String::new(),
        };
        let all = joined("tests", &[of(3), of(4)]);
        assert_eq!((all.verdict, &*all.found), (Verdict::Passed, "7 tests"));
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
