//! `POST /v1/hit` without the router. Does the work of the router's layers for this route, in the same order.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Version};
use axum::response::{IntoResponse, Response};

use super::state::Api;
use crate::http::auth;
use crate::http::changes::FRONT;
use crate::http::error_counts::count_error;
use crate::http::transport::bounds::{Account, BodyBounds, BoundedBody};
use crate::http::transport::fast_routes::{FastRoute, Incoming};
use crate::http::transport::reply::Reply;
use crate::net::auth::Guard;
use divvy_access::Category;
use divvy_limiter::Intent;
use divvy_telemetry::metrics::RequestKind;

/// The route for hits of authenticated clients.
pub struct HitRoute {
    api: Arc<Api>,
    bounds: BodyBounds,
    guard: Option<Arc<Guard>>,
}

impl HitRoute {
    /// The only path of this route. Others go to the router.
    pub const PATH: &str = "/v1/hit";

    /// Creates the route. `guard` logs clients in. Without a guard, all clients are admitted.
    pub fn new(api: Arc<Api>, bounds: BodyBounds, guard: Option<Arc<Guard>>) -> Self {
        Self { api, bounds, guard }
    }

    fn takes<B>(&self, request: &Request<B>) -> bool {
        *request.method() == Method::POST
            && request.uri().path() == Self::PATH
            && auth::lets_in(self.guard.as_deref(), request.headers(), Category::Hit)
    }

    async fn hit(&self, version: Version, headers: HeaderMap, body: impl Incoming) -> Response<Reply> {
        let account = Account::new(&self.bounds);
        let body = BoundedBody::new(body, &account);
        let answered = self.api.ask_one(headers, body, Intent::Hit).await;
        let other = match (account.settle(version).await, answered) {
            (None, Ok(response)) => return response.map(Reply::Whole),
            (None, Err(problem)) => problem.into_response(),
            (Some(problem), _) => problem,
        };
        count_error(self.api.limiter.metrics(), FRONT, other.extensions());
        other.map(Reply::Routed)
    }
}

impl FastRoute for HitRoute {
    async fn answer<B: Incoming>(&self, request: Request<B>) -> Result<Response<Reply>, Request<Body>> {
        if !self.takes(&request) {
            return Err(request.map(Body::new));
        }
        self.api.requests.count(RequestKind::Hit);
        let (head, body) = request.into_parts();
        let mut response = self.hit(head.version, head.headers, body).await;
        set_content_length(&mut response);
        Ok(response)
    }
}

/// Sets `Content-Length` if the length is known, after everything else, as the router does.
fn set_content_length(response: &mut Response<Reply>) {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}
