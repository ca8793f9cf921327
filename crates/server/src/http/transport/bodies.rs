//! Bodies of requests and responses.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};
use parking_lot::Mutex;

use crate::http::response::Problem;
use crate::net::connection::{Cut, Timeouts};
use crate::net::memory::BufferMemory;

/// An error of any kind, as bodies have it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Bounds on request bodies.
#[derive(Clone)]
pub struct BodyBounds {
    pub timeouts: Timeouts,
    pub memory: Arc<BufferMemory>,
    /// Memory per byte of a long body once it is decoded.
    pub expansion: usize,
}

/// A body longer than this counts with its decoded size (bytes).
const SHORT_BODY: usize = 2 * 1024;

impl BodyBounds {
    /// Returns the memory of a body of this length (bytes).
    pub fn cost(&self, bytes: usize) -> usize {
        bytes.min(SHORT_BODY) + bytes.saturating_sub(SHORT_BODY).saturating_mul(self.expansion)
    }
}

/// The body of a request.
pub enum RequestBody {
    /// The whole body.
    Whole(Bytes),
    /// A body that is not read, because it is too long or its client may not send it.
    Unread,
    /// A body that comes in while the request is answered. Only the library's gRPC services have it.
    Streamed(StreamedBody),
}

/// A body between the connection, which appends to it, and the call, which takes what has come in.
#[derive(Clone, Default)]
pub struct StreamedBody(Arc<Mutex<Incoming>>);

#[derive(Default)]
struct Incoming {
    bytes: BytesMut,
    has_ended: bool,
    reader: Option<Waker>,
}

impl StreamedBody {
    /// Appends bytes.
    pub fn append(&self, bytes: &[u8]) {
        let mut incoming = self.0.lock();
        incoming.bytes.extend_from_slice(bytes);
        incoming.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Ends the body.
    pub fn end(&self) {
        let mut incoming = self.0.lock();
        incoming.has_ended = true;
        incoming.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Returns the number of bytes that have not been taken.
    pub fn len(&self) -> usize {
        self.0.lock().bytes.len()
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut incoming = self.0.lock();
        if !incoming.bytes.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut incoming.bytes).freeze()));
        }
        incoming.reader = Some(context.waker().clone());
        if incoming.has_ended { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl RequestBody {
    /// Returns the whole body; `None` if it is longer than `max` bytes or was not read.
    pub fn within(self, max: usize) -> Option<Bytes> {
        match self {
            Self::Whole(bytes) => Some(bytes).filter(|bytes| bytes.len() <= max),
            Self::Unread | Self::Streamed(_) => None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Unread => Poll::Ready(Some(Err("it is not read".into()))),
            Self::Streamed(body) => body.poll_next(context).map(|piece| piece.map(|data| Ok(Frame::data(data)))),
        }
    }
}

impl Problem {
    /// Describes a request whose body exceeded a bound. The bound is counted where it ends a connection.
    pub fn cut(cut: Cut) -> Self {
        let status = match cut {
            Cut::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Cut::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, cut.to_string()).with_header(CONNECTION, HeaderValue::from_static("close"))
    }
}

/// The body of a response.
pub enum Reply {
    /// The whole body.
    Whole(Bytes),
    /// The gRPC message of a call that has succeeded.
    Message(Bytes),
    /// A body that is made while it is sent.
    Pieces(UnsyncBoxBody<Bytes, BoxError>),
}

impl Reply {
    /// Returns a body that consists of these pieces.
    pub fn from_stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Pieces(StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync())
    }

    /// Returns the length of the body, if it is known and no trailers follow (bytes).
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Message(_) => None,
            Self::Pieces(body) => body.size_hint().exact(),
        }
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

/// Returns the response to a call that gets no memory. Its body must be empty, so that nothing waits for the client.
pub fn refuse() -> Response<Reply> {
    let mut response = Response::new(Reply::default());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}
