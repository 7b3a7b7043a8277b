//! Texts and lines from users: from files, pipes and the standard input.
//!
//! Every text and every line has a limit, so that input without an end (`/dev/zero`, a file with one line) is an error
//! and does not fill the memory. The number of lines has no limit: [`LineStream`] returns them one at a time. A byte
//! order mark at the start is skipped.

mod stream;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
#[cfg(unix)]
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use mlx_core::files;

pub use self::stream::{Arrival, LineStream};

use crate::error::{Error, ErrorKind, Result};

/// The most bytes of a text, and of a line. A tokenizer takes up to 200 times as much memory.
pub const MAX_TEXT: usize = 8 << 20;
/// How many bytes are searched for the end of a line that is too long.
const MAX_SKIPPED: u64 = 1 << 30;
/// The largest file whose lines are counted.
const MAX_COUNTED: u64 = 1 << 30;
/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A line without its end, and its number, from 1. A line that is not UTF-8 or longer than [`MAX_TEXT`] is an error
/// message instead.
pub type Line = (usize, std::result::Result<String, String>);

type Reader = Box<dyn BufRead + Send>;

fn open(path: &Path) -> Result<Reader> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let file = File::open(path).map_err(|error| fault(path, error))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Whether the standard input is a regular file, so that reading never waits.
fn is_stdin_file() -> bool {
    #[cfg(unix)]
    {
        let copy = std::io::stdin().as_fd().try_clone_to_owned();
        let found = copy.and_then(|copy| File::from(copy).metadata());
        found.is_ok_and(|found| found.is_file())
    }
    #[cfg(not(unix))]
    false
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
    read_from(open(path)?, path, limit)
}

/// The whole text of an ordinary file.
///
/// # Errors
/// It is a pipe, a device or a folder, cannot be read, has more than `limit` bytes, or is not UTF-8.
pub fn read_file(path: &Path, limit: usize) -> Result<String> {
    read_from(files::open(path, u64::MAX)?, path, limit)
}

fn read_from(reader: impl Read, path: &Path, limit: usize) -> Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(path, error))?;
    if bytes.len() > limit {
        return Err(too_long(path, limit as u64));
    }
    without_mark(&mut bytes);
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::format(format!("{}: not UTF-8 at byte {at}", path.display()))
    })
}

fn too_long(path: &Path, limit: u64) -> Error {
    Error::format(format!("{}: more than {limit} bytes", path.display()))
}

/// The lines of a file or of the standard input.
pub struct Lines {
    reader: Reader,
    path: PathBuf,
    number: usize,
    /// Whether it is a regular file, so that reading never waits.
    is_file: bool,
    /// The limit in bytes, and the bytes that are left.
    limit: u64,
    left: u64,
}

impl Lines {
    /// Opens a file or a pipe; `-` is the standard input.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let reader = open(path)?;
        let is_file = match path == Path::new("-") {
            true => is_stdin_file(),
            false => path.is_file(),
        };
        Ok(Self::new(reader, path, is_file))
    }

    /// Opens an ordinary file, or a pipe or file that the process holds open already (`/dev/stdin`).
    ///
    /// # Errors
    /// It is another pipe, a device or a folder, has more than `limit` bytes, or cannot be opened.
    pub fn open_file(path: &Path, limit: u64) -> Result<Self> {
        let mut lines = match is_descriptor(path) {
            true => Self::open(path)?,
            false => {
                let reader = Box::new(BufReader::new(files::open(path, limit)?));
                Self::new(reader, path, true)
            }
        };
        (lines.limit, lines.left) = (limit, limit);
        Ok(lines)
    }

    fn new(reader: Reader, path: &Path, is_file: bool) -> Self {
        Self {
            reader,
            path: path.to_owned(),
            number: 0,
            is_file,
            limit: u64::MAX,
            left: u64::MAX,
        }
    }

    /// The same lines, for a caller that must not block on them.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn stream(self) -> Result<LineStream> {
        LineStream::new(self)
    }

    /// The number of lines; `None` for an input that can be read only once, and for a large file.
    pub fn total(&self) -> Option<usize> {
        // A pipe must not be opened a second time.
        let found = std::fs::metadata(&self.path).ok()?;
        if !found.is_file() || found.len() > MAX_COUNTED {
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

    /// The next line. After a line that is not UTF-8 or longer than [`MAX_TEXT`], the following line can be read.
    ///
    /// # Errors
    /// Reading fails, a line has no end within a gigabyte, or the input has more bytes than its limit.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Line>> {
        let mut bytes = Vec::new();
        let most = MAX_TEXT as u64 + 2;
        let mut reader = self.reader.by_ref().take(most);
        let read = reader.read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| fault(&self.path, error))?;
        if read == 0 {
            return Ok(None);
        }
        self.count(read)?;
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

    /// Counts bytes that were read.
    fn count(&mut self, bytes: usize) -> Result<()> {
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.ok_or_else(|| too_long(&self.path, self.limit))?;
        Ok(())
    }

    /// Reads to the end of a line.
    fn skip(&mut self) -> Result<()> {
        let skipped = self.reader.by_ref().take(MAX_SKIPPED).skip_until(b'\n');
        let skipped = skipped.map_err(|error| fault(&self.path, error))?;
        self.count(skipped)?;
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

/// Whether a path names a descriptor that the process holds open, as `/dev/stdin` and a shell's `<(command)` do.
fn is_descriptor(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd"];
    path == Path::new("/dev/stdin") || folders.iter().any(|folder| path.starts_with(folder))
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
    #[cfg(unix)]
    fn a_pipe_gives_lines_before_it_ends() {
        use std::io::Write;
        use std::time::Duration;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // Opening a pipe waits for its other end.
        let other = path.clone();
        let writer = std::thread::spawn(move || File::create(other).unwrap());
        let mut stream = Lines::open(&path).unwrap().stream().unwrap();
        let mut writer = writer.join().unwrap();
        let mut next = |wait| stream.next(Duration::from_millis(wait)).unwrap();
        let line = |number, text: &str| Arrival::Line((number, Ok(text.to_owned())));
        assert_eq!(next(1), Arrival::Later);
        writer.write_all(b"one\ntw").unwrap();
        assert_eq!(next(60_000), line(1, "one"));
        assert_eq!(next(1), Arrival::Later);
        writer.write_all(b"o\nthree").unwrap();
        drop(writer);
        assert_eq!(next(60_000), line(2, "two"));
        assert_eq!(next(60_000), line(3, "three"));
        assert_eq!(next(60_000), Arrival::End);
        assert_eq!(next(60_000), Arrival::End);
    }

    #[test]
    fn a_file_never_waits() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "one\n").unwrap();
        let mut stream = Lines::open(file.path()).unwrap().stream().unwrap();
        let mut next = || stream.next(std::time::Duration::ZERO).unwrap();
        assert_eq!(next(), Arrival::Line((1, Ok("one".to_owned()))));
        assert_eq!(next(), Arrival::End);
        let folder = tempfile::tempdir().unwrap();
        for error in [
            Lines::open_file(folder.path(), 9).err().unwrap(),
            read_file(folder.path(), 9).unwrap_err(),
        ] {
            assert!(
                error.to_string().ends_with("not a file but a folder"),
                "{error}"
            );
        }
        let error = Lines::open_file(file.path(), 3).err().unwrap();
        assert!(
            error.to_string().ends_with("4 bytes; expected at most 3"),
            "{error}"
        );
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
