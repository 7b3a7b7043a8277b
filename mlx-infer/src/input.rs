//! Texts and lines that people write: from files, pipes and the standard input.
//!
//! Every input has a limit, so that one without an end (`/dev/zero`, a file of one line) is an error and
//! does not fill the memory. A byte order mark at the beginning is skipped.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// The most bytes of a text, and of a line. A tokenizer takes up to 200 times as much memory.
pub const MAX_TEXT: usize = 8 << 20;
/// How far the end of a line that is too long is looked for.
const MAX_SKIPPED: u64 = 1 << 30;
/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = File::open(path).map_err(|error| fault(path, error))?;
    Ok(Box::new(BufReader::new(file)))
}

fn fault(path: &Path, error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("cannot read {}: {error}", path.display()),
    )
    .with_source(error)
}

/// The whole text of a file; `-` is the standard input.
///
/// # Errors
/// It cannot be read, has more than `limit` bytes, or is not UTF-8.
pub fn read_text(path: &Path, limit: usize) -> Result<String> {
    let mut bytes = Vec::new();
    open(path)?
        .take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(path, error))?;
    let wrong = |what: String| Error::format(format!("{}: {what}", path.display()));
    if bytes.len() > limit {
        return Err(wrong(format!("more than {limit} bytes")));
    }
    without_mark(&mut bytes);
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        wrong(format!("not UTF-8 at byte {at}"))
    })
}

/// The lines of a file or of the standard input.
pub struct Lines {
    reader: Box<dyn BufRead>,
    path: PathBuf,
    number: usize,
}

impl Lines {
    /// Opens a file; `-` is the standard input.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            reader: open(path)?,
            path: path.to_owned(),
            number: 0,
        })
    }

    /// How many lines there are; `None` for what can be read only once.
    pub fn total(&self) -> Option<usize> {
        // A pipe must not be opened a second time.
        if !std::fs::metadata(&self.path).ok()?.is_file() {
            return None;
        }
        let file = File::open(&self.path).ok()?;
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

    /// The next line without its end, and its number, from 1. A line that is no text or longer than
    /// [`MAX_TEXT`] is told as such, and the one after it can be read.
    ///
    /// # Errors
    /// Reading fails, or a line has no end within a gigabyte.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(usize, std::result::Result<String, String>)>> {
        let mut bytes = Vec::new();
        let limit = MAX_TEXT as u64 + 2;
        let read = self
            .reader
            .by_ref()
            .take(limit)
            .read_until(b'\n', &mut bytes);
        if read.map_err(|error| fault(&self.path, error))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let ended = bytes.last() == Some(&b'\n');
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        if self.number == 1 {
            without_mark(&mut bytes);
        }
        if bytes.len() > MAX_TEXT {
            if !ended {
                self.skip()?;
            }
            let message = format!("the line is longer than {MAX_TEXT} bytes");
            return Ok(Some((self.number, Err(message))));
        }
        let text = String::from_utf8(bytes).map_err(|_| "the line is not UTF-8".to_owned());
        Ok(Some((self.number, text)))
    }

    /// Reads to the end of a line.
    fn skip(&mut self) -> Result<()> {
        let skipped = self.reader.by_ref().take(MAX_SKIPPED).skip_until(b'\n');
        let skipped = skipped.map_err(|error| fault(&self.path, error))?;
        if skipped as u64 == MAX_SKIPPED {
            return Err(Error::format(format!(
                "{}: line {} has no end within {MAX_SKIPPED} bytes",
                self.path.display(),
                self.number
            )));
        }
        Ok(())
    }
}

/// Drops a byte order mark.
pub(crate) fn without_mark(bytes: &mut Vec<u8>) {
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<std::result::Result<String, String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, bytes).unwrap();
        let mut lines = Lines::open(&path).unwrap();
        let total = lines.total().unwrap();
        let mut found = Vec::new();
        while let Some((number, line)) = lines.next().unwrap() {
            found.push(line);
            assert_eq!(number, found.len());
        }
        assert_eq!(found.len(), total);
        found
    }

    #[test]
    fn marks_and_ends_are_not_text() {
        let found = lines(b"\xef\xbb\xbfone\r\n\ntwo\n\xef\xbb\xbfthree");
        let expected = ["one", "", "two", "\u{feff}three"].map(|line| Ok(line.to_owned()));
        assert_eq!(found, expected);
        assert!(lines(b"\xff\nx\n")[0].is_err());
    }

    #[test]
    fn a_long_line_is_told_and_the_next_is_read() {
        for (n, fits) in [
            (MAX_TEXT, true),
            (MAX_TEXT + 1, false),
            (MAX_TEXT + 9, false),
        ] {
            let bytes = [&vec![b'x'; n], b"\nnext\n".as_slice()].concat();
            let found = lines(&bytes);
            assert_eq!(found.len(), 2);
            assert_eq!(found[0].is_ok(), fits, "{n}");
            assert_eq!(found[1], Ok("next".to_owned()));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_input_without_an_end_is_an_error() {
        let mut lines = Lines::open(Path::new("/dev/zero")).unwrap();
        let error = lines.next().unwrap_err();
        assert!(error.to_string().contains("line 1 has no end"), "{error}");
        let error = read_text(Path::new("/dev/zero"), 1000).unwrap_err();
        assert_eq!(error.to_string(), "/dev/zero: more than 1000 bytes");
    }
}
