//! Logins over HTTP and gRPC: a bearer token, a user and a password, or a client certificate; and the check of categories.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, COOKIE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error_counts::ErrorCount;
use super::problem::Problem;
use super::session_cookie::{self, TOKEN};
use crate::net::auth::Guard;
use crate::net::origin;
use divvy_access::{Category, Forbidden, Given, Identity, LoginError};

/// Challenge for a client that has to send the password.
const PASSWORD_CHALLENGE: &str = "Bearer realm=\"divvy\"";

/// Returns a body of a response to a client whose credentials do not suffice (RFC 9457).
macro_rules! problem {
    ($detail:literal) => {
        concat!("{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,\"detail\":\"", $detail, "\"}\n")
    };
}

const PASSWORD_MISSING: &str = problem!("a password is required: send Authorization: Bearer PASSWORD");
const PASSWORD_UNREADABLE: &str = problem!("Authorization is unreadable: send it once, as Bearer PASSWORD");
const PASSWORD_WRONG: &str = problem!("the password is wrong");

const USER_MISSING: &str =
    problem!("a user is required: send Authorization: Bearer TOKEN, or Basic with user and password");
const USER_UNREADABLE: &str =
    problem!("Authorization is unreadable: send it once, as Bearer TOKEN, or as Basic with user and password");
/// It does not reveal whether the user exists.
const USER_WRONG: &str = problem!("the token, the user or the password is wrong, or the user is disabled");

/// It does not reveal the reason.
const TOKEN_INVALID: &str = problem!("this token is not valid, or not anymore");

/// Middleware that requires a user with this category.
pub async fn check(State((guard, category)): State<(Arc<Guard>, Category)>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let is_of_page = guard.sessions().is_some() && (headers.contains_key(COOKIE) || headers.contains_key(TOKEN));
    let mut response = match admit(&guard, headers, peer(&request), category).await {
        Ok(()) => next.run(request).await,
        Err(refusal) if is_of_page => refuse_page(&guard, refusal),
        Err(refusal) => refuse(&guard, refusal),
    };
    if is_of_page {
        // A browser must keep nothing that the session's user may read.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Returns the response to a refused request of the live page. A browser ignores its challenge, and would otherwise ask for
/// a password itself.
pub fn refuse_page(guard: &Guard, refusal: Refusal) -> Response {
    let mut response = refuse(guard, refusal);
    if let Some(challenge) = response.headers_mut().get_mut(WWW_AUTHENTICATE) {
        *challenge = HeaderValue::from_static(PASSWORD_CHALLENGE);
    }
    response
}

/// Returns the response to a refused client.
fn refuse(guard: &Guard, refusal: Refusal) -> Response {
    match refusal {
        Refusal::Unauthenticated(lack) => unauthenticated(guard, lack),
        Refusal::InvalidToken => invalid_token(),
        Refusal::TooManyLogins => too_many_logins().into_response(),
        Refusal::Forbidden(forbidden) => Problem::new(StatusCode::FORBIDDEN, describe(forbidden)).into_response(),
    }
}

/// Reason for a refusal.
pub enum Refusal {
    /// There are no credentials that suffice.
    Unauthenticated(Lack),
    /// The token for one actor is not valid.
    InvalidToken,
    /// The credentials were not verified, because too many others of the same address wait for this.
    TooManyLogins,
    /// The user lacks the category.
    Forbidden(Forbidden),
}

/// Reason why a client could not be logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// It sent no credentials.
    Missing,
    /// Its header is of an unknown kind, or there are two.
    Unreadable,
    /// Its credentials are wrong.
    Wrong,
}

/// Logs the client of a request in, and checks the category.
///
/// # Errors
/// [`Refusal`]
pub async fn admit(
    guard: &Guard,
    headers: &HeaderMap,
    peer: Option<SocketAddr>,
    category: Category,
) -> Result<(), Refusal> {
    let by_session = || session_cookie::open_with_token(guard, headers).map(|session| session.identity);
    let identity = recognize(guard, headers, peer, by_session).await?;
    let may = check_category(guard, &identity, category);
    // The audit log needs the name of a refused client, too.
    origin::identify(identity, guard.authority(), category);
    may
}

/// Logs the client of a request in: by the header `Authorization`, or else by a session, or else by a certificate.
///
/// # Errors
/// The credentials are missing or wrong.
pub async fn recognize(
    guard: &Guard,
    headers: &HeaderMap,
    peer: Option<SocketAddr>,
    by_session: impl FnOnce() -> Option<Identity>,
) -> Result<Identity, Refusal> {
    let known = match Authorization::read(headers) {
        Authorization::Missing => by_session().or_else(|| by_certificate(guard)).ok_or(Lack::Missing),
        Authorization::Unusable => Err(Lack::Unreadable),
        Authorization::Token(token) if guard.authority().is_actor_token(token) => {
            Ok(guard.verify_actor_token(token, peer).await.ok_or(Refusal::InvalidToken)?)
        }
        authorization => match authorization.given() {
            // The server drops the request of a client that leaves.
            Some(given) => match guard.log_in(&given, peer, pending()).await {
                Ok(identity) => Ok(identity),
                Err(LoginError::QueueFull) => return Err(Refusal::TooManyLogins),
                Err(LoginError::Wrong | LoginError::ClientLeft) => Err(Lack::Wrong),
            },
            None => Err(Lack::Unreadable),
        },
    };
    known.map_err(Refusal::Unauthenticated)
}

/// Checks that the client may send a request of this category. Counts a client that may not.
///
/// # Errors
/// The client lacks the category.
pub fn check_category(guard: &Guard, identity: &Identity, category: Category) -> Result<(), Refusal> {
    identity.may(category).map_err(|forbidden| {
        guard.count_forbidden();
        Refusal::Forbidden(forbidden)
    })
}

/// Returns whether the client may send a request of this category, or the route is open. Verifies nothing new, and counts
/// and logs nothing, because the router does that.
pub fn lets_in(guard: Option<&Guard>, headers: &HeaderMap, category: Category) -> bool {
    let Some(guard) = guard else { return true };
    let identity = match Authorization::read(headers) {
        Authorization::Missing => by_certificate(guard),
        authorization => authorization.given().and_then(|given| guard.authority().recall(&given)),
    };
    let Some(identity) = identity.filter(|identity| identity.may(category).is_ok()) else { return false };
    origin::identify(identity, guard.authority(), category);
    true
}

/// Returns the address of the client.
pub fn peer(request: &Request) -> Option<SocketAddr> {
    request.extensions().get().map(|ConnectInfo(peer)| *peer)
}

/// Returns the response to a client whose credentials do not suffice.
pub fn unauthenticated(guard: &Guard, lack: Lack) -> Response {
    let problem = match (guard.has_users(), lack) {
        (false, Lack::Missing) => PASSWORD_MISSING,
        (false, Lack::Unreadable) => PASSWORD_UNREADABLE,
        (false, Lack::Wrong) => PASSWORD_WRONG,
        (true, Lack::Missing) => USER_MISSING,
        (true, Lack::Unreadable) => USER_UNREADABLE,
        (true, Lack::Wrong) => USER_WRONG,
    };
    let challenge = match guard.has_users() {
        false => PASSWORD_CHALLENGE,
        true => "Bearer realm=\"divvy\", Basic realm=\"divvy\", charset=\"UTF-8\"",
    };
    let reason = match lack {
        Lack::Missing => "the password is missing",
        Lack::Unreadable => "Authorization is unreadable",
        Lack::Wrong => "the password is wrong",
    };
    challenge_client(challenge, problem, reason)
}

/// Returns the answer to a login that found no place in the queue.
pub fn too_many_logins() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, LoginError::QueueFull.to_string()).with_retry()
}

