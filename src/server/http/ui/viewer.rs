//! The user who looks at the page, and its rights.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use super::state::Ui;
use crate::access::{Category, Identity};
use crate::server::http::{auth, session_cookie};
use crate::server::net::auth::Guard;
use crate::server::net::sessions::SessionKey;

/// The user who looks at the page.
#[derive(Debug, Clone)]
pub struct Viewer {
    guard: Option<Arc<Guard>>,
    identity: Identity,
    /// The session, unless the browser shows who it is with each request.
    session: Option<SessionKey>,
}

impl Viewer {
    /// Returns the name of the user; `None` if the server has no users of their own, so that all viewers share one account.
    pub fn account(&self) -> Option<&str> {
        self.guard.as_ref().filter(|guard| guard.has_users()).and_then(|_| self.identity.name())
    }

    /// Returns the user with the rights that it has now; `None` if it has lost the category. Records a use of its session.
    pub fn renew(&mut self, category: Category, now: Instant) -> Option<&Identity> {
        if let Some(guard) = &self.guard {
            match self.session {
                Some(key) => self.identity = guard.sessions()?.renew(key, guard.authority(), now)?.identity,
                None => {
                    guard.authority().refresh(&mut self.identity);
                }
            }
        }
        self.identity.may(category).is_ok().then_some(&self.identity)
    }
}

/// Requires a viewer with this category, and adds it to the request. Everybody may use [`Category::Connection`], which a
/// login needs. This is a middleware.
///
/// A stream cannot send a header, so a session's cookie is enough here. No route behind this changes anything but its own
/// session, and [`protect`](super::protection::protect) refuses requests of other sites.
pub async fn admit(State((ui, category)): State<(Arc<Ui>, Category)>, mut request: Request, next: Next) -> Response {
    if category == Category::Connection {
        return next.run(request).await;
    }
    let mut viewer = Viewer { guard: ui.guard.clone(), identity: Identity::OPEN, session: None };
    if let Some(guard) = &ui.guard {
        let headers = request.headers();
        let by_session = || {
            let session = session_cookie::open(guard, headers)?;
            viewer.session = Some(session.key);
            Some(session.identity)
        };
        let known = auth::recognize(guard, headers, auth::peer(&request), by_session).await;
        let admitted = known.and_then(|identity| {
            auth::check_category(guard, &identity, category)?;
            Ok(identity)
        });
        match admitted {
            Ok(identity) => viewer.identity = identity,
            Err(refusal) => return auth::refuse_page(guard, refusal),
        }
    }
    request.extensions_mut().insert(viewer);
    next.run(request).await
}
