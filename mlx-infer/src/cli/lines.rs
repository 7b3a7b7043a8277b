//! Lines in and JSON documents out: limits of the lines in progress, and the progress of the command.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use mlx_infer::console;
use serde_json::{Value, json};

use super::{Result, output};

/// Most lines that are read before their documents are written.
pub(super) const MAX_LINES: usize = 4096;
/// When this many bytes of such lines were read, no further line is read.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// How long to wait for a line before checking for Ctrl-C.
pub(super) const WAIT: Duration = Duration::from_millis(50);

/// The document of a line that failed.
pub(super) fn failed(line: usize, error: impl std::fmt::Display) -> Value {
    json!({"line": line, "error": error.to_string()})
}

/// Writes documents, counts them, and shows the counts on a terminal.
pub(super) struct LineProgress {
    bar: Option<ProgressBar>,
    started: Instant,
    done: usize,
    failed: usize,
}

impl LineProgress {
    /// Starts the clock. `total` returns the number of lines, if it is known.
    pub(super) fn new(total: impl FnOnce() -> Option<usize>) -> Self {
        Self {
            bar: bar(total),
            started: Instant::now(),
            done: 0,
            failed: 0,
        }
    }

    /// Writes the document of a line.
    pub(super) fn print(&mut self, document: &Value) -> Result {
        self.failed += usize::from(document.get("error").is_some());
        self.count();
        output::print_json(document)
    }

    /// Counts a line.
    pub(super) fn count(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Prints counts and times: `what` names the lines, `more` is the end of the note.
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

/// A progress bar on a terminal. `total` returns the number of lines, if it is known.
pub(super) fn bar(total: impl FnOnce() -> Option<usize>) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| match total() {
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
    })
}
