//! The HTTP client, for CrowdSec and for divvy. Each request has a connection of its own, because there is one every few
//! seconds.
//!
//! The server at the other end is not trusted to be quick, honest or there: every wait and every length has a bound.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::{Bytes, BytesMut};
use divvy_core::units::Approximate;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::{self, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::http::uri::Uri;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

/// CrowdSec lists its bouncers by this name and version.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("divvy/", env!("CARGO_PKG_VERSION")));

/// Maximum time for a connection, including its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for a piece of the answer. A database may take a while until the first one.
const PIECE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum length of the answer's head, and of a piece (bytes).
const MAX_BUFFER: usize = 64 << 10;

/// The mistake in a URL that is not for HTTP, or has parts that the base of an API does not have.
const OTHER_URL: &str = "write a URL such as http://127.0.0.1:8080, without a user, a query or a fragment";

/// A server, and how to connect to it.
#[derive(Debug, Clone)]
pub struct Client {
    /// `HOST:PORT`.
    pub address: String,
    host: HeaderValue,
    /// The path of the URL, without a slash at its end.
    path: String,
    /// The header with the key of this client.
    key: Option<(HeaderName, HeaderValue)>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// The server did not read the request, or refused it. After other errors, it may believe that its answer was read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnreadRequest(pub String);

impl Client {
    /// Reads the base URL of an API, which comes from the flag `name`. The server's certificate must come from an authority in the
    /// file of the flag `ca_name`, or from one that this machine trusts.
    ///
    /// # Errors
    /// The URL or the file cannot be used, or the file has no effect.
    pub fn new(
        (name, url): (&str, &str),
        (ca_name, ca): (&str, Option<&Path>),
        key: Option<(HeaderName, HeaderValue)>,
    ) -> anyhow::Result<Self> {
        // The error does not repeat the URL, because it may contain a password, although it must not.
        let no_url = |error| anyhow!("{name}: it is not a URL ({error}); write one such as http://127.0.0.1:8080");
        let url: Url = url.parse().map_err(no_url)?;
        let has_more = url.password().is_some() || url.query().is_some() || url.fragment().is_some();
        let (Some(host), Some(port), "http" | "https", "", false) =
            (url.host_str(), url.port_or_known_default(), url.scheme(), url.username(), has_more)
        else {
            return Err(anyhow!("{name}: {OTHER_URL}"));
        };
        let address = format!("{host}:{port}");
        let tls = if url.scheme() == "https" {
            let certified = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).context(OTHER_URL)?;
            Some((Arc::new(tls_config(ca, ca_name)?), certified))
        } else {
            ensure!(ca.is_none(), "{ca_name} has no effect: the URL does not begin with https");
            None
        };
        let host = HeaderValue::from_str(&address).context(OTHER_URL)?;
        Ok(Self { address, host, path: url.path().trim_end_matches('/').to_owned(), key, tls })
    }

    /// Sends a request for a path below the URL's own, perhaps with JSON. Returns the status and the body of the answer, which has
    /// at most `max` bytes.
    ///
    /// # Errors
    /// The path cannot be sent, there is no answer, or it is longer. The error is [`UnreadRequest`] if the server did not get the
    /// request.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        json: Option<String>,
        max: usize,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let target: Uri = format!("{}{path}", self.path).parse().context("the path cannot be sent")?;
        let content_type = json.as_ref().map(|_| (CONTENT_TYPE, HeaderValue::from_static("application/json")));
        let mut request = Request::new(Full::new(Bytes::from(json.unwrap_or_default())));
        (*request.method_mut(), *request.uri_mut()) = (method, target);
        let close = HeaderValue::from_static("close");
        request.headers_mut().extend([(HOST, self.host.clone()), (USER_AGENT, AGENT), (header::CONNECTION, close)]);
        request.headers_mut().extend(self.key.clone().into_iter().chain(content_type));
        let exchange = async {
            let connected = in_time("connection", CONNECT_TIMEOUT, self.connect()).await;
            let stream = connected.map_err(|error| anyhow!(UnreadRequest(error.to_string())))?;
            let stream = stream.with_context(|| UnreadRequest(format!("cannot connect to {}", self.address)))?;
            let mut builder = http1::Builder::new();
            let (mut sender, connection) = builder.max_buf_size(MAX_BUFFER).handshake(TokioIo::new(stream)).await?;
            // Its error is also that of the request or of the body. It ends with them.
            tokio::spawn(connection);
            let response = in_time("answer", PIECE_TIMEOUT, sender.send_request(request)).await??;
            Ok((response.status(), whole_body(response.into_body(), max).await?))
        };
        in_time("complete answer", ANSWER_TIMEOUT, exchange).await?
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(&self.address).await?;
        let Some((config, name)) = &self.tls else { return Ok(Box::new(stream)) };
        Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await?))
    }
}

/// A connection that can be read and written.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Waits for `wanted`.
async fn in_time<T>(wanted: &str, time: Duration, work: impl Future<Output = T>) -> anyhow::Result<T> {
    timeout(time, work).await.map_err(|_| anyhow!("no {wanted} within {} s", time.as_secs()))
}

/// Returns a whole body, of at most `max` bytes.
///
/// # Errors
/// It is longer, the connection ends, or the sender is too slow.
async fn whole_body(mut body: Incoming, max: usize) -> anyhow::Result<Bytes> {
    let too_long = || anyhow!("the answer is longer than {}", Approximate(max as u64));
    ensure!(body.size_hint().lower() <= max as u64, too_long());
    let mut all = BytesMut::new();
    while let Some(frame) = in_time("answer", PIECE_TIMEOUT, body.frame()).await? {
        // Other frames are trailers.
        if let Ok(piece) = frame?.into_data() {
            ensure!(piece.len() <= max.saturating_sub(all.len()), too_long());
            all.extend_from_slice(&piece);
        }
    }
    Ok(all.freeze())
}

/// Returns the configuration of TLS with the authorities in a file, or else those that this machine trusts.
fn tls_config(file: Option<&Path>, flag: &str) -> anyhow::Result<ClientConfig> {
    let mut authorities = RootCertStore::empty();
    match file {
        Some(path) => {
            let named = || format!("{flag}: {}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).with_context(named)? {
                authorities.add(certificate.with_context(named)?).with_context(named)?;
            }
        }
        None => {
            // Many systems have a few unusable certificates. The others suffice.
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    ensure!(!authorities.is_empty(), "this machine trusts no certificate authority: name one with {flag}");
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let config = builder.with_safe_default_protocol_versions()?.with_root_certificates(authorities);
    Ok(config.with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_checked() {
        let new = |url: &str| Client::new(("--url", url), ("--ca", None), None);
        for (url, address, path) in
            [("http://crowdsec:8080", "crowdsec:8080", ""), ("http://[::1]/a/", "[::1]:80", "/a")]
        {
            let client = new(url).unwrap();
            assert_eq!((client.address.as_str(), client.path.as_str()), (address, path));
        }
        for (url, expected) in [
            ("127.0.0.1:8080", "it is not a URL"),
            ("redis://127.0.0.1:8080", "write a URL such as"),
            ("http://me:secret@127.0.0.1:8080", "without a user"),
            ("http://127.0.0.1:8080/?a=b", "without a user, a query"),
            ("unix:/run/crowdsec.sock", "write a URL such as"),
        ] {
            let error = new(url).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
