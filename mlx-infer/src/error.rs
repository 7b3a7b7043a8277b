//! The error of this crate.

use std::error::Error as StdError;
use std::fmt;

/// The kind of an error, for callers that act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system refused to read or write a file.
    Io,
    /// A file that is needed does not exist.
    Missing,
    /// A file was read, but its content does not follow its format.
    Format,
    /// The input is well formed but asks for something that is not supported.
    Unsupported,
    /// An argument of the caller is out of range or contradicts another one.
    Argument,
    /// The tokenizer refused a text or ids.
    Tokenizer,
    /// A chat template could not be compiled or rendered, or refused its input.
    Template,
    /// MLX or the model failed while computing.
    Compute,
    /// The model gives numbers that are not finite.
    NotFinite,
    /// The caller has cancelled.
    Cancelled,
    /// The work does not fit into the memory that it may use.
    Memory,
    /// The largest number of requests is in progress; try again later.
    Busy,
    /// The engine has ended.
    Closed,
    /// A server cannot be reached, or refuses the request.
    Network,
    /// The reader of the standard output has closed it.
    OutputClosed,
}

/// An error: what, where, what was expected and what was found, in one line.
///
/// [`Error::kind`] distinguishes the cases; the text is for people.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error from its kind and text (lower case, no full stop).
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error for another recipient, without its cause.
    pub(crate) fn copy(&self) -> Self {
        Self::new(self.kind, self.message.clone())
    }

    pub(crate) fn format(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Format, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Argument, message)
    }

    pub(crate) fn tokenizer(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Tokenizer, message)
    }

    pub(crate) fn template(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Template, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        match &self.source {
            Some(source) => write!(f, " (caused by {source:?})"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<mlx_core::Error> for Error {
    fn from(error: mlx_core::Error) -> Self {
        let kind = match error.kind() {
            mlx_core::ErrorKind::Io => ErrorKind::Io,
            mlx_core::ErrorKind::Format => ErrorKind::Format,
            mlx_core::ErrorKind::Unsupported => ErrorKind::Unsupported,
            mlx_core::ErrorKind::Invalid => ErrorKind::Argument,
            mlx_core::ErrorKind::Budget | mlx_core::ErrorKind::Memory => ErrorKind::Memory,
            _ => ErrorKind::Compute,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_the_crates_below_keep_their_meaning() {
        use mlx_core::ErrorKind as Core;
        for (core, expected) in [
            (Core::Io, ErrorKind::Io),
            (Core::Format, ErrorKind::Format),
            (Core::Memory, ErrorKind::Memory),
            (Core::Budget, ErrorKind::Memory),
            (Core::Invalid, ErrorKind::Argument),
            (Core::Unsupported, ErrorKind::Unsupported),
            (Core::Eval, ErrorKind::Compute),
        ] {
            let error = Error::from(mlx_core::Error::new(core, "it"));
            assert_eq!((error.kind(), error.to_string()), (expected, "it".into()));
        }
    }
}
