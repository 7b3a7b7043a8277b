//! The standard streams of both commands: results on stdout, notes and errors on stderr.
//!
//! Everything that `mlx-infer` and `mlx-train` print goes through this module; clippy denies `println!`
//! and `eprintln!` in both crates. Three rules follow from it:
//!
//! - A result that cannot be written is an error and ends the command with exit status 1.
//! - A reader that closes stdout (`| head`) is an ordinary end: the error has the kind [`ErrorKind::OutputClosed`],
//!   which ends a command with exit status 0, without a message.
//! - A note that cannot be written does not stop the command. At its end the exit status is 1; a closed stderr does not
//!   count.
//!
//! Each text is written immediately, directly to the file descriptor: the standard library's `stdout` would report
//! success for a descriptor that is open only for reading.

use std::error::Error as _;
use std::fs::File;
#[cfg(feature = "cli")]
use std::io::IsTerminal;
use std::io::{self, ErrorKind as IoErrorKind, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// Whether a note could not be written.
static LOST_NOTE: AtomicBool = AtomicBool::new(false);

/// Whether results and notes are left out, because another process writes the same.
static MUTED: AtomicBool = AtomicBool::new(false);

/// Leaves out results, notes and warnings from now on: another rank of the same model writes them. Errors are written.
pub fn mute() {
    MUTED.store(true, Ordering::Relaxed);
}

/// Writes text to stdout.
///
/// # Errors
/// [`ErrorKind::OutputClosed`] if the reader is gone, otherwise [`ErrorKind::Io`].
pub fn print(text: &str) -> Result<()> {
    if MUTED.load(Ordering::Relaxed) {
        return Ok(());
    }
    write_all(io::stdout(), text).map_err(|error| {
        let kind = match error.kind() {
            IoErrorKind::BrokenPipe => ErrorKind::OutputClosed,
            _ => ErrorKind::Io,
        };
        Error::new(
            kind,
            format!("cannot write to the standard output: {error}"),
        )
        .with_source(error)
    })
}

/// Whether notes are JSON objects.
static JSON_LINES: AtomicBool = AtomicBool::new(false);

/// Makes all notes, warnings and errors from now on JSON objects, one a line, with `time` (RFC 3339),
/// `level` (`info`, `warn` or `error`) and `message`.
pub fn use_json_lines() {
    JSON_LINES.store(true, Ordering::Relaxed);
}

/// Writes a line to stderr.
pub fn note(line: &str) {
    write_note("info", "", line);
}

/// Writes fields as a JSON object to stderr, after its `time` and `level`.
pub fn record(fields: serde_json::Map<String, serde_json::Value>) {
    prompt(&format!(
        "{}\n",
        serde_json::Value::from(timed("info", fields))
    ));
}

/// Writes a note of a level. As plain text it begins with `prefix`.
fn write_note(level: &str, prefix: &str, line: &str) {
    if MUTED.load(Ordering::Relaxed) && level != "error" {
        return;
    }
    if !JSON_LINES.load(Ordering::Relaxed) {
        return prompt(&format!("{prefix}{line}\n"));
    }
    let message = serde_json::Map::from_iter([("message".to_owned(), line.trim_end().into())]);
    prompt(&format!(
        "{}\n",
        serde_json::Value::from(timed(level, message))
    ));
}

/// The fields after the time and the level.
fn timed(
    level: &str,
    fields: serde_json::Map<String, serde_json::Value>,
) -> serde_json::Map<String, serde_json::Value> {
    let mut timed = serde_json::Map::new();
    #[cfg(feature = "clock")]
    timed.insert("time".to_owned(), jiff::Timestamp::now().to_string().into());
    timed.insert("level".to_owned(), level.into());
    timed.extend(fields);
    timed
}

/// Writes text without a line break to stderr.
pub fn prompt(text: &str) {
    if let Err(error) = write_all(io::stderr(), text)
        && error.kind() != IoErrorKind::BrokenPipe
    {
        LOST_NOTE.store(true, Ordering::Relaxed);
    }
}

/// Writes the warnings of all crates (`tracing`) to stderr, a line each. For a command's `main`. Needs the feature `cli`.
#[cfg(feature = "cli")]
pub fn show_warnings() {
    let lines = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_level(false)
        .with_writer(|| Warnings);
    // If the program has installed a subscriber, that one stays.
    let _ = lines.try_init();
}

/// A writer for lines of `tracing` to stderr, one write for each line.
#[cfg(feature = "cli")]
struct Warnings;

#[cfg(feature = "cli")]
impl Write for Warnings {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        write_note("warn", "warning: ", text.trim_end_matches('\n'));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The exit status of a command that succeeded or failed.
pub fn end(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => status(0),
        Err(error) if error.kind() == ErrorKind::OutputClosed => status(0),
        Err(error) => {
            report(&error);
            status(1)
        }
    }
}

/// The exit status `code`, but 1 instead of 0 if a note could not be written.
pub fn status(code: u8) -> ExitCode {
    let lost = LOST_NOTE.load(Ordering::Relaxed);
    ExitCode::from(if lost { code.max(1) } else { code })
}

/// Ends a command whose command line is wrong (exit status 2, on stderr), or asks for help or the version (on stdout).
/// Terminals get colours, unless `NO_COLOR` is set. Needs the feature `cli`.
#[cfg(feature = "cli")]
pub fn usage(error: &clap::Error) -> ExitCode {
    let is_terminal = match error.use_stderr() {
        true => io::stderr().is_terminal(),
        false => io::stdout().is_terminal(),
    };
    let text = error.render();
    let text = match is_terminal && std::env::var_os("NO_COLOR").is_none() {
        true => text.ansi().to_string(),
        false => text.to_string(),
    };
    if error.use_stderr() {
        match JSON_LINES.load(Ordering::Relaxed) {
            true => write_note("error", "", text.trim_start_matches("error: ")),
            false => prompt(&text),
        }
        return status(2);
    }
    end(print(&text))
}

/// Writes an error once, with the causes that its text does not contain.
fn report(error: &Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let shown = error.to_string();
        if !text.contains(&shown) {
            text.push_str(": ");
            text.push_str(&shown);
        }
        cause = error.source();
    }
    write_note("error", "error: ", &text);
}

#[cfg(unix)]
fn write_all(stream: impl std::os::fd::AsFd, text: &str) -> io::Result<()> {
    File::from(stream.as_fd().try_clone_to_owned()?).write_all(text.as_bytes())
}

#[cfg(windows)]
fn write_all(stream: impl std::os::windows::io::AsHandle, text: &str) -> io::Result<()> {
    File::from(stream.as_handle().try_clone_to_owned()?).write_all(text.as_bytes())
}
