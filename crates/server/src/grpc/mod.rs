//! The gRPC front: Envoy's Rate Limit Service (also in [`json`]), Kuadrant's, gRPC's health checks and reflection.
//!
//! Connections are served by the HTTP front's transport. The calls of the two rate limit services have one message each,
//! and are answered here. A library answers health checks and reflection.

pub mod descriptors;
pub mod envoy;
mod json;
pub mod kuadrant;
pub mod messages;
mod ratelimit;
mod reserving_calls;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, Version};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

pub use self::envoy::GrpcSettings;
pub(crate) use self::envoy::RateLimits;
use self::envoy::RpcCall;
pub(crate) use self::json::JsonAnswer;
use self::messages::{DESCRIPTORS, PREFIX, read};
pub(crate) use self::ratelimit::list_limits;
use super::health::keep_running;
use super::http::auth::{self, Refusal};
use super::http::response::grpc_error;
use super::http::transport::bodies::{BodyBounds, Reply, RequestBody};
use super::http::transport::{CALL, LARGE_CALL, Responder};
use super::net::auth::{Guard, RequestOrigin};
use super::net::memory;
use super::net::protocol::Protocol;
use super::server_context::ServerContext;
use divvy_access::{Category, LoginError};
use divvy_core::named_values;
use divvy_telemetry::metrics::{Bound, FrontRequests, RequestKind, Task};

/// Maximum memory per byte of a message once it is decoded. The shortest descriptors have only a few bytes.
const DECODED: usize = 24;

/// Names of the whole server in gRPC's health protocol: the usual one, and that of envoyproxy/ratelimit.
const WHOLE_SERVER: [&str; 2] = ["", "ratelimit"];

named_values! {
    /// An RPC of the rate limit services, with its path. All of them need the category of hits.
    Rpc {
        /// Envoy's.
        EnvoyShouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        /// Kuadrant's: whether there are credits.
        KuadrantCheckRateLimit = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit",
        /// Kuadrant's: what was used.
        KuadrantReport = "/kuadrant.service.ratelimit.v1.RateLimitService/Report",
        /// Kuadrant's: sets credits aside.
        KuadrantReserve = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve",
        /// Kuadrant's: what was used of a reservation.
        KuadrantCommit = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit",
    }
}

impl Rpc {
    fn find(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rpc| rpc.name() == path)
    }

    /// Returns the name of its service.
    fn service(self) -> &'static str {
        self.name().split('/').nth(1).unwrap_or_default()
    }
}

/// The front: its services, and what they need.
pub(crate) struct GrpcFront {
    rate_limits: Arc<RateLimits>,
    /// gRPC's health checks. They need no login.
    checks: LibraryService,
    /// Reflection in both versions, because a client supports only one of them.
    reflection: [LibraryService; 2],
    guard: Option<Arc<Guard>>,
    bounds: BodyBounds,
    max_message: usize,
}

/// A service that the library implements.
struct LibraryService {
    name: &'static str,
    call: Box<dyn Fn(Request<Body>) -> BoxFuture<'static, Response<Body>> + Send + Sync>,
}

impl LibraryService {
    fn new<S>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let call = move |request| -> BoxFuture<'static, Response<Body>> {
            let called = service.clone().call(request);
            Box::pin(async move {
                let Ok(response) = called.await;
                response
            })
        };
        Self { name: S::NAME, call: Box::new(call) }
    }

    /// Returns whether a path names a call of this service.
    fn has(&self, path: &str) -> bool {
        let method = path.strip_prefix('/').and_then(|path| path.strip_prefix(self.name));
        method.is_some_and(|method| method.starts_with('/'))
    }
}

impl GrpcFront {
    /// Creates the front. Must be called within a runtime. `guard` logs clients in, for each call except health checks.
    ///
    /// # Errors
    /// The descriptors for reflection are invalid.
    pub(crate) fn new(
        server: &ServerContext,
        guard: Option<Arc<Guard>>,
        rate_limits: Arc<RateLimits>,
    ) -> io::Result<Self> {
        let ServerContext { limiter, limits, memory, health, .. } = server.clone();
        let metrics = Arc::clone(limiter.metrics());
        let (reporter, checks) = tonic_health::server::health_reporter();
        tokio::spawn(async move {
            keep_running(Task::Probe, &metrics, || health.follow(|state| report(reporter.clone(), state.is_ok())))
                .await;
        });
        Ok(Self {
            bounds: BodyBounds { timeouts: limits.timeouts, memory, expansion: DECODED },
            rate_limits,
            checks: LibraryService::new(checks),
            reflection: [
                LibraryService::new(reflection().build_v1().map_err(io::Error::other)?),
                LibraryService::new(reflection().build_v1alpha().map_err(io::Error::other)?),
            ],
            guard,
            max_message: limits.max_body,
        })
    }
}

