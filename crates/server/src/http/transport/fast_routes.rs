//! The routes of a front. Most requests are answered directly, and the others by the router.
//!
//! | request | answered by |
//! |---|---|
//! | `POST /v1/hit`, with credentials that were verified before if any are needed | [`HitRoute`](crate::http::api::HitRoute) |
//! | `ShouldRateLimit` in one uncompressed message that has come in, with such credentials | `RateLimitRoute` of the gRPC front |
//! | everything else | the router |
//!
//! For each layer, the router boxes the request's body and a future, which is more work than the rest of a hit. The answers
//! here are the same as the router's, byte for byte: the router has these routes, too, and tests compare the answers.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::{BoxError, Router};
use bytes::Bytes;
use tower::ServiceExt;

use super::bounds::{StreamBounds, discard};
use super::reply::{Reply, refuse};
use super::unsent_replies::Call;

/// A route that is tried before the router. The router has the same route.
pub trait FastRoute: Send + Sync + 'static {
    /// Answers the request, or returns it for the router.
    fn answer<B: Incoming>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<Reply>, Request<Body>>> + Send;
}

/// The body of a request.
pub trait Incoming: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static> Incoming for B {}

/// All routes of a front.
pub struct Routes<H> {
    pub fast: H,
    pub router: Router,
    pub streams: StreamBounds,
}

impl<H: FastRoute> Routes<H> {
    /// Answers the request of a call.
    pub async fn answer(&self, request: Request<impl Incoming>, peer: SocketAddr, call: &mut Call) -> Response<Reply> {
        let request = match self.fast.answer(request).await {
            Ok(response) => return response,
            Err(request) => request,
        };
        if call.begin_routing().is_err() {
            discard(request.into_body()).await;
            return refuse(Reply::default());
        }
        // The future is boxed because it is large, and every request would otherwise include its size.
        let response = Box::pin(self.route(request, peer)).await;
        call.end_routing();
        response
    }

    async fn route(&self, mut request: Request<Body>, peer: SocketAddr) -> Response<Reply> {
        request.extensions_mut().insert(ConnectInfo(peer));
        let answered: Result<_, Infallible> = self.router.clone().oneshot(request).await;
        let Ok(response) = answered;
        response.map(Reply::Routed)
    }
}
