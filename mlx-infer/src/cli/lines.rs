//! Lines in, JSON lines out, and how far it is.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use mlx_infer::{Error, ErrorKind, console};
use serde_json::{Value, json};

use super::{Result, output};

/// The longest line that is read: a file that has no lines must not fill the memory.
const MAX_LINE: u64 = 64 << 20;

/// The lines of a file or of the standard input.
pub(super) struct Lines {
    reader: Box<dyn BufRead>,
    path: PathBuf,
    number: usize,
}

impl Lines {
    /// Opens a file; `-` is the standard input.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let reader: Box<dyn BufRead> = if path == Path::new("-") {
            Box::new(BufReader::new(std::io::stdin()))
        } else {
            Box::new(BufReader::new(
                File::open(path).map_err(|e| fault(path, e))?,
            ))
        };
        Ok(Self {
            reader,
            path: path.to_owned(),
            number: 0,
        })
    }

    /// How many lines a file has that can be read twice.
    pub(super) fn total(&self) -> Option<usize> {
        let file = File::open(&self.path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let (mut reader, mut total, mut last) = (BufReader::new(file), 0, b'\n');
        loop {
            let bytes = reader.fill_buf().ok()?;
            let Some(&end) = bytes.last() else {
                return Some(total + usize::from(last != b'\n'));
            };
            total += bytes.iter().filter(|&&byte| byte == b'\n').count();
            last = end;
            let n = bytes.len();
            reader.consume(n);
        }
    }

    /// The next line with its number, which begins at 1; what is wrong with it if it is no text.
    pub(super) fn next(&mut self) -> Result<Option<(usize, std::result::Result<String, String>)>> {
        let mut bytes = Vec::new();
        let read = std::io::Read::take(&mut self.reader, MAX_LINE).read_until(b'\n', &mut bytes);
        let n = read.map_err(|error| fault(&self.path, error))?;
        if n == 0 {
            return Ok(None);
        }
        if n as u64 == MAX_LINE {
            let error = std::io::Error::other(format!("line {} is too long", self.number + 1));
            return Err(fault(&self.path, error).into());
        }
        self.number += 1;
        while bytes
            .last()
            .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
        {
            bytes.pop();
        }
        let text = String::from_utf8(bytes).map_err(|_| "the line is not UTF-8".to_owned());
        Ok(Some((self.number, text)))
    }
}

fn fault(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot read {}", path.display())).with_source(error)
}

/// What is said about a line that failed.
pub(super) fn failed(line: usize, error: impl std::fmt::Display) -> Value {
    json!({"line": line, "error": error.to_string()})
}

/// Writes documents, counts them, and shows that on a terminal.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    done: usize,
    failed: usize,
}

impl Progress {
    /// Starts the clock; `total` says how many there will be, if that is known.
    pub(super) fn new(total: impl FnOnce() -> Option<usize>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| match total() {
            Some(total) => ProgressBar::new(total as u64).with_style(
                ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec} {eta}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            ),
            None => {
                let bar = ProgressBar::new_spinner().with_style(
                    ProgressStyle::with_template("{spinner} {pos} {per_sec}")
                        .unwrap_or_else(|_| ProgressStyle::default_spinner()),
                );
                bar.enable_steady_tick(Duration::from_millis(200));
                bar
            }
        });
        Self {
            bar,
            started: Instant::now(),
            done: 0,
            failed: 0,
        }
    }

    /// Writes the document of a line.
    pub(super) fn print(&mut self, document: &Value) -> Result {
        self.done += 1;
        self.failed += usize::from(document.get("error").is_some());
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
        output::print_json(document)
    }

    /// Since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Says what it took: `what` names the lines, `more` is said behind.
    pub(super) fn finish(self, what: &str, more: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.seconds();
        let rate = self.done as f64 / seconds.max(1e-9);
        console::note(&format!(
            "{} {what}, {} failed, {seconds:.2} s, {rate:.1} {what}/s{more}",
            self.done, self.failed
        ));
    }
}
