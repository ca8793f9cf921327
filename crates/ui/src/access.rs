//! Rights to see the page: requests that another site or a proxy may have caused, logins, and the rights of a viewer.
//!
//! Without users, the page is for this machine alone. A name that an attacker's name server resolves to a loopback address,
//! or a proxy that forwards requests of others, would let anybody else look at it.

use std::future::pending;
use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, FORWARDED, HOST, HeaderName, HeaderValue, ORIGIN, REFERRER_POLICY,
    SET_COOKIE, VIA, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Response, StatusCode, Uri, Version};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::Ui;
use divvy_access::{Category, ClientIdentity, DEFAULT_USER, Given, LoginError};
use divvy_server::auth::Guard;
use divvy_server::http::page::{
    Answered, Problem, Refusal, Reply, RequestBody, RequestOrigin, body, check_category, check_origin, empty,
    host_in_uri, json, recognize, too_many_logins,
};
use divvy_server::sessions::{OpenSession, SessionKey};

/// Beginning of the paths with data.
const DATA: &str = "/ui/api/";

const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                              connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                              require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of all responses. No other site may embed, open or read anything of the page, and the page asks no other site.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (X_FRAME_OPTIONS, "DENY"),
];

/// Adds the headers to a response.
pub fn add_headers(uri: &Uri, headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if uri.path().starts_with(DATA) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Refuses requests that another site or a proxy may have caused.
///
/// # Errors
/// It is such a request.
pub fn check(ui: &Ui, head: &Parts) -> Result<(), Problem> {
    if ui.guard.is_none() {
        check_local(head.version, &head.uri, &head.headers)?;
    }
    // A link on another site may lead to the page, but not to its data.
    if head.uri.path().starts_with(DATA) { check_origin(&head.uri, &head.headers) } else { Ok(()) }
}

/// Beginning of the names of headers that proxies add.
const FORWARDING: &str = "x-forwarded-";
/// Other headers that proxies add.
const OF_PROXIES: [&str; 6] =
    ["x-real-ip", "x-client-ip", "client-ip", "true-client-ip", "cf-connecting-ip", "x-envoy-external-address"];

/// Checks that a request was sent on this machine, to one of its loopback names, without a proxy.
///
/// # Errors
/// The problem, and what to do about it.
fn check_local(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let is_of_proxy = |name: &HeaderName| {
        *name == FORWARDED
            || *name == VIA
            || name.as_str().starts_with(FORWARDING)
            || OF_PROXIES.contains(&name.as_str())
    };
    let mut hosts = headers.get_all(HOST).iter().map(|host| host.as_bytes()).chain(host_in_uri(uri)).peekable();
    // No browser has sent HTTP/1.0 for decades, but nginx does by default, with a loopback host and no header of its own.
    let reason = if version < Version::HTTP_11 || headers.keys().any(is_of_proxy) {
        "a proxy forwarded this request"
    } else if hosts.peek().is_none() || !hosts.all(is_local) {
        "this request names a host other than localhost, 127.0.0.1 or [::1]"
    } else {
        return Ok(());
    };
    let remedy = "without users, the page is for this machine alone: set --requirepass or --access-file";
    Err(Problem::new(StatusCode::FORBIDDEN, format!("{reason}; {remedy}")))
}

/// Returns whether this is a name of the loopback interface, with any port.
fn is_local(host: &[u8]) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let host = authority.host();
    // The parser accepts text after a bracket, as in `[::1]evil`.
    let port = authority.as_str().strip_prefix(host);
    if !port.is_some_and(|port| port.is_empty() || port.starts_with(':')) {
        return false;
    }
    let is_v4 = host.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_v6 = v6.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback()));
    !authority.as_str().contains('@') && (is_v4 || is_v6 || host.eq_ignore_ascii_case("localhost"))
}

/// The user who looks at the page.
#[derive(Debug, Clone)]
pub struct Viewer {
    identity: ClientIdentity,
    /// The session, unless the browser shows who it is with each request.
    session: Option<SessionKey>,
}

