//! The HTTP front: the API for clients and gateways, and what operators and orchestrators ask.
//!
//! HTTP itself, 1.1 and 2, is the library's; here are the routes and the bounds on a connection's time.

pub mod api;
pub(super) mod auth;
mod bounds;
mod health;
mod hot;
mod metrics;
mod metrics_path;
mod one_timer;
mod read_budget;
mod reply;
mod request_count;
mod timed;
mod told;
mod unread;
mod wakes;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::handler::Handler;
use axum::http::Version;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, poll};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

pub(super) use self::api::answer::Answer;
pub use self::api::check::{CheckOperation, CheckSettings};
pub use self::api::ratelimit::RateLimitHeaders;
use self::api::{Api, HitRoute, problem};
pub use self::api::{ApiSettings, DEFAULT_MAX_HITS};
pub use self::bounds::StreamBounds;
pub(super) use self::bounds::{BodyBounds, beyond, bound_body};
pub(super) use self::hot::{Hot, Incoming, Routes};
pub use self::metrics_path::{DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
use self::read_budget::ReadBudget;
pub(super) use self::reply::Reply;
use self::request_count::count;
use self::timed::Timed;
pub(super) use self::told::{Told, count as count_told, count_told as count_told_by};
#[cfg(test)]
pub(super) use self::unread::Call;
use self::unread::HeldBody;
pub(super) use self::unread::Unread;
use self::wakes::Wakes;
use super::Limits;
use super::accept::Front;
use super::auth::Access;
use super::connection::{Lease, Timeouts};
use super::health::Health;
use super::memory::UsedUp;
use super::origin;
use super::stream::Stream;
use super::tls::Alpn;
use super::turns::Turns;
use crate::limiter::Limiter;
use crate::logging::{Escaped, LogThrottle};
use crate::metrics::{Limit, RequestKind};

/// For a client that speaks TLS where HTTP and gRPC do not.
pub(super) const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 40\r\n\r\nthis port does not speak TLS: use http:\n";
/// For a client that does not speak TLS where they do.
pub(super) const ONLY_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 38\r\n\r\nthis port speaks TLS only: use https:\n";

/// Runs of a connection's task, when the server was told to stop, to read what had come in: more than a kernel holds for it,
/// and an end to a client that never pauses.
const LAST_RUNS: usize = 4_096;

static ENDED_EARLY: LogThrottle = LogThrottle::new();
static FLOODED: LogThrottle = LogThrottle::new();

/// The front.
pub struct HttpFront {
    routes: Arc<Routes<HitRoute>>,
    timeouts: Timeouts,
}

impl HttpFront {
    /// `turns` are those at large requests.
    #[expect(clippy::too_many_arguments, reason = "all of them are what a front is made of, each given once")]
    pub fn new(
        limiter: Arc<Limiter>,
        limits: Limits,
        bounds: BodyBounds,
        access: &Access,
        api: ApiSettings,
        metrics_path: &str,
        turns: Turns,
        health: Arc<Health>,
    ) -> Self {
        let metrics = Arc::clone(limiter.metrics());
        let requests = metrics.requests.front(Self::NAME);
        let counted = |kind| from_fn_with_state((requests.clone(), kind), count);
        let api = Arc::new(Api::new(
            Arc::clone(&limiter),
            api,
            limits,
            requests.clone(),
            turns.clone(),
            Arc::clone(&bounds.memory),
        ));
        let hot = HitRoute::new(Arc::clone(&api), bounds.clone(), access.hit.clone());
        let scrape = Router::new().route(metrics_path, get(metrics::scrape).with_state((limiter, turns)));
        let router = Router::new()
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready).with_state(health))
            .merge(auth::guarded(scrape, access.metrics.clone()))
            .route_layer(counted(RequestKind::Server))
            .merge(api::router(Arc::clone(&api), access))
            .fallback(problem::not_found.layer(counted(RequestKind::Invalid)))
            .method_not_allowed_fallback(problem::wrong_method)
            .layer(from_fn_with_state(bounds, bound_body))
            .layer(from_fn_with_state(metrics, count_told));
        let routes = Routes { hot, router, streams: limits.http_streams };
        Self { routes: Arc::new(routes), timeouts: limits.timeouts }
    }
}

#[cfg(test)]
impl HttpFront {
    pub(super) fn routes(&self) -> &Arc<Routes<HitRoute>> {
        &self.routes
    }
}

