//! Errors of the modules that read files and run trainings. They are those of mlx-infer, whose text modules this crate
//! uses.

pub use mlx_infer::{Error, ErrorKind, Result};

/// An error for input that names something absent or contradicts itself.
pub(crate) fn argument(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Argument, message)
}

/// An error for a file with wrong content.
pub(crate) fn format(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, message)
}

/// An error for a file that cannot be read or written.
pub(crate) fn io(path: &std::path::Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{}: {error}", path.display())).with_source(error)
}
