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
pub use self::api::ApiSettings;
pub(super) use self::api::answer::Answer;
pub use self::api::answer::RateLimitHeaders;
pub use self::api::check::{CheckFrom, CheckId, CheckOperation, CheckSettings};
pub use self::monitoring::{DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
use self::page::Page;
pub use self::response::describe_error;
use self::routes::Routes;
pub use self::same_origin::{WebOrigin, WebOrigins};
pub(super) use self::transport::bounds::BodyBounds;
pub use self::transport::bounds::StreamBounds;
use self::transport::serve;
use super::Limits;
use super::health::Health;
use super::net::auth::Guards;
use super::net::connection::{ConnectionContext, Timeouts};
use super::net::front::{Front, Protocol};
use super::net::stream::Stream;
use super::net::work::{CallsInFlight, WorkSlots};
use super::operations::Operations;
use divvy_limiter::Limiter;

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
        access: &Guards,
        settings: ApiSettings,
        metrics_path: &str,
        slots: WorkSlots,
        health: Arc<Health>,
        page: Option<Arc<dyn Page>>,
    ) -> Self {
        let api = Api {
            requests: limiter.metrics().requests.front(Protocol::Http.front()),
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
    const PROTOCOL: Protocol = Protocol::Http;

    fn serve(
        &self,
        stream: Stream,
        peer: SocketAddr,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static {
        serve(stream, peer, Arc::clone(&self.routes), self.timeouts, context)
    }
}
