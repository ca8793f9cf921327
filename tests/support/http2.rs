//! A client for HTTP/2 and gRPC. It sends many requests on one connection at a time, each with its own credentials.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use divvy::server::grpc::Rpc;
use divvy::server::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use divvy::server::grpc::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use divvy::server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy::server::grpc::messages::kuadrant::service::ratelimit::v1::{CommitRequest, ReserveRequest};
use futures_util::future::join_all;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// A connection.
pub struct Http2Client {
    runtime: Runtime,
    requests: SendRequest<Bytes>,
}

/// A response, after its last byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Response {
    pub status: u16,
    /// Status of a gRPC call, such as 7 for `PERMISSION_DENIED`.
    pub grpc_status: Option<String>,
    pub grpc_message: Option<String>,
    pub body: Vec<u8>,
}

impl Http2Client {
    pub fn connect(address: SocketAddr) -> Self {
        Self::connect_with_window(address, 65_535)
    }

    /// Connects; `None` if there is no server.
    pub fn try_connect(address: SocketAddr) -> Option<Self> {
        Self::over(super::try_connect(address).ok()?, 65_535)
    }

    /// Connects a client that lets the server send this many bytes ahead on each stream.
    pub fn connect_with_window(address: SocketAddr, window: u32) -> Self {
        Self::over(super::connect(address), window).unwrap()
    }

    fn over(stream: std::net::TcpStream, window: u32) -> Option<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        stream.set_nonblocking(true).unwrap();
        let requests = runtime.block_on(async {
            let stream = TcpStream::from_std(stream).unwrap();
            let mut builder = h2::client::Builder::new();
            builder.initial_window_size(window);
            // A busy client may read hundreds of replies at once.
            builder.data_frame_budget(usize::MAX);
            let (requests, connection) = builder.handshake(stream).await.ok()?;
            tokio::spawn(connection);
            Some(requests)
        })?;
        Some(Self { runtime, requests })
    }

    /// Sends all requests at once, and returns the responses in the order of the requests.
    pub fn send_all(&self, requests: Vec<Request<Bytes>>) -> Vec<Http2Response> {
        let sending = requests.into_iter().map(|request| send(self.requests.clone(), request));
        self.runtime.block_on(join_all(sending))
    }

    /// Sends all requests at once, and reads nothing. The responses are left to [`Http2Client::turn`] or
    /// [`Http2Client::receive`].
    pub fn send_unread(&self, requests: Vec<Request<Bytes>>) -> Vec<JoinHandle<Http2Response>> {
        let sending = requests.into_iter().map(|request| self.runtime.spawn(send(self.requests.clone(), request)));
        let sending = sending.collect();
        self.turn();
        sending
    }

    /// Returns the responses to requests that were sent.
    pub fn receive(&self, sent: Vec<JoinHandle<Http2Response>>) -> Vec<Http2Response> {
        self.runtime.block_on(join_all(sent)).into_iter().map(Result::unwrap).collect()
    }

    /// Drives the connection for a moment.
    pub fn turn(&self) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }

    /// Sends the requests without the second halves of their bodies, and calls `between` when the server has read all of that.
    /// Then sends the rest, and returns the responses.
    pub fn send_late(&self, requests: Vec<Request<Bytes>>, between: impl FnOnce()) -> Vec<Http2Response> {
        let begun = self.runtime.block_on(join_all(requests.into_iter().map(async |request| {
            let mut begun = begin(self.requests.clone(), request).await.unwrap();
            let half = begun.rest.split_to(begun.rest.len() / 2);
            begun.sender.send_data(half, false).unwrap();
            begun
        })));
        // The server reads the frames of a connection in their order.
        self.send(json("GET", "/healthz", "", ""));
        between();
        let responses = self.runtime.block_on(join_all(begun.into_iter().map(finish)));
        responses.into_iter().map(Result::unwrap).collect()
    }

    pub fn send(&self, request: Request<Bytes>) -> Http2Response {
        self.send_all(vec![request]).remove(0)
    }

    /// Sends a request; `None` if the server is gone.
    pub fn try_send(&self, request: Request<Bytes>) -> Option<Http2Response> {
        self.runtime.block_on(try_send(self.requests.clone(), request)).ok()
    }
}