async fn report(reporter: HealthReporter, is_ready: bool) {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    let services = [Rpc::EnvoyShouldRateLimit, Rpc::KuadrantCheckRateLimit].map(Rpc::service);
    for service in WHOLE_SERVER.into_iter().chain(services) {
        reporter.set_service_status(service, status).await;
    }
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

impl Responder for GrpcFront {
    const PROTOCOL: Protocol = Protocol::Grpc;

    /// Envoy sends as many requests before it receives a lower bound, and treats refused requests as failures of the service.
    const MAX_CONCURRENT: u32 = 1_024;

    fn bounds(&self) -> &BodyBounds {
        &self.bounds
    }

    fn max_body(&self) -> usize {
        self.max_message + PREFIX
    }

    fn requests(&self) -> &FrontRequests {
        &self.rate_limits.counts
    }

    fn has_room(&self) -> bool {
        self.rate_limits.limiter.has_room()
    }

    async fn may_send(&self, head: &Parts, origin: &RequestOrigin) -> bool {
        // Calls over HTTP/1.1 have no answer anyway.
        head.version == Version::HTTP_2
            && Rpc::find(head.uri.path()).is_some()
            && self.refuse(&head.headers, Category::Hit, origin).await.is_none()
    }

    fn demand(&self, head: &Parts) -> (usize, bool) {
        match Rpc::find(head.uri.path()) {
            Some(_) => (CALL, false),
            None => (LARGE_CALL, self.find_service(head.uri.path()).is_some()),
        }
    }

    async fn answer(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Response<Reply> {
        match Rpc::find(head.uri.path()) {
            Some(rpc) => self.answer_rpc(rpc, &head.headers, body, origin).await,
            // The future is boxed because it is large, and every call would otherwise include its size.
            None => Box::pin(self.answer_by_library(head, body, origin)).await,
        }
    }
}

impl GrpcFront {
    /// Answers a call of a rate limit service.
    async fn answer_rpc(
        &self,
        rpc: Rpc,
        headers: &HeaderMap,
        body: RequestBody,
        origin: &RequestOrigin,
    ) -> Response<Reply> {
        if let Some(refusal) = self.refuse(headers, Category::Hit, origin).await {
            return refusal;
        }
        let call = (headers, body, origin);
        // Boxed, those of Kuadrant: they are rarer, and each hit's future would otherwise include their size.
        let answered = match rpc {
            Rpc::EnvoyShouldRateLimit => self.serve(call, RequestKind::Hit, RateLimits::should_rate_limit).await,
            Rpc::KuadrantCheckRateLimit => {
                Box::pin(self.serve(call, RequestKind::Peek, RateLimits::check_rate_limit)).await
            }
            Rpc::KuadrantReport => Box::pin(self.serve(call, RequestKind::Charge, RateLimits::report)).await,
            Rpc::KuadrantReserve => Box::pin(self.serve(call, RequestKind::Reserve, RateLimits::reserve)).await,
            Rpc::KuadrantCommit => Box::pin(self.serve(call, RequestKind::Commit, RateLimits::commit)).await,
        };
        match answered {
            Ok(response) => response,
            Err(status) if status.code() == Code::OutOfRange => {
                grpc_error(status, "the message is longer than --max-body", Some(Bound::Body))
            }
            Err(status) => status.into_http(),
        }
    }

    /// Reads the message of a call, and answers it with this function.
    async fn serve<M: Message + Default, T: Message>(
        &self,
        (headers, body, origin): (&HeaderMap, RequestBody, &RequestOrigin),
        kind: RequestKind,
        answer: impl AsyncFnOnce(&RateLimits, &mut RpcCall<'_, M>) -> Result<T, Status>,
    ) -> Result<Response<Reply>, Status> {
        let (request, bytes) = read(headers, body, self.max_message)?;
        let mut call = RpcCall { request, bytes, origin, work: memory::take() };
        let answer = answer(&self.rate_limits, &mut call).await;
        self.rate_limits.done(call, kind, answer)
    }

    /// Answers any other call.
    async fn answer_by_library(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Response<Reply> {
        let Some(service) = self.find_service(head.uri.path()) else { return Status::unimplemented("").into_http() };
        if !std::ptr::eq(service, &raw const self.checks)
            && let Some(refusal) = self.refuse(&head.headers, Category::Connection, origin).await
        {
            return refusal;
        }
        let response = (service.call)(Request::from_parts(head.clone(), Body::new(body))).await;
        response.map(|body| Reply::Pieces(body.map_err(Into::into).boxed_unsync()))
    }

    fn find_service(&self, path: &str) -> Option<&LibraryService> {
        std::iter::once(&self.checks).chain(&self.reflection).find(|service| service.has(path))
    }

    /// Returns the refusal of a client that is not logged in, or lacks the category.
    async fn refuse(&self, headers: &HeaderMap, category: Category, origin: &RequestOrigin) -> Option<Response<Reply>> {
        let guard = self.guard.as_ref()?;
        let status = match auth::admit(guard, headers, origin, category).await.err()? {
            Refusal::TooManyLogins => Status::unavailable(LoginError::QueueFull.to_string()),
            Refusal::Forbidden(forbidden) => Status::permission_denied(auth::describe(forbidden)),
            refusal => return Some(refusal.describe(guard, false).into_response()),
        };
        let reason = status.message().to_owned();
        Some(grpc_error(status, reason, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_services_is_an_rpc() {
        let set = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let services = set.file.iter().flat_map(|file| file.service.iter().map(move |service| (file, service)));
        let paths = services.flat_map(|(file, service)| {
            service.method.iter().map(move |method| format!("/{}.{}/{}", file.package(), service.name(), method.name()))
        });
        assert!(paths.eq(Rpc::ALL.map(Rpc::name)));
    }
}
