//! Progress of downloads on a terminal: notes, and a bar.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::Progress;
use crate::host::console;

/// Shows progress on stderr; the bar only if stderr is a terminal.
#[derive(Default)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// Shows one event of a download.
    pub fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Note(line) => match &self.0 {
                Some(bar) => bar.suspend(|| console::note(line)),
                None => console::note(line),
            },
            Progress::File { name, bytes, done } => {
                self.end();
                if !std::io::stderr().is_terminal() {
                    return;
                }
                let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
                let style = ProgressStyle::with_template(style).expect("the template is constant");
                let bar = ProgressBar::new(bytes)
                    .with_style(style)
                    .with_message(name.to_owned());
                bar.set_position(done);
                bar.reset_eta();
                self.0 = Some(bar);
            }
            Progress::Bytes(done) => {
                if let Some(bar) = &self.0 {
                    bar.set_position(done);
                }
            }
            Progress::Done => self.end(),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}
