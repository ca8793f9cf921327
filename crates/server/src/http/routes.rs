//! The way of a request through the HTTP front: one function answers all of them.
//!
//! A path leads to a route in [`find_route`]: what a request is for, its methods, its kind in the metrics, and who may send
//! it. The operations of operators have their routes in a table ([`ENDPOINTS`]). Then the checks follow in the order of
//! [`HttpFront::respond`].

use std::borrow::Cow;
use std::sync::Arc;

use bytes::BytesMut;
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Response, StatusCode};

use super::api::{Api, ApiSettings, Attempt, DESCRIPTION, body, change_of};
use super::monitoring::MAX_SCRAPES;
use super::page::{self, Page};
use super::response::{Answered, JSON, Problem, bare_error, empty, not_found, of_type, text};
use super::transport::bodies::{BodyBounds, Reply, RequestBody};
use super::transport::http1::HitSession;
use super::transport::{CALL, LARGE_CALL, Responder};
use super::{auth, cross_origin, monitoring};
use crate::grpc::{JsonAnswer, RateLimits, list_limits};
use crate::net::auth::{FrontGuards, Guard, RequestOrigin};
use crate::net::places::Places;
use crate::net::protocol::Protocol;
use crate::net::work::WorkSlots;
use crate::server_context::ServerContext;
use divvy_access::Category;
use divvy_api::{ENDPOINTS, Endpoint, find};
use divvy_limiter::{Intent, Scope};
use divvy_telemetry::metrics::{FrontRequests, RequestKind};

/// The path of hits.
const HIT: &str = "/v1/hit";
/// The path of checks.
const CHECK: &str = "/v1/check";
/// The path of reservations, before their ids.
const RESERVATIONS: &str = "/v1/reservations/";
const SHARES: &str = "/v1/shares/";

const GET: &str = "GET,HEAD";
const POST: &str = "POST";
/// All methods.
const ANY: &str = "*";

/// The front.
pub struct HttpFront {
    api: Api,
    guards: FrontGuards,
    bounds: BodyBounds,
    metrics_path: String,
    /// Answers calls of Envoy's Rate Limit Service in JSON.
    rate_limits: Arc<RateLimits>,
    /// Bounds the scrapes of the metrics.
    scrapes: WorkSlots,
    /// The live page; `None` if it is not served.
    page: Option<Arc<dyn Page>>,
}

