//! The socket at which the server listens: an address, or a file of the system (a unix socket).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::{Error, ErrorKind, Result};

/// A socket that is bound, before the runtime serves it.
#[derive(Debug)]
pub(crate) enum Bound {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(SocketFile),
}

/// A socket that the runtime serves.
pub(crate) enum Listener {
    Tcp(tokio::net::TcpListener),
    /// The file is removed when the listener is dropped.
    #[cfg(unix)]
    Unix(
        tokio::net::UnixListener,
        #[allow(dead_code, reason = "it is dropped")] RemovedFile,
    ),
}

/// The bytes of a connection in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

#[cfg(unix)]
pub(crate) use self::unix::{RemovedFile, SocketFile};

impl Bound {
    /// Listens at an address, and returns the address with its port.
    ///
    /// # Errors
    /// The address is taken.
    pub(crate) fn tcp(address: SocketAddr) -> Result<(Self, SocketAddr)> {
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((Self::Tcp(listener), address))
        };
        bind().map_err(|error| cannot_listen(&address.to_string(), error))
    }

    /// Listens at a unix socket. The file of a server that was killed is replaced.
    ///
    /// # Errors
    /// Another process listens there, or the path has a file of another kind.
    #[cfg(unix)]
    pub(crate) fn unix(path: &Path) -> Result<Self> {
        let bound = SocketFile::bind(path);
        bound
            .map(Self::Unix)
            .map_err(|error| cannot_listen(&path.display().to_string(), error))
    }

    /// Systems without unix sockets refuse them.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(unix))]
    pub(crate) fn unix(path: &Path) -> Result<Self> {
        let message = format!("{}: this system has no unix sockets", path.display());
        Err(Error::unsupported(message))
    }

    /// The socket for the runtime of the caller's thread.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    pub(crate) fn serve(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(tokio::net::TcpListener::from_std(listener)?),
            #[cfg(unix)]
            Self::Unix(file) => {
                let (listener, file) = file.into_parts();
                Listener::Unix(tokio::net::UnixListener::from_std(listener)?, file)
            }
        })
    }
}

impl Listener {
    /// The next connection.
    ///
    /// # Errors
    /// The system refuses it, as it does with too many open files.
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Duplex>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Without this option an event waits up to 40 ms for the client's acknowledgement
                // of the previous one (Nagle's algorithm).
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

fn cannot_listen(place: &str, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot listen at {place}")).with_source(error)
}

#[cfg(unix)]
mod unix {
    use std::fs;
    use std::io::{self, ErrorKind};
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    /// A unix socket with its file.
    #[derive(Debug)]
    pub(crate) struct SocketFile {
        listener: UnixListener,
        file: RemovedFile,
    }

    /// A file that is removed at the end.
    #[derive(Debug)]
    pub(crate) struct RemovedFile(PathBuf);

    impl SocketFile {
        pub(super) fn bind(path: &Path) -> io::Result<Self> {
            let listener = match UnixListener::bind(path) {
                Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path)? => {
                    fs::remove_file(path)?;
                    UnixListener::bind(path)?
                }
                bound => bound?,
            };
            let file = RemovedFile(path.to_owned());
            listener.set_nonblocking(true)?;
            Ok(Self { listener, file })
        }

        pub(super) fn into_parts(self) -> (UnixListener, RemovedFile) {
            (self.listener, self.file)
        }
    }

    /// Whether a path has the socket of a process that has ended.
    fn is_left(path: &Path) -> io::Result<bool> {
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            return Ok(false);
        }
        match UnixStream::connect(path) {
            Err(error) => Ok(error.kind() == ErrorKind::ConnectionRefused),
            Ok(_) => Ok(false),
        }
    }

    impl Drop for RemovedFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }
}
