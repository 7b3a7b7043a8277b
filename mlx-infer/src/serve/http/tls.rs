//! TLS: the certificate and key of the server, from files that can be read again while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::{Error, ErrorKind, Result};

/// The files of a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server in PEM, followed by those of its issuers.
    pub cert: PathBuf,
    /// Its private key in PEM (PKCS #8, PKCS #1 or SEC 1), without a password.
    pub key: PathBuf,
}

/// The certificate in use.
pub(crate) struct Certificate {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificate").field(&self.files).finish()
    }
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or has no certificate or no key, or the key is that of another
    /// certificate.
    pub(crate) fn read(files: TlsFiles) -> Result<Self> {
        let config = RwLock::new(config(&files)?);
        Ok(Self { files, config })
    }

    /// Reads the files again, for connections from now on.
    ///
    /// # Errors
    /// As [`read`](Self::read); the certificate in use stays.
    pub(crate) fn reload(&self) -> Result<()> {
        let config = config(&self.files)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// What opens a connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(config.clone())
    }
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let unreadable = |path: &Path, what: &str, error: String| {
        let message = format!("cannot read {what} in {}: {error}", path.display());
        Error::new(ErrorKind::Io, message)
    };
    let chain = CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain: Vec<CertificateDer<'static>> =
        chain.map_err(|error| unreadable(&files.cert, "certificates", error.to_string()))?;
    if chain.is_empty() {
        let none = "it has none in PEM".to_owned();
        return Err(unreadable(&files.cert, "certificates", none));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unreadable(&files.key, "a private key", error.to_string()))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = builder
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| {
            let message = format!(
                "{} and {} are not a certificate and its key: {error}",
                files.cert.display(),
                files.key.display()
            );
            Error::new(ErrorKind::Format, message)
        });
    let mut config = config?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
