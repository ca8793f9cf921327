//! A front that answers what the path asks for, and a connection to it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::net::memory::{BufferMemory, FREE, SMALL};
use crate::tests::{connect, connection_context, timeouts};
use divvy_telemetry::metrics::Metrics;

pub const MAX_BODY: usize = 3 * SMALL;
const LIMIT: usize = 256 * 1024;
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Answers with the body of the request, or as the path says.
struct EchoFront {
    bounds: BodyBounds,
    metrics: Arc<Metrics>,
    requests: FrontRequests,
}

impl Responder for EchoFront {
    const PROTOCOL: Protocol = Protocol::Http;

    const MAX_CONCURRENT: u32 = 2;

    fn bounds(&self) -> &BodyBounds {
        &self.bounds
    }

    fn max_body(&self) -> usize {
        MAX_BODY
    }

    fn requests(&self) -> &FrontRequests {
        &self.requests
    }

    fn has_room(&self) -> bool {
        true
    }

    fn demand(&self, head: &Parts) -> (usize, bool) {
        (CALL, matches!(head.uri.path(), "/streamed" | "/collected"))
    }

    async fn may_send(&self, head: &Parts, _: &RequestOrigin) -> bool {
        head.uri.path() != "/forbidden"
    }

    async fn answer(&self, head: &Parts, body: RequestBody, _: &RequestOrigin) -> Response<Reply> {
        match head.uri.path() {
            "/ignored" => Response::new(Reply::Whole("ignored".into())),
            "/slow" => {
                tokio::task::yield_now().await;
                Response::new(Reply::Whole("slow".into()))
            }
            "/described" => {
                let mut response = Response::new(Reply::default());
                response.headers_mut().insert("content-length", HeaderValue::from_static("9"));
                response
            }
            "/empty" => crate::http::response::empty(StatusCode::NO_CONTENT),
            "/long" => Response::new(Reply::Whole(vec![b'x'; FREE + LIMIT].into())),
            "/never" => std::future::pending().await,
            "/pieces" => {
                let pieces = ["one", "", "two"].map(|piece| Bytes::from_static(piece.as_bytes()));
                Response::new(Reply::from_stream(futures_util::stream::iter(pieces)))
            }
            "/streamed" => {
                assert!(matches!(body, RequestBody::Streamed(_)));
                Response::new(Reply::Pieces(body.boxed_unsync()))
            }
            "/collected" => Response::new(Reply::Whole(body.collect().await.unwrap().to_bytes())),
            "/message" => Response::new(Reply::Message("message".into())),
            _ => match body.within(MAX_BODY) {
                Some(body) => Response::new(Reply::Whole(body)),
                None => crate::http::response::empty(StatusCode::PAYLOAD_TOO_LARGE),
            },
        }
    }
}

/// A connection, and the server's task.
pub struct Connected {
    pub stream: TcpStream,
    pub served: JoinHandle<()>,
    pub metrics: Arc<Metrics>,
    pub closing: CancellationToken,
}

impl Connected {
    /// Connects to a server with this timeout for requests and for replies.
    pub async fn new(timeout: Duration) -> Self {
        let metrics = Metrics::new();
        let memory = BufferMemory::new(LIMIT, Arc::clone(&metrics));
        let bounds = BodyBounds { timeouts: timeouts(timeout), memory: Arc::clone(&memory), expansion: 1 };
        let requests = metrics.requests.front(Protocol::Http.name());
        let front = Arc::new(EchoFront { bounds, metrics: Arc::clone(&metrics), requests });
        let (server, stream) = connect(Protocol::Http).await;
        let context = connection_context(&memory, &front.metrics, stream.local_addr().unwrap());
        let closing = context.closing.clone();
        Self { stream, served: tokio::spawn(front.serve(server, context)), metrics, closing }
    }
}
