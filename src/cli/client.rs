//! The client of a running server: its address and the login, connections with TLS, and requests to the HTTP API one by one.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use divvy_access::{DEFAULT_USER, TokenKeys};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("divvy/", env!("CARGO_PKG_VERSION")));
/// Maximum time to connect to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

// Not a doc comment, which would be the help of operations. There is no debug output, because it would show the password.
#[derive(clap::Args)]
pub struct ServerArgs {
    // Not a doc comment, because rustdoc would take the brackets for links.
    #[arg(
        long,
        env = "DIVVY_SERVER",
        value_name = "ADDR",
        default_value = "127.0.0.1:8322",
        hide_env_values = true,
        help = "HTTP address of the server: HOST:PORT, http://[[USER]:PASSWORD@]HOST[:PORT], or https:// for TLS"
    )]
    pub server: ServerAddress,
    /// User of the server's access file, whose password is --password [default: default]
    #[arg(long, env = "DIVVY_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// Password of the server. Others can read it on a command line: prefer the environment variable
    #[arg(long, env = "DIVVY_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    password: Option<String>,
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

/// A connection, perhaps with TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection that speaks HTTP.
pub struct ApiClient {
    address: ServerAddress,
    patience: Duration,
    authorization: Option<HeaderValue>,
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    method: Method,
    /// The path, and the query.
    target: String,
    /// The members of a JSON body.
    body: Option<Map<String, Value>>,
    idempotency_key: Option<HeaderValue>,
}

impl Request {
    pub fn new(method: Method, target: impl Into<String>) -> Self {
        Self { method, target: target.into(), body: None, idempotency_key: None }
    }

    /// Adds an empty JSON object as the body.
    pub fn with_body(self) -> Self {
        Self { body: Some(Map::new()), ..self }
    }

    /// Adds a member to the body, unless it has no value.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if !value.is_null() {
            self.body.get_or_insert_default().insert(name.to_owned(), value);
        }
        self
    }

    /// Adds the idempotency key, if there is one.
    ///
    /// # Errors
    /// The key has characters that HTTP cannot send.
    pub fn with_key(self, key: Option<&str>) -> anyhow::Result<Self> {
        let Some(key) = key else { return Ok(self) };
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        let value = HeaderValue::from_str(&quoted).context("--id may have printable ASCII characters only")?;
        Ok(Self { idempotency_key: Some(value), ..self })
    }
}

/// A request that the server refused.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    pub status: StatusCode,
    text: String,
}

impl ServerArgs {
    /// Connects. Answers may take up to `patience`.
    ///
    /// # Errors
    /// No server answers.
    pub fn connect(&self, patience: Duration) -> anyhow::Result<ApiClient> {
        let address = self.server.clone();
        let unreachable = || {
            format!("cannot reach {address}; does `divvy serve` listen there for HTTP? --server names another address")
        };
        let authorization = self.authorization()?;
        let (runtime, stream) = self.open(&address.host_and_port, address.is_tls, patience, unreachable)?;
        let sender = runtime.block_on(async {
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            // Its error ends the request, too.
            tokio::spawn(connection);
            anyhow::Ok(sender)
        })?;
        Ok(ApiClient { address, patience, authorization, runtime, sender })
    }

    /// Connects to `HOST:PORT`, with TLS if a flag or the caller asks for it. Returns the connection and its runtime.
    ///
    /// # Errors
    /// `unreachable` if there is no connection. Or the handshake takes longer than `patience`, or fails.
    pub fn open(
        &self,
        host_and_port: &str,
        is_tls: bool,
        patience: Duration,
        unreachable: impl FnOnce() -> String,
    ) -> anyhow::Result<(Runtime, Box<dyn Stream>)> {
        let stream = connect(host_and_port).with_context(unreachable)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        let is_tls = is_tls || self.tls || self.tls_ca.is_some() || self.tls_cert.is_some();
        let securing = async {
            let stream = tokio::net::TcpStream::from_std(stream)?;
            if !is_tls {
                return anyhow::Ok(Box::new(stream) as Box<dyn Stream>);
            }
            let name = ServerName::try_from(without_port(host_and_port).to_owned());
            let name = name.with_context(|| format!("{host_and_port} is not a valid name for a certificate"))?;
            let secured = TlsConnector::from(Arc::new(self.tls_config()?)).connect(name, stream).await;
            let secured = secured.map_err(|error| {
                let hint = tls_hint(&error);
                anyhow::Error::new(error).context(format!("cannot use TLS with {host_and_port}{hint}"))
            });
            Ok(Box::new(secured?) as Box<dyn Stream>)
        };
        let secured = runtime.block_on(async { timeout(patience, securing).await });
        let stream = secured.map_err(|_| explain_silence(host_and_port, patience))??;
        Ok((runtime, stream))
    }

