//! TLS: the server's files in PEM, client certificates, and handshakes.
//!
//! The crate rustls implements TLS. Files that are replaced while the server runs are loaded, and new connections use them.
//! They are compared by contents, not by dates: certificates arrive by symbolic links, copies and mounts that keep any date.
//! New contents are loaded once two readings agree, because the second of two files may be written after the first.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig, crypto};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::{self, ConnectionContext};
use super::protocol::Protocol;
use super::stream::HANDSHAKE;
use divvy_core::regular_file;
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::{Bound, Counter};

/// The configuration of handshakes, until a newer one is loaded.
#[derive(Debug)]
pub struct Tls {
    /// The configurations without a choice of protocols, and with HTTP's versions. They have the same certificate.
    current: ArcSwap<[Arc<ServerConfig>; 2]>,
    failed: Counter,
    /// Whether clients need a certificate.
    pub requires_certificates: bool,
}

impl Tls {
    /// Performs the handshake. Returns `None` if the client sent plain text, or the handshake failed or did not end in time. The
    /// client then got an alert if that was possible.
    #[expect(clippy::disallowed_methods, reason = "how long a handshake may take")]
    pub async fn accept(
        &self,
        stream: TcpStream,
        protocol: Protocol,
        limit: Duration,
        context: &ConnectionContext,
    ) -> Option<TlsStream<TcpStream>> {
        let (deadline, front, peer) = (Instant::now() + limit, protocol.name(), context.peer);
        if speaks_plain_text(&stream, deadline).await {
            self.count_failure(front, peer, "plain text on a TLS port: the client does not speak TLS");
            // Best effort: a new socket's buffer has room for a line.
            let _ = stream.try_write(&protocol.only_tls());
            connection::close(stream).await;
            return None;
        }
        let configs = self.current.load();
        let [plain, http] = &**configs;
        let config = Arc::clone(if protocol.is_http() { http } else { plain });
        drop(configs);
        let handshake = TlsAcceptor::from(config).accept(stream).into_fallible();
        match timeout_at(deadline, handshake).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err((error, stream))) => {
                self.count_failure(front, peer, &error.to_string());
                // The alert must not be lost in a reset.
                connection::close(stream).await;
                None
            }
            Err(_) => {
                self.count_failure(front, peer, "timed out");
                context.metrics.limits.reached.count(Bound::HandshakeTimeout);
                None
            }
        }
    }

    fn count_failure(&self, front: &str, peer: SocketAddr, reason: &str) {
        static FAILED: LogThrottle = LogThrottle::new();
        self.failed.inc();
        FAILED.say(|more| {
            tracing::warn!(front, %peer, reason = %Escaped::error(reason), more, "TLS handshake failed");
        });
    }
}

/// Returns whether the client's first byte, which stays unread, begins something other than a handshake.
async fn speaks_plain_text(stream: &TcpStream, deadline: Instant) -> bool {
    let mut first = [0];
    // The handshake notices an end, an error and silence.
    matches!(timeout_at(deadline, stream.peek(&mut first)).await, Ok(Ok(1..))) && first != [HANDSHAKE]
}

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
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Reason why the files cannot be used, with the path of the file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

impl TlsError {
    pub(crate) fn new(path: &Path, reason: impl Display) -> Self {
        Self(format!("{}: {reason}", path.display()))
    }

    /// Returns a reason that no file is the cause of.
    pub(crate) fn general(reason: impl Display) -> Self {
        Self(reason.to_string())
    }

    /// Returns the reason why a certificate cannot be used with this key.
    pub(crate) fn of_pair(certificate: &Path, key: &Path, error: rustls::Error) -> Self {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let (certificate, key) = (certificate.display(), key.display());
                Self(format!("the key in {key} is not that of the first certificate in {certificate}"))
            }
            error => Self::new(certificate, error),
        }
    }
}

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificate: read("--tls-cert", &self.certificate)?,
            key: read("--tls-key", &self.key)?,
            client_ca: self.client_ca.as_deref().map(|path| read("--tls-client-ca", path)).transpose()?,
        })
    }

    /// Builds configurations with TLS 1.2 and 1.3 and the usual ciphers.
    fn configure(&self, contents: &Contents) -> Result<[Arc<ServerConfig>; 2], TlsError> {
        let provider = Arc::new(crypto::ring::default_provider());
        let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(&self.certificate, error))?;
        let clients = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(pem)) => versions.with_client_cert_verifier(client_verifier(path, pem, provider)?),
            _ => versions.with_no_client_auth(),
        };
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let key = private_key(&self.key, &contents.key)?;
        let plain = clients
            .with_single_cert(chain, key)
            .map_err(|error| TlsError::of_pair(&self.certificate, &self.key, error))?;
        let mut http = plain.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok([plain, http].map(Arc::new))
    }
}

