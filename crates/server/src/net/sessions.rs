//! Sessions of the live page: who a browser is, from its login until its logout; and the cookie of a session, and the header with
//! its token against cross-site requests.
//!
//! A session also ends when it is idle or old, and when its user is gone or has other credentials, even if they come back before the
//! session is used again.
//! Memory contains hashes of the session ids, so it reveals none. Only a successful login begins a session, and each user
//! has only a few.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{COOKIE, HeaderValue};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use divvy_access::{Authority, ClientIdentity, Digest};

/// Maximum number of sessions. Beyond, a login ends the session that was unused for the longest time.
const MAX_SESSIONS: usize = 1_024;
/// Maximum number of sessions of one user, who may be all people with the server's password. Beyond, a login ends the user's
/// session that was unused for the longest time.
const MAX_PER_USER: usize = 64;
/// Time without a request after which a session ends. An open stream counts as requests.
const MAX_IDLE: Duration = Duration::from_mins(30);
/// Time after which a session ends in any case.
pub const MAX_AGE: Duration = Duration::from_hours(12);
/// Bytes of a session id, and of a token against cross-site requests.
const SECRET_BYTES: usize = 32;
/// Length of such a secret as text.
const SECRET_TEXT: usize = (SECRET_BYTES * 8).div_ceil(6);

/// Beginning of the cookie's name. The port of the listener follows, because browsers send a cookie to all ports of a host.
const COOKIE_NAME: &str = "divvy_session_";
/// Beginning of the cookie's name over TLS. Browsers accept this prefix only from the host itself, over TLS.
const SECURE_COOKIE_NAME: &str = "__Host-divvy_session_";

/// Header with the session's token. A page of another site cannot send it, because it needs the consent of this server.
pub const TOKEN: &str = "x-divvy-token";

/// The sessions of a server.
#[derive(Debug)]
pub struct Sessions {
    /// Whether all browsers connect over TLS.
    pub is_secure: bool,
    /// Name of the cookie with the id of a session.
    pub cookie_name: String,
    sessions: Mutex<HashMap<SessionKey, Session>>,
}

/// Hash of a session's id, which names the session within the server.
pub type SessionKey = Digest;

#[derive(Debug)]
struct Session {
    identity: ClientIdentity,
    /// Since when its user is on and has the credential.
    login_since: Option<u64>,
    token: Arc<str>,
    begun: Instant,
    used: Instant,
}

/// A session that has just begun.
#[derive(Debug)]
pub struct NewSession {
    /// The secret of the cookie.
    pub id: String,
    /// The token against cross-site requests.
    pub token: Arc<str>,
}

/// A session in use.
#[derive(Debug)]
pub struct OpenSession {
    /// The key of the session within the server.
    pub key: SessionKey,
    /// The user with its current rights.
    pub identity: ClientIdentity,
    /// The token against cross-site requests.
    pub token: Arc<str>,
}

impl Sessions {
    /// Creates the sessions of the listener with this port. `is_secure` says that all browsers connect over TLS.
    pub fn new(port: u16, is_secure: bool) -> Self {
        let prefix = if is_secure { SECURE_COOKIE_NAME } else { COOKIE_NAME };
        Self { is_secure, cookie_name: format!("{prefix}{port}"), sessions: Mutex::default() }
    }