impl Viewer {
    /// Returns the name of the user; `None` if the server has no users of their own, so that all viewers share one account.
    pub fn account(&self, ui: &Ui) -> Option<&str> {
        ui.guard.as_ref().filter(|guard| guard.has_users).and_then(|_| self.identity.name())
    }

    /// Returns the user with the rights that it has now; `None` if it has lost the category. Records a use of its session.
    pub fn renew(&mut self, ui: &Ui, category: Category, now: Instant) -> Option<&ClientIdentity> {
        if let (Some(guard), Some(key)) = (&ui.guard, self.session) {
            self.identity = guard.sessions.as_ref()?.renew(key, &guard.authority, now)?.identity;
        } else if let Some(guard) = &ui.guard {
            guard.authority.refresh(&mut self.identity);
        }
        self.identity.may(category).is_ok().then_some(&self.identity)
    }
}

/// Returns the user of a request, and the session that it is of.
///
/// A stream cannot send a header, so a session's cookie is enough here. No route behind this changes anything but its own
/// session, and [`check`] refuses requests of other sites.
async fn recognize_viewer(
    guard: &Guard,
    head: &Parts,
    origin: &RequestOrigin,
) -> Result<(ClientIdentity, Option<OpenSession>), Refusal> {
    let mut session = None;
    let by_session = || {
        session = guard.sessions.as_ref()?.open(&guard.authority, &head.headers);
        session.as_ref().map(|session| session.identity.clone())
    };
    let identity = recognize(guard, &head.headers, origin, by_session).await?;
    Ok((identity, session))
}

/// Requires a viewer with this category.
///
/// # Errors
/// The client is not logged in, or lacks the category.
pub async fn admit(ui: &Ui, category: Category, head: &Parts, origin: &RequestOrigin) -> Result<Viewer, Problem> {
    let Some(guard) = &ui.guard else { return Ok(Viewer { identity: ClientIdentity::OPEN, session: None }) };
    let admitted = async {
        let (identity, session) = recognize_viewer(guard, head, origin).await?;
        check_category(guard, &identity, category)?;
        Ok(Viewer { identity, session: session.map(|session| session.key) })
    };
    admitted.await.map_err(|refusal: Refusal| refusal.describe(guard, true))
}

/// `GET /ui/api/session`: the user who looks at the page. Nobody has to be logged in for that.
pub async fn show(ui: &Ui, head: &Parts, origin: &RequestOrigin) -> Answered {
    let Some(guard) = &ui.guard else { return describe(ui, Some(&ClientIdentity::OPEN), None) };
    match recognize_viewer(guard, head, origin).await {
        Ok((identity, session)) => describe(ui, Some(&identity), session.map(|session| session.token).as_deref()),
        Err(_) => describe(ui, None, None),
    }
}

/// A user's name and password.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    user: Option<String>,
    password: String,
}

/// `POST /ui/api/login`: begins a session. Each login begins a new one, so an id that an attacker knows is worth nothing.
#[expect(clippy::disallowed_methods, reason = "when the session begins")]
pub async fn log_in(ui: &Ui, head: &Parts, body: RequestBody, origin: &RequestOrigin) -> Answered {
    let Some((guard, sessions)) = ui.guard.as_ref().and_then(|guard| Some((guard, guard.sessions.as_deref()?))) else {
        return Err(Problem::new(StatusCode::CONFLICT, "this server has no users, so nobody can log in"));
    };
    let body = body::read(&head.headers, body, ui.limits.max_body)?;
    let login: Login = body::parse(&body)?;
    let name = login.user.as_deref().unwrap_or(DEFAULT_USER).as_bytes();
    let given = Given::User { name, password: login.password.as_bytes() };
    // The server drops the request of a client that leaves.
    let identity = guard.log_in(&given, Some(origin.peer), pending()).await.map_err(|error| match error {
        LoginError::QueueFull => too_many_logins(),
        LoginError::Wrong | LoginError::ClientLeft => {
            Problem::unauthenticated("the user or the password is wrong", "a login of the page failed")
        }
    })?;
    sessions.end(&head.headers);
    let session = sessions.begin(identity.clone(), Instant::now());
    let session = session.map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    // Perhaps a proxy ends TLS.
    let is_over_tls = head.headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let mut response = describe(ui, Some(&identity), Some(&session.token))?;
    let cookie = sessions.set_cookie(&session, is_over_tls);
    response.headers_mut().extend(cookie.map(|cookie| (SET_COOKIE, cookie)));
    Ok(response)
}

