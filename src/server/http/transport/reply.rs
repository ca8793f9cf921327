//! Bodies of responses.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// The body of a response.
pub enum Reply {
    /// The body of a response from the router.
    Routed(Body),
    /// The whole body.
    Whole(Bytes),
    /// A gRPC message and its trailers, each until it is taken.
    Message(Option<Bytes>, Option<HeaderMap>),
}

impl hyper::body::Body for Reply {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Routed(body) => Pin::new(body).poll_frame(context),
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
            Self::Routed(body) => body.is_end_stream(),
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Message(message, trailers) => message.is_none() && trailers.is_none(),
        }
    }

    /// Returns no hint for a message with trailers, because it has no `Content-Length`.
    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Routed(body) => body.size_hint(),
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
