//! Bodies of requests, and bounds on HTTP/2: the library's buffers, and the time and memory of bodies.
//!
//! They are the same as for the other fronts, where an unfinished request corresponds to a body.

use std::error::Error;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{self, Body, Frame, SizeHint};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http2::Builder;
use hyper_util::rt::TokioExecutor;

use parking_lot::Mutex;
use tokio::time::{Sleep, timeout};

use super::response_body::BoxError;
use crate::http::response::Problem;
use crate::net::connection::{Cut, Timeouts};
use crate::net::memory::{BufferMemory, Share};

/// HTTP/2: maximum length of a request's head (bytes).
const MAX_HEAD: u32 = 16 * 1024;
/// HTTP/2: flow-control windows of a request and of a connection, and the send buffer (bytes).
const WINDOW: u32 = 64 * 1024;

/// HTTP/2: maximum number of requests that the client has reset and that still wait to be served. The library closes a connection
/// with more.
const MAX_PENDING_RESETS: usize = 1_000;
/// HTTP/2: maximum number of requests that the server has reset because of the client's errors, likewise.
const MAX_LOCAL_RESETS: usize = 10_000;
/// HTTP/2: how long an answer waits for the rest of an unread body.
const SETTLING: Duration = Duration::from_millis(200);

/// Returns whether the library closed a connection because its client exceeded a bound.
pub fn is_flood(error: &hyper::Error) -> bool {
    let error = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    error.is_some_and(|error| error.is_library() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM))
}

/// Returns a builder of connections with these bounds.
pub fn builder(max_concurrent: u32) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(max_concurrent)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_LOCAL_RESETS)
        .max_header_list_size(MAX_HEAD)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(WINDOW as usize);
    builder
}

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
    /// A body of at least this length that is not read, because it is too long or its client may not send it (bytes).
    Unread(u64),
    /// A body that comes in while it is read.
    Streamed(Box<BoundedBody<body::Incoming, Arc<Account<body::Incoming>>>>),
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Unread(_) => Poll::Ready(Some(Err("it is not read".into()))),
            Self::Streamed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Unread(_) => false,
            Self::Streamed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Unread(length) => SizeHint::with_exact(*length),
            Self::Streamed(body) => body.size_hint(),
        }
    }
}

/// A body of any kind.
pub trait Incoming: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin {}

impl<B: Body<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin> Incoming for B {}

/// Reads the rest of a body that was answered early. If the library answers before the end of the body, it resets the
/// stream, and some clients, such as curl, then drop the answer. A slow client gets the reset anyway, because it could
/// go on sending for the life of the stream.
pub async fn discard(mut rest: impl Body + Unpin) {
    let to_end = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = timeout(SETTLING, to_end).await;
}

