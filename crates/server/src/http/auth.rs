//! Logins over HTTP and gRPC: a bearer token, a user and a password, or a client certificate; and the check of categories.

use std::future::pending;

use hyper::header::{AUTHORIZATION, COOKIE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, StatusCode};

use super::response::Problem;
use crate::net::auth::{Guard, RequestOrigin};
use crate::net::sessions::TOKEN;
use divvy_access::{Category, ClientIdentity, Forbidden, Given, LoginError};

/// Challenge for a client that has to send the password.
const PASSWORD_CHALLENGE: &str = "Bearer realm=\"divvy\"";

/// Reason for a refusal.
#[derive(Debug, Clone, Copy)]
pub enum Refusal {
    /// There are no credentials.
    Missing,
    /// The header is of an unknown kind, or there are two.
    Unreadable,
    /// The credentials are wrong.
    Wrong,
    /// The token for one actor is not valid.
    InvalidToken,
    /// The credentials were not verified, because too many others of the same address wait for this.
    TooManyLogins,
    /// The user lacks the category.
    Forbidden(Forbidden),
}

impl Refusal {
    /// Describes the refusal. `is_of_page` says that the live page sent the request: a browser ignores the page's challenge,
    /// and would otherwise ask for a password itself.
    pub fn describe(self, guard: &Guard, is_of_page: bool) -> Problem {
        let (detail, reason) = match self {
            Self::Missing => (
                "log in: send Authorization: Bearer PASSWORD_OR_TOKEN, or Basic with user and password",
                "the password is missing",
            ),
            Self::Unreadable => (
                "Authorization is unreadable: send it once, as Bearer PASSWORD_OR_TOKEN, or as Basic with user and password",
                "Authorization is unreadable",
            ),
            // This does not reveal whether the user exists.
            Self::Wrong => {
                ("the password, the token or the user is wrong, or the user is disabled", "the password is wrong")
            }
            // This does not reveal the reason.
            Self::InvalidToken => ("this token is not valid, or not anymore", "the token is not valid"),
            Self::TooManyLogins => return too_many_logins(),
            Self::Forbidden(forbidden) => return Problem::new(StatusCode::FORBIDDEN, describe(forbidden)),
        };
        let challenge = match self {
            _ if is_of_page => PASSWORD_CHALLENGE,
            Self::InvalidToken => "Bearer realm=\"divvy\", error=\"invalid_token\"",
            _ if guard.has_users => "Bearer realm=\"divvy\", Basic realm=\"divvy\", charset=\"UTF-8\"",
            _ => PASSWORD_CHALLENGE,
        };
        Problem::unauthenticated(detail, reason).with_header(WWW_AUTHENTICATE, HeaderValue::from_static(challenge))
    }
}

/// Returns whether the live page sent a request with these headers.
pub fn is_of_page(guard: &Guard, headers: &HeaderMap) -> bool {
    guard.sessions.is_some() && (headers.contains_key(COOKIE) || headers.contains_key(TOKEN))
}

/// Logs the client of a request in, and checks the category.
///
/// # Errors
/// [`Refusal`]
pub async fn admit(
    guard: &Guard,
    headers: &HeaderMap,
    origin: &RequestOrigin,
    category: Category,
) -> Result<(), Refusal> {
    if let Some(admitted) = origin.admitted.get() {
        return *admitted;
    }
    let by_session = || Some(guard.sessions.as_ref()?.open_with_token(&guard.authority, headers)?.identity);
    let admitted = recognize(guard, headers, origin, by_session).await.and_then(|identity| {
        let may = check_category(guard, &identity, category);
        // The audit log needs the name of a refused client, too.
        origin.identify(identity, &guard.authority, category);
        may
    });
    *origin.admitted.get_or_init(|| admitted)
}

/// Logs the client of a request in: by the header `Authorization`, or else by a session, or else by a certificate.
///
/// # Errors
/// The credentials are missing or wrong.
pub async fn recognize(
    guard: &Guard,
    headers: &HeaderMap,
    origin: &RequestOrigin,
    by_session: impl FnOnce() -> Option<ClientIdentity>,
) -> Result<ClientIdentity, Refusal> {
    let (authority, peer) = (&guard.authority, Some(origin.peer));
    let authorization = Authorization::read(headers);
    match authorization {
        Authorization::Missing => {
            let by_certificate = || authority.by_certificate(origin.certificate.as_ref()?);
            return by_session().or_else(by_certificate).ok_or(Refusal::Missing);
        }
        Authorization::Token(token) if authority.is_actor_token(token) => {
            return Box::pin(guard.verify_actor_token(token, peer)).await.ok_or(Refusal::InvalidToken);
        }
        _ => {}
    }
    let given = authorization.given().ok_or(Refusal::Unreadable)?;
    if let Some(identity) = authority.recall(&given) {
        return Ok(identity);
    }
    // Boxed: each request's future would otherwise include its size. The server drops the request of a client that leaves.
    match Box::pin(guard.log_in(&given, peer, pending())).await {
        Ok(identity) => Ok(identity),
        Err(LoginError::QueueFull) => Err(Refusal::TooManyLogins),
        Err(LoginError::Wrong | LoginError::ClientLeft) => Err(Refusal::Wrong),
    }
}

/// Checks that the client may send a request of this category. Counts a client that may not.
///
/// # Errors
/// The client lacks the category.
pub fn check_category(guard: &Guard, identity: &ClientIdentity, category: Category) -> Result<(), Refusal> {
    identity.may(category).map_err(|forbidden| {
        guard.count_forbidden();
        Refusal::Forbidden(forbidden)
    })
}

/// Returns the answer to a login that found no place in the queue.
pub fn too_many_logins() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, LoginError::QueueFull.to_string()).with_retry()
}

/// Describes for a client why its request was refused.
pub fn describe(Forbidden(category): Forbidden) -> String {
    format!("this user has no permission for requests of the category {category}")
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
            (&["bearer  a:b "][..], "a:b"),
            (&["Bearer "], ""),
            (&["BASIC YW5uOmE6Yg=="], "ann a:b"),
            (&["Basic YW5u"], "-"),
            (&["Bearer abc", ""], "-"),
        ] {
            assert_eq!(read(values), expected, "{values:?}");
        }
    }
}