    /// Returns the password, also from the URL of an HTTP listener.
    ///
    /// # Errors
    /// The password contains a line break, which would end a request of the line protocol.
    pub fn password(&self, of_url: Option<&str>) -> anyhow::Result<Option<String>> {
        let password = self.password.as_deref().or(of_url);
        let has_line_break = password.is_some_and(|password| password.contains(['\r', '\n']));
        ensure!(!has_line_break, "--password contains a line break, which a password must not");
        Ok(password.map(str::to_owned))
    }

    /// Returns the header with the token, or with the user and the password.
    fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let Some(password) = self.password(self.server.password.as_deref())? else { return Ok(None) };
        let user = self.user.as_ref().or(self.server.user.as_ref()).map_or(DEFAULT_USER, String::as_str);
        let text = if TokenKeys::is_token(password.as_bytes()) {
            format!("Bearer {password}")
        } else {
            ensure!(!user.contains(':'), "--user contains a colon, which the name of a user must not");
            format!("Basic {}", base64_simd::STANDARD.encode_to_string(format!("{user}:{password}")))
        };
        let mut value = HeaderValue::from_str(&text)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn tls_config(&self) -> anyhow::Result<ClientConfig> {
        let mut authorities = RootCertStore::empty();
        match &self.tls_ca {
            Some(path) => {
                for certificate in certificates(path).context("--tls-ca")? {
                    authorities.add(certificate).with_context(|| path.display().to_string())?;
                }
            }
            None => {
                // Many systems have a few unusable certificates. The others suffice.
                authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        ensure!(!authorities.is_empty(), "this machine trusts no certificate authority: name one with --tls-ca");
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?.with_root_certificates(authorities);
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok(builder.with_no_client_auth());
        };
        let key_der = PrivateKeyDer::from_pem_file(key).with_context(|| format!("{} (--tls-key)", key.display()))?;
        let config = builder.with_client_auth_cert(certificates(certificate).context("--tls-cert")?, key_der);
        config.with_context(|| format!("cannot use {} with {}", certificate.display(), key.display()))
    }
}

impl ApiClient {
    /// Sends a request, and returns the answer. A denial is an answer.
    ///
    /// # Errors
    /// [`Refusal`], or the server does not answer over HTTP.
    pub fn ask(&mut self, request: Request) -> anyhow::Result<Value> {
        let (status, body) = self.send(request)?;
        let answer = serde_json::from_slice::<Value>(&body);
        match (status, answer) {
            (StatusCode::TOO_MANY_REQUESTS, Ok(answer)) if answer.get("allowed").is_some() => Ok(answer),
            (status, Ok(answer)) if status.is_success() => Ok(answer),
            (status, answer) => {
                let detail = answer.ok().and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
                let detail = detail.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
                Err(Refusal { status, text: self.describe(status, &detail) }.into())
            }
        }
    }

    fn describe(&self, status: StatusCode, detail: &str) -> String {
        let address = &self.address;
        match status {
            StatusCode::UNAUTHORIZED => format!(
                "{address} requires a password ({detail}): set DIVVY_PASSWORD or --password, and DIVVY_USER or --user for a user \
                 other than `default`"
            ),
            _ if detail.is_empty() => format!("{address} answered with the status {status}: is the server divvy?"),
            _ => format!("{address} answered: {detail}"),
        }
    }

    fn send(&mut self, request: Request) -> anyhow::Result<(StatusCode, Bytes)> {
        let Self { address, patience, authorization, runtime, sender } = self;
        let content_type = request.body.as_ref().map(|_| JSON);
        let body = request.body.map(|members| Value::from(members).to_string()).unwrap_or_default();
        let mut message = hyper::Request::builder().method(request.method).uri(request.target);
        message = message.header(HOST, &address.host_and_port).header(USER_AGENT, AGENT);
        for (name, value) in [
            (CONTENT_TYPE, content_type),
            (AUTHORIZATION, authorization.clone()),
            (IDEMPOTENCY_KEY, request.idempotency_key),
        ] {
            message = value.into_iter().fold(message, |message, value| message.header(&name, value));
        }
        let message = message.body(Full::from(body)).context("the request cannot be sent")?;
        let exchange = async {
            sender.ready().await?;
            let response = sender.send_request(message).await?;
            Ok::<_, hyper::Error>((response.status(), response.into_body().collect().await?.to_bytes()))
        };
        let answered = runtime.block_on(async { timeout(*patience, exchange).await });
        answered.map_err(|_| explain_silence(&*address, *patience))?.map_err(|error| match error.is_parse() {
            true => anyhow!("{address} does not speak HTTP ({error}): does `divvy serve` listen there for HTTP?"),
            false => {
                let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
                let hint = cause.map_or("", tls_hint);
                anyhow::Error::new(error).context(format!("{address} did not answer{hint}"))
            }
        })
    }
}

/// Connects to `HOST:PORT`.
fn connect(host_and_port: &str) -> io::Result<TcpStream> {
    let mut last_error = io::Error::other("the name has no address");
    // A name may have several addresses (IPv6 and IPv4), and the server may listen on only one of them.
    for address in host_and_port.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Explains for people that no answer came in time.
pub fn explain_silence(address: impl fmt::Display, patience: Duration) -> anyhow::Error {
    anyhow!("{address} did not answer within {} s", patience.as_secs_f64())
}

/// Returns a hint for an error of TLS, or an empty text.
pub fn tls_hint(error: &io::Error) -> &'static str {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired)) => {
            ": it requires a client certificate; add --tls-cert FILE and --tls-key FILE"
        }
        Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            ": it does not use TLS there; leave out --tls and --tls-ca"
        }
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer)) => {
            ": name the authority of its certificate with --tls-ca FILE"
        }
        _ => "",
    }
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

