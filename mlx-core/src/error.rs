//! The error type of this crate and its kinds.

use std::fmt;

/// The kind of an [`Error`], for callers that act on it.
///
/// ```
/// use mlx_core::{ErrorKind, load};
///
/// # fn main() -> mlx_core::Result<()> {
/// let error = load("missing.npy").unwrap_err();
/// match error.kind() {
///     ErrorKind::Io => println!("is the path right? {error}"),
///     _ => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// MLX refused to build an operation: shapes, dtypes, axes.
    Mlx,
    /// An operation failed while it was evaluated; the arrays that depend on it are poisoned.
    Eval,
    /// The array depends on an operation that failed.
    Poisoned,
    /// The requested element type is not the array's dtype.
    DType,
    /// Shapes or lengths do not fit.
    Shape,
    /// The system has no memory for an array, a kernel's work or a node. The message says how many bytes were
    /// asked for. An operation whose result got no memory stays lazy and can be evaluated again.
    Memory,
    /// More bytes than [`memory::set_array_limit`](crate::memory::set_array_limit) allows.
    Budget,
    /// A Rust closure called by MLX returned an error.
    Closure,
    /// The system refused to read or write a file: it is missing, permission is denied, the disk is full.
    Io,
    /// A file was read, and its content does not follow its format.
    Format,
    /// The back end or this build does not support the operation.
    Unsupported,
    /// An argument is outside its domain.
    Invalid,
    /// The library of MLX is missing, or is that of another build. The message names the places that were tried.
    Library,
}

/// An error of this crate: a kind to act on and a message to show.
///
/// ```
/// use mlx_core::{DType, Error, ErrorKind, ones};
///
/// # fn main() -> mlx_core::Result<()> {
/// let error = ones(&[2, 3], DType::F32)?.matmul(&ones(&[2, 3], DType::F32)?).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Mlx);
/// let error = error.context("layer 3");
/// assert!(error.to_string().starts_with("layer 3: "));
/// let own = Error::new(ErrorKind::Invalid, "rate must be positive, given -1");
/// assert_eq!(own.to_string(), "rate must be positive, given -1");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
}

/// The result of every function of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` with a message: lower case, no full stop, names and numbers.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
        }))
    }

    /// The kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The same error with `context: ` in front of its message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::OutOfMemory => ErrorKind::Memory,
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
                ErrorKind::Format
            }
            _ => ErrorKind::Io,
        };
        Self::new(kind, error.to_string())
    }
}
