//! Which requests go where: those of nearly all clients are answered directly, the rest by the router.
//!
//! | request | answered by |
//! |---|---|
//! | `POST /v1/hit`, with the password where there is one | [`HitRoute`](crate::server::http::api::HitRoute) |
//! | `ShouldRateLimit` in one plain message that has come, with the password where there is one | `RateLimitRoute` of the gRPC front |
//! | everything else | the router |
//!
//! A router of layers boxes the request's body and a future for each layer: more work than all the rest of a hit. What
//! is answered here is answered as the router would, byte for byte; it has the same routes, and the tests compare.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::{Body, HttpBody};
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::{BoxError, Router};
use bytes::Bytes;
use tower::ServiceExt;

use super::accounted_body::refuse;
use super::bounds::{StreamBounds, discard};
use super::reply::Reply;
use super::unsent_replies::Call;

/// A route that the router has, too.
pub trait FastRoute: Send + Sync + 'static {
    /// Answers the request, or gives it back for the router.
    fn answer<B: Incoming>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Result<Response<Reply>, Request<Body>>> + Send;
}

/// A body that comes in.
pub trait Incoming: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError> + Send> + Send + Unpin + 'static> Incoming for B {}

/// All routes of a front.
pub struct Routes<H> {
    pub fast: H,
    pub router: Router,
    pub streams: StreamBounds,
}

impl<H: FastRoute> Routes<H> {
    /// Answers a request, which is this call.
    pub async fn answer(&self, request: Request<impl Incoming>, peer: SocketAddr, call: &mut Call) -> Response<Reply> {
        let request = match self.fast.answer(request).await {
            Ok(response) => return response,
            Err(request) => request,
        };
        if call.begin_routing().is_err() {
            discard(request.into_body()).await;
            return refuse(Reply::default());
        }
        // Boxed: it is large, and every request would have its room.
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