    /// Begins a session of a user who has logged in.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn begin(&self, identity: ClientIdentity, now: Instant) -> Result<NewSession, getrandom::Error> {
        let (id, token) = (new_secret()?, Arc::<str>::from(new_secret()?));
        let mut open = self.sessions.lock();
        open.retain(|_, session| !session.has_ended(now));
        let is_own = |session: &Session| session.identity.name() == identity.name();
        if open.values().filter(|session| is_own(session)).count() >= MAX_PER_USER {
            end_least_used(&mut open, is_own);
        }
        if open.len() >= MAX_SESSIONS {
            end_least_used(&mut open, |_| true);
        }
        let login_since = identity.login_since();
        let session = Session { identity, login_since, token: Arc::clone(&token), begun: now, used: now };
        open.insert(SessionKey::of(id.as_bytes()), session);
        Ok(NewSession { id, token })
    }

    /// Returns the session of a request that has the session's cookie and its token.
    pub fn open_with_token(&self, authority: &Authority, headers: &HeaderMap) -> Option<OpenSession> {
        // Without a token, no session is looked up.
        let token = single(headers.get_all(TOKEN).iter())?;
        self.open(authority, headers).filter(|session| session.has_token(token.as_bytes()))
    }

    /// Returns the session of a request that has the session's cookie. This is not enough for a request that changes anything.
    #[expect(clippy::disallowed_methods, reason = "how long a session is unused")]
    pub fn open(&self, authority: &Authority, headers: &HeaderMap) -> Option<OpenSession> {
        self.find(self.read_id(headers)?, authority, Instant::now())
    }

    /// Returns the session with this id, and records its use.
    fn find(&self, id: &[u8], authority: &Authority, now: Instant) -> Option<OpenSession> {
        // No other text is an id. A hash of a long one would be work for nothing.
        if id.len() != SECRET_TEXT {
            return None;
        }
        self.renew(SessionKey::of(id), authority, now)
    }

    /// Returns the session with this key if it has not ended, and records its use.
    pub fn renew(&self, key: SessionKey, authority: &Authority, now: Instant) -> Option<OpenSession> {
        let mut open = self.sessions.lock();
        let session = open.get_mut(&key)?;
        authority.refresh(&mut session.identity);
        let is_same_login = session.identity.login_since() == session.login_since;
        if session.has_ended(now) || !session.identity.is_admitted() || !is_same_login {
            open.remove(&key);
            return None;
        }
        session.used = now;
        Some(OpenSession { key, identity: session.identity.clone(), token: Arc::clone(&session.token) })
    }

    /// Ends the session of a request, if it has one.
    pub fn end(&self, headers: &HeaderMap) {
        if let Some(id) = self.read_id(headers) {
            self.sessions.lock().remove(&SessionKey::of(id));
        }
    }

    /// Returns the header that sets the cookie. `is_secure` says that the browser shows the page over TLS, perhaps through a
    /// proxy.
    pub fn set_cookie(&self, session: &NewSession, is_secure: bool) -> Option<HeaderValue> {
        self.write_cookie(&session.id, MAX_AGE.as_secs(), is_secure)
    }

    /// Returns the header that removes the cookie.
    pub fn clear_cookie(&self) -> Option<HeaderValue> {
        self.write_cookie("", 0, false)
    }

    fn write_cookie(&self, id: &str, max_age: u64, is_secure: bool) -> Option<HeaderValue> {
        let (name, secure) = (&self.cookie_name, if is_secure || self.is_secure { "; Secure" } else { "" });
        let text = format!("{name}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={max_age}{secure}");
        HeaderValue::try_from(text).ok()
    }

    /// Returns the id in the session's cookie. There is no id if several cookies have its name, because another site may have
    /// set one of them.
    fn read_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a [u8]> {
        let pairs = headers.get_all(COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
        single(pairs.filter_map(|pair| {
            let (name, value) = pair.trim_ascii().split_at_checked(self.cookie_name.len())?;
            if name == self.cookie_name.as_bytes() { value.strip_prefix(b"=") } else { None }
        }))
    }
}

fn single<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    items.next().filter(|_| items.next().is_none())
}

impl Session {
    fn has_ended(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) >= MAX_IDLE || now.saturating_duration_since(self.begun) >= MAX_AGE
    }
}

impl OpenSession {
    /// Returns whether this is the token of the session. The time does not depend on the part that is right.
    pub fn has_token(&self, token: &[u8]) -> bool {
        self.token.as_bytes().ct_eq(token).into()
    }
}

fn end_least_used(open: &mut HashMap<SessionKey, Session>, may_end: impl Fn(&Session) -> bool) {
    let candidates = open.iter().filter(|(_, session)| may_end(session));
    if let Some(key) = candidates.min_by_key(|(_, session)| session.used).map(|(key, _)| *key) {
        open.remove(&key);
    }
}

/// Returns random bytes as text that a cookie and a header can carry.
fn new_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::getrandom(&mut bytes)?;
    Ok(base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes))
}

#[cfg(test)]
mod tests;