/// Reads the file of this flag.
pub(crate) fn read(flag: &str, path: &Path) -> Result<Vec<u8>, TlsError> {
    regular_file::read(path, MAX_FILE_BYTES)
        .map_err(|error| TlsError(format!("cannot read {} ({flag}): {error}", path.display())))
}

/// Returns the certificates in a file with this content, at least one.
pub(crate) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| TlsError::new(path, error))?;
    if found.is_empty() {
        let file = path.display();
        return Err(TlsError(format!("{file} contains no certificate: PEM is expected (-----BEGIN CERTIFICATE-----)")));
    }
    Ok(found)
}

/// Returns the private key in a file with this content.
pub(crate) fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError(format!(
            "{} contains no unencrypted private key: PEM is expected (-----BEGIN PRIVATE KEY-----)",
            path.display()
        )),
        error => TlsError::new(path, error),
    })
}

/// Returns the authorities in a file with this content.
pub(crate) fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut authorities = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        authorities.add(certificate).map_err(|error| TlsError::new(path, error))?;
    }
    Ok(authorities)
}

fn client_verifier(
    path: &Path,
    pem: &[u8],
    provider: Arc<crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path, pem)?), provider)
        .build()
        .map_err(|error| TlsError::new(path, error))
}

/// The files, and their contents at the last reading.
pub struct Reloader {
    tls: Arc<Tls>,
    files: Files,
    /// Contents of the last reading, or the reason why the files could not be read.
    seen: Result<Contents, String>,
    /// Whether those contents have been loaded or refused.
    is_judged: bool,
}

impl Reloader {
    /// Loads the files. `failed` will count failed handshakes.
    ///
    /// # Errors
    /// [`TlsError`] names the file and the reason.
    pub fn start(files: Files, failed: Counter) -> Result<Self, TlsError> {
        let contents = files.read()?;
        let config = files.configure(&contents)?;
        let requires_certificates = files.client_ca.is_some();
        let tls = Arc::new(Tls { current: ArcSwap::from_pointee(config), failed, requires_certificates });
        Ok(Self { tls, files, seen: Ok(contents), is_judged: true })
    }

    /// Returns the path of the certificate.
    pub fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// Returns the configuration of handshakes.
    pub fn tls(&self) -> Arc<Tls> {
        Arc::clone(&self.tls)
    }

    /// Reads the files, and loads them if they are new. Returns `None` if there was nothing to do. Blocks while reading.
    ///
    /// `at_once` means that an operator has declared the files complete, and wants to know whether they are valid.
    ///
    /// # Errors
    /// The files cannot be used. Returned once for the same contents. The previous files stay in use.
    pub fn reload_if_changed(&mut self, at_once: bool) -> Option<Result<(), String>> {
        let seen = self.files.read().map_err(|error| error.to_string());
        let is_new = seen != self.seen;
        if is_new {
            self.seen = seen;
            self.is_judged = false;
        }
        let is_due = at_once || !is_new && !self.is_judged;
        if !is_due {
            return None;
        }
        self.is_judged = true;
        Some(self.load())
    }

    fn load(&self) -> Result<(), String> {
        let contents = self.seen.as_ref().map_err(String::clone)?;
        let config = self.files.configure(contents).map_err(|error| error.to_string())?;
        self.tls.current.store(Arc::new(config));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use divvy_telemetry::metrics::Metrics;

    fn renew(files: &Files) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn new_files_are_loaded_once_they_are_stable_and_bad_ones_are_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let files =
            Files { certificate: dir.path().join("server.pem"), key: dir.path().join("server.key"), client_ca: None };
        renew(&files);
        let mut reloader = Reloader::start(files.clone(), Metrics::new().access.tls_handshakes_failed.clone()).unwrap();
        let current = |reloader: &Reloader| reloader.tls.current.load_full();
        let first = current(&reloader);
        assert_eq!([reloader.reload_if_changed(false), reloader.reload_if_changed(false)], [None, None]);

        renew(&files);
        assert_eq!(
            [reloader.reload_if_changed(false), reloader.reload_if_changed(false), reloader.reload_if_changed(false)],
            [None, Some(Ok(())), None]
        );
        let second = current(&reloader);
        assert!(!Arc::ptr_eq(&first, &second));

        fs::remove_file(&files.key).unwrap();
        assert_eq!(reloader.reload_if_changed(false), None);
        assert!(matches!(reloader.reload_if_changed(false), Some(Err(reason)) if reason.contains("cannot read")));
        assert_eq!([reloader.reload_if_changed(false), reloader.reload_if_changed(false)], [None, None]);
        assert!(matches!(reloader.reload_if_changed(true), Some(Err(_))), "a requested check reports the error again");
        assert!(Arc::ptr_eq(&second, &current(&reloader)));

        renew(&files);
        assert_eq!(reloader.reload_if_changed(true), Some(Ok(())));
        assert!(!Arc::ptr_eq(&second, &current(&reloader)));
    }
}
