//! HTTP connections, for the HTTP and gRPC fronts: from their first byte to their orderly end. The first bytes say which version
//! a client speaks.
//!
//! | module | purpose |
//! |---|---|
//! | [`http1`] | HTTP/1.1, on the connections that RESP and the line protocol use, too |
//! | [`http2`] | HTTP/2, likewise |
//! | [`bodies`] | bodies of requests and responses |

pub mod bodies;
pub mod http1;
pub mod http2;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use futures_util::poll;
use hyper::Response;
use hyper::http::request::Parts;
use tokio::io::AsyncReadExt;
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use self::bodies::{BodyBounds, Reply, RequestBody};
use self::http1::{HitSession, Http1Session};
use self::http2::Http2Session;
use crate::net::accept::Front;
use crate::net::auth::RequestOrigin;
use crate::net::connection::{self, ConnectionContext};
use crate::net::protocol::{PREFACE_LINE, Protocol};
use crate::net::stream::{Stream, count_timeout, poll_readable};
use divvy_telemetry::metrics::{Bound, FrontRequests};

/// Memory of a request over HTTP/2 and its answer, with a short reply, if it is a hit or like one (bytes).
pub const CALL: usize = 10 * 1024;
/// Memory of any other request, likewise.
pub const LARGE_CALL: usize = 30 * 1024;
/// Maximum length of a head, and over HTTP/2 of its list of headers (bytes). Envoy forwards 60 KiB by default, and adds some headers.
const MAX_HEAD: usize = 64 * 1024;
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

    /// Returns the memory that answering this request takes, without its body (bytes); and whether it is answered while its body
    /// comes in. Both are for HTTP/2.
    fn demand(&self, head: &Parts) -> (usize, bool);

    /// Answers a request.
    fn answer(
        &self,
        head: &Parts,
        body: RequestBody,
        origin: &RequestOrigin,
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
        Ok(Ok(Some(first))) => {
            let (peer, certificate, metrics) =
                (context.peer, context.certificate.clone(), Arc::clone(&context.metrics));
            // Boxed, both: a client that has sent nothing yet needs neither.
            if first.starts_with(PREFACE_LINE) {
                let session = Http2Session::new(responder, peer, certificate, metrics);
                Box::pin(connection::serve(stream, first, session, timeouts, context)).await;
            } else {
                let session = Http1Session::new(responder, peer, certificate, metrics);
                Box::pin(connection::serve(stream, first, session, timeouts, context)).await;
            }
        }
        Ok(Ok(None)) => connection::close(stream).await,
        Ok(Err(error)) => count_timeout(&error, &context.metrics),
        Err(_) => context.metrics.limits.reached.count(Bound::RequestTimeout),
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
        if !PREFACE_LINE.starts_with(&first) || first.len() >= PREFACE_LINE.len() {
            return Ok(Some(first));
        }
    }
}

#[cfg(test)]
mod tests;
