//! Lines as they arrive, for work that starts before the input ends.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::{Line, Lines};
use crate::error::{Error, ErrorKind, Result};

/// The number of lines that the thread reads ahead of its caller.
const AHEAD: usize = 8;

/// The result of asking a [`LineStream`] for a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next line.
    Line(Line),
    /// No line has arrived yet.
    Later,
    /// There are no more lines.
    End,
}

/// The lines of an input, read without waiting for its end.
///
/// A regular file is read when lines are asked for. Other inputs may have nothing for a while (a pipe, a terminal), so
/// a thread reads them. The thread is a few lines ahead and then waits.
pub struct LineStream {
    source: Source,
}

enum Source {
    File(Lines),
    Thread(Receiver<Result<Option<Line>>>),
}

impl LineStream {
    pub(super) fn new(mut lines: Lines) -> Result<Self> {
        if lines.is_file {
            return Ok(Self {
                source: Source::File(lines),
            });
        }
        let (outbox, inbox) = sync_channel(AHEAD);
        let read = move || {
            loop {
                let line = lines.next();
                let is_last = !matches!(line, Ok(Some(_)));
                if outbox.send(line).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("mlx-lines".to_owned());
        thread.spawn(read).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start a thread that reads lines").with_source(error)
        })?;
        Ok(Self {
            source: Source::Thread(inbox),
        })
    }

    /// The next line, if it comes within `wait`.
    ///
    /// # Errors
    /// As [`Lines::next`]; the stream then ends.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self, wait: Duration) -> Result<Arrival> {
        let line = match &mut self.source {
            Source::File(lines) => lines.next()?,
            Source::Thread(inbox) => match inbox.recv_timeout(wait) {
                Ok(line) => line?,
                Err(RecvTimeoutError::Timeout) => return Ok(Arrival::Later),
                Err(RecvTimeoutError::Disconnected) => None,
            },
        };
        Ok(line.map_or(Arrival::End, Arrival::Line))
    }
}
