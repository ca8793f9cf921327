//! Requests and responses on a stream. Every response is answered: with an ACK once it is in force, or with a NACK that names all
//! problems.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use hyper::http::uri::{Authority, Scheme, Uri};
use hyper::{Method, Request};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tokio::time::timeout;

use super::connection::connect;
use super::messages::{DiscoveryRequest, DiscoveryResponse, Node, Status};
use super::resources::TYPE;
use super::stream::XdsStream;
use super::{XdsClient, XdsError, XdsSettings};
use divvy_core::units::shorten;
use divvy_telemetry::logging::Escaped;
use divvy_telemetry::metrics::XdsAnswer;

const PATH: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("divvy/", env!("CARGO_PKG_VERSION")));
/// Maximum time to connect, including the handshakes. gRPC's clients wait as long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of the problems in a NACK (bytes).
const MAX_PROBLEMS: usize = 8 << 10;
/// Pause before a NACK that repeats the one before. Some servers send what was refused again at once, and would never stop.
const REPEATED: Duration = Duration::from_secs(5);

impl XdsClient {
    /// Connects, and answers responses until the stream ends. Clears `is_failing` once the server has sent something.
    pub(super) async fn exchange<F: Future<Output = ()>>(
        self: &Arc<Self>,
        is_failing: &mut bool,
        pause: &impl Fn(Duration) -> F,
    ) -> Result<Infallible, XdsError> {
        let mut stream = timeout(CONNECT_TIMEOUT, self.open()).await.map_err(|_| XdsError::Late)??;
        let server = &self.settings.server.address;
        let node = node(&self.settings);
        let request = |version: &str, nonce: String, problems: Option<String>| DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(node.clone()),
            type_url: TYPE.to_owned(),
            response_nonce: nonce,
            error_detail: problems.map(|message| Status { message, ..Status::default() }),
            ..DiscoveryRequest::default()
        };
        // Versions belong to a stream. A server that has restarted may count them anew, and would say nothing to a client that names
        // the version it has now.
        let mut accepted = String::new();
        stream.send(&request(&accepted, String::new(), None)).await?;
        self.metrics.xds.connected.set(1);
        if !*is_failing {
            tracing::info!(%server, "connected to the management server");
        }
        // The version that was refused last and its problems, and a NACK that has yet to be sent.
        let (mut refused, mut unsent) = (None, None);
        loop {
            let message = tokio::select! {
                message = stream.receive() => message?,
                () = pause(REPEATED), if unsent.is_some() => {
                    if let Some(nack) = unsent.take() {
                        stream.send(&nack).await?;
                    }
                    continue;
                }
            };
            let response = DiscoveryResponse::decode(message.clone())?;
            if std::mem::take(is_failing) {
                tracing::info!(%server, "the management server sends configurations again");
            }
            let (version, nonce) = (response.version_info.clone(), response.nonce.clone());
            match self.answer(response).await {
                Ok(()) => {
                    (refused, unsent) = (None, None);
                    stream.send(&request(&version, nonce, None)).await?;
                    self.applied.send_replace(message);
                    accepted = version;
                }
                Err(problems) => {
                    let nack = request(&accepted, nonce, Some(problems.clone()));
                    let refusal = Some((version, problems));
                    if refused == refusal {
                        unsent = Some(nack);
                    } else {
                        stream.send(&nack).await?;
                        (refused, unsent) = (refusal, None);
                    }
                }
            }
        }
    }

    async fn open(&self) -> Result<XdsStream, XdsError> {
        let settings = &self.settings;
        let connection = connect(&settings.server, &settings.tls).await?;
        XdsStream::open(connection, call(settings), settings.max_message, settings.pings).await
    }

    /// Puts a response in force. Returns its problems if that is impossible.
    async fn answer(self: &Arc<Self>, response: DiscoveryResponse) -> Result<(), String> {
        let client = Arc::clone(self);
        let version = response.version_info.clone();
        let version = Escaped::error(&version);
        let applied = tokio::task::spawn_blocking(move || client.put_in_force(&response)).await;
        let answers = &self.metrics.xds.answers;
        match applied {
            Ok(Ok(domains)) => {
                answers.count(XdsAnswer::Ack);
                tracing::info!(%version, domains, "the configuration of the management server is in force");
                Ok(())
            }
            Ok(Err(report)) => {
                answers.count(XdsAnswer::Nack);
                let problems = report.errors.len();
                tracing::warn!(%version, problems, "refused a configuration; the last one stays in force");
                Err(shorten(report.to_string(), MAX_PROBLEMS))
            }
            // The panic has been logged.
            Err(_) => {
                answers.count(XdsAnswer::Nack);
                Err("bug in divvy".to_owned())
            }
        }
    }
}

/// Returns the call that opens a stream.
pub(super) fn call(settings: &XdsSettings) -> Request<()> {
    let XdsSettings { server, tls, headers, .. } = settings;
    // Other clients of gRPC name it, too, and a proxy may choose the server by it.
    let named: Option<Authority> =
        tls.server_name.as_ref().filter(|_| server.is_tls).and_then(|name| name.parse().ok());
    let mut uri = Uri::default().into_parts();
    uri.scheme = Some(if server.is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(named.unwrap_or_else(|| server.address.clone()));
    uri.path_and_query = PATH.parse().ok();
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    // All of its parts are there.
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    *request.headers_mut() = headers.clone();
    for (name, value) in [(CONTENT_TYPE, GRPC), (TE, TRAILERS), (USER_AGENT, AGENT)] {
        request.headers_mut().insert(name, value);
    }
    request
}

fn node(settings: &XdsSettings) -> Node {
    let value = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields: BTreeMap<_, _> =
        settings.node_metadata.iter().map(|(name, text)| (name.clone(), value(text))).collect();
    Node { id: settings.node.clone(), metadata: Some(Struct { fields }) }
}
