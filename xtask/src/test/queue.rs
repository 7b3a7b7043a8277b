//! Runs commands two at a time.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

/// Most tests compute on one thread, so two at a time use two cores. More at a time would disturb
/// the tests that measure time.
const AT_ONCE: usize = 2;

/// A command, and the title under which its output is printed.
pub(super) struct Job {
    pub title: String,
    pub command: Command,
}

/// The end of a job.
struct Ended {
    succeeded: bool,
    output: String,
    verdict: String,
    cpu: Duration,
}

/// Runs all jobs in this order, also after one has failed, and prints the output of each when it has ended. Returns the
/// CPU time of all. An error names those that failed.
pub(super) fn run(jobs: Vec<Job>) -> Result<Duration> {
    let waiting = Mutex::new(VecDeque::from(jobs));
    let cpu = Mutex::new(Duration::ZERO);
    let failed = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let next = lock(&waiting).pop_front();
            let Some(mut job) = next else {
                return Ok(());
            };
            let ended = job.run()?;
            *lock(&cpu) += ended.cpu;
            // The lock is held until the whole output is printed.
            let mut failed = lock(&failed);
            println!(
                "     Running {}\n{}{}",
                job.title, ended.output, ended.verdict
            );
            if !ended.succeeded {
                failed.push(job.title);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
    })?;
    let failed = lock(&failed);
    if !failed.is_empty() {
        bail!("tests failed: {}", failed.join(", "));
    }
    let total = *lock(&cpu);
    Ok(total)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Job {
    fn run(&mut self) -> Result<Ended> {
        let start = Instant::now();
        // One pipe for both streams keeps errors in their place.
        let (mut from, to) = io::pipe()?;
        self.command.stdout(to.try_clone()?).stderr(to);
        let mut child = self
            .command
            .spawn()
            .with_context(|| format!("cannot run {}", self.title))?;
        // The old command holds the write end of the pipe; without the replacement the reading
        // would not end.
        self.command = Command::new("");
        let mut output = Vec::new();
        from.read_to_end(&mut output)?;
        let used = child.wait4()?;
        let cpu = used.rusage.utime + used.rusage.stime;
        let times = format!(
            "{:.1} s, CPU {:.1} s",
            start.elapsed().as_secs_f64(),
            cpu.as_secs_f64()
        );
        let succeeded = used.status.success();
        let mut output = String::from_utf8_lossy(&output).into_owned();
        // The output of a program that a signal ends may stop within a line.
        if !output.is_empty() && !output.ends_with('\n') {
            output.push('\n');
        }
        Ok(Ended {
            succeeded,
            output,
            verdict: match succeeded {
                true => format!("{}: {times}", self.title),
                false => format!("error: {}: {} ({times})", self.title, used.status),
            },
            cpu,
        })
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::{Job, run};

    fn job(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            title: script.to_owned(),
            command,
        }
    }

    #[test]
    fn every_job_runs_and_the_error_names_those_that_failed() {
        let folder = tempfile::tempdir().unwrap();
        let last = folder.path().join("last");
        let touch = format!("touch {}", last.display());
        let jobs = ["exit 3", "true", "kill -9 $$", &touch].map(job);
        let error = run(jobs.into()).unwrap_err().to_string();
        assert!(
            error.contains("exit 3") && error.contains("kill -9 $$"),
            "{error}"
        );
        assert!(!error.contains("true"), "{error}");
        assert!(last.exists());
        assert!(run(vec![job("true")]).is_ok());
    }

    #[test]
    fn two_jobs_run_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        // Each job waits for the other.
        let wait = |own: &str, other: &str| {
            format!(
                "touch {at}/{own}; for i in $(seq 500); do [ -e {at}/{other} ] && exit 0; sleep 0.01; done; exit 1"
            )
        };
        run(vec![job(&wait("a", "b")), job(&wait("b", "a"))]).unwrap();
    }
}
