//! The client of the HTTP API, for subcommands that talk to a running server: the address and the login, and requests one by
//! one.

use std::error::Error;
use std::io;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;
use tokio::time::{error::Elapsed, timeout};

use super::access::{PasswordArgs, TlsArgs, certificate_hint, connect, explain_no_answer};
use super::address::ServerAddress;
use divvy_access::{DEFAULT_USER, TokenKeys};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("divvy/", env!("CARGO_PKG_VERSION")));

#[derive(Debug, clap::Args)]
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
    #[command(flatten)]
    pub password: PasswordArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// A connection to a server.
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

    /// Adds a member to the body.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body.get_or_insert_default().insert(name.to_owned(), value.into());
        self
    }

    /// Adds a member to the body if there is a value.
    pub fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
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
pub struct Refused {
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
        let stream = connect(address.host_and_port(), patience).with_context(unreachable)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        let connecting = async {
            let stream = self.tls.secure_async(stream, address.host_and_port(), address.is_tls).await?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            // Its error is also that of the request.
            tokio::spawn(connection);
            anyhow::Ok(sender)
        };
        let connected = runtime.block_on(async { timeout(patience, connecting).await });
        let sender = connected.map_err(|_: Elapsed| too_slow(&address, patience))??;
        Ok(ApiClient { address, patience, authorization, runtime, sender })
    }

    /// Returns the header with the token, or with the user and the password.
    fn authorization(&self) -> anyhow::Result<Option<HeaderValue>> {
        let Some(password) = self.password.password_or(self.server.password.as_ref())? else { return Ok(None) };
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
}

fn too_slow(address: &ServerAddress, patience: Duration) -> anyhow::Error {
    explain_no_answer(address.host_and_port(), patience, io::ErrorKind::TimedOut.into())
}

impl ApiClient {
    /// Sends a request, and returns the answer. A denial is an answer.
    ///
    /// # Errors
    /// [`Refused`], or the server does not answer over HTTP.
    pub fn ask(&mut self, request: Request) -> anyhow::Result<Value> {
        let (status, body) = self.send(request)?;
        let answer = serde_json::from_slice::<Value>(&body);
        match (status, answer) {
            (StatusCode::TOO_MANY_REQUESTS, Ok(answer)) if answer.get("allowed").is_some() => Ok(answer),
            (status, Ok(answer)) if status.is_success() => Ok(answer),
            (status, answer) => {
                let detail = answer.ok().and_then(|problem| Some(problem.get("detail")?.as_str()?.to_owned()));
                let detail = detail.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
                Err(Refused { status, text: self.describe(status, &detail) }.into())
            }
        }
    }

    fn describe(&self, status: StatusCode, detail: &str) -> String {
        let address = &self.address;
        match (status, &self.authorization) {
            (StatusCode::UNAUTHORIZED, None) => format!(
                "{address} requires a password: set DIVVY_PASSWORD, or give --password; a user other than `default` is \
                 named by DIVVY_USER or --user"
            ),
            (StatusCode::UNAUTHORIZED, Some(_)) => format!(
                "{address} rejects the password ({detail}): check DIVVY_PASSWORD or --password, and DIVVY_USER or --user"
            ),
            // Divvy's other ports say so, and where HTTP is.
            _ if detail.starts_with("this is divvy's") => {
                format!("{address} answered: {detail}; write --server http://HOST:PORT with that port")
            }
            _ if detail.starts_with("this port speaks TLS") => {
                format!("{address} answered: {detail}; it uses TLS there; add --tls, or --tls-ca FILE")
            }
            _ if detail.is_empty() => format!("{address} answered with the status {status}: is the server divvy?"),
            _ => format!("{address} answered: {detail}"),
        }
    }

    fn send(&mut self, request: Request) -> anyhow::Result<(StatusCode, Bytes)> {
        let Request { method, target, body, idempotency_key } = request;
        let mut request =
            hyper::Request::builder().method(method).uri(target).header(HOST, self.address.host_and_port());
        for (name, value) in [
            (USER_AGENT, Some(AGENT)),
            (CONTENT_TYPE, body.as_ref().map(|_| JSON)),
            (AUTHORIZATION, self.authorization.clone()),
            (IDEMPOTENCY_KEY, idempotency_key),
        ] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let body = body.map(|members| Value::from(members).to_string()).unwrap_or_default();
        let request = request.body(Full::from(body)).context("the request cannot be sent")?;
        let sender = &mut self.sender;
        let exchange = async {
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        let patience = self.patience;
        let answered: Result<Result<_, hyper::Error>, Elapsed> =
            self.runtime.block_on(async { timeout(patience, exchange).await });
        let address = &self.address;
        answered.map_err(|_| too_slow(address, patience))?.map_err(|error| match error.is_parse() {
            true => anyhow!("{address} does not speak HTTP ({error}): does `divvy serve` listen there for HTTP?"),
            false => {
                let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
                let hint = cause.map_or("", certificate_hint);
                anyhow::Error::new(error).context(format!("{address} did not answer{hint}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
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
}
