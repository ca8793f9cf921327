//! The user who looks at the page, and its rights: `/ui/api/session`, `/ui/api/login` and `/ui/api/logout`.

use std::future::pending;
use std::sync::Arc;

use hyper::header::{ORIGIN, SET_COOKIE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::state::Ui;
use crate::http::api::body;
use crate::http::response::{Answered, Problem, empty, json};
use crate::http::transport::bounds::Incoming;
use crate::http::transport::reply::Reply;
use crate::http::{auth, session_cookie};
use crate::net::auth::Guard;
use crate::net::auth::Origin;
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

/// Requires a viewer with this category.
///
/// A stream cannot send a header, so a session's cookie is enough here. No route behind this changes anything but its own
/// session, and [`check`](super::protection::check) refuses requests of other sites.
///
/// # Errors
/// The client is not logged in, or lacks the category.
pub async fn admit(ui: &Ui, category: Category, head: &Parts, origin: &Origin) -> Result<Viewer, Problem> {
    let mut viewer = Viewer { guard: ui.guard.clone(), identity: Identity::OPEN, session: None };
    if let Some(guard) = &ui.guard {
        let by_session = || {
            let session = session_cookie::open(guard, &head.headers)?;
            viewer.session = Some(session.key);
            Some(session.identity)
        };
        let known = auth::recognize(guard, &head.headers, origin, by_session).await;
        let admitted = known.and_then(|identity| {
            auth::check_category(guard, &identity, category)?;
            Ok(identity)
        });
        viewer.identity = admitted.map_err(|refusal| refusal.describe(guard, true))?;
    }
    Ok(viewer)
}

/// Categories that change something. Without users, the page is read-only.
const CHANGES: [Category; 4] = [Category::Limits, Category::Block, Category::Forget, Category::Backup];

/// A user's name and password.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    user: Option<String>,
    password: String,
}

/// `GET /ui/api/session`: the user who looks at the page. Nobody has to be logged in for that.
pub async fn show(ui: &Ui, head: &Parts, origin: &Origin) -> Answered {
    let Some(guard) = &ui.guard else { return ui.describe(Some(&Identity::OPEN), None) };
    let mut token = None;
    let by_session = || {
        let session = session_cookie::open(guard, &head.headers)?;
        token = Some(session.token);
        Some(session.identity)
    };
    match auth::recognize(guard, &head.headers, origin, by_session).await {
        Ok(identity) => ui.describe(Some(&identity), token.as_deref()),
        Err(_) => ui.describe(None, None),
    }
}

/// `POST /ui/api/login`: begins a session. Each login begins a new one, so an id that an attacker knows is worth nothing.
#[expect(clippy::disallowed_methods, reason = "when the session begins")]
pub async fn log_in(ui: &Ui, head: &Parts, body: impl Incoming, origin: &Origin) -> Answered {
    let Some((guard, sessions)) = ui.guard.as_ref().and_then(|guard| Some((guard, guard.sessions()?))) else {
        return Err(Problem::new(StatusCode::CONFLICT, "this server has no users, so nobody can log in"));
    };
    let body = body::read(&head.headers, body, ui.max_body).await?;
    let login: Login = body::parse(&body)?;
    let name = login.user.as_deref().unwrap_or(DEFAULT_USER).as_bytes();
    let given = Given::User { name, password: login.password.as_bytes() };
    // The server drops the request of a client that leaves.
    let identity = match guard.log_in(&given, Some(origin.peer()), pending()).await {
        Ok(identity) => identity,
        Err(LoginError::QueueFull) => return Err(auth::too_many_logins()),
        Err(LoginError::Wrong | LoginError::ClientLeft) => {
            return Err(Problem::unauthenticated("the user or the password is wrong", "a login of the page failed"));
        }
    };
    session_cookie::end(sessions, &head.headers);
    let session = sessions.begin(identity.clone(), Instant::now());
    let session = session.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let mut response = ui.describe(Some(&identity), Some(&session.token))?;
    if let Some(cookie) = session_cookie::set(sessions, &session, is_shown_over_tls(&head.headers)) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    Ok(response)
}

/// `POST /ui/api/logout`: ends the session.
pub fn log_out(ui: &Ui, headers: &HeaderMap) -> Response<Reply> {
    let mut response = empty(StatusCode::NO_CONTENT);
    if let Some(sessions) = ui.guard.as_ref().and_then(|guard| guard.sessions()) {
        session_cookie::end(sessions, headers);
        if let Some(cookie) = session_cookie::clear(sessions) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
    }
    response
}

/// Returns whether the browser shows the page over TLS, perhaps through a proxy that ends it.
fn is_shown_over_tls(headers: &HeaderMap) -> bool {
    headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

impl Ui {
    /// Returns the user, and the facts about the server that every page shows.
    fn describe(&self, identity: Option<&Identity>, token: Option<&str>) -> Answered {
        let has_users = self.guard.is_some();
        let may = |category: &Category| {
            let is_left_out = !has_users && CHANGES.contains(category);
            !is_left_out && identity.is_some_and(|identity| identity.may(*category).is_ok())
        };
        let store = self.limiter.store();
        json(&json!({
            "user": identity.and_then(Identity::name),
            // Whether a login is needed.
            "login": identity.is_none(),
            "can": Category::ALL.into_iter().filter(may).map(Category::name).collect::<Vec<_>>(),
            "readOnly": !CHANGES.iter().any(may),
            "token": token,
            "server": {
                "version": env!("CARGO_PKG_VERSION"),
                "store": store.name(),
                // Whether other servers may share the store.
                "shared": store.is_shared(),
                // Whether there is a password, and no users.
                "passwordOnly": self.guard.as_ref().is_some_and(|guard| !guard.has_users()),
                // Whether actors are ranked.
                "top": self.limiter.ranks_actors(),
            },
        }))
    }
}
