//! The HTTP front: one function leads each request to its endpoint ([`routes`]): the API for clients and gateways ([`api`]),
//! pages for [`monitoring`], and the live page ([`page`]). [`transport`] serves the connections.

pub mod api;
pub(super) mod auth;
mod monitoring;
pub mod page;
pub(super) mod response;
mod routes;
mod same_origin;
pub mod session_cookie;
pub(super) mod transport;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use self::api::Api;
pub(super) use self::api::answer::Answer;
pub use self::api::check::{CheckFrom, CheckId, CheckOperation, CheckSettings};
pub use self::api::ratelimit::RateLimitHeaders;
pub use self::api::{ApiSettings, InvalidOrigin, WebOrigin, WebOrigins};
pub use self::monitoring::{DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
use self::page::Page;
pub use self::response::describe_error;
use self::routes::Routes;
pub(super) use self::transport::bounds::BodyBounds;
pub use self::transport::bounds::StreamBounds;
use self::transport::serve::serve;
use super::Limits;
use super::health::Health;
use super::net::accept::Front;
use super::net::auth::Access;
use super::net::calls_in_flight::CallsInFlight;
use super::net::connection::{ConnectionContext, Timeouts};
use super::net::stream::{AnswerToOthers, Stream};
use super::net::tls::Alpn;
use super::net::work_slots::WorkSlots;
use super::operations::Operations;
use super::wrong_port::Protocol;
use divvy_limiter::Limiter;

/// Message for a client that uses TLS on a port of HTTP or gRPC without TLS.
pub(super) const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 40\r\n\r\nthis port does not speak TLS: use http:\n";
/// Message for a client without TLS on a port of HTTP or gRPC that requires it.
pub(super) const ONLY_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 38\r\n\r\nthis port speaks TLS only: use https:\n";

/// The front.
pub struct HttpFront {
    routes: Arc<Routes>,
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
        settings: ApiSettings,
        metrics_path: &str,
        slots: WorkSlots,
        health: Arc<Health>,
        page: Option<Arc<dyn Page>>,
    ) -> Self {
        let api = Api {
            requests: limiter.metrics().requests.front(Self::NAME),
            memory: Arc::clone(&bounds.memory),
            calls: CallsInFlight::default(),
            limiter,
            operations,
            settings,
            limits,
            slots,
        };
        let routes = Routes {
            api,
            access: access.clone(),
            bounds,
            streams: limits.http_streams,
            health,
            metrics_path: metrics_path.to_owned(),
            scrapes: WorkSlots::new(monitoring::MAX_SCRAPES),
            page,
        };
        Self { routes: Arc::new(routes), timeouts: limits.timeouts }
    }
}

impl Front for HttpFront {
    const NAME: &'static str = api::FRONT;
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
        serve(stream, peer, Arc::clone(&self.routes), self.timeouts, context)
    }
}
