//! Errors of the parts that read files and run: those of mlx-infer, whose text side they share.

pub use mlx_infer::{Error, ErrorKind, Result};

/// What the input asks for does not exist or contradicts itself.
pub(crate) fn argument(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Argument, message)
}

/// A file does not hold what it should.
pub(crate) fn format(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, message)
}

/// A file cannot be read or written.
pub(crate) fn io(path: &std::path::Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{}: {error}", path.display())).with_source(error)
}