/// `POST /ui/api/logout`: ends the session.
pub fn log_out(ui: &Ui, headers: &HeaderMap) -> Response<Reply> {
    let mut response = empty(StatusCode::NO_CONTENT);
    if let Some(sessions) = ui.guard.as_ref().and_then(|guard| guard.sessions.as_deref()) {
        sessions.end(headers);
        response.headers_mut().extend(sessions.clear_cookie().map(|cookie| (SET_COOKIE, cookie)));
    }
    response
}

/// Categories that change something. Without users, the page is read-only.
const CHANGES: [Category; 4] = [Category::Limits, Category::Block, Category::Forget, Category::Backup];

/// Describes the user, and the facts about the server that every page shows.
fn describe(ui: &Ui, identity: Option<&ClientIdentity>, token: Option<&str>) -> Answered {
    let has_users = ui.guard.is_some();
    let may = |category: &Category| {
        let is_left_out = !has_users && CHANGES.contains(category);
        !is_left_out && identity.is_some_and(|identity| identity.may(*category).is_ok())
    };
    let store = ui.limiter.store();
    json(&json!({
        "user": identity.and_then(ClientIdentity::name),
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
            "passwordOnly": ui.guard.as_ref().is_some_and(|guard| !guard.has_users),
            // Whether actors are ranked.
            "top": ui.limiter.ranks_actors(),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(uri: &'static str, pairs: &[(&'static str, &'static str)], version: Version) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        check_local(version, &Uri::from_static(uri), &headers).is_err()
    }

    #[test]
    fn only_names_of_the_loopback_interface_are_local() {
        for local in ["localhost", "LocalHost:8322", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:8322"] {
            assert!(is_local(local.as_bytes()), "{local}");
        }
        let names = "divvy.example localhost.evil.example 127.0.0.1.evil.example 128.0.0.1 0.0.0.0 127.1 0x7f.0.0.1 \
                     2130706433 [::] [::ffff:127.0.0.1] ::1 localhost@evil.example evil.example@localhost \
                     localhost:80:80 localhost/ localhost. [::1]evil [::1].evil.example";
        for other in names.split(' ').chain(["", "localhost "]) {
            assert!(!is_local(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn every_named_host_must_be_local() {
        for (uri, hosts, refused) in [
            ("/ui/", &[][..], true),
            ("http://localhost:8322/ui/", &[], false),
            ("http://evil.example/ui/", &["localhost"], true),
            ("http://localhost/ui/", &["evil.example"], true),
            ("/ui/", &["localhost", "evil.example"], true),
        ] {
            let pairs: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(is_refused(uri, &pairs, Version::HTTP_11), refused, "{uri} {hosts:?}");
        }
    }

    #[test]
    fn forwarded_requests_are_not_local() {
        let names = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-x"];
        for name in names.into_iter().chain(OF_PROXIES) {
            assert!(is_refused("/ui/", &[("host", "localhost"), (name, "127.0.0.1")], Version::HTTP_11), "{name}");
        }
        for (version, refused) in [(Version::HTTP_10, true), (Version::HTTP_11, false), (Version::HTTP_2, false)] {
            assert_eq!(is_refused("/ui/", &[("host", "localhost")], version), refused);
        }
    }
}