/// Returns the next data frame of a body; `None` after the last.
pub async fn next_data<B: Incoming>(body: &mut B) -> Result<Option<Bytes>, BoxError> {
    while let Some(frame) = body.frame().await {
        // Other frames are trailers.
        if let Ok(data) = frame.map_err(Into::into)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The account of a body. It outlives the body, because the bytes are held until the request is answered.
pub struct Account<B> {
    bounds: BodyBounds,
    share: Mutex<Share>,
    cut: OnceLock<Cut>,
    /// The unread rest of the body.
    rest: Mutex<Option<B>>,
}

impl<B: Incoming> Account<B> {
    pub fn new(bounds: &BodyBounds) -> Self {
        let share = Mutex::new(bounds.memory.share());
        Self { bounds: bounds.clone(), share, cut: OnceLock::new(), rest: Mutex::default() }
    }

    /// Ends the account once the request is answered. Returns the error if the body exceeded a bound.
    pub async fn settle(&self) -> Option<Problem> {
        let rest = self.rest.lock().take();
        let Some(cut) = self.cut.get() else {
            if let Some(rest) = rest {
                discard(rest).await;
            }
            return None;
        };
        Some(Problem::cut(*cut))
    }
}

impl Problem {
    /// Describes a request whose body exceeded a bound.
    pub fn cut(cut: Cut) -> Self {
        let status = match cut {
            Cut::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Cut::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        };
        let problem = Self::new(status, cut.to_string()).with_header(CONNECTION, HeaderValue::from_static("close"));
        cut.limit().into_iter().fold(problem, Self::with_limit)
    }
}

/// A body that fails when it takes too long or too much memory.
pub struct BoundedBody<B: Body, A: Deref<Target = Account<B>>> {
    /// `None` only while this is dropped.
    body: Option<B>,
    received: usize,
    overdue: Option<Pin<Box<Sleep>>>,
    account: A,
}

impl<B: Body, A: Deref<Target = Account<B>>> BoundedBody<B, A> {
    pub fn new(body: B, account: A) -> Self {
        Self { body: Some(body), received: 0, overdue: None, account }
    }

    fn end(&self, cut: Cut) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(Some(Err((*self.account.cut.get_or_init(|| cut)).into())))
    }
}

impl<B: Body, A: Deref<Target = Account<B>>> Drop for BoundedBody<B, A> {
    fn drop(&mut self) {
        if let Some(rest) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.account.rest.lock() = Some(rest);
        }
    }
}

impl<B: Incoming, A: Deref<Target = Account<B>> + Unpin> Body for BoundedBody<B, A> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            let limit = self.account.bounds.timeouts.request;
            let overdue = self.overdue.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
            ready!(overdue.as_mut().poll(context));
            return self.end(Cut::TooSlow(limit));
        };
        if let Some(Ok(frame)) = &frame {
            self.received += frame.data_ref().map_or(0, Bytes::len);
            if self.account.share.lock().resize(self.account.bounds.cost(self.received)).is_err() {
                return self.end(Cut::NoMemory);
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{Empty, Full, StreamBody};

    use super::*;
    use divvy_telemetry::metrics::Metrics;

    const LARGE: usize = 1000;

    fn bounds(limit: Duration) -> BodyBounds {
        let memory = BufferMemory::new(LARGE, Metrics::new());
        let timeouts = Timeouts { idle: None, request: limit, write: limit, auth: limit, handshake: limit };
        BodyBounds { timeouts, memory, expansion: 1 }
    }

    /// Reads a body with [`LARGE`] bytes for all bodies, and 10 ms for each. Returns its length, or the problem.
    fn read(body: impl Incoming) -> Result<usize, (StatusCode, String)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let account = Account::new(&bounds(Duration::from_millis(10)));
            let read = BoundedBody::new(body, &account).collect().await;
            match account.settle().await {
                Some(problem) => Err((problem.status(), problem.detail().to_owned())),
                None => Ok(read.unwrap().to_bytes().len()),
            }
        })
    }

    fn unending() -> impl Incoming {
        StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, Infallible>>())
    }

    #[test]
    fn body_within_its_bounds_is_unchanged() {
        assert_eq!(read(Full::from(vec![0; LARGE])), Ok(LARGE));
        assert_eq!(read(Empty::new()), Ok(0));
    }

    #[test]
    fn endless_body_times_out() {
        let (status, detail) = read(unending()).unwrap_err();
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
        assert!(detail.contains("not finished within"), "{detail}");
    }

    /// Regression test: the open stream of an unauthenticated client waited for the whole request timeout.
    #[tokio::test]
    async fn answer_does_not_wait_for_an_endless_body() {
        let account = Account::new(&bounds(Duration::from_secs(3600)));
        drop(BoundedBody::new(unending(), &account));
        assert!(account.settle().await.is_none());
    }

    #[test]
    fn body_without_memory_is_refused() {
        let (status, detail) = read(Full::from(vec![0; LARGE + 1])).unwrap_err();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(detail.contains("no memory"), "{detail}");
    }
}