/// The subject of a request.
#[derive(Debug, Clone, Copy)]
enum Target<'a> {
    /// A request about one operation.
    Ask(Intent),
    Hits,
    /// A check of a request that headers describe.
    Check,
    /// A check of a request that was sent here itself.
    CheckBelow,
    Reserve,
    /// Requests about the reservation with this id.
    Release(&'a str),
    Commit(&'a str),
    Renew(&'a str),
    Share,
    /// Gives back credits of the share with this id.
    Return(&'a str),
    Operation(&'static Endpoint),
    /// A call of Envoy's Rate Limit Service in JSON.
    Json,
    /// The limits in the configuration of envoyproxy/ratelimit.
    Limits,
    Description,
    Alive,
    Ready,
    HealthCheck,
    Metrics,
}

impl Target<'_> {
    /// Returns whether its requests have a body.
    fn has_body(self) -> bool {
        match self {
            Self::Ask(_) | Self::Hits | Self::Reserve | Self::Commit(_) | Self::Renew(_) => true,
            Self::Share | Self::Return(_) | Self::Json => true,
            Self::Operation(endpoint) => endpoint.has_body(),
            _ => false,
        }
    }
}

/// The route of a path.
struct Route<'a> {
    target: Target<'a>,
    /// The methods of the path, as in the header `Allow`.
    methods: Cow<'static, str>,
    kind: RequestKind,
    /// The category that a user needs.
    category: Category,
    /// Logs clients in. Without a guard, all clients are admitted.
    guard: Option<&'a Guard>,
}

impl Responder for HttpFront {
    const PROTOCOL: Protocol = Protocol::Http;

    const MAX_CONCURRENT: u32 = 64;

    fn bounds(&self) -> &BodyBounds {
        &self.bounds
    }

    fn max_body(&self) -> usize {
        self.api.server.limits.max_body
    }

    fn requests(&self) -> &FrontRequests {
        &self.api.requests
    }

    fn has_room(&self) -> bool {
        self.api.server.limiter.has_room()
    }

    async fn may_send(&self, head: &Parts, origin: &RequestOrigin) -> bool {
        let Some(route) = find_route(&self.guards, &self.metrics_path, &head.method, head.uri.path()) else {
            return false;
        };
        if !route.accepts(&head.method) || !route.target.has_body() {
            return false;
        }
        match route.guard {
            Some(guard) => auth::admit(guard, &head.headers, origin, route.category).await.is_ok(),
            None => true,
        }
    }

    async fn answer_hits(&self, hits: &mut HitSession, input: &mut BytesMut, output: &mut Vec<u8>) -> bool {
        // If there is a guard, each hit has its own user.
        self.guards.hit.is_none() && self.api.answer_hits(hits, input, output).await
    }

    fn demand(&self, head: &Parts) -> (usize, bool) {
        (if head.uri.path() == HIT { CALL } else { LARGE_CALL }, false)
    }

    async fn answer(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Response<Reply> {
        let is_head = head.method == Method::HEAD;
        let mut response = if head.method == Method::POST && head.uri.path_and_query().is_some_and(|path| path == HIT) {
            self.hit(&head.headers, body, origin).await
        } else {
            // The future is boxed because it is large, and every hit would otherwise include its size.
            Box::pin(self.respond(head, body, origin)).await
        };
        if let Some(length) = response.body().length() {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        if is_head {
            *response.body_mut() = Reply::default();
        }
        response
    }
}

impl HttpFront {
    /// Creates the front.
    pub fn new(
        server: &ServerContext,
        guards: FrontGuards,
        settings: ApiSettings,
        metrics_path: String,
        rate_limits: Arc<RateLimits>,
        page: Option<Arc<dyn Page>>,
    ) -> Self {
        let bounds = BodyBounds { timeouts: server.limits.timeouts, memory: Arc::clone(&server.memory), expansion: 1 };
        let requests = server.limiter.metrics().requests.front(Protocol::Http.name());
        let api = Api { server: server.clone(), settings, requests, calls: Places::new(usize::MAX, Some(1)) };
        Self { api, guards, bounds, metrics_path, rate_limits, scrapes: WorkSlots::new(MAX_SCRAPES), page }
    }

    /// Answers `POST /v1/hit`. Nearly all requests are hits, so they pay for nothing else.
    async fn hit(&self, headers: &HeaderMap, body: RequestBody, origin: &RequestOrigin) -> Response<Reply> {
        let guard = self.guards.hit.as_deref();
        let is_of_page = guard.is_some_and(|guard| auth::is_of_page(guard, headers));
        let answered = async {
            admit(guard, Category::Hit, headers, is_of_page, origin).await?;
            self.api.requests.count(RequestKind::Hit);
            self.api.ask(Intent::Hit, headers, body, origin).await
        };
        finish(answered.await, is_of_page)
    }

    /// Answers any other request.
    async fn respond(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Response<Reply> {
        let path = head.uri.path();
        if let Some(page) = self.page.as_ref().filter(|_| page::is_path(path)) {
            return Arc::clone(page).respond(head, body, origin, &self.api.requests).await;
        }
        let Some(route) = find_route(&self.guards, &self.metrics_path, &head.method, path) else {
            self.api.requests.count(RequestKind::Invalid);
            return not_found(head);
        };
        let origins = &self.api.settings.origins;
        if route.category != Category::Status || origins.is_empty() {
            return self.respond_to(&route, head, body, origin).await;
        }
        // Browsers ask for the status on behalf of web pages, and send no credentials before they know that they may.
        let mut response = match head.method {
            Method::OPTIONS => empty(StatusCode::OK),
            _ => self.respond_to(&route, head, body, origin).await,
        };
        cross_origin::add_headers(origins, &head.method, head.headers.get(ORIGIN), response.headers_mut());
        response
    }

    /// Answers a request with a route.
    async fn respond_to(
        &self,
        route: &Route<'_>,
        head: &Parts,
        body: RequestBody,
        origin: &RequestOrigin,
    ) -> Response<Reply> {
        let Route { target, guard, .. } = *route;
        if !route.accepts(&head.method) {
            return Problem::wrong_method(head, &route.methods).into_response();
        }
        let is_of_page = guard.is_some_and(|guard| auth::is_of_page(guard, &head.headers));
        let change = match target {
            Target::Operation(endpoint) => endpoint.action().map(|action| change_of(action, &head.uri)),
            _ => None,
        };
        let mut attempt = Attempt { api: &self.api, origin, has_guard: guard.is_some(), change };
        let answered = async {
            admit(guard, route.category, &head.headers, is_of_page, origin).await?;
            self.api.requests.count(route.kind);
            self.carry_out(target, head, body, &mut attempt).await
        };
        let answered = answered.await;
        match &answered {
            Ok(response) => attempt.refuse(response.status()),
            Err(problem) => attempt.refuse(problem),
        }
        finish(answered, is_of_page)
    }

    /// Carries out what an admitted request is for.
    async fn carry_out(
        &self,
        target: Target<'_>,
        head: &Parts,
        body: RequestBody,
        attempt: &mut Attempt<'_>,
    ) -> Answered {
        let (api, origin) = (&self.api, attempt.origin);
        if matches!(
            target,
            Target::Ask(_)
                | Target::Hits
                | Target::Reserve
                | Target::Release(_)
                | Target::Commit(_)
                | Target::Renew(_)
                | Target::Share
                | Target::Return(_)
        ) {
            body::refuse_query(&head.uri)?;
        }
        match target {
            Target::Ask(intent) => api.ask(intent, &head.headers, body, origin).await,
            Target::Hits => api.hits(head, body, origin).await,
            Target::Check => api.check(head, None, origin).await,
            Target::CheckBelow => api.check(head, Some(CHECK), origin).await,
            Target::Reserve => api.reserve(head, body, origin).await,
            Target::Release(id) => api.release(id, origin).await,
            Target::Commit(id) => api.commit(id, head, body, origin).await,
            Target::Renew(id) => api.renew(id, head, body, origin).await,
            Target::Share => api.share(head, body, origin).await,
            Target::Return(id) => api.return_share(id, head, body, origin).await,
            Target::Operation(endpoint) => api.operate(endpoint, head, body, attempt).await,
            Target::Description => Ok(of_type(JSON, Reply::Whole(DESCRIPTION.as_slice().into()))),
            Target::Alive => Ok(text(StatusCode::OK, "ok\n")),
            Target::Json => self.answer_json(head, body, origin).await,
            Target::Limits => self.list_limits(origin).await,
            Target::Ready => Ok(monitoring::ready(&api.server.health)),
            Target::HealthCheck => Ok(monitoring::check_health(&api.server.health)),
            Target::Metrics => Ok(monitoring::scrape(Arc::clone(&api.server.limiter), &self.scrapes).await),
        }
    }
}

impl HttpFront {
    /// Answers a call of Envoy's Rate Limit Service in JSON. As in envoyproxy/ratelimit, any type of body is accepted, and errors have
    /// no text.
    async fn answer_json(&self, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
        // A web page can post some types to another site without the user's consent.
        cross_origin::check_origin(&head.uri, &head.headers)?;
        let body = body::within(body, self.max_body())?;
        let JsonAnswer { is_over, json } = match self.rate_limits.answer_json(&body, origin).await {
            Ok(answer) => answer,
            Err(reason) => return Ok(bare_error(StatusCode::BAD_REQUEST, reason)),
        };
        let mut response = of_type(JSON, Reply::Whole(json.to_string().into()));
        if is_over {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        Ok(response)
    }

    /// Lists the limits of envoyproxy/ratelimit's configuration that the client may see.
    async fn list_limits(&self, origin: &RequestOrigin) -> Answered {
        let server = &self.api.server;
        let slot = server.slots.take().await;
        let (policy, scope) = (server.limiter.active_rules(), origin.within_scope(Scope::clone));
        let list = async move { policy.map(|policy| list_limits(&policy, &scope)).unwrap_or_default() };
        let listed = slot.run(list).await;
        // The work may have panicked, or ended at the shutdown.
        let listed = listed.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        Ok(text(StatusCode::OK, listed))
    }
}

/// Finds the route of a path. The method distinguishes the operations of a path.
fn find_route<'a>(guards: &'a FrontGuards, metrics_path: &str, method: &Method, path: &'a str) -> Option<Route<'a>> {
    let FrontGuards { hit, check, http, metrics, .. } = guards;
    let route = |target, methods, kind, category, guard: Option<&'a Arc<Guard>>| {
        Some(Route { target, methods: Cow::Borrowed(methods), kind, category, guard: guard.map(|guard| &**guard) })
    };
    // Anybody who may hit may correct, too, but not without a login.
    let correction = |target, methods, kind| route(target, methods, kind, Category::Hit, http.as_ref());
    let public = |target| route(target, GET, RequestKind::Server, Category::Connection, None);
    match path {
        HIT => route(Target::Ask(Intent::Hit), POST, RequestKind::Hit, Category::Hit, hit.as_ref()),
        "/v1/hits" => route(Target::Hits, POST, RequestKind::Hit, Category::Hit, hit.as_ref()),
        CHECK => route(Target::Check, "GET,HEAD,POST", RequestKind::Hit, Category::Hit, check.as_ref()),
        "/v1/peek" => correction(Target::Ask(Intent::Peek), POST, RequestKind::Peek),
        "/v1/charge" => correction(Target::Ask(Intent::Charge), POST, RequestKind::Charge),
        "/v1/refund" => correction(Target::Ask(Intent::Refund), POST, RequestKind::Refund),
        "/v1/reservations" => correction(Target::Reserve, POST, RequestKind::Reserve),
        "/v1/shares" => correction(Target::Share, POST, RequestKind::Share),
        "/openapi.json" => public(Target::Description),
        "/healthz" => public(Target::Alive),
        "/readyz" => public(Target::Ready),
        // These are as in envoyproxy/ratelimit.
        "/healthcheck" => route(Target::HealthCheck, ANY, RequestKind::Server, Category::Connection, None),
        "/json" => route(Target::Json, POST, RequestKind::Hit, Category::Hit, hit.as_ref()),
        "/rlconfig" => route(Target::Limits, GET, RequestKind::Rules, Category::Read, http.as_ref()),
        path if path == metrics_path => {
            route(Target::Metrics, GET, RequestKind::Server, Category::Metrics, metrics.as_ref())
        }
        path if path.strip_prefix(CHECK).is_some_and(|rest| rest.starts_with('/')) => {
            route(Target::CheckBelow, ANY, RequestKind::Hit, Category::Hit, check.as_ref())
        }
        path if path.starts_with(RESERVATIONS) => {
            let rest = path.strip_prefix(RESERVATIONS)?;
            match rest.split_once('/') {
                None if !rest.is_empty() => correction(Target::Release(rest), "DELETE", RequestKind::Release),
                Some((id, "commit")) if !id.is_empty() => correction(Target::Commit(id), POST, RequestKind::Commit),
                Some((id, "renew")) if !id.is_empty() => correction(Target::Renew(id), POST, RequestKind::Renew),
                _ => None,
            }
        }
        path if path.starts_with(SHARES) => {
            let (id, _) =
                path.strip_prefix(SHARES)?.split_once('/').filter(|(id, rest)| !id.is_empty() && *rest == "return")?;
            correction(Target::Return(id), POST, RequestKind::Return)
        }
        path => {
            let method = if *method == Method::HEAD { &Method::GET } else { method };
            let of_path = || ENDPOINTS.iter().filter(|endpoint| endpoint.http.is_some_and(|(_, of)| of == path));
            let endpoint = find(method.as_str(), path).or_else(|| of_path().next().copied())?;
            let methods = of_path().filter_map(|endpoint| endpoint.http);
            let methods = methods.map(|(method, _)| if method == "GET" { GET } else { method });
            Some(Route {
                target: Target::Operation(endpoint),
                methods: methods.collect::<Vec<_>>().join(",").into(),
                kind: endpoint.kind,
                category: endpoint.category,
                guard: http.as_deref(),
            })
        }
    }
}

impl Route<'_> {
    fn accepts(&self, method: &Method) -> bool {
        self.methods == ANY || self.methods.split(',').any(|accepted| accepted == method.as_str())
    }
}

/// Requires a user with this category, unless there is no guard.
async fn admit(
    guard: Option<&Guard>,
    category: Category,
    headers: &HeaderMap,
    is_of_page: bool,
    origin: &RequestOrigin,
) -> Result<(), Problem> {
    let Some(guard) = guard else { return Ok(()) };
    let admitted = auth::admit(guard, headers, origin, category).await;
    admitted.map_err(|refusal| refusal.describe(guard, is_of_page))
}

/// Returns the response. A browser must keep nothing that the user of the live page's session may read.
fn finish(answered: Answered, is_of_page: bool) -> Response<Reply> {
    let mut response = answered.unwrap_or_else(Problem::into_response);
    if is_of_page {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::monitoring::DEFAULT_METRICS_PATH;

    fn find<'a>(guards: &'a FrontGuards, method: &Method, path: &'a str) -> Option<Route<'a>> {
        find_route(guards, DEFAULT_METRICS_PATH, method, path)
    }

    #[test]
    fn described_paths_have_routes_with_the_described_methods() {
        let guards = FrontGuards::default();
        let description: serde_json::Value = serde_json::from_slice(&DESCRIPTION).unwrap();
        for (path, item) in description["paths"].as_object().unwrap() {
            let described: BTreeSet<_> = item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
            let path = path.replace("{path}", "a/b").replace("{id}", "x");
            for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "TRACE"] {
                let route = find(&guards, &method.parse().unwrap(), &path).unwrap_or_else(|| panic!("{path}"));
                assert_eq!(route.accepts(&method.parse().unwrap()), described.contains(method), "{method} {path}");
            }
        }
    }

    #[test]
    fn other_spellings_of_a_path_have_no_route() {
        let guards = FrontGuards::default();
        let paths = "/ /v1/hit/ /V1/hit /v1/%68it //v1/hit /v1/checks /v1/reservations/ /v1/reservations//commit \
            /v1/reservations/x/ /v1/reservations/x/commit/ /v1/reservations/x/y /v1/limits/ /metrics/";
        for path in paths.split_whitespace().chain([""]) {
            assert!(find(&guards, &Method::GET, path).is_none(), "{path}");
        }
    }

    #[test]
    fn methods_of_a_path_are_those_of_its_operations() {
        let guards = FrontGuards::default();
        let of = |method, path| {
            let route = find(&guards, &method, path).unwrap();
            (route.methods.into_owned(), route.category)
        };
        let methods = "PUT,DELETE,GET,HEAD".to_owned();
        assert_eq!(of(Method::HEAD, "/v1/limits"), (methods.clone(), Category::Read));
        assert_eq!(of(Method::DELETE, "/v1/limits"), (methods.clone(), Category::Limits));
        assert_eq!(of(Method::POST, "/v1/limits").0, methods);
    }
}
