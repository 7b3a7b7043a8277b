//! The reports of a run: lines on stderr, a progress bar on a terminal, and `metrics.jsonl`.

use std::fs::{self, File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use mlx_core::files;
use mlx_infer::console;
use mlx_train::trainer::Event;
use mlx_train::{Error, ErrorKind, Result, curve};
use serde_json::Value;

/// The longest remaining time that is shown, in seconds. Durations can be longer.
const LONGEST: f64 = 1e12;

/// The most bytes of `metrics.jsonl`; a step takes about 200.
const MAX_BYTES: u64 = 4 << 30;

pub(super) struct Report {
    path: PathBuf,
    metrics: File,
    bar: Option<ProgressBar>,
    json: bool,
    steps: u64,
    every: u64,
    /// The sums since the last report: loss times steps, tokens, seconds, steps.
    sums: (f64, usize, f64, u64),
}

impl Report {
    /// Keeps the metrics of the steps up to `from` and drops later ones, which a resumed run computes
    /// again.
    pub(super) fn open(dir: &Path, steps: u64, from: u64, every: u64, json: bool) -> Result<Self> {
        let path = dir.join("metrics.jsonl");
        let before = match from {
            0 => None,
            _ => files::read_if_present(&path, MAX_BYTES)?,
        };
        let before = String::from_utf8_lossy(before.as_deref().unwrap_or_default());
        let open = || -> std::io::Result<File> {
            fs::create_dir_all(dir)?;
            let kept: String = before
                .lines()
                .filter(|line| {
                    serde_json::from_str::<Value>(line)
                        .is_ok_and(|line| line["step"].as_u64().is_some_and(|step| step <= from))
                })
                .map(|line| format!("{line}\n"))
                .collect();
            let scratch = dir.join(".metrics.part");
            fs::write(&scratch, kept)?;
            fs::rename(&scratch, &path)?;
            OpenOptions::new().append(true).open(&path)
        };
        let metrics = open().map_err(|error| failed(&path, error))?;
        let bar = (std::io::stderr().is_terminal() && !json).then(|| {
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}");
            let bar = ProgressBar::new(steps).with_position(from);
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Ok(Self {
            path,
            metrics,
            bar,
            json,
            steps,
            every,
            sums: (0.0, 0, 0.0, 0),
        })
    }

    pub(super) fn record(&mut self, event: &Event) -> Result<()> {
        let line = serde_json::to_string(event)
            .map_err(|error| Error::new(ErrorKind::Format, error.to_string()))?;
        writeln!(self.metrics, "{line}").map_err(|error| failed(&self.path, error))?;
        if self.json {
            console::print(&format!("{line}\n"))?;
        }
        match *event {
            Event::Step {
                step,
                loss,
                mtp_loss,
                rate,
                tokens,
                seconds,
                peak_bytes,
                ..
            } => {
                let (losses, all, time, n) = &mut self.sums;
                *losses += loss;
                *all += tokens;
                *time += seconds;
                *n += 1;
                let speed = *all as f64 / *time;
                let left = *time / *n as f64 * (self.steps - step) as f64;
                let left = Duration::try_from_secs_f64(left.min(LONGEST)).unwrap_or_default();
                let mean = *losses / *n as f64;
                let head = mtp_loss.map_or(String::new(), |loss| format!(", head {loss:.4}"));
                let facts = format!(
                    "loss {mean:.4}{head}, rate {rate:.3e}, {speed:.0} tokens/s, {}, {} left",
                    HumanBytes(peak_bytes as u64),
                    HumanDuration(left),
                );
                if let Some(bar) = &self.bar {
                    bar.set_position(step);
                    bar.set_message(facts.clone());
                }
                if step.is_multiple_of(self.every) || step == self.steps {
                    self.say(&format!("step {step}: {facts}"));
                    self.sums = (0.0, 0, 0.0, 0);
                }
            }
            Event::Evaluated {
                step, loss, best, ..
            } => {
                let best = if best { ", the best so far" } else { "" };
                self.say(&format!("step {step}: validation loss {loss:.4}{best}"));
            }
            Event::Stopped { step } => {
                self.say(&format!(
                    "step {step}: validation gets no better, the run ends"
                ));
            }
            Event::Saved { .. } => {}
        }
        Ok(())
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => console::note(line),
        }
    }

    /// Draws the loss curve.
    pub(super) fn finish(&self) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let text = files::read(&self.path, MAX_BYTES)?;
        let text = String::from_utf8_lossy(&text);
        let path = self.path.with_file_name("loss.svg");
        fs::write(&path, curve::svg(&text)).map_err(|error| failed(&path, error))
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds that do not fit a duration, and a step that took none.
    #[test]
    fn absurd_times_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::open(dir.path(), u64::MAX, 0, 1, false).unwrap();
        for seconds in [4.0, 1e300, 0.0] {
            let event = Event::Step {
                step: 1,
                loss: 1.0,
                mtp_loss: None,
                rate: 1.0,
                norm: 1.0,
                tokens: 1,
                learnt_tokens: 1,
                seconds,
                peak_bytes: 1,
            };
            report.record(&event).unwrap();
        }
    }
}
