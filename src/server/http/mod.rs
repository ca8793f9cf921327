//! The HTTP front: the API for clients and gateways, and what operators and orchestrators ask.
//!
//! HTTP itself, 1.1 and 2, is the library's; here are the routes and the bounds on a connection's time.

mod api;
pub(super) mod auth;
mod health;
mod metrics;
mod metrics_path;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio_util::sync::CancellationToken;

pub use self::api::check::{CheckOperation, CheckSettings};
pub use self::api::ratelimit::RateLimitHeaders;
use self::api::{Api, problem};
pub use self::api::{ApiSettings, DEFAULT_MAX_HITS};
use self::health::Health;
pub use self::metrics_path::{DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
use super::Limits;
use super::accept::Front;
use super::auth::Access;
use super::stream::Stream;
use super::tls::Alpn;
use crate::limiter::Limiter;
use crate::logging::{Escaped, Sometimes};
use crate::metrics::{FrontRequests, RequestKind};

/// How long a request's head may take to arrive (HTTP/1.1).
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

static ENDED_EARLY: Sometimes = Sometimes::new();

/// The front.
pub struct HttpFront {
    router: Router,
}

impl HttpFront {
    /// `draining` is cancelled when the server is about to stop.
    pub fn new(
        limiter: Arc<Limiter>,
        limits: Limits,
        access: &Access,
        api: ApiSettings,
        metrics_path: &str,
        draining: CancellationToken,
    ) -> Self {
        let requests = limiter.metrics().requests.front(Self::NAME);
        let counted = |kind| from_fn_with_state((requests.clone(), kind), count);
        let api = Api::new(Arc::clone(&limiter), api, limits, requests.clone());
        let health = Arc::new(Health::new(Arc::clone(&limiter), draining));
        let scrape = Router::new().route(metrics_path, get(metrics::scrape).with_state(limiter));
        let router = Router::new()
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready).with_state(health))
            .merge(auth::guarded(scrape, access.metrics.clone()))
            .route_layer(counted(RequestKind::Server))
            .merge(api::router(Arc::new(api), access))
            .fallback(problem::not_found.layer(counted(RequestKind::Invalid)))
            .method_not_allowed_fallback(problem::wrong_method);
        Self { router }
    }
}

/// Counts a request of this kind.
async fn count(State((requests, kind)): State<(FrontRequests, RequestKind)>, request: Request, next: Next) -> Response {
    requests.count(kind);
    next.run(request).await
}

impl Front for HttpFront {
    const NAME: &'static str = "http";
    const TOO_MANY: &'static [u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const ALPN: Alpn = Alpn::Http;

    fn serve(
        &self,
        stream: Stream,
        _: SocketAddr,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        serve_router(stream, self.router.clone(), closing)
    }
}

/// Serves one connection; once `closing` is cancelled, it answers what came in and ends.
pub(super) async fn serve_router(stream: Stream, router: Router, closing: CancellationToken) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        ENDED_EARLY.say(|more| {
            let error = error.to_string();
            tracing::debug!(error = %Escaped::error(&error), more, "an HTTP connection ended early");
        });
    }
}