impl Front for HttpFront {
    const NAME: &'static str = "http";
    const TOO_MANY: &'static [u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const NO_TLS: &'static [u8] = NO_TLS;
    const ONLY_TLS: &'static [u8] = ONLY_TLS;
    const ALPN: Alpn = Alpn::Http;

    fn serve(&self, stream: Stream, peer: SocketAddr, lease: Lease) -> impl Future<Output = ()> + Send + 'static {
        serve_routes(stream, peer, Arc::clone(&self.routes), self.timeouts, lease)
    }
}

/// Serves one connection; once the lease is over, it answers what came in and ends.
pub(super) async fn serve_routes(
    stream: Stream,
    peer: SocketAddr,
    routes: Arc<Routes<impl Hot>>,
    timeouts: Timeouts,
    lease: Lease,
) {
    let Lease { closing, memory, metrics } = lease;
    let streams = routes.streams;
    let budget = ReadBudget::default();
    let stream = Timed::new(stream, timeouts, budget.clone(), Arc::clone(&metrics));
    let has_begun = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&has_begun);
    let unread = Unread::new(memory);
    let replies = Arc::clone(&unread);
    let reads = budget.clone();
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        begun.store(true, Relaxed);
        if request.version() < Version::HTTP_2 {
            reads.lift();
        }
        // Before anything is done or allocated for it.
        let mut call = match replies.begin(request.version()) {
            Ok(call) => call,
            Err(UsedUp) => {
                // In little memory. Each answer before the end of a body is a reset, and many of them end the connection.
                return Either::Left(Box::pin(async {
                    bounds::discard(request.into_body()).await;
                    Ok::<_, Infallible>(unread::refused(HeldBody::empty()))
                }));
            }
        };
        let routes = Arc::clone(&routes);
        // Boxed: the library moves it about several times a request, and it has kilobytes.
        Either::Right(Box::pin(async move {
            let response = origin::scope(peer, routes.answer(request, peer, &mut call)).await;
            Ok(call.hold(response))
        }))
    });
    let builder = bounds::builder(timeouts, streams);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut wakes = Wakes::default();
    let mut run = |connection: &mut Pin<&mut _>, context: &mut Context<'_>| {
        budget.renew();
        wakes.poll(connection, context)
    };
    // In a set of its own it is polled when it was woken, not whenever the connection is: that costs as much as a timer
    // or two for each.
    let mut over: FuturesUnordered<_> = [over(&closing, &has_begun, &unread, timeouts)].into_iter().collect();
    let served = tokio::select! {
        biased;
        served = poll_fn(|context| run(&mut connection, context)) => served,
        Some(over) = over.next() => match over {
            Over::Closing => {
                // What has come in by now is taken up, which the library would not do once it is told to end.
                let mut polled = Poll::Pending;
                for _ in 0..LAST_RUNS {
                    tokio::task::yield_now().await;
                    polled = poll!(poll_fn(|context| run(&mut connection, context)));
                    if polled.is_ready() || !budget.is_used_up() {
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
            Over::Passed(limit) => {
                metrics.limits.reached(limit);
                Ok(())
            }
        }
    };
    if let Err(error) = served {
        let error_of_http = error.downcast_ref::<hyper::Error>();
        if error_of_http.is_some_and(hyper::Error::is_timeout) {
            metrics.limits.reached(Limit::RequestTimeout);
        }
        if error_of_http.is_some_and(bounds::is_flood) {
            FLOODED.say(|more| {
                tracing::warn!(%peer, more, "closed an HTTP/2 connection with too many reset or faulty requests (--max-pending-resets, --max-local-resets)");
            });
        }
        ENDED_EARLY.say(|more| {
            let error = error.to_string();
            tracing::debug!(error = %Escaped::error(&error), more, "an HTTP connection ended early");
        });
    }
}

/// Why a connection is to end.
enum Over {
    Closing,
    Passed(Limit),
}

async fn over(closing: &CancellationToken, has_begun: &AtomicBool, unread: &Unread, timeouts: Timeouts) -> Over {
    tokio::select! {
        biased;
        () = closing.cancelled() => Over::Closing,
        () = no_request(has_begun, timeouts.request) => Over::Passed(Limit::RequestTimeout),
        () = unread.stalled(timeouts.write) => Over::Passed(Limit::WriteTimeout),
    }
}

/// Ends when the connection's first request has not begun in time: the library has no bound on the bytes by which it
/// tells HTTP's versions apart.
async fn no_request(has_begun: &AtomicBool, limit: Duration) {
    tokio::time::sleep(limit).await;
    if has_begun.load(Relaxed) {
        std::future::pending().await
    }
}
