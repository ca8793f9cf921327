//! Answers ordinary calls of `ShouldRateLimit` without the router and the library.
//!
//! An ordinary call is one whole uncompressed message that has arrived when the call is first polled. Any other call
//! goes to the router with its complete body, and the library answers it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use prost::Message;
use tonic::Status;

use super::ratelimit::{FRONT, RateLimits};
use crate::http::auth::lets_in;
use crate::http::{BodyBounds, FastRoute, Incoming, Reply, count_error, respond_to_cut};
use crate::net::auth::Guard;
use crate::net::session::Cut;
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::protocol::rpc::Rpc;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");
/// Length of a message's prefix: a byte that says whether it is compressed, and its length in four bytes.
const PREFIX: usize = 5;

/// The route for calls of authenticated clients.
pub struct RateLimitRoute {
    limits: Arc<RateLimits>,
    bounds: BodyBounds,
    guard: Option<Arc<Guard>>,
    max_message: usize,
}

impl RateLimitRoute {
    pub fn new(limits: Arc<RateLimits>, bounds: BodyBounds, guard: Option<Arc<Guard>>, max_message: usize) -> Self {
        Self { limits, bounds, guard, max_message }
    }

    fn takes<B>(&self, request: &Request<B>) -> bool {
        *request.method() == Method::POST
            && request.uri().path() == Rpc::EnvoyShouldRateLimit.path()
            && !request.headers().contains_key(ENCODING)
            && lets_in(self.guard.as_deref(), request.headers(), Rpc::EnvoyShouldRateLimit.category())
    }

    /// Returns the message in a body's only frame; `None` for anything else.
    fn message(&self, frame: &Frame<Bytes>) -> Option<RateLimitRequest> {
        let data = frame.data_ref()?;
        let (prefix, message) = data.split_first_chunk::<PREFIX>()?;
        let [0, length @ ..] = *prefix else { return None };
        if message.len() > self.max_message || u32::from_be_bytes(length) as usize != message.len() {
            return None;
        }
        RateLimitRequest::decode(data.slice(PREFIX..)).ok()
    }

    async fn decide(&self, request: &RateLimitRequest, length: usize, headers: HeaderMap) -> Response<Reply> {
        let mut share = self.bounds.memory.share();
        if share.resize(self.bounds.cost(length)).is_err() {
            let refused = respond_to_cut(&Cut::NoMemory);
            count_error(self.limits.metrics(), FRONT, refused.extensions());
            return refused.map(Reply::Routed);
        }
        match self.limits.answer(request, length).await {
            Ok(answer) => respond(&answer, headers),
            Err(status) => Status::into_http(status),
        }
    }
}

impl FastRoute for RateLimitRoute {
    async fn answer<B: Incoming>(&self, request: Request<B>) -> Result<Response<Reply>, Request<Body>> {
        if !self.takes(&request) {
            return Err(request.map(Body::new));
        }
        let (head, mut body) = request.into_parts();
        let first = match poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await {
            Poll::Ready(Some(Ok(frame))) if body.is_end_stream() => match self.message(&frame) {
                Some(message) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    return Ok(self.decide(&message, length, head.headers).await);
                }
                None => Some(Ok(frame)),
            },
            Poll::Ready(Some(frame)) => Some(frame),
            Poll::Ready(None) | Poll::Pending => None,
        };
        Err(Request::from_parts(head, Body::new(ResumedBody { first, rest: body })))
    }
}

/// Returns the response. Reuses `headers`, which are the request's.
fn respond(answer: &RateLimitResponse, mut headers: HeaderMap) -> Response<Reply> {
    let length = answer.encoded_len();
    // A vector of exactly this capacity becomes `Bytes` without a copy.
    let mut message = Vec::with_capacity(PREFIX + length);
    message.push(0);
    message.extend_from_slice(&(length as u32).to_be_bytes());
    answer.encode_raw(&mut message);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, OK);
    headers.clear();
    headers.insert(CONTENT_TYPE, GRPC);
    let mut response = Response::new(Reply::Message(Some(message.into()), Some(trailers)));
    *response.headers_mut() = headers;
    response
}

/// A body whose first frame was already polled.
struct ResumedBody<B: Incoming> {
    first: Option<Result<Frame<Bytes>, B::Error>>,
    rest: B,
}

// No field needs to stay in place.
impl<B: Incoming> Unpin for ResumedBody<B> {}

impl<B: Incoming> hyper::body::Body for ResumedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(|first| first.as_ref().ok()?.data_ref()).map_or(0, Bytes::len) as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + first);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + first);
        }
        hint
    }
}
