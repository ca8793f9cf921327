//! HTTP connections, for the HTTP and gRPC fronts: from their first byte to their orderly end. The first bytes say which version
//! a client speaks.
//!
//! | module | purpose |
//! |---|---|
//! | [`http1`] | HTTP/1.1, on the connections that RESP and the line protocol use, too |
//! | [`http2`] | HTTP/2, by a library; bounds on its time and memory |
//! | [`request_body`] | bodies of requests, and bounds on those that come in while they are read |
//! | [`response_body`] | bodies of responses; memory of calls, and of replies that the client has not read |

pub mod http1;
mod http2;
pub mod request_body;
pub mod response_body;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use futures_util::poll;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tokio::io::AsyncReadExt;
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use self::http1::{HitSession, Http1Session};
use self::request_body::{BodyBounds, RequestBody};
use self::response_body::{Call, Reply};
use crate::net::accept::Front;
use crate::net::auth::RequestOrigin;
use crate::net::connection::{self, ConnectionContext};
use crate::net::protocol::{PREFACE, Protocol};
use crate::net::stream::{Stream, count_timeout, poll_readable};
use divvy_telemetry::metrics::{Bound, FrontRequests};

/// Room for the first bytes of a connection.
const FIRST: usize = 1024;

/// A front whose requests come over HTTP.
pub trait Responder: Send + Sync + 'static {
    /// The protocol of the front.
    const PROTOCOL: Protocol;

    /// Maximum number of requests in flight on an HTTP/2 connection.
    const MAX_CONCURRENT: u32;

    /// Returns the bounds on bodies, and the timeouts of connections.
    fn bounds(&self) -> &BodyBounds;

    /// Returns the maximum length of a body (bytes).
    fn max_body(&self) -> usize;

    /// Returns the counts of requests.
    fn requests(&self) -> &FrontRequests;

    /// Returns whether requests can be answered now. See [`Session::has_room`](connection::Session::has_room).
    fn has_room(&self) -> bool;

    /// Returns whether the client of a request may send its body. If not, the request is answered without it.
    fn may_send(&self, head: &Parts, origin: &RequestOrigin) -> impl Future<Output = bool> + Send;

    /// Answers the requests at the front of the input that need nothing but the limiter: removes them and appends their responses.
    /// Returns whether other connections must have a turn first.
    fn answer_hits(
        &self,
        _hits: &mut HitSession,
        _input: &mut BytesMut,
        _output: &mut Vec<u8>,
    ) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Answers the request of a call.
    fn answer(
        &self,
        request: Request<RequestBody>,
        origin: &RequestOrigin,
        call: &mut Call,
    ) -> impl Future<Output = Response<Reply>> + Send;
}

impl<R: Responder> Front for R {
    const PROTOCOL: Protocol = <R as Responder>::PROTOCOL;

    fn serve(
        self: &Arc<Self>,
        stream: Stream,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static {
        serve(stream, Arc::clone(self), context)
    }
}

/// Serves one connection. When the server is closing, answers the requests that have come in, and ends.
async fn serve<R: Responder>(mut stream: Stream, responder: Arc<R>, context: ConnectionContext) {
    let timeouts = responder.bounds().timeouts;
    let first = tokio::select! {
        biased;
        first = timeout(timeouts.request, read_first(&mut stream)) => first,
        () = context.closing.cancelled() => {
            // A read sees new input only after the poller has run.
            tokio::task::yield_now().await;
            match poll!(pin!(unconstrained(read_first(&mut stream)))) {
                Poll::Ready(first) => Ok(first),
                Poll::Pending => Ok(Ok(None)),
            }
        }
    };
    match first {
        Ok(Ok(Some(first))) if first.starts_with(PREFACE) => {
            // Boxed, both: a client that has sent nothing yet needs neither.
            Box::pin(http2::serve(stream, first, responder, context)).await;
        }
        Ok(Ok(Some(first))) => {
            let (certificate, metrics) = (context.certificate.clone(), Arc::clone(&context.metrics));
            let session = Http1Session::new(responder, context.peer, certificate, metrics);
            Box::pin(connection::serve(stream, first, session, timeouts, context)).await;
        }
        Ok(Ok(None)) => connection::close(stream).await,
        Ok(Err(error)) => count_timeout(&error, &context.metrics),
        Err(_) => context.metrics.limits.reached(Bound::RequestTimeout),
    }
}

/// Reads the bytes that say which version the client speaks; returns `None` if it sends nothing.
async fn read_first(stream: &mut Stream) -> io::Result<Option<BytesMut>> {
    // A client that has sent nothing yet has no buffer.
    poll_fn(|context| poll_readable(stream, context)).await?;
    let mut first = BytesMut::with_capacity(FIRST);
    loop {
        let read = stream.read_buf(&mut first).await?;
        if read == 0 {
            return Ok((!first.is_empty()).then_some(first));
        }
        if !PREFACE.starts_with(&first) || first.len() >= PREFACE.len() {
            return Ok(Some(first));
        }
    }
}
