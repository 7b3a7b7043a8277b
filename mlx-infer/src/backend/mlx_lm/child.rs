//! The child process: its pipes, the last lines of its stderr, its end.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::protocol::BridgeAnswer;
use crate::error::{Error, ErrorKind, Result};

/// The program that the child runs.
const BRIDGE: &str = include_str!("bridge.py");
/// The longest line that it may send.
const MAX_LINE: u64 = 1 << 20;
/// The number of lines of its stderr that are kept and quoted in errors.
const KEPT_LINES: usize = 20;
const QUOTED_LINES: usize = 3;
/// The longest line of its stderr, in bytes; the rest of a longer one is left out.
const MAX_ERROR_LINE: usize = 400;
/// MLX's switch for CUDA graphs. This project's CUDA library turns them off in this process as it
/// is loaded; the child's MLX must not inherit that.
const CUDA_GRAPHS: &str = "MLX_USE_CUDA_GRAPHS";
/// How long to wait for the child's exit status and the end of its stderr once it has closed
/// stdout.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// An event from the thread that reads stdout.
enum Received {
    Answer(Box<BridgeAnswer>),
    /// Output that is not an answer.
    Fault(String),
    End,
}

/// A running bridge. Dropping it kills it.
pub(super) struct Child {
    process: std::process::Child,
    /// Lines for its stdin. A thread writes them, so that a child that does not read does not block the caller.
    commands: Sender<Vec<u8>>,
    answers: Receiver<Received>,
    errors: Arc<Mutex<VecDeque<String>>>,
    error_reader: JoinHandle<()>,
}

impl Child {
    /// # Errors
    /// The program cannot be run.
    pub(super) fn start(python: &Path) -> Result<Self> {
        let mut command = Command::new(python);
        command
            .arg("-c")
            .arg(BRIDGE)
            .env("HF_HUB_OFFLINE", "1")
            .env("PYTHONIOENCODING", "utf-8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Linux keeps the environment that this process was started with, without later changes.
        let own = std::fs::read("/proc/self/environ");
        if own.is_ok_and(|own| !has_variable(&own, CUDA_GRAPHS)) {
            command.env_remove(CUDA_GRAPHS);
        }
        // Ctrl-C in a terminal then reaches this process only, not the child.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = command.spawn().map_err(|error| {
            let message = format!("cannot run {}: {error}", python.display());
            Error::new(ErrorKind::Io, message).with_source(error)
        })?;
        let (mut stdin, stdout, stderr) = (
            process.stdin.take(),
            process.stdout.take(),
            process.stderr.take(),
        );
        let (commands, lines) = channel::<Vec<u8>>();
        let (sender, answers) = channel();
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let tail = errors.clone();
        thread::spawn(move || {
            // A child that has ended reads no more commands.
            while let (Some(pipe), Ok(line)) = (&mut stdin, lines.recv())
                && pipe.write_all(&line).and_then(|()| pipe.flush()).is_ok()
            {}
        });
        thread::spawn(move || read_answers(stdout, &sender));
        let error_reader = thread::spawn(move || read_errors(stderr, &tail));
        Ok(Self {
            process,
            commands,
            answers,
            errors,
            error_reader,
        })
    }

    /// Sends a command. [`receive`](Self::receive) notices if the child has ended.
    pub(super) fn send(&self, command: &impl Serialize) {
        let mut line = serde_json::to_vec(command).expect("commands are plain data");
        line.push(b'\n');
        let _ = self.commands.send(line);
    }

    /// The next answer within this time.
    ///
    /// # Errors
    /// The child has ended, or has sent something that is not an answer.
    pub(super) fn receive(&mut self, wait: Duration) -> Result<Option<BridgeAnswer>> {
        match self.answers.recv_timeout(wait) {
            Ok(Received::Answer(answer)) => Ok(Some(*answer)),
            Ok(Received::Fault(fault)) => Err(self.failed(&fault)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Ok(Received::End) | Err(RecvTimeoutError::Disconnected) => {
                let message = match self.exit_status() {
                    Some(status) => format!("the process has ended ({status})"),
                    None => "the process has closed its output".to_owned(),
                };
                Err(self.failed(&message))
            }
        }
    }

    /// An error of the child, with the last lines of its stderr.
    pub(super) fn failed(&self, what: &str) -> Error {
        let lines = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let last = lines.len().saturating_sub(QUOTED_LINES);
        let quoted: Vec<&str> = lines.range(last..).map(String::as_str).collect();
        let quoted = match quoted.is_empty() {
            true => String::new(),
            false => format!("; its last words: {}", quoted.join(" | ")),
        };
        Error::new(ErrorKind::Compute, format!("mlx_lm: {what}{quoted}"))
    }

    /// Its exit status; `None` if it is still running. Waits a moment for it, and for the rest of its stderr.
    fn exit_status(&mut self) -> Option<ExitStatus> {
        let began = Instant::now();
        let mut status = None;
        while began.elapsed() < LAST_WORDS {
            status = status.or_else(|| self.process.try_wait().ok().flatten());
            if status.is_some() && self.error_reader.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The child has nothing to finish. Waiting removes it from the system's list of processes.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether an environment, entries that each end with a zero byte, has a variable of this name.
fn has_variable(environment: &[u8], name: &str) -> bool {
    let mut entries = environment.split(|&byte| byte == 0);
    entries.any(|entry| {
        entry
            .strip_prefix(name.as_bytes())
            .is_some_and(|rest| rest.starts_with(b"="))
    })
}

fn read_answers(stdout: Option<ChildStdout>, sender: &Sender<Received>) {
    let Some(stdout) = stdout else { return };
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let received = match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Err(_) | Ok(0) => Received::End,
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 == MAX_LINE => {
                Received::Fault(format!(
                    "a line of its output has more than {MAX_LINE} bytes"
                ))
            }
            Ok(_) => match serde_json::from_slice(&line) {
                Ok(answer) => Received::Answer(Box::new(answer)),
                Err(error) => {
                    let text = String::from_utf8_lossy(&line);
                    let shown: String = text.trim_end().chars().take(80).collect();
                    Received::Fault(format!(
                        "its output has a line that is no answer ({error}): {shown:?}"
                    ))
                }
            },
        };
        let is_last = !matches!(received, Received::Answer(_));
        if sender.send(received).is_err() || is_last {
            return;
        }
    }
}

fn read_errors(stderr: Option<ChildStderr>, tail: &Mutex<VecDeque<String>>) {
    let Some(stderr) = stderr else { return };
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    // Long lines are read in parts.
    while let Ok(1..) = reader.by_ref().take(1 << 16).read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        line.clear();
        if text.is_empty() {
            continue;
        }
        let cut: String = text.chars().take(MAX_ERROR_LINE).collect();
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == KEPT_LINES {
            tail.pop_front();
        }
        tail.push_back(cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_by_their_whole_names() {
        let environment = b"PATH=/bin\0MLX_USE_CUDA_GRAPHS_2=1\0X=MLX_USE_CUDA_GRAPHS=0\0";
        assert!(has_variable(environment, "PATH"));
        assert!(!has_variable(environment, CUDA_GRAPHS));
        assert!(!has_variable(b"", CUDA_GRAPHS));
        assert!(has_variable(b"A=1\0MLX_USE_CUDA_GRAPHS=\0", CUDA_GRAPHS));
    }
}
