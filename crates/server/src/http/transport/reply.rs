//! Bodies of responses. Their bytes count toward the budget of all buffers until the library has sent them.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, SizeHint};
use hyper::{HeaderMap, Response, StatusCode};

use super::unsent_replies::{Call, UnsentBytes};

/// An error of any kind, as bodies have it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a response.
pub enum Reply {
    /// The whole body.
    Whole(Bytes),
    /// A gRPC message and its trailers, each until it is taken.
    Message(Option<Bytes>, Option<HeaderMap>),
    /// A body that is made while it is sent.
    Pieces(UnsyncBoxBody<Bytes, BoxError>),
}

impl Reply {
    /// Returns a body that consists of these pieces.
    pub fn from_stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::Pieces(StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync())
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Pieces(body) => Pin::new(body).poll_frame(context),
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Message(message, trailers) => {
                let frame = message.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Pieces(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Message(message, trailers) => message.is_none() && trailers.is_none(),
        }
    }

    /// Returns no hint for a message with trailers, because it has no `Content-Length`.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Pieces(body) => body.size_hint(),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Message(..) => SizeHint::default(),
        }
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::Whole(Bytes::new())
    }
}

/// A body whose frames count until they are sent.
#[derive(Default)]
pub struct AccountedBody {
    body: Reply,
    /// Memory of the bytes that the library has not received yet. `None` if this reply does not count.
    unsent: Option<UnsentBytes>,
    /// The call, until the library has received all of its reply.
    call: Option<Call>,
}

/// The bytes of a frame.
pub struct AccountedBytes {
    bytes: Bytes,
    unsent: Option<UnsentBytes>,
}

impl AccountedBody {
    /// Returns the response to a call, with memory for its body; 503 if there is no memory.
    pub fn respond(mut call: Call, response: Response<Reply>) -> Response<Self> {
        let length = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
        match call.reserve(length) {
            Err(_) => refuse(Self::default()),
            Ok(None) => response.map(|body| Self { body, unsent: None, call: None }),
            Ok(unsent) => response.map(|body| Self { body, unsent, call: Some(call) }),
        }
    }
}

/// Returns the response to a call that gets no memory. Its body must be empty, so that nothing waits for the client.
pub fn refuse<B>(empty: B) -> Response<B> {
    let mut response = Response::new(empty);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

impl Buf for AccountedBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(unsent) = &mut self.unsent {
            unsent.mark_sent(count);
        }
    }
}

impl Body for AccountedBody {
    type Data = AccountedBytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AccountedBytes>, BoxError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else { return Poll::Ready(None) };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Self { unsent, call, .. } = &mut *self;
        let accounted = unsent.as_mut().zip(call.as_mut());
        let Ok(unsent) = accounted.map(|(unsent, call)| unsent.split(length, call)).transpose() else {
            return Poll::Ready(Some(Err(OutOfMemory.into())));
        };
        Poll::Ready(Some(Ok(frame.map_data(|bytes| AccountedBytes { bytes, unsent }))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("there is no memory left for replies that clients have not read yet (--max-buffer-memory)")]
struct OutOfMemory;
