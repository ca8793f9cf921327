//! The cookie of the live page's session, and the header with its token against cross-site requests.

use hyper::HeaderMap;
use hyper::header::{COOKIE, HeaderValue};
use tokio::time::Instant;

use crate::net::auth::Guard;
use crate::net::sessions::{MAX_AGE, NewSession, OpenSession, Sessions};

/// Header with the session's token. A page of another site cannot send it, because it needs the consent of this server.
pub const TOKEN: &str = "x-divvy-token";

/// Returns the session of a request that has the session's cookie and its token.
pub fn open_with_token(guard: &Guard, headers: &HeaderMap) -> Option<OpenSession> {
    // Without a token, no session is looked up.
    let token = single(headers.get_all(TOKEN).iter())?;
    open(guard, headers).filter(|session| session.has_token(token.as_bytes()))
}

/// Returns the session of a request that has the session's cookie. This is not enough for a request that changes anything.
#[expect(clippy::disallowed_methods, reason = "how long a session is unused")]
pub fn open(guard: &Guard, headers: &HeaderMap) -> Option<OpenSession> {
    let sessions = guard.sessions.as_deref()?;
    sessions.find(read_id(sessions, headers)?, &guard.authority, Instant::now())
}

/// Ends the session of a request, if it has one.
pub fn end(sessions: &Sessions, headers: &HeaderMap) {
    if let Some(id) = read_id(sessions, headers) {
        sessions.end(id);
    }
}

/// Returns the header that sets the cookie. `is_secure` says that the browser shows the page over TLS, perhaps through a
/// proxy.
pub fn set(sessions: &Sessions, session: &NewSession, is_secure: bool) -> Option<HeaderValue> {
    write(sessions, &session.id, MAX_AGE.as_secs(), is_secure)
}

/// Returns the header that removes the cookie.
pub fn clear(sessions: &Sessions) -> Option<HeaderValue> {
    write(sessions, "", 0, false)
}

fn write(sessions: &Sessions, id: &str, max_age: u64, is_secure: bool) -> Option<HeaderValue> {
    let secure = if is_secure || sessions.is_secure { "; Secure" } else { "" };
    let name = &sessions.cookie_name;
    let text = format!("{name}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age}{secure}");
    HeaderValue::try_from(text).ok()
}

/// Returns the id in the session's cookie. There is no id if several cookies have its name, because another site may have
/// set one of them.
fn read_id<'a>(sessions: &Sessions, headers: &'a HeaderMap) -> Option<&'a [u8]> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    single(pairs.filter_map(|pair| {
        let (name, value) = pair.trim_ascii().split_at_checked(sessions.cookie_name.len())?;
        if name == sessions.cookie_name.as_bytes() { value.strip_prefix(b"=") } else { None }
    }))
}

fn single<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    items.next().filter(|_| items.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sessions: &Sessions, cookies: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in cookies {
            headers.append(COOKIE, HeaderValue::from_static(value));
        }
        read_id(sessions, &headers).map(|id| id.escape_ascii().to_string())
    }

    #[test]
    fn id_is_read_from_the_only_cookie_with_the_name() {
        let plain = Sessions::new(8322, false, true);
        for (cookies, expected) in [
            (&["divvy_session_8322=abc"][..], Some("abc")),
            (&["a=b; divvy_session_8322=abc;c=d"], Some("abc")),
            (&["a=b", "divvy_session_8322=abc"], Some("abc")),
            (&["divvy_session_8322="], Some("")),
            (&["divvy_session_8322"], None),
            (&["divvy_session_83220=abc"], None),
            (&["Divvy_session=abc"], None),
            (&["__Host-divvy_session_8322=abc"], None),
            (&["divvy_session_8322=abc; divvy_session_8322=abc"], None),
            (&["divvy_session_8322=abc", "divvy_session_8322=d"], None),
            (&[""], None),
            (&[], None),
        ] {
            assert_eq!(id(&plain, cookies).as_deref(), expected, "{cookies:?}");
        }
        let secure = Sessions::new(8322, true, true);
        assert_eq!(id(&secure, &["divvy_session_8322=a; __Host-divvy_session_8322=b"]).as_deref(), Some("b"));
        assert_eq!(id(&secure, &["divvy_session_8322=a"]), None);
    }

    #[test]
    fn cookie_is_hidden_from_scripts_and_other_sites() {
        let session = NewSession { id: "abc".to_owned(), token: "def".into() };
        let (plain, secure) = (Sessions::new(8322, false, true), Sessions::new(8322, true, true));
        let rest = "HttpOnly; SameSite=Strict; Path=/; Max-Age=43200";
        assert_eq!(set(&plain, &session, false).unwrap(), format!("divvy_session_8322=abc; {rest}"));
        assert_eq!(set(&plain, &session, true).unwrap(), format!("divvy_session_8322=abc; {rest}; Secure"));
        assert_eq!(set(&secure, &session, false).unwrap(), format!("__Host-divvy_session_8322=abc; {rest}; Secure"));
        let cleared = "__Host-divvy_session_8322=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0; Secure";
        assert_eq!(clear(&secure).unwrap(), cleared);
    }
}
