//! Connections to the management server: its address, TLS, and options of the socket.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::http::uri::Authority;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, crypto};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::XdsError;
use crate::net::tls::{TlsError, authorities, certificates, private_key, read};

/// Silence after which the kernel asks whether the server's machine is still there, and the pause between its questions.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
/// Maximum time for the server's machine to confirm what was sent.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// The address of a management server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdsServer {
    /// Host and port.
    pub address: Authority,
    /// Whether the server speaks TLS.
    pub is_tls: bool,
}

impl FromStr for XdsServer {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let (is_tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            (None, None) => (false, url),
        };
        let address: Option<Authority> = rest.strip_suffix('/').unwrap_or(rest).parse().ok();
        let is_whole = |address: &Authority| {
            !address.host().is_empty() && !address.as_str().contains('@') && address.port_u16().is_some()
        };
        let address = address.filter(is_whole).ok_or("expected HOST:PORT, http://HOST:PORT or https://HOST:PORT")?;
        Ok(Self { address, is_tls })
    }
}

impl XdsServer {
    /// Returns the host without the brackets of an IPv6 address.
    fn host(&self) -> &str {
        self.address.host().trim_matches(['[', ']'])
    }
}

/// PEM files for TLS with the management server. They are read for each connection.
#[derive(Debug, Clone, Default)]
pub struct XdsTls {
    /// The trusted authorities, in place of the system's.
    pub ca: Option<PathBuf>,
    /// divvy's own certificate, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have, in place of its host.
    pub server_name: Option<String>,
}

impl XdsTls {
    fn configure(&self) -> Result<ClientConfig, TlsError> {
        let authorities = match &self.ca {
            Some(path) => authorities(path, &read("--ratelimit-xds-ca", path)?)?,
            None => {
                let mut authorities = RootCertStore::empty();
                // Many systems have a few unusable certificates. The others suffice.
                authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                authorities
            }
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::general)?
            .with_root_certificates(authorities);
        let mut config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate, &read("--ratelimit-xds-cert", certificate)?)?;
                let private = private_key(key, &read("--ratelimit-xds-key", key)?)?;
                let config = builder.with_client_auth_cert(chain, private);
                config.map_err(|error| TlsError::of_pair(certificate, key, error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// The bytes of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connects to a server, with TLS if its address says so.
pub async fn connect(server: &XdsServer, tls: &XdsTls) -> Result<Box<dyn Duplex>, XdsError> {
    let port = server.address.port_u16().unwrap_or_default();
    let stream = TcpStream::connect((server.host(), port)).await.map_err(XdsError::Connect)?;
    stream.set_nodelay(true).map_err(XdsError::Connect)?;
    let socket = SockRef::from(&stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT)).map_err(XdsError::Connect)?;
    socket.set_tcp_keepalive(&KEEPALIVE).map_err(XdsError::Connect)?;
    if !server.is_tls {
        return Ok(Box::new(stream));
    }
    let name = tls.server_name.as_deref().unwrap_or(server.host()).to_owned();
    let name = ServerName::try_from(name).map_err(|error| XdsError::Connect(io::Error::other(error)))?;
    let files = tls.clone();
    // The files may be on a disk that hangs.
    let config = tokio::task::spawn_blocking(move || files.configure()).await.map_err(io::Error::other);
    let config = config.map_err(XdsError::Connect)??;
    let secured = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    Ok(Box::new(secured.map_err(XdsError::Connect)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_a_host_and_a_port() {
        for (url, host, is_tls) in [
            ("localhost:18000", "localhost", false),
            ("http://gateway.svc:18000", "gateway.svc", false),
            ("https://gateway.svc:18000/", "gateway.svc", true),
            ("https://[::1]:18000", "::1", true),
        ] {
            let server: XdsServer = url.parse().unwrap();
            assert_eq!(
                (server.host(), server.address.port_u16(), server.is_tls),
                (host, Some(18_000), is_tls),
                "{url}"
            );
        }
        for url in ["", "localhost", ":18000", "https://", "ftp://a:1", "http://a:1/b", "u:p@a:1", "a:70000", "a b:1"] {
            assert!(url.parse::<XdsServer>().is_err(), "{url}");
        }
    }
}
