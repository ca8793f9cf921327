//! The HTTP front: the API for clients and gateways ([`api`]), health checks, metrics and the live page ([`ui`]) for
//! operators, and the connections ([`transport`]).

pub mod api;
pub(super) mod auth;
mod changes;
mod error_counts;
mod health;
mod json_line;
mod metrics;
mod metrics_path;
mod problem;
mod request_count;
mod session_cookie;
mod transport;
pub(super) mod ui;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::get;

pub(super) use self::api::answer::Answer;
pub use self::api::check::{CheckFrom, CheckId, CheckOperation, CheckSettings};
pub use self::api::ratelimit::RateLimitHeaders;
use self::api::{Api, HitRoute, guarded};
pub use self::api::{ApiSettings, InvalidOrigin, WebOrigin, WebOrigins};
pub(super) use self::error_counts::{ErrorCount, count_error, count_errors};
pub use self::metrics_path::{DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
pub use self::problem::describe_error;
use self::request_count::count;
pub use self::transport::bounds::StreamBounds;
pub(super) use self::transport::bounds::{BodyBounds, bound_body, respond_to_cut};
pub(super) use self::transport::fast_routes::{FastRoute, Incoming, Routes};
pub(super) use self::transport::reply::Reply;
pub(super) use self::transport::serve::serve_routes;
#[cfg(test)]
pub(super) use self::transport::unsent_replies::{Call, UnsentReplies};
use self::ui::Ui;
use super::Limits;
use super::health::Health;
use super::net::accept::Front;
use super::net::auth::Access;
use super::net::connection::{ConnectionContext, Timeouts};
use super::net::stream::{AnswerToOthers, Stream};
use super::net::tls::Alpn;
use super::net::work_slots::WorkSlots;
use super::operations::Operations;
use super::wrong_port::Protocol;
use divvy_access::Category;
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::RequestKind;

/// Message for a client that uses TLS on a port of HTTP or gRPC without TLS.
pub(super) const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 40\r\n\r\nthis port does not speak TLS: use http:\n";
/// Message for a client without TLS on a port of HTTP or gRPC that requires it.
pub(super) const ONLY_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 38\r\n\r\nthis port speaks TLS only: use https:\n";

/// The front.
pub struct HttpFront {
    routes: Arc<Routes<HitRoute>>,
    timeouts: Timeouts,
}

impl HttpFront {
    /// Creates the front. `operations` carries out what operators ask for, and `slots` bound the large requests in work.
    #[expect(clippy::too_many_arguments, reason = "all of them are what a front is made of, each given once")]
    pub fn new(
        limiter: Arc<Limiter>,
        operations: Operations,
        limits: Limits,
        bounds: BodyBounds,
        access: &Access,
        api: ApiSettings,
        metrics_path: &str,
        slots: WorkSlots,
        health: Arc<Health>,
        ui: Option<Arc<Ui>>,
    ) -> Self {
        let metrics = Arc::clone(limiter.metrics());
        let requests = metrics.requests.front(Self::NAME);
        let counted = |kind| from_fn_with_state((requests.clone(), kind), count);
        let api = Arc::new(Api::new(
            Arc::clone(&limiter),
            operations,
            api,
            limits,
            requests.clone(),
            slots.clone(),
            Arc::clone(&bounds.memory),
        ));
        let fast = HitRoute::new(Arc::clone(&api), bounds.clone(), access.hit.clone());
        let scrape = get(metrics::scrape).with_state((limiter, WorkSlots::new(metrics::MAX_SCRAPES)));
        let scrape = Router::new().route(metrics_path, guarded(scrape, access.metrics.as_ref(), Category::Metrics));
        let router = Router::new()
            .route("/healthz", get(health::alive))
            .route("/readyz", get(health::ready).with_state(health))
            .merge(scrape)
            .route_layer(counted(RequestKind::Server))
            .merge(api::router(Arc::clone(&api), access))
            .merge(ui.map_or_else(Router::new, |ui| ui::router(ui, &requests)))
            .fallback(problem::not_found.layer(counted(RequestKind::Invalid)))
            .method_not_allowed_fallback(problem::wrong_method)
            .layer(from_fn_with_state(bounds, bound_body))
            .layer(from_fn_with_state((metrics, Self::NAME), count_errors));
        let routes = Routes { fast, router, streams: limits.http_streams };
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
    const NAME: &'static str = changes::FRONT;
    const TOO_MANY: &'static [u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const NO_TLS: &'static [u8] = NO_TLS;
    const ONLY_TLS: &'static [u8] = ONLY_TLS;
    const ANSWER_TO_OTHERS: AnswerToOthers = |first| Protocol::Http.answer_to_others(first);
    const ALPN: Alpn = Alpn::Http;

    fn serve(
        &self,
        stream: Stream,
        peer: SocketAddr,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static {
        serve_routes(stream, peer, Arc::clone(&self.routes), self.timeouts, context)
    }
}