/// Returns the response to a client whose token for one actor is not valid.
pub fn invalid_token() -> Response {
    challenge_client("Bearer realm=\"divvy\", error=\"invalid_token\"", TOKEN_INVALID, "the token is not valid")
}

fn challenge_client(challenge: &'static str, problem: &'static str, reason: &'static str) -> Response {
    let headers = [(WWW_AUTHENTICATE, challenge), (CONTENT_TYPE, "application/problem+json")];
    (StatusCode::UNAUTHORIZED, Extension(ErrorCount::unauthenticated(reason)), headers, problem).into_response()
}

/// Describes for a client why its request was refused.
pub fn describe(Forbidden(category): Forbidden) -> String {
    format!("this user has no permission for requests of the category {category}")
}

fn by_certificate(guard: &Guard) -> Option<Identity> {
    origin::certificate().and_then(|name| guard.authority().by_certificate(&name))
}

/// The header `Authorization`.
enum Authorization<'a> {
    Missing,
    Token(&'a [u8]),
    /// Name and password, with a colon between them.
    Basic(Vec<u8>),
    /// Of an unknown kind, or there are two such headers: a proxy may have checked the other one.
    Unusable,
}

impl<'a> Authorization<'a> {
    fn read(headers: &'a HeaderMap) -> Self {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let value = match (given.next(), given.next()) {
            (None, _) => return Self::Missing,
            (Some(value), None) => value.as_bytes(),
            (Some(_), Some(_)) => return Self::Unusable,
        };
        if let Some(token) = after_scheme(value, b"Bearer ") {
            return Self::Token(token);
        }
        match after_scheme(value, b"Basic ").map(|text| base64_simd::STANDARD.decode_to_vec(text)) {
            Some(Ok(pair)) => Self::Basic(pair),
            _ => Self::Unusable,
        }
    }

    fn given(&self) -> Option<Given<'_>> {
        match self {
            Self::Token(token) => Some(Given::Token(token)),
            Self::Basic(pair) => {
                let (name, rest) = pair.split_at_checked(pair.iter().position(|&byte| byte == b':')?)?;
                Some(Given::User { name, password: rest.strip_prefix(b":")? })
            }
            Self::Missing | Self::Unusable => None,
        }
    }
}

/// Returns the text after the scheme, in any case.
fn after_scheme<'a>(value: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (given, rest) = value.split_at_checked(scheme.len())?;
    given.eq_ignore_ascii_case(scheme).then(|| rest.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        match Authorization::read(&headers).given() {
            Some(Given::User { name, password }) => format!("{} {}", name.escape_ascii(), password.escape_ascii()),
            Some(Given::Token(token)) => token.escape_ascii().to_string(),
            Some(Given::Password(_)) => unreachable!(),
            None => "-".to_owned(),
        }
    }

    #[test]
    fn header_has_a_token_or_a_user_and_a_password() {
        for (values, expected) in [
            (&["Bearer abc"][..], "abc"),
            (&["bearer  a:b "], "a:b"),
            (&["Bearer "], ""),
            (&["Basic YW5uOmE6Yg=="], "ann a:b"),
            (&["BASIC Og=="], " "),
            (&["Basic YW5u"], "-"),
            (&["Basic YW5uOmE6Yg"], "-"),
            (&["Basic !"], "-"),
            (&["Digest abc"], "-"),
            (&["Bearer"], "-"),
            (&[""], "-"),
            (&[], "-"),
            (&["Bearer abc", "Bearer abc"], "-"),
            (&["Bearer abc", ""], "-"),
        ] {
            assert_eq!(read(values), expected, "{values:?}");
        }
    }
}