/// The address of an HTTP listener, with TLS, user and password if its URL has them. Displays as `HOST:PORT`.
#[derive(Clone)]
pub struct ServerAddress {
    host_and_port: String,
    /// Whether the URL was `https://`.
    is_tls: bool,
    user: Option<String>,
    password: Option<String>,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host_and_port)
    }
}

impl FromStr for ServerAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "must be the address of HTTP: HOST:PORT, http://[[USER]:PASSWORD@]HOST[:PORT], or https:// for TLS";
        let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let url = match text.contains("://") {
            false if has_port => Url::parse(&format!("http://{text}")),
            _ => Url::parse(text),
        };
        let url = url.map_err(|_| EXPECTED)?;
        let has_more = !["", "/"].contains(&url.path()) || url.query().is_some();
        let (Some(host), Some(port), "http" | "https", false) =
            (url.host_str(), url.port_or_known_default(), url.scheme(), has_more)
        else {
            return Err(EXPECTED);
        };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(Cow::into_owned).map_err(|_| EXPECTED);
        Ok(Self {
            user: Some(decoded(url.username())?).filter(|user| !user.is_empty()),
            host_and_port: format!("{host}:{port}"),
            is_tls: url.scheme() == "https",
            password: url.password().map(decoded).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        server: ServerArgs,
    }

    fn ask(address: &str) -> String {
        let args = Line::parse_from(["divvy", "--server", address]).server;
        let connected = args.connect(Duration::from_millis(20));
        let reply = connected.and_then(|mut client| client.ask(Request::new(Method::GET, "/v1/rules")));
        format!("{:#}", reply.unwrap_err())
    }

    #[test]
    fn silent_and_missing_servers_are_reported_differently() {
        // The connection is established but never accepted, so nothing answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        assert_eq!(ask(&address), format!("{address} did not answer within 0.02 s"));
        drop(silent);
        let error = ask(&address);
        assert!(error.starts_with(&format!("cannot reach {address}")) && error.contains("refused"), "{error}");
    }

    /// Returns the address, whether it uses TLS, and the user and the password with a colon between them.
    fn read(text: &str) -> Result<(String, bool, Option<String>), &'static str> {
        let address: ServerAddress = text.parse()?;
        let user = address.user.as_deref().unwrap_or_default();
        let login = address.password.as_ref().map(|password| format!("{user}:{password}"));
        Ok((address.to_string(), address.is_tls, login))
    }

    #[test]
    fn addresses_and_urls_are_parsed() {
        for (text, address, is_tls, login) in [
            ("localhost:8322", "localhost:8322", false, None),
            ("[::1]:8322", "[::1]:8322", false, None),
            ("http://10.0.0.1", "10.0.0.1:80", false, None),
            ("http://10.0.0.1:8322/", "10.0.0.1:8322", false, None),
            ("http://[::1]:9050/", "[::1]:9050", false, None),
            ("https://divvy.example", "divvy.example:443", true, None),
            ("https://default:a%40b@divvy.example:1", "divvy.example:1", true, Some("default:a@b")),
            ("http://ann%40x:secret@localhost:8322", "localhost:8322", false, Some("ann@x:secret")),
            ("http://:secret@localhost:8322", "localhost:8322", false, Some(":secret")),
        ] {
            assert_eq!(read(text), Ok((address.into(), is_tls, login.map(Into::into))), "{text}");
        }
    }

    #[test]
    fn invalid_address_is_rejected() {
        for text in [
            "",
            "localhost",
            "localhost:http",
            "localhost:65536",
            "ftp://localhost",
            "redis://localhost:9049",
            "http://",
            "http://localhost/v1",
            "http://localhost?a=1",
        ] {
            assert!(read(text).is_err_and(|error| error.contains("HOST:PORT")), "{text}");
        }
    }
}