/// A request whose head was sent.
struct Begun {
    response: ResponseFuture,
    sender: SendStream<Bytes>,
    /// The part of the body that has to be sent yet.
    rest: Bytes,
}

async fn send(requests: SendRequest<Bytes>, request: Request<Bytes>) -> Http2Response {
    try_send(requests, request).await.unwrap()
}

async fn try_send(requests: SendRequest<Bytes>, request: Request<Bytes>) -> Result<Http2Response, h2::Error> {
    finish(begin(requests, request).await?).await
}

async fn begin(requests: SendRequest<Bytes>, request: Request<Bytes>) -> Result<Begun, h2::Error> {
    let (head, rest) = request.into_parts();
    let mut requests = requests.ready().await?;
    let (response, sender) = requests.send_request(Request::from_parts(head, ()), false)?;
    Ok(Begun { response, sender, rest })
}

async fn finish(Begun { response, mut sender, rest }: Begun) -> Result<Http2Response, h2::Error> {
    sender.send_data(rest, true)?;
    let (head, mut body) = response.await?.into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        bytes.extend_from_slice(&data);
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    let field = |name: &str| {
        let value = trailers.get(name).or_else(|| head.headers.get(name))?;
        Some(value.to_str().unwrap().to_owned())
    };
    let (grpc_status, grpc_message) = (field("grpc-status"), field("grpc-message"));
    Ok(Http2Response { status: head.status.as_u16(), grpc_status, grpc_message, body: bytes })
}

/// Returns a request with a JSON body.
pub fn json(method: &str, path: &str, authorization: &str, body: &str) -> Request<Bytes> {
    Request::builder()
        .method(method)
        .uri(format!("http://divvy{path}"))
        .header("authorization", authorization)
        .header("content-type", "application/json")
        .body(Bytes::copy_from_slice(body.as_bytes()))
        .unwrap()
}

/// Returns a gRPC message with its prefix: a flag for no compression, and its length.
pub fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat().into()
}

/// Returns a gRPC call.
pub fn call(path: &str, authorization: &str, message: &impl Message) -> Request<Bytes> {
    Request::builder()
        .method("POST")
        .uri(format!("http://divvy{path}"))
        .header("authorization", authorization)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(framed(message))
        .unwrap()
}

/// Returns pairs such as `api=a user=ann` as a descriptor.
pub fn descriptor(pairs: &str) -> RateLimitDescriptor {
    let entries = pairs.split(' ').map(|pair| {
        let (key, value) = pair.split_once('=').unwrap();
        Entry { key: key.to_owned().into(), value: value.to_owned().into() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// Returns a call with these descriptors. A commit is of the reservation with this id.
pub fn request(rpc: Rpc, authorization: &str, descriptors: Vec<RateLimitDescriptor>, id: &str) -> Request<Bytes> {
    let domain = Bytes::from_static(b"shop");
    match rpc {
        Rpc::EnvoyShouldRateLimit | Rpc::KuadrantCheckRateLimit | Rpc::KuadrantReport => {
            let message = RateLimitRequest { domain, descriptors, ..RateLimitRequest::default() };
            call(rpc.name(), authorization, &message)
        }
        Rpc::KuadrantReserve => {
            let message = ReserveRequest { domain, descriptors, amount: 3, ttl: None };
            call(rpc.name(), authorization, &message)
        }
        Rpc::KuadrantCommit => {
            let reservation_id = Bytes::copy_from_slice(id.as_bytes());
            let message = CommitRequest { domain, descriptors, reservation_id, actual_amount: 2 };
            call(rpc.name(), authorization, &message)
        }
    }
}
