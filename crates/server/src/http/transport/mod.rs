//! HTTP/1.1 and HTTP/2 connections, for the HTTP and gRPC fronts. A library parses them. This module bounds a
//! connection's time and memory. `serve` serves one connection, from its first byte to its orderly end.
//!
//! | module | purpose |
//! |---|---|
//! | [`request_body`] | the library's settings; bounds on request bodies |
//! | [`response_body`] | bodies of responses; memory of calls, and of replies that the client has not read |
//! | [`timed_stream`] | how long a client may be silent, and how much of its input is read in one run |
//! | [`wakeups`] | fewer wake-ups and timers than the library alone would cause |

pub mod request_body;
pub mod response_body;
pub mod timed_stream;
mod wakeups;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, poll};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use self::request_body::{Incoming, builder, discard, is_flood};
use self::response_body::{AccountedBody, Call, Reply, UnsentReplies, refuse};
use self::timed_stream::{Requests, TimedStream};
use self::wakeups::ConnectionWaker;
use crate::net::accept::Front;
use crate::net::auth::RequestOrigin;
use crate::net::connection::{ConnectionContext, Timeouts};
use crate::net::memory::BudgetExceeded;
use crate::net::protocol::Protocol;
use crate::net::stream::Stream;
use crate::server_context::StreamBounds;
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::Bound;

/// Maximum number of runs of a connection's task after the server began to close: enough to read all that a kernel buffers for
/// a connection, but finite if a client never pauses.
const LAST_RUNS: usize = 4_096;

static ENDED_EARLY: LogThrottle = LogThrottle::new();
static FLOODED: LogThrottle = LogThrottle::new();

/// A front whose requests come over HTTP.
pub trait Responder: Send + Sync + 'static {
    /// The protocol of the front.
    const PROTOCOL: Protocol;

    /// Returns the timeouts, and the bounds on HTTP/2 connections.
    fn bounds(&self) -> (Timeouts, StreamBounds);

    /// Answers the request of a call.
    fn answer(
        &self,
        request: Request<impl Incoming + 'static>,
        origin: RequestOrigin,
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
async fn serve(stream: Stream, responder: Arc<impl Responder>, context: ConnectionContext) {
    let ConnectionContext { peer, closing, memory, metrics } = context;
    let (timeouts, streams) = responder.bounds();
    let certificate = stream.certificate_name();
    let requests = Arc::<Requests>::default();
    let stream = TimedStream::new(stream, timeouts.idle, Arc::clone(&requests), Arc::clone(&metrics));
    let unsent = UnsentReplies::new(memory);
    let (replies, seen) = (Arc::clone(&unsent), Arc::clone(&requests));
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        seen.begin(request.version());
        // This comes before any work or allocation for the call.
        let mut call = match replies.begin(request.version()) {
            Ok(call) => call,
            Err(BudgetExceeded) => {
                // Discarding takes little memory. An answer before the end of the body would reset the stream, and many resets end the connection.
                return Either::Left(Box::pin(async {
                    discard(request.into_body()).await;
                    Ok::<_, Infallible>(refuse(AccountedBody::default()))
                }));
            }
        };
        let responder = Arc::clone(&responder);
        let origin = RequestOrigin::new(peer, certificate.clone());
        // The future is boxed because the library moves it several times per request, and it is kilobytes large.
        Either::Right(Box::pin(async move {
            let response = responder.answer(request, origin, &mut call).await;
            Ok(AccountedBody::respond(call, response))
        }))
    });
    let builder = builder(timeouts, streams);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut waker = ConnectionWaker::default();
    let mut run = |connection: &mut Pin<&mut _>, context: &mut Context<'_>| {
        requests.begin_run();
        waker.poll(connection, context)
    };
    // In its own set the future is polled only when it was woken, not whenever the connection is polled, which would cost as
    // much as one or two timers each time.
    let mut over: FuturesUnordered<_> = [over(&closing, &requests, &unsent, timeouts)].into_iter().collect();
    let served = tokio::select! {
        biased;
        served = poll_fn(|context| run(&mut connection, context)) => served,
        Some(over) = over.next() => match over {
            ConnectionEnd::Closing => {
                // Reads the input that has arrived. The library would not do that after `graceful_shutdown`.
                let mut polled = Poll::Pending;
                for _ in 0..LAST_RUNS {
                    tokio::task::yield_now().await;
                    polled = poll!(poll_fn(|context| run(&mut connection, context)));
                    if polled.is_ready() || !requests.have_used_up_run() {
                        break;
                    }
                }
                match polled {
                    Poll::Ready(served) => served,
                    Poll::Pending => {
                        connection.as_mut().graceful_shutdown();
                        poll_fn(|context| run(&mut connection, context)).await
                    }
                }
            }
            ConnectionEnd::Passed(limit) => {
                metrics.limits.reached(limit);
                Ok(())
            }
        }
    };
    if let Err(error) = served {
        let error_of_http = error.downcast_ref::<hyper::Error>();
        if error_of_http.is_some_and(hyper::Error::is_timeout) {
            metrics.limits.reached(Bound::RequestTimeout);
        }
        if error_of_http.is_some_and(is_flood) {
            FLOODED.say(|more| {
                tracing::warn!(%peer, more, "closed an HTTP/2 connection with too many reset or faulty requests");
            });
        }
        ENDED_EARLY.say(|more| {
            let error = error.to_string();
            tracing::debug!(error = %Escaped::error(&error), more, "an HTTP connection ended early");
        });
    }
}

/// Reason to end a connection.
enum ConnectionEnd {
    Closing,
    Passed(Bound),
}

async fn over(
    closing: &CancellationToken,
    requests: &Requests,
    unsent: &UnsentReplies,
    timeouts: Timeouts,
) -> ConnectionEnd {
    tokio::select! {
        biased;
        () = closing.cancelled() => ConnectionEnd::Closing,
        () = no_request(requests, timeouts.request) => ConnectionEnd::Passed(Bound::RequestTimeout),
        () = unsent.stalled(timeouts.write) => ConnectionEnd::Passed(Bound::WriteTimeout),
    }
}

/// Ends if the connection's first request does not begin in time. The library has no timeout for the bytes that
/// distinguish HTTP's versions.
async fn no_request(requests: &Requests, limit: Duration) {
    tokio::time::sleep(limit).await;
    if requests.have_begun() {
        std::future::pending().await
    }
}
