//! Programs that `bench cuda` runs to their end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::{Context, Result};

/// The outcome of a program.
pub struct Run {
    pub succeeded: bool,
    /// Whether it was ended at its time limit.
    pub timed_out: bool,
    /// Everything that it printed.
    pub lines: Vec<String>,
}

/// Runs a program with stdout and stderr joined, for at most `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Run> {
    let (output, input) = io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input);
    let started = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    // The command holds the write end of the pipe; without this reading would not end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let reader = thread::spawn(move || {
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect()
    });
    let mut timed_out = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            timed_out = true;
            child.kill()?;
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(20));
    };
    Ok(Run {
        succeeded: status.success(),
        timed_out,
        lines: reader.join().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_are_read_and_a_failure_is_told() {
        let run = run(
            &mut shell("echo a; echo b >&2; exit 3"),
            Duration::from_secs(60),
        )
        .unwrap();
        assert_eq!(run.lines, ["a", "b"]);
        assert!(!run.succeeded && !run.timed_out);
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let run = run(
            &mut shell("echo a; exec sleep 60"),
            Duration::from_millis(200),
        )
        .unwrap();
        assert_eq!(run.lines, ["a"]);
        assert!(run.timed_out);
    }
}
