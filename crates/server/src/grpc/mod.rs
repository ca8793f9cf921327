//! The gRPC front: Envoy's Rate Limit Service, Kuadrant's, gRPC's health checks and reflection.
//!
//! Connections are served by the HTTP front's transport, and a library implements gRPC.

mod fast_route;
mod kuadrant;
mod ratelimit;
mod reserving_calls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use tonic::server::NamedService;
use tonic::service::Routes as Services;
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use self::fast_route::RateLimitRoute;
pub use self::ratelimit::GrpcSettings;
use self::ratelimit::{FRONT, RateLimits};
use super::Limits;
use super::health::Health;
use super::http::auth::{self, Refusal};
use super::http::{self, BodyBounds, ErrorCount, Routes, bound_body, count_errors, serve_routes};
use super::keep_running::keep_running;
use super::net::accept::Front;
use super::net::auth::Guard;
use super::net::connection::{ConnectionContext, Timeouts};
use super::net::stream::{AnswerToOthers, Stream};
use super::net::tls::Alpn;
use super::wrong_port::Protocol;
use crate::protocol::envoy::DESCRIPTORS;
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use crate::protocol::envoy::messages::kuadrant::service::ratelimit::v1::rate_limit_service_server as kuadrant_server;
use crate::protocol::rpc::Rpc;
use divvy_access::{Category, LoginError};
use divvy_limiter::Limiter;
use divvy_telemetry::metrics::{Bound, Task};

/// Kuadrant's service. It has the same name as Envoy's, in another package.
type KuadrantServer = kuadrant_server::RateLimitServiceServer<RateLimits>;

/// Maximum memory per byte of a message once it is decoded. The shortest descriptors have only a few bytes.
const DECODED: usize = 24;

/// Name of the whole server in gRPC's health protocol.
const WHOLE_SERVER: &str = "";

/// The front.
pub struct GrpcFront {
    routes: Arc<Routes<RateLimitRoute>>,
    timeouts: Timeouts,
}

impl GrpcFront {
    /// Creates the front. Must be called within a runtime. `guard` logs clients in, for each call except health checks.
    ///
    /// # Errors
    /// The descriptors for reflection are invalid.
    pub fn new(
        limiter: Arc<Limiter>,
        limits: Limits,
        settings: GrpcSettings,
        bounds: BodyBounds,
        guard: Option<Arc<Guard>>,
        health: Arc<Health>,
    ) -> io::Result<Self> {
        let metrics = Arc::clone(limiter.metrics());
        let bounds = BodyBounds { expansion: DECODED, ..bounds };
        let (reporter, checks) = tonic_health::server::health_reporter();
        let counted = Arc::clone(&metrics);
        tokio::spawn(async move {
            keep_running(Task::Probe, &counted, || health.follow(|state| report(reporter.clone(), state.is_ok())))
                .await;
        });
        let counts = metrics.requests.front(Self::NAME);
        let rate_limits =
            Arc::new(RateLimits::new(limiter, counts, limits.max_pairs, settings, Arc::clone(&bounds.memory)));
        let fast = RateLimitRoute::new(Arc::clone(&rate_limits), bounds.clone(), guard.clone(), limits.max_body);
        let kuadrant = KuadrantServer::from_arc(Arc::clone(&rate_limits)).max_decoding_message_size(limits.max_body);
        let rate_limits = RateLimitServiceServer::from_arc(rate_limits).max_decoding_message_size(limits.max_body);
        // Both versions of reflection are served, because a client supports only one of them.
        let routes = Services::new(rate_limits)
            .add_service(kuadrant)
            .add_service(reflection().build_v1().map_err(io::Error::other)?)
            .add_service(reflection().build_v1alpha().map_err(io::Error::other)?);
        let guarded = Services::from(guarded(routes.into_axum_router(), guard));
        let router = guarded
            .add_service(checks)
            .into_axum_router()
            .layer(from_fn(mark_too_long))
            .layer(from_fn_with_state(bounds, bound_body))
            .layer(from_fn_with_state((metrics, Self::NAME), count_errors));
        let routes = Routes { fast, router, streams: limits.grpc_streams };
        Ok(Self { routes: Arc::new(routes), timeouts: limits.timeouts })
    }
}

async fn report(reporter: HealthReporter, is_ready: bool) {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    let rate_limits = <RateLimitServiceServer<RateLimits> as NamedService>::NAME;
    for service in [WHOLE_SERVER, rate_limits, KuadrantServer::NAME] {
        reporter.set_service_status(service, status).await;
    }
}

/// Marks the response to a message beyond `--max-body`, which the library refuses before the service sees it.
async fn mark_too_long(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let refused = Status::from_header_map(response.headers());
    if refused.is_some_and(|status| status.code() == Code::OutOfRange) {
        response
            .extensions_mut()
            .insert(ErrorCount::problem("the message is longer than --max-body", Some(Bound::Body)));
    }
    response
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
impl GrpcFront {
    pub(super) fn routes(&self) -> &Arc<Routes<RateLimitRoute>> {
        &self.routes
    }
}

impl Front for GrpcFront {
    const NAME: &'static str = FRONT;
    // Nothing may be sent before HTTP/2's preface.
    const TOO_MANY: &'static [u8] = b"";
    const NO_TLS: &'static [u8] = http::NO_TLS;
    const ONLY_TLS: &'static [u8] = http::ONLY_TLS;
    const ANSWER_TO_OTHERS: AnswerToOthers = |first| Protocol::Grpc.answer_to_others(first);
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

/// Requires a user with the category of each RPC for the routes that `router` has so far, unless there is no guard.
fn guarded(router: Router, guard: Option<Arc<Guard>>) -> Router {
    match guard {
        Some(guard) => router.route_layer(from_fn_with_state(guard, check_category)),
        None => router,
    }
}

async fn check_category(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    // Reflection, and methods that do not exist.
    let category = Rpc::find(request.uri().path()).map_or(Category::Connection, Rpc::category);
    match auth::admit(&guard, request.headers(), auth::peer(&request), category).await {
        Ok(()) => next.run(request).await,
        Err(Refusal::Unauthenticated(lack)) => auth::unauthenticated(&guard, lack),
        Err(Refusal::InvalidToken) => auth::invalid_token(),
        Err(Refusal::TooManyLogins) => refused(Status::unavailable(LoginError::QueueFull.to_string())),
        Err(Refusal::Forbidden(forbidden)) => refused(Status::permission_denied(auth::describe(forbidden))),
    }
}

fn refused(status: Status) -> Response {
    let counted = ErrorCount::problem(status.message().to_owned(), None);
    let mut response: Response = status.into_http();
    response.extensions_mut().insert(counted);
    response
}
