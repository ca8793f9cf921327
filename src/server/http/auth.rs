//! Logins over HTTP and gRPC: a bearer token, a user and a password, or a client certificate; and the check of categories.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error_counts::ErrorCount;
use super::problem::Problem;
use crate::access::{Category, Forbidden, Given, Identity, LoginError};
use crate::server::net::auth::Guard;
use crate::server::net::origin;

/// Response to a client without the password (RFC 9457).
const PASSWORD_NEEDED: &str = "{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,\
                               \"detail\":\"a password is required: send Authorization: Bearer PASSWORD\"}\n";
/// Response to a client without a user.
const USER_NEEDED: &str = "{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,\
                           \"detail\":\"a user is required: send Authorization: Bearer TOKEN, or Basic with user and \
                           password\"}\n";

/// Response to a client with an invalid token for one actor. It does not reveal the reason.
const VALID_TOKEN_NEEDED: &str = "{\"type\":\"about:blank\",\"title\":\"Unauthorized\",\"status\":401,\
                                  \"detail\":\"this token is not valid, or not anymore\"}\n";

/// Middleware that requires a user with this category.
pub async fn check(State((guard, category)): State<(Arc<Guard>, Category)>, request: Request, next: Next) -> Response {
    match admit(&guard, request.headers(), peer(&request), category).await {
        Ok(()) => next.run(request).await,
        Err(Refusal::Unauthenticated) => unauthenticated(&guard),
        Err(Refusal::InvalidToken) => invalid_token(),
        Err(Refusal::TooManyLogins) => {
            let detail = LoginError::QueueFull.to_string();
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).with_retry().into_response()
        }
        Err(Refusal::Forbidden(forbidden)) => Problem::new(StatusCode::FORBIDDEN, describe(forbidden)).into_response(),
    }
}

/// Reason for a refusal.
pub enum Refusal {
    /// The credentials are missing or wrong.
    Unauthenticated,
    /// The token for one actor is not valid.
    InvalidToken,
    /// The credentials were not verified, because too many others of the same address wait for this.
    TooManyLogins,
    /// The user lacks the category.
    Forbidden(Forbidden),
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
    let known = match Authorization::read(headers) {
        Authorization::Missing => by_certificate(guard),
        Authorization::Unusable => None,
        Authorization::Token(token) if guard.authority().is_actor_token(token) => {
            Some(guard.verify_actor_token(token, peer).await.ok_or(Refusal::InvalidToken)?)
        }
        authorization => match authorization.given() {
            // The server drops the request of a client that leaves.
            Some(given) => match guard.log_in(&given, peer, pending()).await {
                Ok(identity) => Some(identity),
                Err(LoginError::QueueFull) => return Err(Refusal::TooManyLogins),
                Err(LoginError::Wrong | LoginError::ClientLeft) => None,
            },
            None => None,
        },
    };
    let identity = known.ok_or(Refusal::Unauthenticated)?;
    let may = identity.may(category);
    // The audit log needs the name of a refused client, too.
    origin::identify(identity, guard.authority(), category);
    may.map_err(|forbidden| {
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

/// Returns the response to a client whose credentials are missing or wrong.
pub fn unauthenticated(guard: &Guard) -> Response {
    let (challenge, problem) = match guard.has_users() {
        false => ("Bearer realm=\"divvy\"", PASSWORD_NEEDED),
        true => ("Bearer realm=\"divvy\", Basic realm=\"divvy\", charset=\"UTF-8\"", USER_NEEDED),
    };
    challenge_client(challenge, problem)
}

/// Returns the response to a client whose token for one actor is not valid.
pub fn invalid_token() -> Response {
    challenge_client("Bearer realm=\"divvy\", error=\"invalid_token\"", VALID_TOKEN_NEEDED)
}

fn challenge_client(challenge: &'static str, problem: &'static str) -> Response {
    let headers = [(WWW_AUTHENTICATE, challenge), (CONTENT_TYPE, "application/problem+json")];
    (StatusCode::UNAUTHORIZED, Extension(ErrorCount::Unauthenticated), headers, problem).into_response()
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
