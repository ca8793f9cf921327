//! TLS files in PEM: reads them, and builds the configuration for handshakes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig, crypto};

use crate::files;

/// Maximum size of a file, enough for thousands of certificates (bytes).
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Paths of the files.
#[derive(Debug, Clone)]
pub struct Files {
    /// The server's certificate, followed by the intermediate ones.
    pub certificate: PathBuf,
    /// The private key of the certificate, not encrypted.
    pub key: PathBuf,
    /// Authorities for client certificates; `None` if clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Contents of the files. They include the private key, so this type has no `Debug`.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Reason why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or is too large.
    #[error("cannot read {} ({flag}): {error}", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is not valid PEM.
    #[error("{}: {error}", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        error: pem::Error,
    },
    /// This file has no certificate.
    #[error("{} contains no certificate: PEM is expected (-----BEGIN CERTIFICATE-----)", .0.display())]
    NoCertificate(PathBuf),
    /// This file has no private key, or an encrypted one.
    #[error("{} contains no unencrypted private key: PEM is expected (-----BEGIN PRIVATE KEY-----)", .0.display())]
    NoKey(PathBuf),
    /// The private key does not belong to the certificate.
    #[error("the key in {} is not that of the first certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// File of the key.
        key: PathBuf,
        /// File of the certificate.
        certificate: PathBuf,
    },
    /// rustls refuses the certificate, the key, or an authority.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// File of the server's certificate or of the authorities.
        path: PathBuf,
        /// The reason, as rustls words it.
        reason: String,
    },
}

impl Files {
    pub(super) fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificate: read("--tls-cert", &self.certificate)?,
            key: read("--tls-key", &self.key)?,
            client_ca: self.client_ca.as_deref().map(|path| read("--tls-client-ca", path)).transpose()?,
        })
    }

    /// Builds a configuration with TLS 1.2 and 1.3 and the usual ciphers.
    pub(super) fn configure(&self, contents: &Contents) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unusable(error))?;
        let clients = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(pem)) => versions.with_client_cert_verifier(client_verifier(path, pem, provider)?),
            _ => versions.with_no_client_auth(),
        };
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey(self.key.clone()),
            error => TlsError::NotPem { path: self.key.clone(), error },
        })?;
        clients.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { key: self.key.clone(), certificate: self.certificate.clone() }
            }
            error => self.unusable(error),
        })
    }

    fn unusable(&self, error: rustls::Error) -> TlsError {
        TlsError::Unusable { path: self.certificate.clone(), reason: error.to_string() }
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    files::read(path, MAX_FILE_BYTES).map_err(|error| TlsError::Read { flag, path: path.to_owned(), error })
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::NoCertificate(path.to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::NotPem { path: path.to_owned(), error }),
    }
}

fn client_verifier(
    path: &Path,
    pem: &[u8],
    provider: Arc<crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let unusable = |reason: String| TlsError::Unusable { path: path.to_owned(), reason };
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        authorities.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
        .build()
        .map_err(|error| unusable(error.to_string()))
}
