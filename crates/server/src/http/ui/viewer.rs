//! The user who looks at the page, and its rights: `/ui/api/session`, `/ui/api/login` and `/ui/api/logout`.

use std::future::pending;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::state::Ui;
use crate::http::api::body;
use crate::http::api::json::Json;
use crate::http::error_counts::ErrorCount;
use crate::http::problem::Problem;
use crate::http::{auth, session_cookie};
use crate::net::auth::Guard;
use crate::net::sessions::SessionKey;
use divvy_access::{Category, DEFAULT_USER, Given, Identity, LoginError};

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

/// Categories that change something. Without users, the page is read-only.
const CHANGES: [Category; 4] = [Category::Limits, Category::Block, Category::Forget, Category::Backup];

/// The user, and the facts about the server that every page shows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionResponse<'a> {
    user: Option<&'a str>,
    /// Whether a login is needed.
    login: bool,
    /// Names of the user's categories.
    can: Vec<&'static str>,
    read_only: bool,
    token: Option<&'a str>,
    server: ServerFacts,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerFacts {
    version: &'static str,
    store: &'static str,
    /// Whether other servers may share the store.
    shared: bool,
    /// Whether there is a password, and no users.
    password_only: bool,
    /// Whether actors are ranked.
    top: bool,
}

/// A user's name and password.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    user: Option<String>,
    password: String,
}

/// `GET /ui/api/session`: the user who looks at the page. Nobody has to be logged in for that.
pub async fn show(State(ui): State<Arc<Ui>>, request: Request) -> Response {
    let Some(guard) = &ui.guard else { return ui.describe(Some(&Identity::OPEN), None) };
    let (headers, mut token) = (request.headers(), None);
    let by_session = || {
        let session = session_cookie::open(guard, headers)?;
        token = Some(session.token);
        Some(session.identity)
    };
    match auth::recognize(guard, headers, auth::peer(&request), by_session).await {
        Ok(identity) => ui.describe(Some(&identity), token.as_deref()),
        Err(_) => ui.describe(None, None),
    }
}

/// `POST /ui/api/login`: begins a session. Each login begins a new one, so an id that an attacker knows is worth nothing.
#[expect(clippy::disallowed_methods, reason = "when the session begins")]
pub async fn log_in(State(ui): State<Arc<Ui>>, request: Request) -> Result<Response, Problem> {
    let Some((guard, sessions)) = ui.guard.as_ref().and_then(|guard| Some((guard, guard.sessions()?))) else {
        return Err(Problem::new(StatusCode::CONFLICT, "this server has no users, so nobody can log in"));
    };
    let peer = auth::peer(&request);
    let (head, body) = request.into_parts();
    let body = body::read(&head.headers, body, ui.max_body).await?;
    let login: Login = body::parse(&body)?;
    let name = login.user.as_deref().unwrap_or(DEFAULT_USER).as_bytes();
    let given = Given::User { name, password: login.password.as_bytes() };
    // The server drops the request of a client that leaves.
    let identity = match guard.log_in(&given, peer, pending()).await {
        Ok(identity) => identity,
        Err(LoginError::QueueFull) => return Err(auth::too_many_logins()),
        Err(LoginError::Wrong | LoginError::ClientLeft) => return Ok(wrong_password()),
    };
    session_cookie::end(sessions, &head.headers);
    let session = sessions.begin(identity.clone(), Instant::now());
    let session = session.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let mut response = ui.describe(Some(&identity), Some(&session.token));
    if let Some(cookie) = session_cookie::set(sessions, &session, is_shown_over_tls(&head.headers)) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// `POST /ui/api/logout`: ends the session.
pub async fn log_out(State(ui): State<Arc<Ui>>, headers: HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(sessions) = ui.guard.as_ref().and_then(|guard| guard.sessions()) {
        session_cookie::end(sessions, &headers);
        if let Some(cookie) = session_cookie::clear(sessions) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
    }
    response
}

/// Returns the response to a failing login.
fn wrong_password() -> Response {
    let mut response = Problem::new(StatusCode::UNAUTHORIZED, "the user or the password is wrong").into_response();
    response.extensions_mut().insert(ErrorCount::unauthenticated("a login of the page failed"));
    response
}

/// Returns whether the browser shows the page over TLS, perhaps through a proxy that ends it.
fn is_shown_over_tls(headers: &HeaderMap) -> bool {
    headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

impl Ui {
    fn describe(&self, identity: Option<&Identity>, token: Option<&str>) -> Response {
        let has_users = self.guard.is_some();
        let may = |category: &Category| {
            let is_left_out = !has_users && CHANGES.contains(category);
            !is_left_out && identity.is_some_and(|identity| identity.may(*category).is_ok())
        };
        let can = Category::ALL.into_iter().filter(may).map(Category::name).collect();
        let store = self.limiter.store();
        let password_only = self.guard.as_ref().is_some_and(|guard| !guard.has_users());
        Json(SessionResponse {
            user: identity.and_then(Identity::name),
            login: identity.is_none(),
            can,
            read_only: !CHANGES.iter().any(may),
            token,
            server: ServerFacts {
                version: env!("CARGO_PKG_VERSION"),
                store: store.name(),
                shared: store.is_shared(),
                password_only,
                top: self.limiter.ranks_actors(),
            },
        })
        .into_response()
    }
}
