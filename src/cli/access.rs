//! Shared by subcommands that talk to a server: the connection, the password and TLS.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned, crypto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::secret::Secret;

#[derive(Debug, clap::Args)]
pub struct PasswordArgs {
    /// Password of the server. Others can read it on a command line: prefer the environment variable
    #[arg(long, env = "DIVVY_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    password: Option<Secret>,
}

impl PasswordArgs {
    /// Returns the password.
    ///
    /// # Errors
    /// The password contains a line break, which would end the request.
    pub fn password(&self) -> anyhow::Result<Option<&str>> {
        self.password_or(None)
    }

    /// Returns the password, or `other` if none was given.
    ///
    /// # Errors
    /// See [`PasswordArgs::password`].
    pub fn password_or<'a>(&'a self, other: Option<&'a Secret>) -> anyhow::Result<Option<&'a str>> {
        let Some(secret) = self.password.as_ref().or(other) else { return Ok(None) };
        ensure!(!secret.reveal().contains(['\r', '\n']), "--password contains a line break, which a password must not");
        Ok(Some(secret.reveal()))
    }
}

#[derive(Debug, clap::Args)]
pub struct TlsArgs {
    /// Use TLS. The server's certificate must come from an authority that this machine trusts
    #[arg(long, env = "DIVVY_TLS")]
    tls: bool,
    /// Use TLS. The server's certificate must come from an authority in this file (PEM)
    #[arg(long, env = "DIVVY_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Client certificate to show to the server (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Maximum time to connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to `HOST:PORT`. Answers may then take up to `patience`.
///
/// # Errors
/// Returns the last error if no address of the host could be reached.
pub fn connect(host_and_port: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last_error = io::Error::other("the name has no address");
    // A name may have several addresses (IPv6 and IPv4), and the server may listen on only one of them.
    for address in host_and_port.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Explains for people why no answer came. Time-outs get their own message.
pub fn explain_no_answer(address: &str, patience: Duration, error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            anyhow::anyhow!("{address} did not answer within {} s", patience.as_secs_f64())
        }
        _ => {
            let hint = certificate_hint(&error);
            anyhow::Error::new(error).context(format!("{address} did not answer{hint}"))
        }
    }
}

/// Returns a hint if the server ended the handshake because the client presented no certificate. Otherwise returns an empty
/// text.
pub fn certificate_hint(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired)) => {
            ": it requires a client certificate; add --tls-cert FILE and --tls-key FILE"
        }
        _ => "",
    }
}

/// A connection that can be read and written.
pub trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// The same for a runtime.
pub trait AsyncConnection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncConnection for T {}

impl TlsArgs {
    /// Returns whether a flag asks for TLS.
    pub fn is_asked_for(&self) -> bool {
        self.tls || self.tls_ca.is_some() || self.tls_cert.is_some()
    }

    /// Performs a TLS handshake with `host` (a name or an address, perhaps with a port) if a flag or the caller asks
    /// for TLS.
    ///
    /// # Errors
    /// A file cannot be used, or the server's certificate is not valid for `host`.
    pub fn secure(
        &self,
        mut stream: TcpStream,
        host: &str,
        is_tls_wanted: bool,
    ) -> anyhow::Result<Box<dyn Connection>> {
        if !is_tls_wanted && !self.is_asked_for() {
            return Ok(Box::new(stream));
        }
        let mut session = ClientConnection::new(Arc::new(self.config()?), server_name(host)?)?;
        session.complete_io(&mut stream).map_err(|error| explain_handshake(host, error))?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }

    /// Does the same for a runtime.
    ///
    /// # Errors
    /// See [`TlsArgs::secure`].
    pub async fn secure_async(
        &self,
        stream: TcpStream,
        host: &str,
        is_tls_wanted: bool,
    ) -> anyhow::Result<Box<dyn AsyncConnection>> {
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        if !is_tls_wanted && !self.is_asked_for() {
            return Ok(Box::new(stream));
        }
        let connector = TlsConnector::from(Arc::new(self.config()?));
        let secured = connector.connect(server_name(host)?, stream).await;
        Ok(Box::new(secured.map_err(|error| explain_handshake(host, error))?))
    }

    fn config(&self) -> anyhow::Result<ClientConfig> {
        let builder = config_builder(authorities(self.tls_ca.as_deref(), "--tls-ca")?)?;
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let key_der = PrivateKeyDer::from_pem_file(key).with_context(|| format!("{} (--tls-key)", key.display()))?;
        let config = builder.with_client_auth_cert(certificates(certificate).context("--tls-cert")?, key_der);
        config.with_context(|| format!("cannot use {} with {}", certificate.display(), key.display()))
    }
}

fn server_name(host: &str) -> anyhow::Result<ServerName<'static>> {
    let name = ServerName::try_from(without_port(host).to_owned());
    name.with_context(|| format!("{host} is not a valid name for a certificate"))
}

fn explain_handshake(host: &str, error: io::Error) -> anyhow::Error {
    let hint = match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            ": it does not use TLS there; leave out --tls and --tls-ca"
        }
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) => {
            ": name the authority of its certificate with --tls-ca FILE"
        }
        _ => "",
    };
    anyhow::Error::new(error).context(format!("cannot use TLS with {host}{hint}"))
}

fn config_builder(authorities: RootCertStore) -> anyhow::Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    Ok(builder.with_safe_default_protocol_versions()?.with_root_certificates(authorities))
}

/// Returns the authorities in the file that `flag` names, or else those that this machine trusts.
///
/// # Errors
/// The file cannot be used, or there are no authorities.
pub fn authorities(file: Option<&Path>, flag: &'static str) -> anyhow::Result<RootCertStore> {
    let mut authorities = RootCertStore::empty();
    match file {
        Some(path) => {
            for certificate in certificates(path).context(flag)? {
                authorities.add(certificate).with_context(|| path.display().to_string())?;
            }
        }
        None => {
            // Many systems have a few unusable certificates. The others suffice.
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    ensure!(!authorities.is_empty(), "this machine trusts no certificate authority: name one with {flag}");
    Ok(authorities)
}

/// First byte of a TLS record with an alert (RFC 8446, section 5.1), which a TLS server sends to a client without TLS.
const ALERT: u8 = 21;

/// Returns a hint for a client without TLS if the server's answer shows that it expects TLS. Otherwise returns an empty
/// text.
pub fn tls_hint(answer: &[u8]) -> &'static str {
    if answer.first() == Some(&ALERT) { ": it uses TLS there; add --tls, or --tls-ca FILE" } else { "" }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(io::Error::other).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(!found.is_empty(), "{} contains no certificate in PEM format", path.display());
    Ok(found)
}

/// Removes the port from `host:port`, and the brackets from `[::1]`.
fn without_port(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
